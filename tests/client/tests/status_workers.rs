//! `fetchq.status()` says which queue has ready documents and no worker, and what is in dead-letter
//! queues, which are no backlog.

use fetchq_client_tests::{Cluster, Database, Session, wait_for_rows, wait_until};
use tokio::task::JoinHandle;

async fn server(name: &str, settings: &str) -> (Cluster, Database, Session) {
    let cluster = Cluster::new(name, settings);
    cluster.start();
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    (cluster, db, session)
}

const PRELOADED: &str = "shared_preload_libraries = 'fetchq'";

const STATE: &str = "select state from fetchq.status() where component = 'workers'";

/// With the times replaced.
const ALL: &str =
    "select state, regexp_replace(coalesce(detail, ''), '\\d{4}-\\d\\d-\\d\\d [0-9:.+]+', 'T', 'g')
    from fetchq.status() where component = 'workers'";

async fn said(session: &Session, what: &str, detail: &str) {
    wait_for_rows(what, session, ALL, &[&format!("missing|{detail}")]).await;
}

async fn fine(session: &Session) {
    assert_eq!(session.rows(ALL).await, ["fine|"]);
}

#[tokio::test]
async fn a_queue_with_documents_and_no_worker_is_named() {
    for (name, settings) in [("unattended", PRELOADED), ("unattended_bare", "")] {
        let (_cluster, db, session) = server(name, settings).await;
        session
            .sql(
                "select fetchq.queue_create(q) from unnest(array['mail', 'empty', 'paused', 'later']) q;
                 select fetchq.doc_put('mail', 'a'), fetchq.doc_put('mail', 'b'), fetchq.doc_put('paused', 'c'),
                    fetchq.doc_put('later', 'd', delay => '1 hour');
                 select fetchq.queue_pause('paused')",
            )
            .await;
        // Five minutes are not over.
        fine(&session).await;
        session.sql("set fetchq.no_worker_after = -1").await;
        assert_eq!(
            session.rows(ALL).await,
            ["off|fetchq.no_worker_after is -1"]
        );
        session.sql("set fetchq.no_worker_after = 0").await;
        let alone = "\"mail\": 2 pending, the first has waited since T, and no worker waits for it or has leased from it";
        said(&session, "nobody works", alone).await;
        let hint = "select hint from fetchq.status() where component = 'workers'";
        let hint = session.text(hint).await;
        assert!(hint.contains("doc_lease('mail')."), "{hint}");

        // A worker has one, for however long.
        let worker = db.connect().await;
        worker.sql("select fetchq.doc_lease('mail')").await;
        fine(&session).await;
        worker
            .sql("select fetchq.doc_complete('mail', subject, lease => lease) from fetchq.leases")
            .await;
        // As the background worker does every second. What is not packed counts as of now.
        fine(&session).await;
        worker.sql("select fetchq.metric_log_pack()").await;
        let left = "\"mail\": 1 pending, the first has waited since T, and no worker waits for it or has leased from it since T";
        said(&session, "the worker has stopped", left).await;
        // It may have leased the other one in a transaction that has not ended.
        worker.sql("begin; select").await;
        fine(&session).await;
        worker.sql("rollback").await;
        said(&session, "it has not", left).await;
        // A lease that is younger than the grace time is a sign of a worker.
        session.sql("set fetchq.no_worker_after = '1 h'").await;
        fine(&session).await;
    }
}

#[tokio::test]
async fn the_grace_time_begins_anew_when_the_server_starts() {
    let (cluster, db, session) = server("unattended_restart", PRELOADED).await;
    session
        .sql(
            "select fetchq.queue_create('mail');
             update fetchq.queues set created_at = now() - interval '1 day';
             select fetchq.doc_push('mail', 'a', 0, 0, now() - interval '1 hour', '{}')",
        )
        .await;
    fine(&session).await;
    cluster.stop("fast");
    cluster.start();
    let session = db.connect().await;
    fine(&session).await;
    session.sql("set fetchq.no_worker_after = 0").await;
    wait_for_rows("nobody works", &session, STATE, &["missing"]).await;
}

/// A worker that waits in the background.
async fn waits(db: &Database, call: &str) -> JoinHandle<()> {
    let worker = db.connect().await;
    let call = call.to_owned();
    tokio::spawn(async move { _ = worker.query(&call, &[]).await })
}

