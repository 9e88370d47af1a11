-- A subject loses no event: what is put on a leased document waits in it until the document is settled, in
-- whatever way, and then it runs once more. A finished document counts as absent.
select (fetchq.queue_create(q)).was_created from unnest('{ev,ev_dead}'::text[]) q;

create function ev_counted() returns setof text language sql as $$
    select format('WRONG: %s of %s is %s, not %s', m, q, coalesce(l.value, 0), n)
    from unnest('{ev,ev_dead}'::text[]) q
    cross join lateral fetchq.metric_compute(q) c
    cross join lateral (values ('cnt', c.cnt), ('pln', c.pln), ('pnd', c.pnd), ('act', c.act), ('kll', c.kll), ('cpl', c.cpl)) x (m, n)
    left join fetchq.metrics_live l on l.queue = q and l.metric = m
    where n <> coalesce(l.value, 0)
$$;
-- One document is leased at its last attempt or before that, gets two more puts, and is settled. The
-- result: what the history, the dead-letter queue and the queue have then.
create function ev_try(policy jsonb, settling text, max_attempts int, mode text) returns text language plpgsql as $$
declare
    leased record;
    put text;
    n int;
    result text;
begin
    perform fetchq.queue_truncate(q, true) from unnest('{ev,ev_dead}'::text[]) q;
    perform fetchq.queue_configure('ev', '{"history": null, "dead_letter": null, "retry": {"base": "1 minute"}}');
    perform fetchq.queue_configure('ev', policy);
    perform fetchq.doc_put('ev', 's', '{"n": 1}', max_attempts => ev_try.max_attempts);
    if settling like '%fetchq 4%' then
        perform from fetchq.doc_pick('ev', 0, 1, '1 hour');
        select payload, lease, attempts, next_iteration as lease_ends into leased from fetchq_data.ev__docs;
    else
        select * into leased from fetchq.doc_lease('ev', 1, '1 hour', worker => 'w');
    end if;
    put := fetchq.doc_put('ev', 's', '{"a": 1}', delay => '1 hour', mode => ev_try.mode)
        || ' ' || fetchq.doc_put('ev', 's', '{"b": 1}', delay => '0', mode => ev_try.mode);
    -- The lease and what its worker sees are as before.
    if (select (status, payload, lease, attempts, next_iteration) from fetchq_data.ev__docs)
        is distinct from (2, leased.payload, leased.lease, leased.attempts, leased.lease_ends) then
        raise warning 'WRONG: the lease was disturbed';
    end if;
    if settling like '%expired%' then
        update fetchq_data.ev__docs set next_iteration = now() - interval '1 second';
    end if;
    execute format('select %s from (select %L::text as subject, %s::bigint as lease) d', settling, 's', leased.lease) into result;
    select format('%s; %s %s %s, attempts %s', put, (array['killed', 'planned', 'pending', 'active'])[status + 2], payload,
        case when next_iteration <= now() then 'now' else 'later' end, attempts) into strict result
    from fetchq_data.ev__docs where queued is null;
    result := result || coalesce('; history ' || (select string_agg(outcome || ' ' || payload, ', ') from fetchq.queue_history('ev')), '')
        || coalesce('; dead letters ' || (select string_agg(format('%s%s', payload, queued), ', ') from fetchq_data.ev_dead__docs), '');
    for put in select * from ev_counted() loop
        raise warning '%', put;
    end loop;
    -- It runs once more, and not again.
    update fetchq_data.ev__docs set next_iteration = now(), status = 1;
    for n in 0..1 loop
        for leased in select * from fetchq.doc_lease('ev', 5) loop
            if n = 1 then raise warning 'WRONG: it runs again'; end if;
            perform fetchq.doc_complete('ev', 's', lease => leased.lease);
        end loop;
    end loop;
    return result;
end $$;

