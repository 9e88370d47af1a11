-- Pushing a list in the form that fetchq 4 clients write. The text is parsed, never executed.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_many');
select test.delta('rq_many');
select * from fetchq.doc_push('rq_many', 0, '2020-01-01', $$('m1', 0, '{"a":1}', {DATA}), ('m2', 5, '{}', {DATA})$$);
select * from fetchq.doc_push('rq_many', 3, '2970-01-01', $$('m3',-5,'[]',{DATA})$$);
select subject, version, priority, status, attempts, next_iteration, payload from fetchq_data.rq_many__docs order by seq;
select test.delta('rq_many');

-- Spaces and line breaks; doubled apostrophes; backslashes and emoji are plain text.
select * from fetchq.doc_push('rq_many', 0, '2020-01-01', $$
    ( 'it''s' , +7 , '{"b": "o''clock \\ \" 𝄞"}' , {DATA} ) ,
    ('a), (b', 0, '{"c": "{DATA}, ''x''"}', {DATA})
$$);
select subject, priority, payload from fetchq_data.rq_many__docs where subject in ('it''s', 'a), (b') order by seq;

-- A subject that exists, in the table or in the list, is not counted; the first of two is pushed.
select * from fetchq.doc_push('rq_many', 0, '2020-01-01', $$('m1', 1, '{"new": 1}', {DATA}), ('m4', 1, '{"n": 1}', {DATA}), ('m4', 2, '{"n": 2}', {DATA})$$);
select subject, priority, payload from fetchq_data.rq_many__docs where subject in ('m1', 'm4') order by seq;
select * from fetchq.doc_push('rq_many', 0, '2020-01-01', $$('m1', 1, '{}', {DATA})$$);
select test.delta('rq_many');
select test.exact('rq_many');

-- fetchq.legacy_quotes does not apply, because the list has its own literals.
set fetchq.legacy_quotes = on;
select * from fetchq.doc_push('rq_many', 0, '2020-01-01', $$('legacy', 0, '{"t": "it''s ''''"}', {DATA})$$);
reset fetchq.legacy_quotes;
select payload from fetchq_data.rq_many__docs where subject = 'legacy';

-- A missing queue.
select * from fetchq.doc_push('rq_nope', 0, '2020-01-01', $$('m1', 0, '{}', {DATA})$$);

-- Any other text is rejected as a whole.
create table test.victim (x int);
\pset format unaligned
\pset tuples_only on
select list || ' => ' || test.error(format('select fetchq.doc_push(''rq_many'', 0, ''2020-01-01'', %L)', list)) from (values
    (1, ''), (2, '   '), (3, '()'), (4, $$('x')$$), (5, $$('x', 0, '{}')$$),
    (6, $$('x', 0, '{}', {DATA}),$$), (7, $$('x', 0, '{}', {DATA}) ('y', 0, '{}', {DATA})$$),
    (8, $$('x', 0, '{}', {DATA}); drop table test.victim$$),
    (9, $$('x', 0, '{}', {DATA}) returning pg_sleep(1)$$),
    (10, $$('x', 1+1, '{}', {DATA})$$), (11, $$('x', 1.5, '{}', {DATA})$$), (12, $$('x', '1', '{}', {DATA})$$),
    (13, $$('x', 99999999999, '{}', {DATA})$$), (14, $$('x', null, '{}', {DATA})$$),
    (15, $$('x', 0, '{}'::jsonb, {DATA})$$), (16, $$('x' || 'y', 0, '{}', {DATA})$$),
    (17, $$('x', 0, jsonb_build_object(), {DATA})$$), (18, $$('x', 0, (select '{}'), {DATA})$$),
    (19, $$(pg_sleep(1)::text, 0, '{}', {DATA})$$), (20, $$(null, 0, '{}', {DATA})$$),
    (21, $$(E'x', 0, '{}', {DATA})$$), (22, '($a$x$a$, 0, ''{}'', {DATA})'), (23, $$("x", 0, '{}', {DATA})$$),
    (24, $$('x', 0, '{}', {DATA}) -- comment$$), (25, $$('x', 0, '{}', /* comment */ {DATA})$$),
    (26, $$('x', 0, '{}', now())$$), (27, $$('x', 0, '{}', {data})$$), (28, $$('x', 0, '{}', {DATA}, 1)$$),
    (29, $$('x, 0, {}, {DATA})$$), (30, $$('x', 0, '{}, {DATA})$$), (31, $$values ('x', 0, '{}', {DATA})$$),
    (32, $$('x', 0, 'not json', {DATA})$$), (33, $$('x', 0, '', {DATA})$$),
    (34, $$('good', 0, '{}', {DATA}), ('x', -, '{}', {DATA})$$),
    (35, $$('good', 0, '{}', {DATA}), ('$$ || repeat('x', 256) || $$', 0, '{}', {DATA})$$)
) as bad (n, list) order by n;
\pset tuples_only off
\pset format aligned
select count(*) from fetchq_data.rq_many__docs where subject in ('x', 'y', 'good', 'xy', '');
select count(*) from test.victim;
drop table test.victim;
select test.exact('rq_many');

-- A long list.
select * from fetchq.doc_push('rq_many', 1, '2020-01-01', (
    select string_agg(format($$('n%s', %s, '{"n": %s}', {DATA})$$, i, i % 3, i), ',') from generate_series(1, 2000) i));
select count(*), sum((payload ->> 'n')::int) from fetchq_data.rq_many__docs where version = 1;
select subject, priority from fetchq.doc_pick('rq_many', 1, 3, '5m');
select test.exact('rq_many');
select was_dropped from fetchq.queue_drop('rq_many');
