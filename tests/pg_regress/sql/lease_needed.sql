-- A document that a call of fetchq 5 has leased is settled by its lease number only. One that doc_pick has
-- picked is settled by its subject too, as in fetchq 4.
select was_created from fetchq.queue_create('rq_ln');
select was_created from fetchq.queue_create('rq_ln2');
create function test.put() returns void language sql as $$
    select from fetchq.queue_truncate('rq_ln', true), fetchq.doc_put_many('rq_ln', '[{"subject": "a"}, {"subject": "b"}, {"subject": "c"}]')
$$;
-- Each way to lease, and what the subject alone then does.
create table test.ways (n int generated always as identity, way text, lease text);
insert into test.ways (way, lease) values
    ('doc_lease', $$fetchq.doc_lease('rq_ln', 3)$$), ('doc_lease_any', $$fetchq.doc_lease_any('{rq_ln,rq_ln2}', 3)$$), ('docs_next', $$fetchq.docs_next('rq_ln', max_docs => 3)$$),
    ('doc_pick', $$fetchq.doc_pick('rq_ln', 3)$$), ('doc_pick', $$fetchq.doc_pick('rq_ln', 0, 3, '5m'::interval)$$);
create table test.calls (n int generated always as identity, call text);
insert into test.calls (call) values
    ($$doc_complete('rq_ln', 'a')$$), ($$doc_complete('rq_ln', 'a', '{}', null)$$), ($$doc_kill('rq_ln', 'a', message => 'no')$$), ($$doc_drop('rq_ln', 'a', null)$$),
    ($$doc_reject('rq_ln', 'a', 'no')$$), ($$doc_reschedule('rq_ln', 'a', now())$$), ($$doc_snooze('rq_ln', 'a')$$), ($$doc_extend('rq_ln', 'a', '1 hour')$$),
    ($$doc_complete_many('rq_ln', '{c,b,a}')$$), ($$doc_drop_many('rq_ln', '{c,b,a}')$$), ($$doc_reschedule_many('rq_ln', '{c,b,a}', now())$$),
    ($$docs_settle('rq_ln', '[{"subject": "c", "action": "complete"}, {"subject": "b", "lease": null, "action": "drop"}]')$$),
    ($$docs_settle('rq_ln', '[{"subject": "b", "action": "complete"}]', 'error')$$),
    ($$docs_next('rq_ln', '[{"subject": "b", "action": "complete"}]', on_lost => 'ignore')$$);
create function test.tried(lease text, call text) returns text language plpgsql as $$
declare
    before jsonb;
    result text;
begin
    perform test.put();
    execute 'select count(*) from ' || lease;
    before := (select jsonb_agg(d order by d.subject) from fetchq_data.rq_ln__docs d);
    result := test.error('select fetchq.' || call);
    return result || case when result <> 'no error' and before is distinct from (select jsonb_agg(d order by d.subject) from fetchq_data.rq_ln__docs d) then ', and documents have changed' else '' end;
end $$;
select c.call, test.tried(w.lease, c.call) as result from test.ways w, test.calls c where w.n = 1 order by c.n;
select w.way, r.result, count(*) from test.ways w, test.calls c, regexp_replace(test.tried(w.lease, c.call), ' (document|\| ).*', '') r (result) where w.n > 1 group by w.n, 1, 2 order by w.n;
-- By a statement, the same.
set fetchq.direct = off;
select w.way, r.result, count(*) from test.ways w, test.calls c, regexp_replace(test.tried(w.lease, c.call), ' (document|\| ).*', '') r (result) group by w.n, 1, 2 order by w.n;
reset fetchq.direct;
-- With a history, a statement moves the documents.
select from fetchq.queue_configure('rq_ln', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}');
select w.way, r.result, count(*) from test.ways w, test.calls c, regexp_replace(test.tried(w.lease, c.call), ' (document|\| ).*', '') r (result) where w.way in ('doc_lease', 'doc_pick') group by w.n, 1, 2 order by w.n;
select count(*) from fetchq.queue_history('rq_ln') where subject = 'b';
select from fetchq.queue_configure('rq_ln', '{"history": null}');
select test.exact('rq_ln');

-- The number settles either.
select w.way, test.tried(w.lease, $$doc_complete('rq_ln', 'a', lease => test.lease_of('rq_ln', 'a'))$$) as a from test.ways w order by n;
-- Also after the document was leased by the other call, and the lease has expired.
select test.put();
select subject from fetchq.doc_lease('rq_ln', 1, '0 s');
select orphans from fetchq.mnt_run('rq_ln', 10) m (activated, orphans, killed);
update fetchq_data.rq_ln__docs set next_iteration = '2020-01-01' where subject = 'a';
select subject from fetchq.doc_pick('rq_ln');
select fetchq.doc_complete('rq_ln', 'a');
-- A client of fetchq 4 whose document a worker of fetchq 5 has leased since: the warning and the value of a
-- document that is not its own any more.
select test.put();
select subject from fetchq.doc_pick('rq_ln', '0 s'::text);
select orphans from fetchq.mnt_run('rq_ln', 10) m (activated, orphans, killed);
select count(*) from fetchq.doc_lease('rq_ln', 3);
set fetchq.compat = '4.2.0';
select fetchq.doc_complete('rq_ln', 'a'), fetchq.doc_kill('rq_ln', 'a'), fetchq.doc_reject('rq_ln', 'a', 'no', '{}');
-- A list is a call of fetchq 5: it fails, and nothing is settled.
select fetchq.doc_complete_many('rq_ln', '{a,b}');
reset fetchq.compat;
select subject, status from fetchq_data.rq_ln__docs order by 1;
-- A lease of fetchq 4 itself has no number.
update fetchq_data.rq_ln__docs set lease = null, worker_session = null where subject = 'a';
select fetchq.doc_extend('rq_ln', 'a', '1 hour') is not null, fetchq.doc_complete('rq_ln', 'a');

-- Who does not have the number ends the lease of whoever has it: one document, or those of a filter.
select * from fetchq.doc_cancel('rq_ln', 'b');
select fetchq.docs_drop('rq_ln', '{"subject": "c", "status": "active"}');
select subject, status from fetchq_data.rq_ln__docs order by 1;

-- A lease number in the place of the payload: it is refused where no lease is given.
select test.put();
select count(*) from fetchq.doc_pick('rq_ln', 3);
select test.error('select fetchq.' || call) from unnest(array[
    $$doc_complete('rq_ln', 'a', '217621350322057')$$, $$doc_complete('rq_ln', 'a', '7', null)$$, $$doc_kill('rq_ln', 'a', '-1.5e3')$$, $$doc_reschedule('rq_ln', 'a', now(), '7')$$,
    $$doc_complete_many('rq_ln', '{a,b}', array['{}', '217621350322057']::jsonb[])$$, $$doc_reschedule_many('rq_ln', '{a,b}', now(), array[null, '7']::jsonb[])$$]) call;
-- Beside a lease, or in an object or an array, a number is a payload. So it is for a client of fetchq 4.
select fetchq.doc_complete('rq_ln', 'a', '7', test.lease_of('rq_ln', 'a'));
select fetchq.doc_complete('rq_ln', 'b', '[7]');
set fetchq.compat = '4.2.0';
select fetchq.doc_complete('rq_ln', 'c', '7');
reset fetchq.compat;
select subject, payload from fetchq_data.rq_ln__docs order by 1;
select test.exact('rq_ln');

select was_dropped from fetchq.queue_drop('rq_ln');
select was_dropped from fetchq.queue_drop('rq_ln2');
drop table test.calls, test.ways;
drop function test.put();
drop function test.tried(text, text);
