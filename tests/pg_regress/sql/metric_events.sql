-- Every counter rule, one by one, with its exact changes.
select was_created from fetchq.queue_create('rq_events');
select test.delta('rq_events');

-- push, append: ent+n cnt+n v+n, pnd+n or pln+n.
select fetchq.doc_push('rq_events', 's1');
select test.delta('rq_events');
select fetchq.doc_push('rq_events', 's2', '{}', timestamptz '2970-01-01');
select test.delta('rq_events');
select fetchq.doc_push('rq_events', 's3', 7, 0, '2020-01-01', '{}');
select test.delta('rq_events');
select fetchq.doc_push('rq_events', 's3');
select test.delta('rq_events');
select fetchq.doc_push('rq_events', 7, '2020-01-01', $$('m1', 0, '{}', {DATA}), ('s3', 0, '{}', {DATA}), ('m2', 0, '{}', {DATA})$$);
select test.delta('rq_events');
select fetchq.doc_push('rq_events', 0, '2970-01-01', $$('m3', 0, '{}', {DATA})$$);
select test.delta('rq_events');
select fetchq.doc_append('rq_events', '{}', 9) is not null as appended;
select test.delta('rq_events');

-- pick n: pkd+n act+n pnd-n.
select subject from fetchq.doc_pick('rq_events', 7, 1, '1h');
select test.delta('rq_events');
select subject from fetchq.doc_pick('rq_events', 7, 10, '1h');
select test.delta('rq_events');
select subject from fetchq.doc_pick('rq_events', 7, 10, '1h');
select subject from fetchq.doc_pick('rq_events', 0, 0, '1h');
select test.delta('rq_events');

-- complete: prc+1 cpl+1 act-1.
select fetchq.doc_complete('rq_events', 's3');
select test.delta('rq_events');

-- kill: prc+1 kll+1 act-1.
select fetchq.doc_kill('rq_events', 'm1');
select test.delta('rq_events');

-- reschedule: prc+1 res+1 act-1, pnd+1 or pln+1.
select fetchq.doc_reschedule('rq_events', 'm2', '2020-01-01');
select test.delta('rq_events');
select subject from fetchq.doc_pick('rq_events', 7, 1, '1h');
select test.delta('rq_events');
select fetchq.doc_reschedule('rq_events', 'm2', '2970-01-01');
select test.delta('rq_events');

-- reject: prc+1 err+1 rej+1 act-1, pnd+1 or kll+1.
select subject from fetchq.doc_pick('rq_events', 0, 1, '0s');
select test.delta('rq_events');
select fetchq.doc_reject('rq_events', 's1', 'no', '{}');
select test.delta('rq_events');
select fetchq.queue_set_max_attempts('rq_events', 2);
select subject from fetchq.doc_pick('rq_events', 0, 1, '0s');
select test.delta('rq_events');
select fetchq.doc_reject('rq_events', 's1', 'no', '{}');
select test.delta('rq_events');

-- drop: prc+1 drp+1 act-1 cnt-1 v-1, where v is the version of the document.
select count(*) from fetchq.doc_pick('rq_events', 9, 1, '1h');
select test.delta('rq_events');
select fetchq.doc_drop('rq_events', subject) from fetchq_data.rq_events__docs where version = 9;
select test.delta('rq_events');

-- make_pending n: pnd+n pln-n.
update fetchq_data.rq_events__docs set next_iteration = '2020-01-01' where status = 0;
select fetchq.mnt_make_pending('rq_events', 2);
select test.delta('rq_events');
select fetchq.mnt_make_pending('rq_events', 10);
select test.delta('rq_events');
select fetchq.mnt_make_pending('rq_events', 10);
select test.delta('rq_events');

-- orphans n: err+n orp+n pnd+n act-n.
select count(*) from fetchq.doc_pick('rq_events', 0, 10, '0s');
select test.delta('rq_events');
select fetchq.mnt_reschedule_orphans('rq_events', 10);
select test.delta('rq_events');

-- dead n: err+n orp+n kll+n act-n.
select count(*) from fetchq.doc_pick('rq_events', 0, 10, '0s');
select test.delta('rq_events');
select fetchq.mnt_reschedule_orphans('rq_events', 10);
select fetchq.mnt_mark_dead('rq_events', 10);
select test.delta('rq_events');

-- An upsert counts as a push, or as the change of status that it makes.
select * from fetchq.doc_upsert('rq_events', 'u1', 3, 0, '2970-01-01', '{}');
select test.delta('rq_events');
select * from fetchq.doc_upsert('rq_events', 'u1', 3, 0, '2020-01-01', '{}');
select test.delta('rq_events');
select * from fetchq.doc_upsert('rq_events', 'u1', 3, 5, '2020-01-02', '{}');
select test.delta('rq_events');
select * from fetchq.doc_upsert('rq_events', 'u1', 4, 0, '2970-01-01', '{}');
select test.delta('rq_events');
select * from fetchq.doc_upsert('rq_events', 'u2', 3, 0, '2020-01-01', '{}');
select test.delta('rq_events');
select subject from fetchq.doc_pick('rq_events', 3, 1, '1h');
select test.delta('rq_events');
select * from fetchq.doc_upsert('rq_events', 'u2', 3, 0, '2970-01-01', '{}');
select test.delta('rq_events');

-- log_error counts nothing, because only documents that fail are errors.
select fetchq.log_error('rq_events', 'u1', 'no', '{}');
select test.delta('rq_events');
select test.exact('rq_events');

-- Packing changes no value.
select fetchq.metric_log_pack() > 0 as packed;
select test.delta('rq_events');
select fetchq.metric_log_pack();
select test.exact('rq_events');

-- A transaction sees its own changes; a rollback removes all of them.
begin;
select fetchq.doc_push('rq_events', 'r1');
select test.delta('rq_events');
select current_value, does_exists from fetchq.metric_get('rq_events', 'pnd');
select subject from fetchq.doc_pick('rq_events', 0, 1, '1h');
select fetchq.doc_complete('rq_events', 'r1');
select test.delta('rq_events');
rollback;
select test.delta('rq_events');
select test.exact('rq_events');

-- The same for a savepoint; the changes before and after it are kept.
begin;
select fetchq.doc_push('rq_events', 'k1');
savepoint one;
select fetchq.doc_push('rq_events', 'k2');
select count(*) from fetchq.doc_pick('rq_events', 0, 5, '1h');
rollback to one;
select test.delta('rq_events');
select subject from fetchq.doc_pick('rq_events', 0, 5, '1h');
savepoint two;
select fetchq.doc_drop('rq_events', 'k1');
rollback to two;
release one;
commit;
select test.delta('rq_events');
select test.exact('rq_events');

-- A caught error undoes the changes of its block.
do $$ begin
    perform fetchq.doc_push('rq_events', 'e1');
    begin
        perform fetchq.doc_push('rq_events', 'e2');
        perform fetchq.metric_log_pack();
        perform 1 / 0;
    exception when division_by_zero then null;
    end;
end $$;
select test.delta('rq_events');
select test.exact('rq_events');
select fetchq.metric_log_pack() > 0 as packed;
select test.delta('rq_events');
select test.exact('rq_events');
select was_dropped from fetchq.queue_drop('rq_events');
