-- Maintenance of documents.
select was_created from fetchq.queue_create('rq_mnt');
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_mnt', true);
    insert into fetchq_data.rq_mnt__docs (subject, status, attempts, next_iteration, lock_upgrade) values
        ('planned, due', 0, 0, '2020-01-01', null),
        ('planned, due, tried', 0, 9, '2020-01-02', null),
        ('planned, later', 0, 0, '2970-01-01', null),
        ('planned, due, hidden', 0, 0, '2020-01-01', '2020-01-01'),
        ('pending', 1, 9, '2020-01-01', null),
        ('leased', 2, 9, '2970-01-01', null),
        ('lease over', 2, 1, '2020-01-01', null),
        ('lease over, last attempt but one', 2, 4, '2020-01-02', null),
        ('lease over, last attempt', 2, 5, '2020-01-03', null),
        ('lease over, too many attempts', 2, 6, '2020-01-01', null),
        ('lease over, hidden', 2, 9, '2020-01-01', '2020-01-01'),
        ('completed', 3, 9, '2020-01-01', null),
        ('killed', -1, 9, '2020-01-01', null);
    perform fetchq.metric_reset('rq_mnt');
    perform test.delta('rq_mnt');
end $$;
create view test.docs as select subject, status, attempts, iterations from fetchq_data.rq_mnt__docs order by seq;

-- Each function alone.
select test.fill();
select * from test.docs;
select * from fetchq.mnt_make_pending('rq_mnt', 10);
select * from test.docs where subject like 'planned%';
select test.delta('rq_mnt');
select * from fetchq.mnt_mark_dead('rq_mnt', 10);
select * from test.docs where subject like 'lease%';
select test.delta('rq_mnt');
select * from fetchq.mnt_reschedule_orphans('rq_mnt', 10);
select * from test.docs where subject like 'lease%';
select test.delta('rq_mnt');
select test.exact('rq_mnt');

-- mnt_reschedule_orphans leaves dead documents alone, in either order of the calls.
select test.fill();
select * from fetchq.mnt_reschedule_orphans('rq_mnt', 10);
select * from test.docs where subject like 'lease%';
select * from fetchq.mnt_mark_dead('rq_mnt', 10);
select * from test.docs where subject like 'lease%';

-- All three functions together.
select test.fill();
select * from fetchq.mnt_run('rq_mnt', 10);
select * from test.docs;
select test.delta('rq_mnt');
select test.exact('rq_mnt');
select * from fetchq.mnt_run('rq_mnt', 10);
select test.delta('rq_mnt');

-- Limits: for each function, the oldest documents first.
select test.fill();
select * from fetchq.mnt_run('rq_mnt', 1);
select subject, status from test.docs where status in (1, -1) order by subject;
select * from fetchq.mnt_run('rq_mnt', 1);
select * from fetchq.mnt_run('rq_mnt', 1);
select test.fill();
select * from fetchq.mnt_run('rq_mnt', 0);
select test.delta('rq_mnt');
select * from fetchq.mnt_run('rq_mnt', 2147483647);
select test.exact('rq_mnt');

-- A lease that expires exactly at now() has not expired yet; a document planned for now() is due.
select fetchq.queue_truncate('rq_mnt');
begin;
insert into fetchq_data.rq_mnt__docs (subject, status, attempts, next_iteration) values
    ('leased to now', 2, 1, now()), ('leased to now, last', 2, 5, now()), ('planned for now', 0, 0, now());
select * from fetchq.mnt_run('rq_mnt', 10);
rollback;

-- Rescheduled documents can be picked; their attempts grow until the document is dead.
select fetchq.queue_set_max_attempts('rq_mnt', 2);
select fetchq.queue_truncate('rq_mnt');
select test.delta('rq_mnt') is not null as looked;
select fetchq.doc_push('rq_mnt', 's1');
select subject, attempts from fetchq.doc_pick('rq_mnt', 0, 1, '0s');
select * from fetchq.mnt_run('rq_mnt', 10);
select subject, attempts from fetchq.doc_pick('rq_mnt', 0, 1, '0s');
select * from fetchq.mnt_run('rq_mnt', 10);
select * from fetchq.mnt_run('rq_mnt', 10);
select * from test.docs;
select test.delta('rq_mnt');

-- Every queue.
select was_created from fetchq.queue_create('rq_mnt2');
select fetchq.queue_set_max_attempts('rq_mnt', 5);
select test.fill();
select fetchq.doc_push('rq_mnt2', 's1');
select subject from fetchq.doc_pick('rq_mnt2', 0, 1, '0s');
select * from fetchq.mnt_run_all(10);
select * from fetchq.mnt_run_all(10);
select test.exact('rq_mnt2');

select test.error($$select fetchq.mnt_run('rq_mnt', -1)$$);
select test.error($$select fetchq.mnt_run_all(-1)$$);
select test.error($$select fetchq.mnt_make_pending('rq_mnt', -1)$$);
select test.error($$select fetchq.mnt_mark_dead('rq_mnt', -1)$$);
select test.error($$select fetchq.mnt_reschedule_orphans('rq_mnt', -1)$$);
select test.error($$select fetchq.mnt_run('rq_nope', 1)$$);
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_mnt');
select was_dropped from fetchq.queue_drop('rq_mnt2');
