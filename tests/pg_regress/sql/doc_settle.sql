-- What every call that settles one document has in common, and what is special to some. Completing,
-- killing and rescheduling end the iteration: iterations grow by 1, attempts become 0. Dropping removes
-- the document. Rejecting keeps the attempts, and logs the failure. Snoozing takes the attempt back.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_settle');
create table test.verbs (n int, verb text, arguments text, all_arguments text, no_payload text);
insert into test.verbs values
    (1, 'complete', '', $$, '{"p": 1}'$$, ', null'),
    (2, 'kill', '', $$, '{"p": 1}'$$, ', null'),
    (3, 'drop', '', '', null),
    (4, 'reject', $$, 'no', '{}'$$, $$, 'why not', '{"d": 1}', 'ref'$$, null),
    (5, 'reschedule', $$, '2970-01-01'$$, $$, '2020-01-01', '{"p": 1}'$$, $$, '2970-01-01', null$$),
    (6, 'snooze', $$, '2970-01-01'$$, $$, '2020-01-01'$$, null);
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_settle');
    perform fetchq.doc_push('rq_settle', 'active', jsonb_build_object('n', 1), '2020-01-01');
    perform fetchq.doc_pick('rq_settle', 0, 1, '1h');
    perform fetchq.doc_push('rq_settle', 'planned', jsonb_build_object('n', 2), '2970-01-01');
    perform fetchq.doc_push('rq_settle', 'pending', jsonb_build_object('n', 3), '2020-01-01');
    perform fetchq.doc_upsert('rq_settle', 'done', 0, 9, '2020-01-01', jsonb_build_object('n', 4));
    perform fetchq.doc_pick('rq_settle', 0, 1, '1h');
    perform fetchq.doc_complete('rq_settle', 'done');
    perform fetchq.doc_upsert('rq_settle', 'dead', 0, 9, '2020-01-01', jsonb_build_object('n', 5));
    perform fetchq.doc_pick('rq_settle', 0, 1, '1h');
    perform fetchq.doc_kill('rq_settle', 'dead');
end $$;
create view test.docs as
select subject, status, attempts, iterations, last_iteration = now() as last_now,
    case when next_iteration = now() + interval '1 hour' then 'end of lease' else (next_iteration at time zone 'UTC')::text end as next, payload
from fetchq_data.rq_settle__docs order by subject;
create function test.call(verb text, subject text, arguments text, queue text default 'rq_settle') returns text
language sql as $$ select format('fetchq.doc_%s(%L, %L%s)', verb, queue, subject, arguments) $$;
-- Settles a document, and tells the number of settled documents, the document, and the counters.
create function test.settles(verb text, subject text, arguments text, queue text default 'rq_settle') returns text language plpgsql as $$
declare
    n int;
begin
    execute 'select affected_rows from ' || test.call($1, $2, $3, $4) into n;
    return format('%s %s, counted %s', n, (select d from test.docs d where d.subject = $2), test.delta('rq_settle'));
end $$;
create function test.walk(of test.verbs) returns table (step text, result text) language plpgsql as $$
declare
    s text;
begin
    perform test.fill();
    return query select 'a document', d::text from test.docs d;
    return query select 'counted', test.delta('rq_settle');
    return query select 'settles', test.settles(of.verb, 'active', of.arguments);
    return query select 'a second call settles nothing', test.settles(of.verb, 'active', of.arguments);
    perform test.fill(), test.delta('rq_settle');
    return query select 'all arguments', test.settles(of.verb, 'active', of.all_arguments);
    if of.no_payload is not null then
        perform test.fill(), test.delta('rq_settle');
        return query select 'a payload of NULL stays', test.settles(of.verb, 'active', of.no_payload);
    end if;
    -- Only an active document can be settled: otherwise the result is 0, with a warning.
    perform test.fill(), test.delta('rq_settle');
    foreach s in array array['planned', 'pending', 'done', 'dead', 'missing'] loop
        return query select s, test.settles(of.verb, s, of.arguments);
    end loop;
    return query select 'no queue', test.settles(of.verb, 'active', of.arguments, 'rq_nope');
    return query select 'as before', string_agg(d.subject || ' ' || d.status, ', ') from test.docs d;
    set local fetchq.strict = on;
    return query select 'strict: ' || a.s, test.error('select ' || test.call(of.verb, a.s, of.arguments)) from unnest(array['planned', 'missing']) as a (s);
    return query select 'strict: no queue', test.error('select ' || test.call(of.verb, 'active', of.arguments, 'rq_nope'));
    set local fetchq.strict = off;
    return query select 'long subject', test.error('select ' || test.call(of.verb, repeat('x', 256), of.arguments));
end $$;
\pset format unaligned
\pset tuples_only on
\set VERBOSITY terse
select 'begin', format('select %L', v.verb), format('select * from test.walk((%L::test.verbs))', v), 'commit' from test.verbs v order by v.n
\gexec

-- An expired lease is still valid until maintenance ends it.
select fetchq.queue_set_max_attempts('rq_settle', 5);
create function test.leases_late() returns setof text language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_settle', true);
    perform fetchq.doc_push('rq_settle', 'late');
    return query select p.subject::text from fetchq.doc_pick('rq_settle', 0, 1, '0s') p;
end $$;
select replace(step, 'SETTLE', 'select affected_rows from ' || test.call(verb, 'late', arguments)) from test.verbs,
    unnest(array['select test.leases_late()', 'SETTLE', $$select test.exact('rq_settle')$$, 'select test.leases_late()', $$select * from fetchq.mnt_run('rq_settle', 10)$$, 'SETTLE', $$select test.exact('rq_settle')$$]) with ordinality as s (step, at)
