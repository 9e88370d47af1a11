//! Two applications that do not trust one another share a database. Each has USAGE on the schemas
//! of fetchq and EXECUTE on `queue_create`, and nothing else.

mod dead_letters;
mod grants;
mod planting;

use fetchq_client_tests::{
    Database, Function, Server, Session, counters_are_exact, error_of, functions, prepare_queue,
    wait_until,
};

/// Makes the two roles, which exist once in a server.
async fn make_roles(admin: &Session) {
    for role in ["fetchq_app_a", "fetchq_app_b"] {
        admin
            .sql(&format!(
                "do $$ begin
                     if not exists (select from pg_roles where rolname = '{role}') then create role {role}; end if;
                 end $$;
                 grant usage on schema fetchq, fetchq_data to {role};
                 grant execute on function fetchq.queue_create to {role}"
            ))
            .await;
    }
}

/// A session of one of the applications.
async fn application(db: &Database, name: &str) -> Session {
    let session = db.connect().await;
    session
        .sql(&format!("set session authorization fetchq_app_{name}"))
        .await;
    session
}

/// The applications and a superuser. Application a has the queue `q`, with all that belongs to it.
async fn applications(name: &str) -> (Database, Session, Session, Session) {
    let db = Server::of_suite().database(name).await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    let (a, b) = (application(&db, "a").await, application(&db, "b").await);
    prepare_queue(&a).await;
    a.sql(
        "select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}, \"max_active\": 5, \"rate\": {\"picks\": 5, \"per\": \"1 day\"}, \"ordered\": true}');
         set fetchq.worker = 'mine'; select fetchq.doc_pick('q', 1); reset fetchq.worker;
         select fetchq.doc_push('q', 'a secret', '{\"a\": \"secret\"}')",
    )
    .await;
    (db, admin, a, b)
}

/// Everything that belongs to the queues of application a.
async fn state(admin: &Session) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in [
        "select * from fetchq_data.q__docs order by subject",
        "select * from fetchq_data.other__docs order by subject",
        "select * from fetchq_data.q__logs order by id",
        "select * from fetchq_data.q__metrics order by id",
        "select * from fetchq_data.q__history order by id",
        "select * from fetchq.queues where name in ('q', 'other') order by id",
        "select * from fetchq.jobs where queue in ('q', 'other', '*') order by id",
        "select * from fetchq.schedules where queue in ('q', 'other') order by name",
        "select queue, metric, value from fetchq.metrics_live where queue in ('q', 'other') order by 1, 2",
        "select * from fetchq.metrics_writes where queue in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.lease_slots s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.rate_permits s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.ordering_keys s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.worker_sessions s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1",
        "select s.* from fetchq.stop_requests s left join fetchq.queues q on q.id = s.queue_id where coalesce(q.name, 'q') in ('q', 'other') order by 1, 2",
        "select relname, relowner, relacl, relfilenode from pg_class where relname ~ '^(q|other)__' order by 1",
        "select tgname, tgenabled, tgrelid from pg_trigger order by 1, 3",
    ] {
        all.push(admin.rows(sql).await);
    }
    all
}

/// Calls every function as application b, with arguments that are right for the queues of
/// application a. Returns what was returned or refused.
async fn call_all(b: &Session) -> Vec<String> {
    let mut seen = Vec::new();
    for function in functions(b).await {
        let statement = function.prepare(b).await;
        match Function::call(b, &statement, &function.valid()).await {
            Ok(rows) => {
                for row in rows {
                    seen.push(format!("{}: {row:?}", function.signature()));
                }
            }
            Err(e) => {
                let code = fetchq_client_tests::state_of(&e);
                seen.push(format!("{}: {code}", function.signature()));
            }
        }
    }
    seen
}

