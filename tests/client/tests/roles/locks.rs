//! A role without rights on a queue waits for no lock of it, and holds none.

use super::*;

/// Locks all that belongs to the queues of application a.
const LOCK_ALL: &str = "begin;
    lock table fetchq_data.q__docs, fetchq_data.q__logs, fetchq_data.q__metrics, fetchq_data.q__history,
        fetchq_data.other__docs, fetchq_data.other__logs, fetchq_data.other__metrics in access exclusive mode;
    select from fetchq.queues where name in ('q', 'other') for update;
    select from fetchq.schedules where queue = 'q' for update;
    select s.id from fetchq.worker_sessions s join fetchq.queues q on q.id = s.queue_id where q.name = 'q' for update of s;
    select from fetchq.jobs where queue in ('q', 'other') for update";

/// Whether a call is about queues that it names.
fn is_for_one_queue(function: &Function) -> bool {
    let names = |name: &str| ["queue", "queues", "name"].contains(&name);
    function.arguments.iter().any(|a| names(&a.name))
}

#[tokio::test]
async fn no_call_of_a_stranger_waits_for_a_lock_of_the_queue() {
    let cast = Cast::new("roles_wait").await;
    let all = functions(&cast.admin).await;
    cast.admin.sql(LOCK_ALL).await;
    for role in cast.strangers() {
        let session = cast.session(&role).await;
        session
            .sql("set lock_timeout = '1s'; set statement_timeout = '30s'")
            .await;
        for function in &all {
            let statement = function.prepare(&session).await;
            let state = match Function::call(&session, &statement, &function.valid()).await {
                Ok(_) => String::new(),
                Err(e) => fetchq_client_tests::state_of(&e),
            };
            // 55P03 would say that it waited.
            let signature = function.signature();
            assert!(
                state.is_empty() || state == "42501",
                "{role}: {signature}: {state}"
            );
        }
        for call in [
            "queue_wait(array['q'], '0')",
            "doc_await('q', 'active', '0')",
        ] {
            let state = session.state(&format!("call fetchq.{call}")).await;
            assert_eq!(state, "42501", "{role}: {call}");
        }
    }
    cast.admin.sql("rollback").await;
    cast.remove().await;
}

/// Each role of application b has made every call in a transaction that stays open.
#[tokio::test]
async fn no_call_of_a_stranger_holds_up_the_queue() {
    let cast = Cast::new("roles_hold").await;
    let all = functions(&cast.admin).await;
    let mut open = Vec::new();
    for role in cast.strangers() {
        let session = cast.session(&role).await;
        // The roles of an application do wait for one another.
        session.sql("set lock_timeout = '200ms'; begin").await;
        for function in &all {
            let statement = function.prepare(&session).await;
            session.sql("savepoint s").await;
            let called = Function::call(&session, &statement, &function.valid()).await;
            let end = match &called {
                Ok(_) => "release s",
                Err(e) => {
                    let waited = fetchq_client_tests::state_of(e) == "55P03";
                    let signature = function.signature();
                    assert!(role != "fetchq_app_nobody" || !waited, "{signature}");
                    "rollback to s"
                }
            };
            session.sql(end).await;
        }
        open.push(session);
    }
    let held = "select l.mode, c.relname from pg_locks l join pg_class c on c.oid = l.relation
        where c.relname ~ '^(q|other)__' and l.pid <> pg_backend_pid()";
    assert_eq!(cast.admin.rows(held).await, [] as [&str; 0]);
    let owner = cast.session("fetchq_app_a").await;
    owner
        .sql("set lock_timeout = '5s'; set fetchq.strict = off")
        .await;
    for function in all.iter().filter(|function| is_for_one_queue(function)) {
        let statement = function.prepare(&owner).await;
        owner.sql("begin").await;
        let called = Function::call(&owner, &statement, &function.valid()).await;
        owner.sql("rollback").await;
        if let Err(e) = called {
            let state = fetchq_client_tests::state_of(&e);
            assert_eq!(state, "42501", "{}: {e:?}", function.signature());
        }
    }
    drop(open);
    cast.remove().await;
}

