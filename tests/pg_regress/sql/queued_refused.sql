-- What the table refuses of what was put on a leased document keeps neither that document from being settled
-- nor the others: a constraint, a trigger that raises or suppresses, a foreign key. It is dropped, and the
-- error log says so.
select (fetchq.queue_create('qr')).was_created;
create table qr_known (name text primary key);
alter table fetchq_data.qr__docs add constraint qr_check check (not payload ? 'check'),
    add constraint qr_foreign foreign key (ordering_key) references qr_known (name);
create function qr_raises() returns trigger language plpgsql as $$
begin
    if new.payload ->> 'raise' = 'slow' then
        perform pg_sleep(60);
    end if;
    raise exception 'not on a Sunday' using errcode = new.payload ->> 'raise';
end $$;
create trigger qr_raises before insert or update on fetchq_data.qr__docs for each row when (new.payload ? 'raise') execute function qr_raises();
create function qr_suppresses() returns trigger language plpgsql as 'begin return null; end';
create trigger qr_suppresses before insert on fetchq_data.qr__docs for each row when (new.payload ? 'suppress') execute function qr_suppresses();
create trigger qr_keeps before delete on fetchq_data.qr__docs for each row when (old.payload ? 'keep' and old.status <> 2) execute function qr_suppresses();

create function qr_counted() returns setof text language sql as $$
    select format('WRONG: %s is %s, not %s', m, coalesce(l.value, 0), n)
    from fetchq.metric_compute('qr') c
    cross join lateral (values ('cnt', c.cnt), ('pln', c.pln), ('pnd', c.pnd), ('act', c.act), ('kll', c.kll), ('cpl', c.cpl)) x (m, n)
    left join fetchq.metrics_live l on l.queue = 'qr' and l.metric = m
    where n <> coalesce(l.value, 0)
$$;
-- Leases s and t, and puts on both: on s what is refused.
create function qr_lease(payload jsonb, refused jsonb, ordering_key text default null) returns void language sql as $$
    select fetchq.queue_truncate('qr', true);
    delete from fetchq_data.qr__logs;
    select fetchq.doc_put('qr', 's', payload), fetchq.doc_put('qr', 't');
    select from fetchq.doc_lease('qr', 2, '1 hour', worker => 'w');
    select fetchq.doc_put('qr', 's', refused, mode => 'replace', ordering_key => qr_lease.ordering_key),
        fetchq.doc_put('qr', 't', '{"fine": 1}', mode => 'replace');
$$;
create function qr_try(settling text, payload jsonb, refused jsonb, ordering_key text) returns text language plpgsql as $$
declare
    lease bigint;
    line text;
begin
    perform qr_lease(payload, refused, ordering_key);
    if settling like '%expired%' then
        update fetchq_data.qr__docs set next_iteration = now() - interval '1 second';
    end if;
    select d.lease into lease from fetchq_data.qr__docs d where subject = 's';
    execute replace(settling, 'LEASE', lease::text);
    for line in select * from qr_counted() loop
        raise warning '%', line;
    end loop;
    return (select string_agg(format('%s %s %s%s', subject, (array['killed', 'planned', 'pending', 'active', 'completed'])[status + 2], d.payload, ' QUEUED ' || queued::text), ', ' order by subject) from fetchq_data.qr__docs d)
        || coalesce((select string_agg(format('; %s: %s %s', subject, message, details ->> 'payload'), '' order by id) from fetchq_data.qr__logs where message <> 'no'), '');
end $$;
create table qr_ways (n int, settling text);
insert into qr_ways values
    (1, $$select fetchq.doc_complete_many('qr', '{s,t}', lease => LEASE)$$),
    (2, $$select fetchq.docs_settle('qr', '[{"subject": "s", "lease": LEASE, "action": "reject", "message": "no"}, {"subject": "t", "lease": LEASE, "action": "kill"}]')$$),
    (3, $$select fetchq.doc_drop_many('qr', '{s,t}', lease => LEASE)$$),
    (4, $$select fetchq.mnt_run('qr', 10) /* expired */$$),
    (5, $$select fetchq.worker_release('w')$$),
    (6, $$select fetchq.docs_kill('qr', '{"status": "active"}')$$),
    (7, $$select fetchq.docs_drop('qr', '{"status": "active"}')$$);
\pset format unaligned
set client_min_messages = error;
select n, refused, ordering_key, qr_try(settling, '{}', refused, ordering_key) from qr_ways cross join (values
    (1, '{"check": 1}'::jsonb, null), (2, '{"raise": "P0001"}', null), (3, '{"suppress": 1}', null), (4, '{}', 'unknown')) r (m, refused, ordering_key)
where m = 1 or n in (1, 4)
order by n, m;
-- A trigger that keeps the finished document is none that may pass unnoticed, and so is a lock_upgrade.
select n, qr_try(settling, '{"keep": 1}', '{"next": 1}', null) from qr_ways where n in (1, 6) order by n;
create function qr_locks() returns trigger language plpgsql as $$begin new.lock_upgrade := '2099-01-01'; return new; end$$;
create trigger qr_locks before update on fetchq_data.qr__docs for each row when (old.status = 2 and new.status = 1 and old.payload ? 'locks') execute function qr_locks();
select n, qr_try(settling, '{"locks": 1}', '{"next": 1}', null) from qr_ways where n = 4;
drop trigger qr_locks on fetchq_data.qr__docs;
reset client_min_messages;
\pset format aligned

-- A WARNING says so too.
select qr_lease('{}', '{"check": 1, "mail": "ann"}');
select fetchq.doc_complete('qr', 's', lease => test.lease_of('qr', 's'));
select attempt, message, details ->> 'payload' as payload from fetchq.doc_errors('qr', 's');

-- What may succeed another time fails the call, and nothing is lost.
create function qr_fails(state text) returns text language plpgsql as $$
begin
    perform qr_lease('{}', jsonb_build_object('raise', state));
    return left(test.error(format($q$select fetchq.doc_complete('qr', 's', lease => %s)$q$, test.lease_of('qr', 's'))), 5)
        || (select format(', %s %s', status, queued -> 'payload') from fetchq_data.qr__docs where subject = 's');
end $$;
select state, qr_fails(state) from unnest('{40001,40P01,53200,53100,55P03}'::text[]) state;
select qr_lease('{}', '{"raise": "slow"}');
select test.lease_of('qr', 's') as lease \gset
set statement_timeout = '300ms';
select fetchq.doc_complete('qr', 's', lease => :lease);
reset statement_timeout;
select status, queued -> 'payload' as queued from fetchq_data.qr__docs where subject = 's';

select (fetchq.queue_drop('qr')).was_dropped;
drop table qr_known, qr_ways;
drop function qr_raises(), qr_suppresses(), qr_locks(), qr_counted(), qr_lease(jsonb, jsonb, text), qr_try(text, jsonb, jsonb, text), qr_fails(text);
