-- Single documents are changed directly, or with statements when fetchq.direct is off.
-- Documents that are not active cause a warning.
set fetchq.strict = off;
-- Both must have the same result. Each scenario is one transaction, in which the documents that
-- it picks were locked, changed and removed before.
create table test.direct (mode text, n int generated always as identity, step text, result text);

create function test.step(step text, query text) returns void language plpgsql as $$
declare
    result text;
begin
    begin
        execute format('select string_agg(r::text, '' '') from (%s) r', query) into result;
    exception when others then
        result := sqlstate;
    end;
    insert into test.direct (mode, step, result) values (current_setting('fetchq.direct'), step, result);
end $$;

create function test.scenario(mode text) returns void language plpgsql as $$
declare
    docs text := 'fetchq_data.rq_direct__docs';
    n int;
begin
    perform set_config('fetchq.direct', mode, true);
    perform fetchq.queue_create('rq_direct');

    perform test.step('push', $s$select fetchq.doc_push('rq_direct', 'a', 0, 0, '2020-01-01', '{"n": 1}')$s$);
    perform test.step('push it again', $s$select fetchq.doc_push('rq_direct', 'a')$s$);
    perform test.step('push planned', $s$select fetchq.doc_push('rq_direct', 'p', 3, -2, '2100-01-01', '[]')$s$);
    perform test.step('one more', $s$select fetchq.doc_push('rq_direct', 'b', 0, 1, '2020-01-01', '{}')$s$);
    perform test.step('as stored', 'select subject, version, priority, status, attempts, iterations, next_iteration at time zone ''UTC'',
        lock_upgrade, created_at = now(), last_iteration, payload from ' || docs || ' order by subject');

    -- Locked by this transaction alone, and also in a subtransaction.
    execute 'select from ' || docs || ' where subject = ''a'' for update';
    perform test.step('pick what is locked here', $s$select subject, payload, version, priority, attempts, iterations, last_iteration,
        next_iteration - now(), lock_upgrade from fetchq.doc_pick('rq_direct', 0, 5, '5m')$s$);
    execute 'select from ' || docs || ' where subject = ''a'' for share';
    begin
        execute 'select from ' || docs || ' where subject = ''a'' for update';
    exception when others then
        raise;
    end;
    perform test.step('give back', $s$select fetchq.doc_reschedule('rq_direct', 'a', '2020-01-02', '{"n": 2}')$s$);
    execute 'select from ' || docs || ' where subject = ''a'' for share';
    begin
        execute 'select from ' || docs || ' where subject = ''a'' for update';
    exception when others then
        raise;
    end;
    perform test.step('pick what is locked here twice', $s$select subject, payload, attempts, iterations, last_iteration = now()
        from fetchq.doc_pick('rq_direct', 0, 5, '5m')$s$);

    -- Changed in a subtransaction that was rolled back.
    begin
        perform fetchq.doc_complete('rq_direct', 'a');
        raise exception 'undo';
    exception when others then
        null;
    end;
    perform test.step('complete', $s$select fetchq.doc_complete('rq_direct', 'a', '{"n": 3}')$s$);
    perform test.step('complete it again', $s$select fetchq.doc_complete('rq_direct', 'a')$s$);
    perform test.step('kill', $s$select fetchq.doc_kill('rq_direct', 'b')$s$);
    perform test.step('drop what is not active', $s$select fetchq.doc_drop('rq_direct', 'b')$s$);
    perform test.step('drop what is not there', $s$select fetchq.doc_drop('rq_direct', 'nobody')$s$);

    -- Lists, in which some subjects are repeated, missing, or not active.
    perform fetchq.doc_push('rq_direct', 'm' || i, 4, 0, '2020-01-01', '{}') from generate_series(1, 6) i;
    -- The order is kept, although this transaction has locked the first document.
    execute 'select from ' || docs || ' where subject = ''m1'' for update';
    perform test.step('pick a few', $s$select subject from fetchq.doc_pick('rq_direct', 4, 5, '5m')$s$);
    perform test.step('complete a list', $s$select * from fetchq.doc_complete_many('rq_direct', array['m3', 'nobody', 'm1', 'm3', 'm6'])$s$);
    perform test.step('drop a list', $s$select * from fetchq.doc_drop_many('rq_direct', array['m5', 'm1', 'm2', 'm5'])$s$);

    -- A large payload, stored outside of the row.
    perform fetchq.doc_push('rq_direct', 'large', 5, 0, '2020-01-01',
        (select jsonb_agg(md5(i::text)) from generate_series(1, 2000) i));
    perform test.step('pick it', $s$select md5(payload::text) from fetchq.doc_pick('rq_direct', 5, 1, '5m')$s$);
    perform test.step('give it back', $s$select fetchq.doc_reschedule('rq_direct', 'large', '2020-01-02')$s$);
    perform test.step('pick it again', $s$select md5(payload::text), attempts, iterations from fetchq.doc_pick('rq_direct', 5, 1, '5m')$s$);
    perform test.step('complete with it', 'select fetchq.doc_complete(''rq_direct'', ''large'', (select payload from ' || docs || ' where subject = ''large''))');

    -- A subject of the maximum length, and a longer one.
    perform test.step('255 characters', $s$select fetchq.doc_push('rq_direct', repeat('é', 255))$s$);
    perform test.step('256 characters', $s$select fetchq.doc_push('rq_direct', repeat('é', 256))$s$);

    -- Errors while a row is written.
    perform test.step('a lease that ends too late', $s$select subject from fetchq.doc_pick('rq_direct', 4, 5, '300000 years')$s$);
    perform test.step('all', 'select left(subject, 20), version, priority, status, attempts, iterations, last_iteration = now(), left(payload::text, 20) from ' || docs || ' order by subject collate "C"');
    perform test.step('counters', $s$select metric, current_value from fetchq.metric_get('rq_direct')$s$);
    perform fetchq.queue_drop('rq_direct');
end $$;

set client_min_messages = error;
select test.scenario('on');
select test.scenario('off');
reset client_min_messages;
select step, result from test.direct where mode = 'on' order by n;
-- Differences between the two modes.
select step, a.result as directly, b.result as by_statement
from test.direct a join test.direct b using (step)
where a.mode = 'on' and b.mode = 'off' and a.result is distinct from b.result;
select count(*) filter (where mode = 'on') = count(*) filter (where mode = 'off') as same_number from test.direct;

-- Privileges on the table, but not on its schema.
select was_created from fetchq.queue_create('rq_rights');
select fetchq.doc_push('rq_rights', 'a');
create role regress_fetchq_direct;
grant usage on schema fetchq to regress_fetchq_direct;
grant select on fetchq.queues to regress_fetchq_direct;
grant select, insert, update, delete on fetchq_data.rq_rights__docs to regress_fetchq_direct;
set role regress_fetchq_direct;
select fetchq.doc_push('rq_rights', 'b');
select subject from fetchq.doc_pick('rq_rights');
reset role;
grant usage on schema fetchq_data to regress_fetchq_direct;
revoke update on fetchq_data.rq_rights__docs from regress_fetchq_direct;
set role regress_fetchq_direct;
select fetchq.doc_push('rq_rights', 'b');
select subject from fetchq.doc_pick('rq_rights');
reset role;
-- Privileges on some columns only: enough for a statement.
grant update (status, attempts, next_iteration, lease, worker_session, due_at, picked_at, progress) on fetchq_data.rq_rights__docs to regress_fetchq_direct;
set role regress_fetchq_direct;
select subject from fetchq.doc_pick('rq_rights');
reset role;
select was_dropped from fetchq.queue_drop('rq_rights');
drop owned by regress_fetchq_direct;
drop role regress_fetchq_direct;