#[tokio::test]
async fn neither_changes_anything_of_the_other() {
    let (db, mut admin, a, b) = applications("mistrust_change").await;
    let before = state(&admin).await;
    let seen = call_all(&b).await;
    for (got, expected) in state(&admin).await.iter().zip(&before) {
        assert_eq!(got, expected, "{seen:#?}");
    }
    // The queue works as before.
    assert_eq!(a.text("select fetchq.doc_push('q', 'after')").await, "1");
    counters_are_exact(&mut admin, "q").await;
    // Most calls are refused with the error that names the queue.
    let refused = seen.iter().filter(|line| line.ends_with(": 42501")).count();
    assert!(refused > 70, "{refused} of {seen:#?}");
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn neither_reads_anything_of_the_other() {
    let (db, admin, a, b) = applications("mistrust_read").await;
    b.sql("select fetchq.queue_create('mine'); select fetchq.doc_push('mine', 'm')")
        .await;
    for (sql, own) in [
        ("select name from fetchq.queue_status()", "mine"),
        ("select distinct queue from fetchq.metrics_live", "mine"),
        ("select queue from fetchq.metric_get_all()", "mine"),
        ("select queue from fetchq.metric_compute_all()", "mine"),
        ("select distinct queue from fetchq.queue_grants()", "mine"),
        (
            "select current_value from fetchq.metric_get_total('cnt')",
            "1",
        ),
    ] {
        assert_eq!(b.column(sql).await, [own], "{sql}");
    }
    for sql in [
        "select name from fetchq.schedule_list()",
        "select subject from fetchq.lease_list()",
        "select subject from fetchq.leases",
        "select name from fetchq.workers",
        "select subject from fetchq.queue_history()",
        "select subject from fetchq.history",
        "select queue from fetchq.trace('active')",
        "select queue from fetchq.progress where queue <> 'mine'",
        "select subject from fetchq.doc_lease_any(array['mine']) where subject <> 'm'",
    ] {
        assert_eq!(b.column(sql).await, [] as [&str; 0], "{sql}");
    }
    // No table of the schemas is readable, and the text of the library's own statements changes
    // nothing.
    for table in a
        .column("select c.oid::regclass::text from pg_class c where c.relkind = 'r' and (c.relnamespace = 'fetchq'::regnamespace or c.relname ~ '^q__') order by 1")
        .await
    {
        assert_eq!(b.state(&format!("select * from {table}")).await, "42501", "{table}");
    }
    assert_eq!(
        b.state("select id from fetchq.queues where name operator(pg_catalog.=) 'q' for key share")
            .await,
        "42501"
    );
    // The other application sees its own.
    assert_eq!(
        a.column("select name from fetchq.queue_status() order by 1")
            .await,
        ["other", "q"]
    );
    assert_eq!(
        a.column("select name from fetchq.workers where name = 'mine'")
            .await,
        ["mine"]
    );
    assert_eq!(
        a.column("select name from fetchq.schedule_list()").await,
        ["nightly"]
    );
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn neither_stops_workers_of_the_other() {
    let (db, admin, a, b) = applications("mistrust_stop").await;
    a.sql("set fetchq.worker = 'mine'; select fetchq.doc_push('q', 'work'); select fetchq.doc_pick('q', 1)")
        .await;
    let subject = a
        .text("select subject from fetchq.leases where worker = 'mine' order by since desc limit 1")
        .await;
    let extend = format!("select stop from fetchq.doc_extend('q', '{subject}', '1 hour')");
    b.sql("select fetchq.worker_stop('mine')").await;
    assert_eq!(b.text("select fetchq.worker_release('mine')").await, "0");
    assert_eq!(a.text(&extend).await, "f");
    let asked = "select fetchq.worker_stop_requested('q', 'mine', '2000-01-01')";
    assert_eq!(a.text(asked).await, "f");
    // The owner can.
    a.sql("select fetchq.worker_stop('mine')").await;
    assert_eq!(a.text(&extend).await, "t");
    assert_eq!(a.text(asked).await, "t");
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_role_without_rights_waits_for_no_lock_and_holds_none() {
    let (db, admin, a, b) = applications("mistrust_lock").await;
    a.sql("begin; lock table fetchq_data.q__docs in access exclusive mode")
        .await;
    b.sql("set lock_timeout = '10s'; set statement_timeout = '20s'")
        .await;
    for call in [
        "fetchq.doc_pick('q')",
        "fetchq.doc_push('q', 'x')",
        "fetchq.doc_append('q', '{}')",
        "fetchq.doc_complete('q', 'active')",
        "fetchq.doc_pop('q')",
        "fetchq.doc_extend('q', 'active', '1 hour')",
        "fetchq.doc_lease_any(array['q'])",
        "fetchq.docs_kill('q', '{\"all\": true}')",
        "fetchq.queue_redrive('q')",
        "fetchq.queue_pause('q')",
        "fetchq.queue_truncate('q')",
        "fetchq.queue_drop('q')",
        "fetchq.metric_reset('q')",
        "fetchq.mnt_run('q', 10)",
    ] {
        // 55P03 would say that it waited for the lock.
        assert_eq!(b.state(&format!("select {call}")).await, "42501", "{call}");
    }
    assert_eq!(
        b.state("call fetchq.queue_wait(array['q'], '0')").await,
        "42501"
    );
    a.sql("rollback").await;
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn neither_holds_up_the_other() {
    let (db, admin, a, b) = applications("mistrust_starve").await;
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

/// Whoever may use the schema can call this, so it must not keep a process that nobody can end.
#[tokio::test]
async fn a_long_preview_of_a_schedule_can_be_cancelled() {
    let (db, admin, a, b) = applications("mistrust_preview").await;
    b.sql("set statement_timeout = '100ms'").await;
    let preview = "select count(*) from fetchq.schedule_preview('every 1 second', n => 20000000)";
    assert_eq!(b.state(preview).await, "57014");
    drop((admin, a, b));
    db.remove().await;
}

/// A producer may change most columns, because an upsert does, but cancels nothing.
#[tokio::test]
async fn a_producer_cancels_no_document() {
    let (db, admin, a, b) = applications("mistrust_cancel").await;
    a.sql(
        "select fetchq.queue_create('plain');
         select fetchq.doc_push('plain', 'active'); select fetchq.doc_pick('plain', 1);
         select fetchq.doc_push('plain', 'pending');
         select fetchq.doc_push('plain', 'planned', 0, 0, now() + interval '1 day', '{}');
         select fetchq.queue_grant('plain', 'fetchq_app_b', 'producer')",
    )
    .await;
    let statuses =
        "select string_agg(subject || status, ' ' order by subject) from fetchq_data.plain__docs";
    for subject in ["active", "pending", "planned"] {
        let cancel = format!("select fetchq.doc_cancel('plain', '{subject}')");
        let refused = b.batch_execute(&cancel).await.unwrap_err();
        let error = error_of(&refused);
        assert_eq!(error.code().code(), "42501", "{subject}");
        assert!(error.message().contains("is no worker"), "{error}");
    }
    assert_eq!(admin.text(statuses).await, "active2 pending1 planned0");
    a.sql("select fetchq.queue_grant('plain', 'fetchq_app_b', 'worker')")
        .await;
    b.sql("select fetchq.doc_cancel('plain', 'pending')").await;
    assert_eq!(admin.text(statuses).await, "active2 pending-1 planned0");
    drop((admin, a, b));
    db.remove().await;
}
