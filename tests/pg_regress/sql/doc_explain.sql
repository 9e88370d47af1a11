-- Why a document does not run: a row for each reason that holds.
select was_created from fetchq.queue_create('rq_why', '{"max_attempts": 5, "history": {"completed": null, "killed": null, "dropped": null}}');
create function test.why(subject text, queue text default 'rq_why') returns table (reason text, dates text, detail text, hint text) language sql as $$
select w.reason, concat_ws(' ', case when w.since <= clock_timestamp() then 'since' when w.since is not null then 'from now on' end,
    case when w.until > clock_timestamp() then 'until' when w.until is not null then 'is over' end),
    regexp_replace(w.detail, 'process \d+', 'process N'), regexp_replace(w.hint, '\(\d+\)', '(N)')
from fetchq.doc_explain($2, $1) w $$;
-- Nobody works on the queue.
select fetchq.doc_put('rq_why', 'first');
select * from test.why('first');
-- A worker is connected.
set fetchq.worker = 'regress';
select subject from fetchq.doc_pick('rq_why', 0, 1, '1h');
select * from test.why('first');
select fetchq.doc_put('rq_why', 'd''or');
select * from test.why('d''or');
-- Not due, and its retry.
select fetchq.doc_put('rq_why', 'later', delay => '1 hour');
select * from test.why('later');
select subject from fetchq.doc_pick('rq_why', 0, 1, '1h');
select fetchq.doc_reject('rq_why', 'd''or', 'disk full', delay => '1 hour');
select * from test.why('d''or');
-- A version that nobody takes, while another one is taken.
select fetchq.doc_put('rq_why', 'version', version => 3);
select * from test.why('version');
-- Due, but not pending yet; and a lease that has ended. Nobody maintains them meanwhile.
begin;
update fetchq_data.rq_why__docs set next_iteration = now() - interval '1 second' where subject in ('later', 'first');
select * from test.why('later');
select * from test.why('first');
rollback;
-- Paused, besides the other reasons.
select fetchq.queue_pause('rq_why');
select reason, hint from test.why('version');
select reason from test.why('d''or');
select fetchq.queue_resume('rq_why');
-- Set aside.
update fetchq_data.rq_why__docs set lock_upgrade = now() where subject = 'version';
select * from test.why('version') where reason = 'set_aside';
-- Never.
select fetchq.doc_put('rq_why', 'never', due_at => 'infinity');
select * from test.why('never');
-- Settled, and gone.
select fetchq.doc_complete('rq_why', 'first');
select * from test.why('first');
select fetchq.doc_put('rq_why', 'bad');
select subject from fetchq.doc_pick('rq_why', 0, 1, '1h');
select fetchq.doc_kill('rq_why', 'bad', message => 'no such address');
select * from test.why('bad');
select * from test.why('absent');
select from fetchq.queue_configure('rq_why', '{"history": {"completed": "1h", "dropped": "1h"}}');
select fetchq.doc_put('rq_why', 'gone');
select subject from fetchq.doc_pick('rq_why', 0, 1, '1h');
select fetchq.doc_drop('rq_why', 'gone');
select * from test.why('gone');

-- The cap: of a document that is due.
select was_created from fetchq.queue_create('rq_why_cap', '{"max_active": 1}');
select fetchq.doc_put('rq_why_cap', s) from unnest('{a,b}'::text[]) s;
select subject from fetchq.doc_pick('rq_why_cap', 0, 1, '1h');
select * from test.why('b', 'rq_why_cap');
select reason from test.why('a', 'rq_why_cap');
-- The rate.
select was_created from fetchq.queue_create('rq_why_rate', '{"rate": {"picks": 2, "per": "90 minutes"}}');
select fetchq.doc_put('rq_why_rate', s) from unnest('{a,b,c}'::text[]) s;
select subject from fetchq.doc_pick('rq_why_rate', 0, 2, '1h');
select * from test.why('c', 'rq_why_rate');
-- The ordering key: the first of the key, and the one just before.
select was_created from fetchq.queue_create('rq_why_key', '{"ordered": true}');
select fetchq.doc_put('rq_why_key', s, ordering_key => 'k''1') from unnest('{a,b,c}'::text[]) s;
select subject from fetchq.doc_pick('rq_why_key', 0, 9, '1h');
select * from test.why('b', 'rq_why_key');
select * from test.why('c', 'rq_why_key');
select from fetchq.queue_configure('rq_why_key', '{"ordered": false, "max_active_per_key": 2}');
select detail from test.why('c', 'rq_why_key');
-- Dead letters.
select was_created from fetchq.queue_create('rq_why_dead');
select from fetchq.queue_configure('rq_why', '{"dead_letter": "rq_why_dead", "max_attempts": 1}');
select fetchq.doc_put('rq_why', 'dead');
select subject from fetchq.doc_pick('rq_why', 0, 1, '1h');
select fetchq.doc_reject('rq_why', 'dead', 'no such address');
select * from test.why('dead');
select reason from test.why('dead', 'rq_why_dead');

-- It changes nothing, also in a transaction that may only read, and reads what is now.
begin transaction isolation level repeatable read read only;
select count(*) > 0 from fetchq.doc_explain('rq_why', 'first');
commit;
-- Errors, and rights.
select test.error($$select * from fetchq.doc_explain('rq_nope', 'x')$$);
select test.error($$select * from fetchq.doc_explain('rq_why', repeat('x', 300))$$);
select test.error($$select * from fetchq.doc_explain('rq_why', null)$$);
create role rq_why_role;
grant usage on schema fetchq, test to rq_why_role;
set role rq_why_role;
select test.error($$select * from fetchq.doc_explain('rq_why', 'x')$$);
reset role;
select fetchq.queue_grant('rq_why', 'rq_why_role', 'producer');
set role rq_why_role;
select test.error($$select * from fetchq.doc_explain('rq_why', 'x')$$);
reset role;
select fetchq.queue_grant('rq_why', 'rq_why_role', 'reader');
set role rq_why_role;
select reason from fetchq.doc_explain('rq_why', 'bad');
-- It may not read the dead letters.
select reason from fetchq.doc_explain('rq_why', 'dead');
reset role;
select count(fetchq.queue_drop(q)) from unnest('{rq_why,rq_why_cap,rq_why_rate,rq_why_key,rq_why_dead}'::text[]) q;
drop owned by rq_why_role;
drop role rq_why_role;
drop function test.why;