-- Every way to settle, by what is kept of the outcome.
create table ev_ways (n serial, way text, max_attempts int);
insert into ev_ways (way, max_attempts) values
    ($$fetchq.doc_complete('ev', d.subject, lease => d.lease)$$, null),
    ($$fetchq.doc_complete_many('ev', array[d.subject], lease => d.lease)$$, null),
    ($$fetchq.doc_drop('ev', d.subject, lease => d.lease)$$, null),
    ($$fetchq.doc_kill('ev', d.subject, lease => d.lease, message => 'no')$$, null),
    ($$fetchq.doc_reject('ev', d.subject, 'no', lease => d.lease)$$, 2),
    ($$fetchq.doc_reject('ev', d.subject, 'no', lease => d.lease)$$, 1),
    ($$fetchq.doc_snooze('ev', d.subject, now() + interval '1 hour', lease => d.lease)$$, null),
    ($$fetchq.doc_reschedule('ev', d.subject, now() + interval '1 hour', '{"r": 1}', lease => d.lease)$$, null),
    ($$fetchq.docs_settle('ev', jsonb_build_array(jsonb_build_object('subject', d.subject, 'lease', d.lease, 'action', 'complete', 'result', 1)))$$, null),
    ($$fetchq.docs_settle('ev', jsonb_build_array(jsonb_build_object('subject', d.subject, 'lease', d.lease, 'action', 'reject', 'message', 'no')))$$, 1),
    ($$fetchq.docs_next('ev', jsonb_build_array(jsonb_build_object('subject', d.subject, 'lease', d.lease, 'action', 'complete')), 0)$$, null),
    ($$fetchq.mnt_run('ev', 10) /* expired */$$, 2),
    ($$fetchq.mnt_run('ev', 10) /* expired */$$, 1),
    ($$fetchq.mnt_reschedule_orphans('ev', 10) /* expired */$$, 2),
    ($$fetchq.mnt_mark_dead('ev', 10) /* expired */$$, 1),
    ($$fetchq.worker_release('w')$$, null),
    ($$fetchq.doc_cancel('ev', d.subject)$$, null),
    ($$fetchq.docs_kill('ev', '{"status": "active"}')$$, null),
    ($$fetchq.docs_drop('ev', '{"status": "active"}')$$, null),
    -- The calls of fetchq 4.
    ($$fetchq.doc_complete('ev', d.subject) /* of fetchq 4 */$$, null),
    ($$fetchq.doc_reject('ev', d.subject, 'no', '{}') /* of fetchq 4 */$$, 2),
    ($$fetchq.doc_kill('ev', d.subject) /* of fetchq 4 */$$, null);
\pset format unaligned
\pset footer off
select w.n, w.max_attempts, w.way, ev_try('{"history": {}}', w.way, w.max_attempts, 'replace') from ev_ways w order by n;
select w.n, ev_try('{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}', w.way, w.max_attempts, 'merge') from ev_ways w order by n;
select w.n, ev_try('{"history": {"completed": "0", "killed": "0"}}', w.way, w.max_attempts, 'debounce') from ev_ways w order by n;
select w.n, ev_try('{"dead_letter": "ev_dead"}', w.way, w.max_attempts, 'reset') from ev_ways w order by n;
-- The same by statements only.
set fetchq.direct = off;
create temp table with_rows as select w.n, ev_try('{"history": {"completed": "1 day"}}', w.way, w.max_attempts, 'earliest') as got from ev_ways w order by n;
reset fetchq.direct;
select w.n, w.got, s.got as by_statement from (select w.n, ev_try('{"history": {"completed": "1 day"}}', w.way, w.max_attempts, 'earliest') as got from ev_ways w order by n) w
join with_rows s using (n) where w.got is distinct from s.got;
select n, got from with_rows where n in (1, 5, 8);

-- Several puts are put together by their modes, as they would change a planned document.
create function ev_fold(modes text[]) returns table (actions text, queued jsonb, after_complete text, after_retry text) language plpgsql as $$
declare
    leased record;
    retry boolean;
    mode text;
    at int;
begin
    foreach retry in array array[false, true] loop
        perform fetchq.queue_truncate('ev', true);
        perform fetchq.queue_configure('ev', '{"history": null, "dead_letter": null, "retry": {"base": "1 hour"}}');
        perform fetchq.doc_put('ev', 's', '{"n": 1}', priority => 1, headers => '{"h": 0}');
        select * into leased from fetchq.doc_lease('ev');
        actions := '';
        at := 0;
        foreach mode in array modes loop
            at := at + 1;
            actions := actions || fetchq.doc_put('ev', 's', jsonb_build_object(chr(96 + at), at), mode => mode,
                due_at => timestamptz '2040-01-01 00:00:00+00' - make_interval(years => at), priority => at, headers => jsonb_build_object('h', at)) || ' ';
        end loop;
        select d.queued - 'ordering_key' - 'max_attempts' - 'version' into queued from fetchq_data.ev__docs d;
        if retry then
            perform fetchq.doc_reject('ev', 's', 'no', lease => leased.lease);
        else
            perform fetchq.doc_complete('ev', 's', lease => leased.lease);
        end if;
        after_complete := after_retry;
        select format('%s %s %s %s', payload, headers, priority, case when next_iteration < now() + interval '2 hours' then 'retry' else extract(year from next_iteration)::text end)
            into after_retry from fetchq_data.ev__docs;
    end loop;
    return next;
