-- Documents that follow from a settlement: put in the same transaction, if the document was settled.
select (fetchq.queue_create(q)).was_created from unnest('{fu,fu_mail,fu_secret}'::text[]) q;
create function fu_docs() returns table (queue text, subject text, status text, payload jsonb, priority int, headers jsonb, max_attempts int) language sql as $$
    select q, d.subject, d.status, d.payload, d.priority, d.headers, d.max_attempts
    from unnest('{fu,fu_mail,fu_secret}'::text[]) with ordinality q (q, n), fetchq.docs_list(q) d order by n, d.subject
$$;
create table fu_held (subject text, lease bigint);
create function fu_lease() returns void language sql as $$
    select fetchq.queue_truncate(q, true) from unnest('{fu,fu_mail,fu_secret}'::text[]) q;
    select fetchq.doc_put('fu', s) from unnest('{a,b,c,d}'::text[]) s;
    delete from fu_held;
    insert into fu_held select subject, lease from fetchq.doc_lease('fu', 3);
$$;
-- A settlement with the lease of its document, or with another one.
create function fu(subject text, rest jsonb, wrong boolean default false) returns jsonb language sql as $$
    select jsonb_build_object('subject', h.subject, 'lease', h.lease - wrong::int) || rest from fu_held h where h.subject = fu.subject
$$;
create function fu_counted() returns setof text language sql as $$
    select format('WRONG: %s of %s is %s, not %s', m, q, coalesce(l.value, 0), n)
    from unnest('{fu,fu_mail,fu_secret}'::text[]) q
    cross join lateral fetchq.metric_compute(q) c
    cross join lateral (values ('cnt', c.cnt), ('pln', c.pln), ('pnd', c.pnd), ('act', c.act), ('kll', c.kll), ('cpl', c.cpl)) x (m, n)
    left join fetchq.metrics_live l on l.queue = q and l.metric = m
    where n <> coalesce(l.value, 0)
$$;

-- Whatever the action is, in one queue and in others, with all that doc_put_many takes.
select fu_lease();
select * from fetchq.docs_settle('fu', jsonb_build_array(
    fu('a', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "m1", "payload": {"to": "ann"}, "priority": 4, "max_attempts": 2, "headers": {"h": 1}}, {"subject": "e"}]}'),
    fu('b', '{"action": "kill", "message": "no", "then": [{"queue": "fu_secret", "subject": "x"}, {"queue": "fu_mail", "subject": "m0", "delay": "1 hour"}]}'),
    fu('c', '{"action": "reject", "message": "no", "then": []}')));
select * from fu_docs();
select * from fu_counted();
-- The mode says what happens to a document that exists; what is put on one that is leased runs later.
select fu_lease();
select fetchq.doc_put('fu_mail', 'm', '{"a": 1}');
select * from fetchq.docs_settle('fu', jsonb_build_array(
    fu('a', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "m", "payload": {"b": 2}, "mode": "merge"}, {"subject": "b", "payload": {"again": 1}, "mode": "replace"}, {"subject": "d", "payload": {"not": 1}}, {"subject": "a", "payload": {"next": 1}}]}')));
select * from fu_docs();
select * from fetchq.docs_settle('fu', jsonb_build_array(fu('b', '{"action": "complete", "then": null}')));
select subject, status, payload from fu_docs() where subject = 'b';
select * from fu_counted();

-- Not if the document was not settled.
select fu_lease();
select * from fetchq.docs_settle('fu', jsonb_build_array(
    fu('a', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "of a"}]}'),
    fu('b', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "of b"}]}', true),
    fu('c', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "of c"}]}')));
select subject from fu_docs() where queue = 'fu_mail';
select regexp_replace(split_part(test.error($$select * from fetchq.docs_settle('fu', jsonb_build_array(fu('b', '{"action": "complete", "then": [{"subject": "no"}]}', true)), 'error')$$), '|', 1), '\d{6,}', 'N');
select fu_lease();
begin;
select outcome from fetchq.docs_settle('fu', jsonb_build_array(fu('a', '{"action": "drop", "then": [{"subject": "no"}]}')));
rollback;
select queue, subject, status from fu_docs();
select * from fu_counted();

-- A chain in one round trip: what follows can be leased at once.
select fu_lease();
select subject, payload, attempts from fetchq.docs_next('fu', jsonb_build_array(fu('a', '{"action": "complete", "then": [{"subject": "step 2", "payload": {"step": 2}, "priority": 9}]}')));
select fetchq.queue_configure('fu', '{"ordered": true}') is not null;
select fu_lease();
select subject from fetchq.docs_next('fu', jsonb_build_array(fu('a', '{"action": "complete", "then": [{"subject": "k1", "ordering_key": "k"}, {"subject": "k2", "ordering_key": "k"}]}')), 5);
select * from fu_counted();
select fetchq.queue_configure('fu', '{"ordered": false}') is not null;

