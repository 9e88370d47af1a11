-- Putting a document that exists: the result depends on the mode and on the status.
select was_created from fetchq.queue_create('put');

create function put_show() returns table (subject text, status int, version int, priority int, planned text, attempts int, iterations bigint, payload jsonb, ordering_key text, max_attempts int)
language sql as $$
    select subject, status, version, priority,
        case when next_iteration between '2021-01-01' and '2039-01-01' then 'now' else to_char(next_iteration, 'YYYY') end,
        attempts, iterations, payload, ordering_key, max_attempts
    from fetchq_data.put__docs order by subject
$$;
-- One document in each status; n is the number in its payload.
create function put_reset(at timestamptz) returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('put', true);
    perform fetchq.doc_push('put', s, 0, 1, now(), '{"n": 1}') from unnest('{active,completed,killed}'::text[]) s;
    perform fetchq.doc_pick('put', 0, 3, '1h');
    perform fetchq.doc_complete('put', 'completed');
    perform fetchq.doc_kill('put', 'killed');
    perform fetchq.doc_push('put', s, 0, 1, at, '{"n": 1}') from unnest('{known}'::text[]) s;
end $$;
create function put_counted() returns table (metric text, counted bigint, noted bigint) language sql as $$
    with c as (select * from fetchq.metric_compute('put')),
        counted as (
            select x.* from c, lateral (values ('cnt', c.cnt), ('pln', c.pln), ('pnd', c.pnd), ('act', c.act), ('kll', c.kll), ('cpl', c.cpl)) x (m, n)
            union all
            select 'v' || version, count(*)::int from fetchq_data.put__docs group by version)
    select m, n, coalesce(l.value, 0) from counted left join fetchq.metrics_live l on l.queue = 'put' and l.metric = m
    where n <> coalesce(l.value, 0)
$$;

-- Every mode with every status.
do $$
declare
    mode text;
    at timestamptz;
    line record;
begin
    for mode, at in
        select m, a from unnest('{ignore,replace,merge,earliest,debounce,reset,"replace,reset"}'::text[]) with ordinality m (m, n),
            unnest(array['2020-01-01', '2099-01-01']::timestamptz[]) with ordinality a (a, i)
        order by m.n, a.i
    loop
        perform put_reset('2050-01-01');
        raise warning '--- % %', mode, extract(year from at);
        for line in
            select s.subject, p.action, d.status, d.priority, d.planned, d.attempts, d.iterations, d.payload, d.ordering_key as key, d.max_attempts as max
            from unnest('{active,completed,killed,known,new}'::text[]) s (subject),
                lateral fetchq.doc_put('put', s.subject, '{"m": 2}', at, 0, 7, mode, 'k', 3) p (action),
                lateral (select * from put_show() x where x.subject = s.subject) d
        loop
            raise warning '%', line;
        end loop;
        for line in select * from put_counted() loop
            raise warning 'WRONG: %', line;
        end loop;
    end loop;
end $$;

-- The same with statements only, and in a list.
set fetchq.direct = off;
select put_reset('2050-01-01');
select * from fetchq.doc_put_many('put', '[
    {"subject": "z", "payload": {"a": 1}},
    {"subject": "known", "payload": {"a": 1}, "due_at": "2040-01-01", "mode": "earliest"},
    {"subject": "a", "payload": [1], "priority": 4, "ordering_key": "k", "max_attempts": 2, "mode": "replace"},
    {"subject": "killed", "mode": "reset", "due_at": "2060-01-01"},
    {"subject": "known", "payload": {"b": 2}},
    {"subject": "active"}]', 'merge');
select * from put_show();
select * from put_counted();
reset fetchq.direct;

-- Equal subjects are put one after the other.
select put_reset('2050-01-01');
select * from fetchq.doc_put_many('put', '[
    {"subject": "x", "payload": {"a": 1}}, {"subject": "y"}, {"subject": "x", "payload": {"b": 2}}, {"subject": "x", "payload": {"a": 3}}]', 'merge');
select * from fetchq.doc_put_many('put', '[{"subject": "x", "payload": {"a": 4}}, {"subject": "x", "mode": "replace", "payload": {"z": 9}}]', 'merge');
select * from put_show();
select * from put_counted();

