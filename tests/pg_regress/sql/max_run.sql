-- max_run: nothing extends a lease beyond it.
select was_created from fetchq.queue_create('rq_max_run', '{"max_run": "1 hour", "max_attempts": 2}');
set fetchq.worker = 'regress';
select fetchq.queue_settings('rq_max_run') ->> 'max_run';
create function test.run(subject text) returns table (status text, lasts interval, attempts int, last_error text) language sql as $$
select d.status, d.lease_ends - d.picked_at, d.attempts, d.last_error from fetchq.doc_get('rq_max_run', subject) d $$;
-- The document was picked that long ago.
create function test.hang(age interval) returns bigint language sql as $$
with changed as (update fetchq_data.rq_max_run__docs d set picked_at = now() - age where d.status = 2 returning 1) select count(*) from changed $$;
select fetchq.doc_put('rq_max_run', s) from unnest('{a,b}'::text[]) s;
-- A pick does not lease for longer either.
select subject, next_iteration - now() <= interval '1 hour' as is_limited from fetchq.doc_pick('rq_max_run', 0, 2, '5 hours');
select * from test.run('a');
-- Far from the end an extension is what it was.
select fetchq.doc_extend('rq_max_run', 'a', '10 minutes') is not null;
select lasts < interval '11 minutes' from test.run('a');
-- Near the end it says so, with and without the direct path, one or many.
select test.hang('55 minutes');
select lease_ends < now() + interval '6 minutes' as is_limited, stop from fetchq.doc_extend('rq_max_run', 'a', '10 minutes');
select * from test.run('a');
set fetchq.direct = off;
select lease_ends < now() + interval '6 minutes' as is_limited, stop from fetchq.doc_extend('rq_max_run', 'b', '10 minutes');
reset fetchq.direct;
select * from test.run('b');
select x.subject, x.outcome, x.lease_ends < now() + interval '6 minutes' as is_limited, x.stop
from fetchq.docs_extend('rq_max_run', (select jsonb_agg(jsonb_build_object('subject', l.subject, 'lease', l.lease) order by l.subject) from fetchq.leases l where l.queue = 'rq_max_run'), '10 minutes') x;
select outcome from fetchq.docs_extend('rq_max_run', (select jsonb_agg(jsonb_build_object('subject', l.subject, 'lease', l.lease)) from fetchq.leases l where l.queue = 'rq_max_run' and l.subject = 'a'), '1 minute');
-- A handler that hangs and extends does not hold its document for ever: then the lease expires as others do.
select test.hang('2 hours');
select lease_ends < now() as is_over from fetchq.doc_extend('rq_max_run', 'a', '10 minutes');
select lease_ends < now() as is_over from fetchq.doc_extend('rq_max_run', 'b', '10 minutes');
select * from fetchq.mnt_run('rq_max_run', 100);
select * from test.run('a');
select subject, attempts from fetchq.doc_pick('rq_max_run', 0, 1, '1 minute');
-- The next attempt has its own time.
select lease_ends > now() + interval '59 minutes' as is_whole from fetchq.doc_extend('rq_max_run', 'a', '5 hours');

-- A lease that lasts as long as its session ends then, too.
set fetchq.session_leases = keep;
select fetchq.doc_put('rq_max_run', 'kept');
select fetchq.doc_complete('rq_max_run', subject) from fetchq.doc_pick('rq_max_run', 0, 1, '1 minute') where subject <> 'kept';
select subject from fetchq.doc_pick('rq_max_run', 0, 1, '1 second');
update fetchq_data.rq_max_run__docs set picked_at = now() - interval '59 minutes 50 seconds' where subject = 'kept';
select count(*) from fetchq.mnt_run('rq_max_run', 100);
select * from test.run('kept');
update fetchq_data.rq_max_run__docs set picked_at = now() - interval '2 hours', next_iteration = now() - interval '1 second' where subject = 'kept';
select rescheduled_count from fetchq.mnt_run('rq_max_run', 100);
select * from test.run('kept');
reset fetchq.session_leases;
-- Without the setting nothing ends.
select fetchq.queue_configure('rq_max_run', '{"max_run": null}') ->> 'max_run';
select test.hang('2 hours');
select lease_ends > now() + interval '4 hours' as is_whole from fetchq.doc_extend('rq_max_run', 'a', '5 hours');
select count(fetchq.queue_drop('rq_max_run'));
drop function test.run, test.hang;
