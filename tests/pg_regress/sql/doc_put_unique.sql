-- Documents that are unique by their content: the server makes the subject, the mode is once.
select was_created from fetchq.queue_create('uniq');
create function uniq_docs() returns table (subject text, payload jsonb, status int) language sql as $$
    select regexp_replace(subject, '^unique-[0-9a-f]{64}$', 'unique-HASH'), payload, status from fetchq_data.uniq__docs order by seq
$$;
create function uniq_clear() returns void language sql as $$ select fetchq.queue_truncate('uniq', true) $$;

-- Only the named fields count, in whatever order they are named, and however they are written.
select fetchq.doc_put('uniq', payload => '{"customer": 7, "month": "2026-11", "sent by": "ann"}', unique_by => '{customer,month}');
select fetchq.doc_put('uniq', payload => '{"sent by": "bob",   "month":"2026-11","customer":7.00}', unique_by => '{month,customer,month}');
select fetchq.doc_put('uniq', payload => '{"month": "2026-\u0031\u0031", "customer": 0.7e1}', unique_by => '{customer,month}', headers => '{"h": 1}', version => 0, priority => 9);
select fetchq.doc_put('uniq', payload => '{"customer": "7", "month": "2026-11"}', unique_by => '{customer,month}');
select fetchq.doc_put('uniq', payload => '{"customer": 7, "month": "2026-12"}', unique_by => '{customer,month}');
select * from uniq_docs();
select uniq_clear();

-- Also deep in what they contain: keys in any order, lists in their own order.
select fetchq.doc_put('uniq', payload => '{"a": {"x": [1.50, {"q": null, "p": -0.0}], "": true}}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": {"": true, "x": [1.5, {"p": 0, "q": null}]}}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": {"": true, "x": [{"p": 0, "q": null}, 1.5]}}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": {"": "true", "x": [1.5, {"p": 0, "q": null}]}}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": 100000000000000000000000000000001}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": 100000000000000000000000000000002}', unique_by => '{a}');
select count(*) from uniq_docs();
select uniq_clear();

-- A field that is missing counts as null; a field is a key of the payload, and no path.
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a,b}');
select fetchq.doc_put('uniq', payload => '{"a": 1, "b": null}', unique_by => '{a,b}');
select fetchq.doc_put('uniq', payload => '{"a": 1, "b": {"c": 2}}', unique_by => '{a,b.c}');
select fetchq.doc_put('uniq', payload => '{"a": 1, "b": {"c": 3}}', unique_by => '{a,b.c}');
select fetchq.doc_put('uniq', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => null, unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": null}', unique_by => '{a}');
select * from uniq_docs();
select uniq_clear();

-- No field at all: the whole payload, whatever it is.
select fetchq.doc_put('uniq', payload => '{"a": 1, "b": [2]}', unique_by => '{}');
select fetchq.doc_put('uniq', payload => '{"b": [2.0], "a": 1}', unique_by => '{}');
select fetchq.doc_put('uniq', payload => '{"b": [2.0], "a": 1, "c": null}', unique_by => '{}');
select fetchq.doc_put('uniq', payload => '[1, "two"]', unique_by => '{}'), fetchq.doc_put('uniq', payload => '"x"', unique_by => '{}'),
    fetchq.doc_put('uniq', payload => '["x"]', unique_by => '{}'), fetchq.doc_put('uniq', payload => 'null', unique_by => '{}');
select fetchq.doc_put('uniq', payload => '"x"', unique_by => '{}'), fetchq.doc_put('uniq', payload => 'null', unique_by => '{}');
select * from uniq_docs();
select uniq_clear();

-- Within a period: each length is one of its own, and the same length is one, however it is written.
begin;
select per, fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => per::interval)
from unnest('{1 day,24 hours,1 day -1 hour,23 hours,1 week,7 days,1 month,1 year,12 months,"10 years",1 microsecond}'::text[]) with ordinality p (per, n) order by n;
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => null);
commit;
select count(*), count(distinct length(subject)) from uniq_docs();
-- The next period.
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => '1 microsecond');
select uniq_clear();