-- New documents are picked in the order of the list.
select put_reset('2050-01-01');
select * from fetchq.doc_put_many('put', '[{"subject": "c"}, {"subject": "a"}, {"subject": "d"}, {"subject": "b"}]');
select subject from fetchq.doc_pick('put', 10);
set fetchq.direct = off;
select * from fetchq.doc_put_many('put', '[{"subject": "g"}, {"subject": "e"}, {"subject": "h"}, {"subject": "f"}]');
select subject from fetchq.doc_pick('put', 10);
reset fetchq.direct;

-- A new version: the document leaves the old version. A waiter for version 1 finds it.
select put_reset('2050-01-01');
select fetchq.doc_put('put', 'known', '{}', version => 1, mode => 'replace');
select fetchq.doc_put('put', 'killed', '{}', version => 1, mode => 'reset');
select * from put_counted();
select metric, value from fetchq.metrics_live where queue = 'put' and metric in ('ent', 'drp', 'cnt', 'v0', 'v1') order by 1;
select subject, attempts, iterations from fetchq.doc_pick('put', 1, 5, '5m') order by subject;

-- A document that starts again has no error, and its attempts start at 0.
select put_reset('2050-01-01');
update fetchq_data.put__docs set attempts = 4, last_error = 'bad luck' where subject = 'killed';
select fetchq.doc_put('put', 'killed', mode => 'reset');
select attempts, iterations, last_error from fetchq_data.put__docs where subject = 'killed';
-- A document that is replaced keeps its other values.
update fetchq_data.put__docs set attempts = 4, last_error = 'bad luck' where subject = 'known';
select fetchq.doc_put('put', 'known', mode => 'replace');
select attempts, last_error from fetchq_data.put__docs where subject = 'known';
select subject, attempts from fetchq.doc_pick('put', 0, 5, '5m') order by subject;

-- A hidden document does not change.
select put_reset('2050-01-01');
update fetchq_data.put__docs set lock_upgrade = '2020-01-01' where subject = 'known';
select fetchq.doc_put('put', 'known', mode => 'replace');
-- A missing payload means {}.
update fetchq_data.put__docs set lock_upgrade = null, payload = null where subject = 'known';
select fetchq.doc_put('put', 'known', '{"a": 1}', mode => 'merge');
select payload from fetchq_data.put__docs where subject = 'known';

-- A rollback undoes everything.
begin;
select fetchq.doc_put('put', 'known', '{"a": 2}', mode => 'replace');
savepoint s;
select fetchq.doc_put('put', 'killed', mode => 'reset');
rollback to s;
select fetchq.doc_put('put', 'other');
rollback;
select * from put_counted();
select subject, status, payload from put_show();

-- A delay counts from the start of the transaction; NULL is the default of every option.
select put_reset('2050-01-01');
begin;
select fetchq.doc_put('put', 'soon', delay => '0'), fetchq.doc_put('put', 'later', delay => '1 hour'),
    fetchq.doc_put('put', 'never', due_at => 'infinity'), fetchq.doc_put('put', 'ever', due_at => '-infinity'),
    fetchq.doc_put('put', 'bare', null, null, null, null, null, null, null, null, null);
select subject, action from fetchq.doc_put_many('put', '[{"subject": "in a list", "delay": "90 minutes"}, {"subject": "at once"}]', null);
select subject, status, next_iteration - now() as delay, version, priority, payload, headers
from fetchq_data.put__docs where subject in ('soon', 'later', 'bare', 'in a list', 'at once') order by subject;
commit;
select subject from fetchq.doc_pick('put', 9) order by subject;
select * from put_counted();

-- What becomes of the headers, by mode and status. NULL and {} are not the same.
create function put_headers(given jsonb) returns table (mode text, subject text, action text, headers jsonb) language plpgsql as $$
begin
    foreach mode in array '{ignore,replace,merge,earliest,debounce,reset,"merge,reset"}'::text[] loop
        foreach subject in array '{active,killed,known,plain,new}'::text[] loop
            perform put_reset('2050-01-01');
            perform fetchq.doc_push('put', 'plain', 0, 1, '2050-01-01', '{"n": 1}');
            update fetchq_data.put__docs d set headers = '{"a": 1, "b": 1}' where d.subject <> 'plain';
            action := fetchq.doc_put('put', put_headers.subject, '{}', mode => put_headers.mode, headers => given);
            headers := (select d.headers from fetchq_data.put__docs d where d.subject = put_headers.subject);
            return next;
        end loop;
    end loop;