order by n, at
\gexec
\pset format aligned
\pset tuples_only off
\set VERBOSITY default

-- The statements do what is done without them.
set client_min_messages = error;
create table test.walked (direct text, verb text, step text, result text);
select test.fill(), test.delta('rq_settle') is not null as looked;
insert into test.walked select 'on', v.verb, w.* from test.verbs v, test.walk(v) w;
set fetchq.direct = off;
select test.fill(), test.delta('rq_settle') is not null as looked;
insert into test.walked select 'off', v.verb, w.* from test.verbs v, test.walk(v) w;
reset fetchq.direct;
reset client_min_messages;
select count(*), count(distinct verb) from test.walked;
select verb, step, result from test.walked group by verb, step, result having count(distinct direct) <> 2 order by verb, step;

-- Dropping: the subject is free again.
begin;
select test.fill();
select * from fetchq.doc_drop('rq_settle', 'active');
select * from fetchq.doc_push('rq_settle', 'active');
select subject, iterations from test.docs where subject = 'active';
rollback;

-- Rescheduling: a document planned for now() is due, a microsecond later it is not; infinity is never due.
begin;
select test.fill();
select * from fetchq.doc_reschedule('rq_settle', 'active', now());
select subject, status, payload from test.docs where subject = 'active';
select subject from fetchq.doc_pick('rq_settle', 0, 1, '1h');
select * from fetchq.doc_reschedule('rq_settle', 'active', now() + interval '1 microsecond', null);
select subject, status, payload from test.docs where subject = 'active';
update fetchq_data.rq_settle__docs set status = 2 where subject = 'active';
select * from fetchq.doc_reschedule('rq_settle', 'active', 'infinity', '{"n": "new"}');
select subject, status, next, payload from test.docs where subject = 'active';
update fetchq_data.rq_settle__docs set status = 2 where subject = 'active';
select * from fetchq.doc_reschedule('rq_settle', 'active', '-infinity', '{"n": "new"}');
select subject, status, next, payload from test.docs where subject = 'active';
rollback;

-- Rejecting: the failure is logged.
begin;
select test.fill();
select * from fetchq.doc_reject('rq_settle', 'active', 'why not', '{"d": 1}', 'ref');
select subject, message, details, ref_id from fetchq_data.rq_settle__logs order by id;
rollback;

-- Nothing is logged for a document that is not active.
select fetchq.queue_truncate('rq_settle', true);
select * from fetchq.doc_reject('rq_settle', 'active', 'no', '{}');
select count(*) from fetchq_data.rq_settle__logs;

-- Killed after the last attempt; attempts and next_iteration stay.
select fetchq.queue_set_max_attempts('rq_settle', 3);
begin;
select fetchq.queue_truncate('rq_settle', true);
select fetchq.doc_push('rq_settle', 'bad');
do $$ begin for i in 1..4 loop
    perform fetchq.doc_pick('rq_settle', 0, 1, '0s');
    perform fetchq.doc_reject('rq_settle', 'bad', 'attempt ' || i, null);
end loop; end $$;
select subject, status, attempts, iterations, payload from test.docs;
select message, details, ref_id from fetchq_data.rq_settle__logs order by id;
select metric, current_value from fetchq.metric_get('rq_settle');
rollback;

-- A report of a failure does not fail: a message of more than 8192 bytes is cut between two characters.
begin;
select test.fill();
select * from fetchq.doc_reject('rq_settle', 'active', 'a' || repeat('é', 10000), '{}');
select octet_length(message), message = 'a' || repeat('é', 4095) from fetchq_data.rq_settle__logs;
select length(last_error) from fetchq.doc_get('rq_settle', 'active');
rollback;
begin;
select test.fill();
select * from fetchq.doc_kill('rq_settle', 'active', message => repeat('x', 100000));
select * from fetchq.log_error('rq_settle', 'active', repeat('é', 300), '{}');
select * from fetchq.log_error('rq_settle', 'active', repeat('𝄞', 3000), '{}');
select length(message) from fetchq_data.rq_settle__logs order by id;
rollback;
-- Nor does it fail without a message.
begin;
select test.fill();
select * from fetchq.doc_reject('rq_settle', 'active', null, '{"code": 7}');
select message, details from fetchq_data.rq_settle__logs;
rollback;
begin;
select test.fill();
select * from fetchq.doc_kill('rq_settle', 'active', details => '{"code": 7}');
select * from fetchq.log_error('rq_settle', 'active', null, null);
select message, details from fetchq_data.rq_settle__logs order by id;
rollback;
begin;
select test.fill();
select * from fetchq.doc_reject('rq_settle', 'active', 'it''s "quoted" \ 𝄞', '{"it''s": "\"x\""}', 'r''ef');
select message, details, ref_id from fetchq_data.rq_settle__logs;
rollback;

-- Writing to the log alone.
begin;
select test.fill();
select * from fetchq.log_error('rq_settle', 'active', 'told', '{"d": 2}');
select * from fetchq.log_error('rq_settle', 'no such document', 'told', null, 'ref');
select subject, message, details, ref_id, created_at = now() as now from fetchq_data.rq_settle__logs order by id;
select test.delta('rq_settle') is not null as looked;
select * from fetchq.log_error('rq_settle', 'active', 'again', '{}');
select test.delta('rq_settle');
rollback;
select * from fetchq.log_error('rq_nope', 's', 'm', '{}');

drop function test.walk(test.verbs), test.settles(text, text, text, text), test.call(text, text, text, text), test.leases_late(), test.fill();
drop view test.docs;
drop table test.walked, test.verbs;
select was_dropped from fetchq.queue_drop('rq_settle');