#[tokio::test]
async fn neither_holds_up_the_other() {
    let (db, admin, a, b) = applications("roles_starve").await;
    b.sql("select fetchq.queue_create('mine'); select fetchq.schedule_create('own', 'mine', '@hourly'); select fetchq.doc_push('mine', 'm')")
        .await;
    // Application b has done all it may in a transaction that stays open.
    b.sql(
        "begin;
         select fetchq.queue_create('q'); select fetchq.mnt(); select fetchq.mnt_job_run(1000); select fetchq.mnt_run_all(10);
         select fetchq.schedule_run(); select fetchq.metric_reset_all(); select fetchq.queue_truncate_all(true);
         select fetchq.doc_push('mine', 'n'); select fetchq.doc_pick('mine', 10); select fetchq.queue_configure('mine', '{\"history\": {\"completed\": \"1 day\"}}');
         select fetchq.worker_stop('mine'); select fetchq.worker_release('mine'); select count(*) from fetchq.status();
         select fetchq.queue_grant('mine', 'fetchq_app_a', 'reader'); select count(*) from fetchq.metrics_live",
    )
    .await;
    for session in [&a, &admin] {
        session.sql("set lock_timeout = '10s'").await;
    }
    a.sql(
        "select fetchq.doc_push('q', 'free'); select fetchq.doc_pick('q', 10); select fetchq.doc_complete('q', 'free');
         select fetchq.queue_pause('q'); select fetchq.queue_resume('q'); select fetchq.queue_enable_notify('q');
         select fetchq.queue_configure('q', '{\"max_active\": 7, \"ordered\": false}');
         select fetchq.schedule_pause('nightly'); select fetchq.mnt(); select fetchq.metric_reset('q'); select fetchq.queue_create('new');
         select fetchq.queue_truncate('q', true); select fetchq.schedule_create('also', 'q', '@daily')",
    )
    .await;
    // The counters of application a are packed meanwhile.
    a.sql("select fetchq.doc_push('q', 'packed')").await;
    wait_until("the counters of the other application are packed", async || {
        admin.sql("select fetchq.metric_log_pack()").await;
        let left = "select count(*) from fetchq.counter_tail t join fetchq.queues q on q.id = t.queue_id where q.name = 'q'";
        admin.text(left).await == "0"
    })
    .await;
    a.sql("select fetchq.queue_drop('q'); select fetchq.queue_drop('other')")
        .await;
    b.sql("commit").await;
    drop((admin, a, b));
    db.remove().await;
}

/// Advisory locks are numbers that everybody may lock.
#[tokio::test]
async fn advisory_locks_of_others_hold_nobody_up() {
    let cast = Cast::new("roles_advisory").await;
    let id = "select id from fetchq.queues where name = 'other'";
    let id = cast.admin.text(id).await;
    let other = cast.session("fetchq_app_nobody").await;
    other
        .sql(&format!(
            "select pg_advisory_lock({id}, n), pg_advisory_lock(n, {id}), pg_advisory_lock(n) from generate_series(0, 100) n;
             select pg_advisory_lock(x'66716164'::int, {id})"
        ))
        .await;
    cast.a.sql("set lock_timeout = '10s'").await;
    cast.a
        .sql("select fetchq.queue_configure('other', '{\"ordered\": true}');
              select fetchq.doc_push('other', 'x'); select fetchq.doc_pick('other'); select fetchq.doc_kill('other', 'x');
              select fetchq.queue_redrive('other', 10, '{}'); select fetchq.docs_kill('other', '{\"subject\": \"x\"}');
              select fetchq.mnt(); select fetchq.queue_drop('other')")
        .await;
    cast.remove().await;
}
