-- Every error: SQLSTATE, message, hint. Some are only warnings where fetchq.strict is off.
\pset format unaligned
\pset tuples_only on
select was_created from fetchq.queue_create('rq_err');
select fetchq.doc_push('rq_err', 's1');
set fetchq.compat = '4.2.0';

-- NULL for every argument of every function; the other arguments are valid.
set client_min_messages = error;
-- What a call changes that is accepted is undone.
create function test.undone(command text) returns text language plpgsql as $$
begin
    raise exception using errcode = 'P9999', message = test.error(command);
exception when sqlstate 'P9999' then
    return sqlerrm;
end $$;
select p.proname || '(' || string_agg(p.proargnames[i] || ' ' || format_type(p.proargtypes[i - 1], null), ', ' order by i) || ') ' || p.proargnames[n] || ': '
    || test.undone(format('select * from fetchq.%I(%s)', p.proname, string_agg(
        case when i = n then 'null::' || format_type(p.proargtypes[i - 1], null)
            else test.value(p.proargnames[i], format_type(p.proargtypes[i - 1], null)) end, ', ' order by i)))
from pg_proc p, generate_series(1, p.pronargs) n, generate_series(1, p.pronargs) i
where p.pronamespace = 'fetchq'::regnamespace and p.prokind = 'f'
group by p.oid, p.proname, p.proargnames, p.pronargs, p.proargtypes, n
order by p.proname collate "C", p.pronargs, oidvectortypes(p.proargtypes) collate "C", n;
drop function test.undone(text);
reset client_min_messages;
select count(*) from fetchq_data.rq_err__docs where subject <> 's1';
select count(*) from fetchq_data.rq_err__logs where subject <> 'absent';
select metric from fetchq.metric_get('rq_err');

-- Values that clients of fetchq 4 rely on cause a warning that names the cause …
select fetchq.doc_push('rq_nope', 's1');
select fetchq.doc_push('rq_nope', 0, now(), $$('a', 0, '{}', {DATA})$$);
select fetchq.doc_append('rq_nope', '{}') is null;
select * from fetchq.doc_upsert('rq_nope', 's1', 0, 0, now(), '{}');
select count(*) from fetchq.doc_pick('rq_nope');
select fetchq.doc_complete('rq_nope', 's1');
select fetchq.doc_complete('rq_err', 's1');
select fetchq.log_error('rq_nope', 's1', 'm', '{}');
select * from fetchq.queue_drop('rq_nope');
-- … and without the compatibility they cause an error with the same text.
reset fetchq.compat;
select test.error(c) from unnest(array[
    $$select fetchq.doc_push('rq_nope', 's1')$$, $$select fetchq.doc_push('rq_nope', 's1', 0, 0, now(), '{}')$$,
    $$select fetchq.doc_push('rq_nope', 0, now(), '(''a'', 0, ''{}'', {DATA})')$$,
    $$select fetchq.doc_append('rq_nope', '{}')$$, $$select fetchq.doc_upsert('rq_nope', 's1', 0, 0, now(), '{}')$$,
    $$select fetchq.doc_pick('rq_nope')$$, $$select fetchq.doc_complete('rq_nope', 's1')$$,
    $$select fetchq.doc_complete('rq_err', 's1')$$, $$select fetchq.doc_complete('rq_err', 'absent')$$,
    $$select fetchq.log_error('rq_nope', 's1', 'm', '{}')$$, $$select fetchq.queue_drop('rq_nope')$$, $$select fetchq.queue_get_id('rq_nope')$$,
    $$select fetchq.queue_set_max_attempts('rq_nope', 1)$$, $$select fetchq.metric_snap('rq_nope')$$]) c;
-- Calls that cause no warning cause no error either.
select fetchq.doc_push('rq_err', 's1');
select count(*) from fetchq.doc_pick('rq_err', 99, 1, '5m');
select count(*) from fetchq.metric_get('rq_nope');

-- Invalid values of settings.
select test.error('set fetchq.strict = 7');
select test.error('set fetchq.legacy_quotes = often');
select test.error($$set fetchq.compat = '4.3.0'$$);
select test.error('set fetchq.plan_cache_queues = 0');

-- Invalid JSON and invalid times: the errors of PostgreSQL.
select test.error($$select fetchq.doc_push('rq_err', 'x', 'not json')$$);
select test.error($$select fetchq.doc_push('rq_err', 'x', 0, 0, 'whenever', '{}')$$);
select test.error($$select fetchq.trace('s1', 'sideways')$$);

-- Where writing is impossible, the error explains it; reading works.
begin read only;
select test.error($$select fetchq.doc_push('rq_err', 'x')$$);
select test.error($$select fetchq.doc_pick('rq_err')$$);
select test.error($$select fetchq.queue_create('rq_err2')$$);
select test.error($$select fetchq.mnt()$$);
select test.error($$select fetchq.metric_log_pack()$$);
select metric, current_value from fetchq.metric_get('rq_err') order by metric;
select * from fetchq.metric_compute('rq_err');
select subject from fetchq.queue_top('rq_err', 0, 10, 0);
select name from fetchq.queue_status();
select queue, type from fetchq.trace('s1');
select version from fetchq.info();
commit;

-- A set-returning function where none is allowed.
select test.error($$select * from generate_series(1, 2) where fetchq.doc_pick('rq_err') is not null$$);
-- Trigger functions called as functions, or attached wrongly.
select test.error('select fetchq.trigger_docs_notify()');
create table test.t (x int);
create trigger wrong after insert on test.t for each statement execute function fetchq.trigger_docs_notify();
select test.error('insert into test.t values (1)');
drop trigger wrong on test.t;
create trigger wrong after insert on test.t for each statement execute function fetchq.trigger_notify_as_json();
select test.error('insert into test.t values (1)');
drop trigger wrong on test.t;
create trigger wrong after insert on test.t for each row execute function fetchq.trigger_docs_notify('rq_err');
select test.error('insert into test.t values (1)');
drop table test.t;
select was_dropped from fetchq.queue_drop('rq_err');