-- The mode: once, also after it was done; another one where it is named.
select fetchq.queue_configure('uniq', '{"history": {"completed": "1 day"}}') -> 'history' ->> 'completed' as completed;
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}');
select fetchq.doc_complete('uniq', subject, lease => lease) from fetchq.doc_lease('uniq');
select * from uniq_docs();
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}');
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', mode => 'ignore');
select fetchq.doc_put('uniq', payload => '{"a": 1, "b": 2}', unique_by => '{a}', mode => 'merge');
select action from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1, "b": 3}, "unique_by": ["a"]}, {"payload": {"a": 1, "b": 4}, "unique_by": ["a"], "mode": "once"}]', 'replace');
select * from uniq_docs();
select uniq_clear();

-- Lists: the subject is in the result. Equal content is one document, also within the list.
select regexp_replace(subject, '^unique-[0-9a-f]{64}$', 'unique-HASH') as subject, action from fetchq.doc_put_many('uniq', '[
    {"payload": {"a": 1}, "unique_by": ["a"]},
    {"payload": {"b": 1, "a": 1.0}, "unique_by": ["a"]},
    {"payload": {"a": 1}, "unique_by": ["a"], "unique_per": "1 month"},
    {"payload": {"a": 1}, "unique_by": [], "unique_per": null},
    {"subject": "s", "payload": {"a": 1}, "unique_by": null}]');
select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}');
select count(distinct subject) from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a"]}, {"payload": {"a": 1}}]');

-- What follows from a settlement, alone and with the next lease.
select uniq_clear();
select fetchq.doc_put('uniq', s) from unnest('{s1,s2}'::text[]) s;
create temp table uniq_leased as select subject, lease from fetchq.doc_lease('uniq', 2);
select outcome from fetchq.docs_settle('uniq', (select jsonb_build_array(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete',
    'then', '[{"payload": {"after": 1}, "unique_by": ["after"]}, {"payload": {"after": 1.0, "x": 1}, "unique_by": ["after"], "unique_per": "1 day"}, {"payload": {"after": 1, "x": 2}, "unique_by": ["after"]}]'::jsonb))
    from uniq_leased where subject = 's1'));
select count(*) from fetchq.docs_next('uniq', (select jsonb_build_array(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete',
    'then', '[{"payload": {"after": 1}, "unique_by": ["after"]}, {"payload": {"after": 2}, "unique_by": ["after"]}]'::jsonb)) from uniq_leased where subject = 's2'), 9);
drop table uniq_leased;
select * from uniq_docs();

-- What is not valid.
\pset format unaligned
\pset tuples_only on
select test.error(c) from unnest(array[
    $$select fetchq.doc_put('uniq', 's', '{"a": 1}', unique_by => '{a}')$$,
    $$select fetchq.doc_put('uniq', '', '{"a": 1}', unique_by => '{a}')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}')$$,
    $$select fetchq.doc_put('uniq', null, '{"a": 1}', unique_by => null)$$,
    $$select fetchq.doc_put('uniq', 's', '{"a": 1}', unique_per => '1 day')$$,
    $$select fetchq.doc_put('uniq', payload => '[1]', unique_by => '{a}')$$,
    $$select fetchq.doc_put('uniq', payload => '"a"', unique_by => '{a}')$$,
    $$select fetchq.doc_put('uniq', payload => 'null', unique_by => '{a}')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a,null}')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{{a,b},{c,d}}')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => '0')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => '-1 day')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => '-1 month')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => '1 month 1 day')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', unique_per => '1 year 1 second')$$,
    $$select fetchq.doc_put('uniq', payload => '{"a": 1}', unique_by => '{a}', mode => 'twice')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}}, {"subject": "s", "payload": {"a": 1}, "unique_by": ["a"]}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": "a"}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": {"a": true}}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a", 1]}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a", null]}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": [1], "unique_by": ["a"]}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_per": "1 day"}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a"], "unique_per": 3600}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a"], "unique_per": "soon"}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a"], "unique_per": "1 month 2 days"}]')$$,
    $$select * from fetchq.doc_put_many('uniq', '[{"payload": {"a": 1}, "unique_by": ["a"], "unique_for": "1 day"}]')$$,
    $$select fetchq.docs_settle('uniq', '[{"subject": "s", "lease": 1, "action": "complete", "then": [{"payload": [], "unique_by": ["a"]}]}]')$$]) c;
select fetchq.queue_drop('uniq');
drop function uniq_docs(), uniq_clear();