-- What follows into a queue whose document of the same subject is settled by the same call comes after that,
-- whichever queue is the first.
create function fu_any(first text, second text, mode text) returns setof text language plpgsql as $$
declare
    list jsonb;
begin
    perform fetchq.queue_truncate(q, true) from unnest('{fu,fu_mail}'::text[]) q;
    perform fetchq.doc_put(q, 'order', '{"old": 1}') from unnest('{fu,fu_mail}'::text[]) q;
    select jsonb_agg(jsonb_build_object('queue', queue, 'subject', subject, 'lease', lease, 'action', 'complete')
        || case queue when first then jsonb_build_object('then', jsonb_build_array(jsonb_build_object('queue', second, 'subject', 'order', 'payload', '{"new": 1}'::jsonb, 'mode', mode))) else '{}' end)
        into list from fetchq.doc_lease_any('{fu,fu_mail}', 2);
    return query select format('leased %s %s', queue, payload) from fetchq.docs_next_any('{fu,fu_mail}', list, 5);
    return query select * from fu_counted();
end $$;
select first, mode, fu_any(first, second, mode) from (values (1, 'fu', 'fu_mail'), (2, 'fu_mail', 'fu')) q (n, first, second), unnest('{ignore,merge,replace}'::text[]) mode order by n, mode;
-- The message says which settlement of the call it is.
select fu_lease();
select test.error($$select * from fetchq.docs_next_any('{fu,fu_mail}', jsonb_build_array(fu('a', '{"queue": "fu", "action": "complete"}'), jsonb_build_object('queue', 'fu_mail', 'subject', 'x', 'lease', 1, 'action', 'complete', 'then', '[{"subject": ""}]'::jsonb)))$$);

-- What is wrong with one of them fails the call, and nothing is settled: also where its document is lost.
select fu_lease();
create table fu_bad (n serial, bad jsonb);
insert into fu_bad (bad) values ('5'), ('{}'), ('"x"'), ('[5]'), ('[{"subject": ""}]'), ('[{"subject": "x"}, {"subject": 7}]'), ('[{"subject": "x"}, {"subject": "y", "colour": "red"}]'),
    ('[{"subject": "x", "queue": 5}]'), ('[{"subject": "x", "queue": "no such"}]'), ('[{"subject": "x"}, {"subject": "x", "queue": "nobody"}]'), ('[{"subject": "x", "then": []}]'),
    ('[{"subject": "x", "delay": "-1 s"}]'), ('[{"subject": "x", "priority": "high"}]'), ('[{"subject": "x", "mode": "latest"}]'), ('[{"subject": "x", "payload": [1], "mode": "merge"}]'),
    ('[{"subject": "x", "headers": []}]'), ('[{"subject": "x"}, {"subject": "list", "queue": "fu_mail", "payload": {"a": 1}, "mode": "merge"}]'), (jsonb_build_array(jsonb_build_object('subject', repeat('x', 256))));
select fetchq.doc_put('fu_mail', 'list', '[1]');
\pset format unaligned
select n, test.error(format($$select * from fetchq.docs_settle('fu', jsonb_build_array(fu('a', '{"action": "complete"}'), fu('b', jsonb_build_object('action', 'complete', 'then', %L::jsonb), %L)))$$, bad, n % 2 = 0 and n <> 17)) from fu_bad order by n;
select test.error($$select * from fetchq.docs_next('fu', jsonb_build_array(fu('a', '{"action": "complete", "then": [{"subject": ""}]}')))$$);
\pset format aligned
select queue, subject, status from fu_docs();
select * from fu_counted();

-- The caller may push into each of the queues.
create role fu_worker;
grant all on fu_held to fu_worker;
grant usage on schema test to fu_worker;
select fetchq.queue_grant('fu', 'fu_worker', 'worker'), fetchq.queue_grant('fu_mail', 'fu_worker', 'producer');
set role fu_worker;
select test.error($$select * from fetchq.docs_settle('fu', jsonb_build_array(fu('a', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "fine"}, {"queue": "fu_secret", "subject": "x"}]}')))$$);
select * from fetchq.docs_settle('fu', jsonb_build_array(fu('a', '{"action": "complete", "then": [{"queue": "fu_mail", "subject": "fine"}, {"subject": "own"}]}')));
reset role;
select queue, subject, status from fu_docs();

select fetchq.queue_revoke('fu', 'fu_worker', 'worker'), fetchq.queue_revoke('fu_mail', 'fu_worker', 'producer');
select (fetchq.queue_drop(q)).was_dropped from unnest('{fu,fu_mail,fu_secret}'::text[]) q;
drop table fu_held, fu_bad;
drop owned by fu_worker;
drop role fu_worker;
drop function fu_docs(), fu_lease(), fu(text, jsonb, boolean), fu_counted(), fu_any(text, text, text);