end $$;
set timezone = 'UTC';
select m.modes, f.* from (values (1, '{merge,merge}'::text[]), (2, '{earliest,merge}'), (3, '{merge,earliest}'), (4, '{merge,debounce}'), (5, '{debounce,merge,earliest}'),
    (6, '{merge,replace}'), (7, '{replace,merge}'), (8, '{reset,reset}'), (9, '{ignore,merge,ignore,once}'), (10, '{earliest,earliest}'), (11, '{"merge,once","merge,reset"}')) m (n, modes),
    ev_fold(m.modes) f order by n;
reset timezone;
\pset format aligned
\pset footer on

-- A list puts several on one document, and settles one with what was put.
select fetchq.queue_truncate('ev', true);
select fetchq.doc_put('ev', s) from unnest('{a,b}'::text[]) s;
create temp table leased as select subject, lease from fetchq.doc_lease('ev', 2);
select * from fetchq.doc_put_many('ev', '[{"subject": "b", "payload": {"x": 1}}, {"subject": "a"}, {"subject": "b", "payload": {"y": 2}}, {"subject": "c", "payload": {"z": 1}}]', 'merge');
select subject, status, queued -> 'payload' as queued from fetchq.docs_list('ev');
select s.* from fetchq.docs_settle('ev', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete') order by subject) from leased)) s;
select subject, status, payload, queued from fetchq.docs_list('ev');
select * from ev_counted();
drop table leased;

-- What cannot be merged: at the put, an error; if the worker gives such a payload, the one that was put counts.
select fetchq.queue_truncate('ev', true);
select fetchq.doc_put('ev', 's');
select lease from fetchq.doc_lease('ev') \gset
select fetchq.doc_put('ev', 's', '[1]', mode => 'replace');
select test.error($$select fetchq.doc_put('ev', 's', '{"a": 1}', mode => 'merge')$$);
select fetchq.doc_put('ev', 's', '{"a": 1}', mode => 'replace');
update fetchq_data.ev__docs set queued = queued || '{"mode": "merge"}';
select fetchq.doc_reschedule('ev', 's', now() + interval '1 hour', '[2]', lease => :lease);
select status, payload from fetchq.doc_get('ev', 's');
-- What a manager has written there does not keep it from being settled.
create function ev_odd(odd jsonb) returns text language plpgsql as $$
begin
    perform fetchq.queue_truncate('ev', true);
    perform fetchq.doc_put('ev', 's');
    perform fetchq.doc_lease('ev');
    update fetchq_data.ev__docs set queued = odd;
    perform fetchq.doc_complete('ev', 's', lease => lease) from fetchq_data.ev__docs;
    return (select format('%s %s %s %s', status, version, payload, queued) from fetchq_data.ev__docs);
end $$;
select odd, ev_odd(odd) from unnest(array['1', '[]', '{}', '{"mode": 7, "version": "x", "next_iteration": "never", "payload": null, "max_attempts": 0, "headers": [], "ordering_key": 5}',
    '{"mode": "merge", "payload": 5, "version": 1e100}', '{"mode": "merge,latest", "payload": {"a": 1}}']::jsonb[]) odd;
select * from ev_counted();
-- A trigger that suppresses the new document does not keep the old one from being settled.
create function ev_none() returns trigger language plpgsql as 'begin return null; end';
create trigger ev_none before insert on fetchq_data.ev__docs for each row when (new.payload ? 'no') execute function ev_none();
select fetchq.queue_truncate('ev', true);
select fetchq.doc_put('ev', 's');
select lease from fetchq.doc_lease('ev') \gset
select fetchq.doc_put('ev', 's', '{"no": 1}', mode => 'replace');
select fetchq.doc_drop('ev', 's', lease => :lease);
select count(*) from fetchq_data.ev__docs;
drop trigger ev_none on fetchq_data.ev__docs;
select * from ev_counted();

-- The next document of the key runs first. One that goes on in another order gives its place up.
select fetchq.queue_truncate('ev', true);
select fetchq.queue_configure('ev', '{"ordered": true}') is not null;
select fetchq.doc_put('ev', s, ordering_key => 'k') from unnest('{a,b}'::text[]) s;
select lease from fetchq.doc_lease('ev', 5) \gset
select fetchq.doc_put('ev', 'a', '{"again": 1}', ordering_key => 'k', mode => 'replace');
select fetchq.doc_complete('ev', 'a', lease => :lease);
select subject, lease from fetchq.doc_lease('ev', 5) \gset
select :'subject' as subject, fetchq.doc_complete('ev', :'subject', lease => :lease);
select subject, payload from fetchq.doc_lease('ev', 5);
select fetchq.queue_configure('ev', '{"ordered": false, "max_active": 1}') is not null;
select fetchq.queue_truncate('ev', true);
select fetchq.doc_put('ev', s) from unnest('{a,b}'::text[]) s;
select lease from fetchq.doc_lease('ev', 5) \gset
select fetchq.doc_put('ev', 'a', '{"again": 1}', mode => 'replace');
select fetchq.doc_complete('ev', 'a', lease => :lease);
select subject from fetchq.doc_lease('ev', 5);
select fetchq.queue_configure('ev', '{"max_active": null}') is not null;

-- Once: a finished document counts for as long as the history keeps it.
select fetchq.queue_truncate('ev', true);
select fetchq.queue_configure('ev', '{"history": {"completed": "1 day"}}') is not null;
select fetchq.doc_put('ev', 'id-1', mode => 'once'), fetchq.doc_put('ev', 'id-1', mode => 'once');
select fetchq.doc_complete('ev', subject, lease => lease) from fetchq.doc_lease('ev');
select fetchq.doc_put('ev', 'id-1', mode => 'once'), fetchq.doc_put('ev', 'id-1', mode => 'merge,once');
set fetchq.direct = off;
select fetchq.doc_put('ev', 'id-1', mode => 'once'), fetchq.doc_put('ev', 'id-1', mode => 'once,replace');
reset fetchq.direct;
select * from fetchq.doc_put_many('ev', '[{"subject": "id-1"}, {"subject": "id-2"}, {"subject": "id-2"}]', 'once');
begin isolation level repeatable read;
select fetchq.doc_put('ev', 'id-1', mode => 'once');
commit;
select * from ev_counted();
update fetchq_data.ev__history set settled_at = settled_at - interval '2 days';
select fetchq.queue_trim_history('ev');
select fetchq.doc_put('ev', 'id-1', mode => 'once');
-- A killed one counts as well; one in the table counts while it is there.
select fetchq.queue_configure('ev', '{"history": null}') is not null;
select fetchq.doc_kill('ev', subject, lease => lease) from fetchq.doc_lease('ev', 9);
select fetchq.doc_put('ev', 'id-1', mode => 'once'), fetchq.doc_put('ev', 'id-1'), fetchq.doc_put('ev', 'id-1');
select * from ev_counted();

-- A finished document that is still in the table goes to the history when it makes room.
select fetchq.queue_truncate('ev', true);
select fetchq.doc_put('ev', s) from unnest('{completed,killed,cancelled}'::text[]) s;
select fetchq.doc_complete('ev', 'completed', result => '"fine"', lease => lease) from fetchq.doc_lease('ev', 1);
select fetchq.doc_kill('ev', 'killed', message => 'no', lease => lease) from fetchq.doc_lease('ev', 1);
select fetchq.doc_cancel('ev', 'cancelled');
select fetchq.queue_configure('ev', '{"history": {"completed": "1 day", "killed": "1 day"}}') is not null;
select subject, fetchq.doc_put('ev', subject, '{"new": 1}') from fetchq.docs_list('ev');
select outcome, subject, payload, result, last_error, worker from fetchq.queue_history('ev') order by subject;
select subject, status, payload, attempts, iterations, result, last_error from fetchq.docs_list('ev');
select * from ev_counted();
-- fetchq 4 adds nothing to a subject that is finished, and an upsert leaves a leased one alone.
select fetchq.queue_configure('ev', '{"history": null}') is not null;
select fetchq.doc_complete('ev', subject, lease => lease) from fetchq.doc_lease('ev', 2) where subject <> 'killed';
select fetchq.doc_push('ev', 'completed', 0, 0, now(), '{}'), fetchq.doc_upsert('ev', 'completed', 0, 0, now(), '{"up": 1}');
select subject from fetchq.doc_lease('ev', 1);
select fetchq.doc_push('ev', 'killed', 0, 0, now(), '{}'), fetchq.doc_upsert('ev', 'killed', 0, 0, now(), '{"up": 1}');
select subject, status, payload, queued from fetchq.docs_list('ev');

select (fetchq.queue_drop(q)).was_dropped from unnest('{ev,ev_dead}'::text[]) q;
drop table ev_ways;
drop function ev_counted(), ev_try(jsonb, text, int, text), ev_fold(text[]), ev_odd(jsonb), ev_none();
