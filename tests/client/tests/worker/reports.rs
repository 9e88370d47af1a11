//! What the log and the status say of the background workers, when all is well and when something fails.

use std::time::Duration;

use fetchq_client_tests::{
    Session, counters_are_exact, wait_for_rows, wait_until, with_worker, worker_comes, worker_goes,
};

use super::{becomes, planned, with_queue};

/// The start of the line that the server logs when the launcher ends; it logs the same about
/// other background workers.
const LAST_WORDS: &str = "background worker \"fetchq launcher\" (PID ";

#[tokio::test]
async fn the_log_is_silent_in_normal_operation() {
    let cluster = with_worker("silent", "log_min_messages = info");
    let (db, session) = with_queue(&cluster, "silent").await;
    worker_comes(&session, &db.name).await;
    planned(&session, "a", "300 ms").await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q', 0, 1, '200 ms')")
        .await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q'); select fetchq.doc_complete('q', 'a')")
        .await;
    session
        .sql("call fetchq.queue_wait(array['q'], '100 ms')")
        .await;
    session
        .sql("select fetchq.queue_drop('q'); drop extension fetchq")
        .await;
    worker_goes(&session, &db.name).await;
    session.sql("create extension fetchq").await;
    worker_comes(&session, &db.name).await;
    // An interrupted process would write to the log.
    wait_until("the background worker is idle", async || {
        let state =
            "select state from pg_stat_activity where backend_type = 'fetchq background worker'";
        session.column(state).await == ["idle"]
    })
    .await;
    std::mem::drop(session);
    cluster.stops("fast");

    let said: Vec<String> = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("fetchq "))
        .collect();
    assert!(
        said.len() <= 1 && said.iter().all(|line| line.contains(LAST_WORDS)),
        "{}",
        said.join("\n")
    );
}

#[tokio::test]
async fn failing_maintenance_backs_off_and_is_logged() {
    let cluster = with_worker("failing", "");
    let (db, mut session) = with_queue(&cluster, "failing").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "create function public.fail() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
             create trigger fail before update on fetchq_data.q__docs for each row execute function public.fail()",
        )
        .await;
    planned(&session, "a", "100 ms").await;
    wait_until("the job has failed a few times", async || {
        let sql = "select attempts > 3 from fetchq.jobs where task = 'mnt' and queue = 'q'";
        session.text(sql).await == "t"
    })
    .await;
    assert_eq!(
        session
            .text("select state from fetchq.status() where component = 'maintenance: documents'")
            .await,
        "failing"
    );
    let told = || {
        let lines = cluster.log_lines();
        lines
            .iter()
            .filter(|line| line.contains("not today"))
            .count()
    };
    wait_until("the log reports the failure", async || told() > 0).await;
    // Other queues are not delayed.
    session.sql("select fetchq.queue_create('r')").await;
    session
        .sql("select fetchq.doc_push('r', 'b', 0, 0, clock_timestamp() + interval '100 ms', '{}')")
        .await;
    wait_until("the other queue is maintained", async || {
        session.text("select status from fetchq_data.r__docs").await == "1"
    })
    .await;
    let attempts = session
        .text("select attempts from fetchq.jobs where task = 'mnt' and queue = 'q'")
        .await;
    assert!(told() <= attempts.parse::<usize>().unwrap() + 1);

    session
        .sql("drop trigger fail on fetchq_data.q__docs")
        .await;
    becomes(&session, "a", 1).await;
    wait_until("the job works again", async || {
        let sql = "select attempts = 0 and next_iteration < now() + interval '1 second' from fetchq.jobs where task = 'mnt' and queue = 'q'";
        session.text(sql).await == "t"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
}

/// `component: state` of each row.
const STATES: &str = "select component || ': ' || state from fetchq.status()";

async fn states(session: &Session) -> Vec<String> {
    session.column(STATES).await
}

#[tokio::test]
async fn status_and_progress() {
    let cluster = with_worker("status", "");
    let (db, session) = with_queue(&cluster, "status").await;
    worker_comes(&session, &db.name).await;
    let well = [
        "data owner: fine",
        "server: primary",
        "library: preloaded",
        "memory: there",
        "launcher: running",
        "background worker: running",
        "maintenance: documents: fine",
        "maintenance: counters: fine",
        "maintenance: snapshots: fine",
        "maintenance: recounts: fine",
        "maintenance: retention: fine",
        "schedules: none",
        "places: none",
        "workers: fine",
        "backlog: none",
        "planned: in time",
        "leases: in time",
        "dead letters: none",
        "counter log: short",
        "horizon: free",
    ];
    wait_for_rows("all components are well", &session, STATES, &well).await;
    let told = session
        .text("select count(*) from fetchq.status() where hint is not null")
        .await;
    assert_eq!(told, "0");

    // A dropped queue does not count as late.
    session
        .sql(
            "select fetchq.queue_create('gone'); select fetchq.doc_append('gone', '{}');
             select fetchq.doc_pick('gone', 0, 1, '500 ms'); select fetchq.queue_drop('gone')",
        )
        .await;
    tokio::time::sleep(Duration::from_millis(2000)).await;
    assert_eq!(states(&session).await, well);

    // fetchq.progress shows the services that run.
    session
        .sql("insert into fetchq_data.q__docs (subject, next_iteration) select 'd' || n, now() from generate_series(1, 200000) n")
        .await;
    let running = "select count(*) from fetchq.progress where service = 'documents' and queue = 'q' and done > 1000";
    wait_until("progress shows the service", async || {
        session.text(running).await == "1"
    })
    .await;
    wait_until("the service has ended", async || {
        session.text("select count(*) from fetchq.progress").await == "0"
            && session
                .text("select count(*) from fetchq_data.q__docs where status = 0")
                .await
                == "0"
    })
    .await;
    assert!(states(&session).await.contains(&"backlog: waiting".into()));

    // The status names the session with the oldest snapshot, and its age.
    let other = db.connect().await;
    other
        .sql("set application_name = 'reporter'; begin isolation level repeatable read; select")
        .await;
    // A transaction of the background worker may have an older snapshot for a moment.
    wait_for_rows(
        "the session is named",
        &session,
        "select detail like '%(reporter)%' from fetchq.status() where component = 'horizon'",
        &["t"],
    )
    .await;
    other.sql("rollback").await;

    // Without a background worker, due documents become late.
    session
        .sql("alter system set fetchq.background_worker = off")
        .await;
    session.sql("select pg_reload_conf()").await;
    worker_goes(&session, &db.name).await;
    // A document whose time has passed when it is pushed is pending at once, so the time is far
    // enough ahead for a slow machine.
    planned(&session, "late", "2 s").await;
    wait_for_rows(
        "the status is late",
        &session,
        "select state, hint is not null from fetchq.status() where component in ('background worker', 'planned')",
        &["off|t", "late|t"],
    )
    .await;
}
