-- lease_extend: a whole pick with one call.
select was_created from fetchq.queue_create('rq_le', '{"lease": "7 minutes"}');
select fetchq.doc_push('rq_le', s) from unnest('{a,b,c,d,e,f}'::text[]) s;
create table held (subject text primary key, lease bigint);
insert into held select subject, lease from fetchq.doc_lease('rq_le', 4, worker => 'rq_le_worker');
insert into held select subject, lease from fetchq.doc_lease('rq_le', 2);
create function lease_of(text) returns bigint language sql as 'select lease from held where subject = $1';
create view leased as select subject, status, next_iteration > now() + interval '50 minutes' as extended from fetchq_data.rq_le__docs order by subject;
prepare extend as select affected, lease_ends > now() + interval '50 minutes' as extended, stop from fetchq.lease_extend(queue => $1, lease => $2, duration => $3, subjects => $4);

-- All documents of the pick, and no other one.
begin;
execute extend('rq_le', lease_of('a'), '1 hour', null);
select * from leased;
rollback;
-- Only those that are named and that the lease holds; what is listed twice is counted once.
begin;
execute extend('rq_le', lease_of('a'), '1 hour', '{b,a,b,e,absent}');
select * from leased;
rollback;
-- Without a duration, that of the queue, from now on.
begin;
select affected, lease_ends between clock_timestamp() + interval '6 minutes' and clock_timestamp() + interval '7 minutes' as as_set
from fetchq.lease_extend('rq_le', lease_of('e'));
rollback;
-- What was settled or cancelled is left out.
begin;
select fetchq.doc_complete('rq_le', 'a', lease => lease_of('a')), fetchq.doc_cancel('rq_le', 'b');
execute extend('rq_le', lease_of('a'), '1 hour', null);
select * from leased;
-- Nothing is left: an error.
select count(*) from fetchq.doc_drop_many('rq_le', '{c,d}', lease_of('c'));
select regexp_replace(test.error($$select fetchq.lease_extend('rq_le', lease_of('a'))$$), 'lease \d+', 'lease N');
rollback;
-- The worker was asked to stop.
begin;
select fetchq.worker_stop('rq_le_worker');
execute extend('rq_le', lease_of('a'), '1 hour', null);
execute extend('rq_le', lease_of('e'), '1 hour', null);
rollback;

-- What is wrong is an error, and nothing was changed.
select regexp_replace(test.error('select fetchq.' || c), 'lease \d{2,}', 'lease N') from unnest(array[
    $$lease_extend('rq_nope', 1)$$, $$lease_extend('rq le', 1)$$, $$lease_extend(null, 1)$$, $$lease_extend('rq_le', null)$$,
    $$lease_extend('rq_le', 1)$$, $$lease_extend('rq_le', -1)$$, $$lease_extend('rq_le', lease_of('a'), '-1 second')$$,
    $$lease_extend('rq_le', lease_of('a'), '300000 years')$$, $$lease_extend('rq_le', lease_of('a'), '1 hour', '{}')$$,
    $$lease_extend('rq_le', lease_of('a'), '1 hour', '{e}')$$, $$lease_extend('rq_le', lease_of('a'), '1 hour', '{a,null}')$$,
    $$lease_extend('rq_le', lease_of('a'), '1 hour', array['a', repeat('s', 256)])$$]) c;
select count(*) from leased where extended;
select test.exact('rq_le');
deallocate extend;
drop view leased;
drop function lease_of(text);
drop table held;
select was_dropped from fetchq.queue_drop('rq_le');