#[tokio::test]
async fn workers_that_wait_for_another_version_are_named() {
    let (_cluster, db, session) = server("unattended_version", PRELOADED).await;
    session
        .sql(
            "set fetchq.no_worker_after = 0;
             select fetchq.queue_create(q) from unnest(array['mail', 'other']) q;
             select fetchq.doc_put('mail', 'a', version => 2)",
        )
        .await;
    let alone = "\"mail\" (version 2): 1 pending, the first has waited since T, and ";
    // The worker of another queue.
    let other = waits(&db, "call fetchq.queue_wait(array['other'], '1 h')").await;
    said(
        &session,
        "none waits for the queue",
        &format!("{alone}no worker waits for it or has leased from it"),
    )
    .await;
    let hint = "select hint from fetchq.status() where component = 'workers'";
    let hint = session.text(hint).await;
    assert!(hint.contains("doc_lease('mail', version => 2)"), "{hint}");
    let first = waits(&db, "call fetchq.queue_wait(array['mail'], '1 h')").await;
    let waiting = format!("{alone}workers wait for version 0");
    said(&session, "one waits for version 0", &waiting).await;
    // A lease of the other version does not hide it.
    let worker = db.connect().await;
    worker
        .sql(
            "select fetchq.doc_put('mail', 'b', version => 1);
             select fetchq.doc_complete('mail', subject, lease => lease) from fetchq.doc_lease('mail', version => 1)",
        )
        .await;
    session.sql("set fetchq.no_worker_after = '1 s'").await;
    said(&session, "version 1 has a worker", &waiting).await;
    for worker in [other, first] {
        worker.abort();
    }
}

#[tokio::test]
async fn many_queues_without_workers_are_counted() {
    let (_cluster, db, session) = server("unattended_many", PRELOADED).await;
    session
        .sql(
            "set fetchq.no_worker_after = 0;
             select fetchq.queue_create('q' || n) from generate_series(1, 5) n",
        )
        .await;
    for n in 1..=5 {
        session
            .sql(&format!("select fetchq.doc_put('q{n}', 'a')"))
            .await;
    }
    wait_until("five queues have no worker", async || {
        let rows = session.rows(ALL).await;
        rows[0].starts_with("missing|\"q1\": 1 pending") && rows[0].ends_with("; and 2 more")
    })
    .await;
    // What cannot be known is said so, and the others are still named.
    let other = db.connect().await;
    other
        .sql("begin; lock table fetchq_data.q1__docs in access exclusive mode")
        .await;
    wait_until("one is not known", async || {
        let rows = session.rows(ALL).await;
        rows[0].starts_with("missing|\"q2\": 1 pending")
            && rows[0].ends_with("; and 1 more; not known for \"q1\"")
    })
    .await;
    other
        .sql("rollback; begin; lock table fetchq.worker_sessions in access exclusive mode")
        .await;
    assert_eq!(
        session.rows(ALL).await,
        ["unknown|not known for \"q1\", \"q2\", \"q3\" and 2 more"]
    );
    other.sql("rollback").await;
}

#[tokio::test]
async fn a_dead_letter_queue_is_no_backlog() {
    for (name, settings) in [("dead_state", PRELOADED), ("dead_state_bare", "")] {
        let (_cluster, _db, session) = server(name, settings).await;
        session
            .sql(
                r#"set timezone = 'UTC'; set fetchq.no_worker_after = 0;
                   select fetchq.queue_create('dead'), fetchq.queue_create('unused');
                   select fetchq.queue_create('mail', '{"dead_letter": "dead", "max_attempts": 1}');
                   select fetchq.queue_create('more', '{"dead_letter": "unused"}');
                   select fetchq.doc_put('mail', 'a'), fetchq.doc_put('mail', 'b')"#,
            )
            .await;
        let letters =
            "select state, detail, hint from fetchq.status() where component = 'dead letters'";
        assert_eq!(session.rows(letters).await, ["none||"]);
        session
            .sql("select fetchq.doc_kill('mail', subject, lease => lease) from fetchq.doc_lease('mail', 2)")
            .await;
        let since = session
            .text("select min(next_iteration) from fetchq_data.dead__docs")
            .await;
        let found = format!("waiting|2 in dead-letter queue \"dead\" since {since}|");
        let backlog = "select state, detail from fetchq.status() where component = 'backlog'";
        wait_for_rows("they are due", &session, letters, &[&found]).await;
        assert_eq!(session.rows(backlog).await, ["none|0 pending"]);
        fine(&session).await;
        let which = "select queue, is_dead_letter_queue from fetchq.queue_stats() order by queue";
        assert_eq!(
            session.rows(which).await,
            ["dead|t", "mail|f", "more|f", "unused|t"]
        );
        let metric = "select labels ->> 'queue', value from fetchq.metric_export('fetchq_dead_letter_queue') order by 1";
        assert_eq!(
            session.rows(metric).await,
            ["dead|1", "mail|0", "more|0", "unused|1"]
        );
        // A paused one is none either.
        session.sql("select fetchq.queue_pause('dead')").await;
        assert_eq!(session.rows(backlog).await, ["none|0 pending"]);
        assert_eq!(session.rows(letters).await, [found.as_str()]);
        session.sql("select fetchq.queue_resume('dead')").await;

        // Without its source it is a queue as all others.
        session
            .sql(r#"select from fetchq.queue_configure('mail', '{"dead_letter": null}')"#)
            .await;
        assert_eq!(session.rows(letters).await, ["none||"]);
        let waiting = format!("waiting|2 pending, ready since {since}");
        assert_eq!(session.rows(backlog).await, [waiting.as_str()]);
        wait_for_rows("nobody works on it", &session, STATE, &["missing"]).await;
    }
}
