-- Appending: each subject is generated, unique, and greater than the earlier ones.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_append');
select test.delta('rq_append');
select subject as s1 from fetchq.doc_append('rq_append', '{"n": 1}') \gset
select subject as s2 from fetchq.doc_append('rq_append', '{"n": 2}', 0) \gset
select subject as s3 from fetchq.doc_append('rq_append', '{"n": 3}', 0, 5) \gset
select subject as s4 from fetchq.doc_append('rq_append', '{"n": 4}', 2, 0) \gset
select :'s1' < :'s2' collate "C" and :'s2' < :'s3' collate "C" and :'s3' < :'s4' collate "C" as ascending;
select length(:'s1') between 1 and 50 as fits;
select payload, version, priority, status, attempts, iterations, next_iteration <= now() as is_due from fetchq_data.rq_append__docs order by seq;
select array_agg(subject::text order by seq) = array[:'s1', :'s2', :'s3', :'s4'] as as_told from fetchq_data.rq_append__docs;
select test.delta('rq_append');

-- First in, first out within a priority; also within one statement.
select payload from fetchq.doc_pick('rq_append', 0, 10, '5m');
select count(distinct fetchq.doc_append('rq_append', jsonb_build_object('n', i), 3)) as subjects from generate_series(1, 500) i;
select count(*) from fetchq_data.rq_append__docs where version = 3;
select bool_and(subject > previous) as ascending from (
    select subject, lag(subject) over (order by seq) as previous from fetchq_data.rq_append__docs where version = 3) x
where previous is not null;
select array_agg((payload ->> 'n')::int order by n) = array(select generate_series(1, 500)) as first_in_first_out
from fetchq.doc_pick('rq_append', 3, 500, '5m') with ordinality x (subject, payload, a, b, c, d, e, f, g, h, n);
select test.exact('rq_append');

-- Options. NULL is the default of each.
select subject as d1 from fetchq.doc_append('rq_append', '{"n": "hour"}', 4, delay => '1 hour', headers => '{"trace": 1}') \gset
select subject as d2 from fetchq.doc_append('rq_append', '{"n": "minute"}', 4, 0, 'customer 1', 3, '1 minute') \gset
select fetchq.doc_append('rq_append', null, null, null, null, null, null, null) is null as is_null;
select :'d1' < :'d2' collate "C" as ascending;
select payload, version, status, next_iteration - created_at as delay, ordering_key, max_attempts, headers
from fetchq_data.rq_append__docs where version = 4 or payload = '{}' order by seq;
-- A delayed document is picked in the order of due times, not of appends.
select fetchq.doc_append('rq_append', '{"n": "now"}', 4) is null as is_null;
update fetchq_data.rq_append__docs set next_iteration = next_iteration - interval '1 day' where version = 4;
select * from fetchq.mnt_run('rq_append', 100);
select payload, headers, max_attempts from fetchq.doc_lease('rq_append', 10, version => 4);
set fetchq.direct = off;
select fetchq.doc_append('rq_append', '{}', 5, 0, 'customer 1', 3, '1 minute', '{"trace": 1}') is null as is_null;
select status, next_iteration - created_at as delay, ordering_key, max_attempts, headers from fetchq_data.rq_append__docs where version = 5;
reset fetchq.direct;
select test.exact('rq_append');
-- Options that are not valid.
select test.error($$select fetchq.doc_append('rq_append', '{}', delay => '-1 s')$$);
select test.error($$select fetchq.doc_append('rq_append', '{}', delay => '300000 years')$$);
select test.error($$select fetchq.doc_append('rq_append', '{}', headers => '[]')$$);
select test.error($$select fetchq.doc_append('rq_append', '{}', max_attempts => 0)$$);
select test.error($$select fetchq.doc_append('rq_append', '{}', ordering_key => repeat('k', 256))$$);
select test.exact('rq_append');

-- A missing queue returns NULL.
select fetchq.doc_append('rq_nope', '{}') is null as is_null;
select was_dropped from fetchq.queue_drop('rq_append');