end $$;
select h.mode, h.subject, h.action, h.headers, n.action as without, n.headers as headers_without
from put_headers('{"b": 2, "c": 2}') with ordinality h join put_headers(null) with ordinality n using (ordinality) order by ordinality;
set fetchq.direct = off;
select * from put_headers('{"b": 2}') where mode in ('merge', 'replace') and subject in ('known', 'plain', 'new');
reset fetchq.direct;
-- Headers that are no object, which a table can have, give way.
select put_reset('2050-01-01');
update fetchq_data.put__docs set headers = '[1]' where subject = 'known';
select fetchq.doc_put('put', 'known', '{}', mode => 'merge', headers => '{"a": 1}');
select headers from fetchq_data.put__docs where subject = 'known';
select * from fetchq.doc_put_many('put', '[{"subject": "known", "headers": {"b": 2}}, {"subject": "fresh", "headers": {"c": 3}}, {"subject": "fresh", "headers": {"d": 4}}]', 'merge');
select subject, headers from fetchq_data.put__docs where headers is not null order by subject;
select * from put_counted();
drop function put_headers(jsonb);

-- Errors.
select put_reset('2050-01-01');
select test.error($$select fetchq.doc_put('put', 'x', delay => '1 hour', due_at => now())$$);
select test.error($$select fetchq.doc_put('put', 'x', delay => '-1 s')$$);
select test.error($$select fetchq.doc_put('put', 'x', delay => '300000 years')$$);
select test.error($$select fetchq.doc_put('put', 'x', delay => 'soon')$$);
select test.error($$select fetchq.doc_put('put', 'x', headers => '[]')$$);
select test.error($$select fetchq.doc_put('put', 'x', headers => 'null')$$);
select test.error($$select fetchq.doc_put('put', 'x', ordering_key => repeat('k', 256))$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "delay": "1 s", "due_at": "2030-01-01"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "delay": "-1 s"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "delay": "soon"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "headers": "z"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "priority": "high"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": 7}]')$$);
select test.error($$select fetchq.doc_put('put', 'x', mode => 'latest')$$);
select test.error($$select fetchq.doc_put('put', 'x', mode => 'merge,replace')$$);
select test.error($$select fetchq.doc_put('put', 'x', max_attempts => 0)$$);
select test.error($$select fetchq.doc_put('put', 'x', '[1]', mode => 'merge')$$);
select test.error($$select fetchq.doc_put('nobody', 'x')$$);
select test.error($$select fetchq.doc_put('put', repeat('x', 256))$$);
select test.error($$select fetchq.doc_put_many('put', '{}')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "mode": "latest"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x"}, {"subject": "y", "max_attempts": 0}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x", "colour": "red"}]')$$);
select test.error($$select fetchq.doc_put_many('put', '[{"subject": "x", "payload": 1, "mode": "merge"}]')$$);
update fetchq_data.put__docs set payload = '[1]' where subject = 'known';
select test.error($$select fetchq.doc_put('put', 'known', '{"a": 1}', mode => 'merge')$$);
select count(*) from fetchq_data.put__docs where subject in ('x', 'y');

select was_dropped from fetchq.queue_drop('put');
drop function put_show(), put_reset(timestamptz), put_counted();

-- A name that is nearly that of a queue: the hint asks whether that is meant. Only queues on which the caller has a right are named.
select from fetchq.queue_create('rq_near_mail');
select test.error(c) from unnest(array[
    $$select fetchq.doc_put('rq_near_mial', 's')$$, $$select * from fetchq.doc_lease('rq_near_mails')$$, $$select fetchq.doc_complete('RQ_NEAR_MIAL', 's', lease => 1)$$, $$select fetchq.queue_settings('rq_fear_mail')$$,
    $$select fetchq.doc_put('something_else', 's')$$, $$select fetchq.doc_put('rq_near_liamx', 's')$$, $$select fetchq.doc_put('r', 's')$$]) c;
create role rq_near_stranger;
grant usage on schema fetchq to rq_near_stranger;
grant usage on schema test to public;
grant execute on function test.error(text) to public;
set role rq_near_stranger;
select test.error($$select fetchq.doc_put('rq_near_mial', 's')$$);
reset role;
drop owned by rq_near_stranger;
drop role rq_near_stranger;
-- An empty subject is always a mistake. Fetchq 4 accepts it.
select test.error(c) from unnest(array[$$select fetchq.doc_put('rq_near_mail', '')$$, $$select fetchq.doc_put_many('rq_near_mail', '[{"subject": "a"}, {"subject": ""}]')$$]) c;
select fetchq.doc_push('rq_near_mail', '');
select was_dropped from fetchq.queue_drop('rq_near_mail');
