//! The end of a prepared transaction wakes all who wait, whatever session ends it.

use std::time::Duration;

use fetchq_client_tests::{Cluster, Server, Session, wait_until};
use tokio::task::JoinHandle;

/// Without shared memory nobody is woken.
fn is_preloaded() -> bool {
    std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1")
}

/// A session that waits in the background, and the first column of its answer. Returns when it sleeps.
async fn waits(
    server: &Server,
    database: &str,
    session: &Session,
    call: &str,
) -> JoinHandle<String> {
    let waiter = server.connect(database).await;
    let pid = waiter.text("select pg_backend_pid()").await;
    let call = call.to_owned();
    let waiting = tokio::spawn(async move {
        let rows = waiter.query(&call, &[]).await.expect("the wait ends");
        rows[0].get::<_, Option<String>>(0).unwrap_or("null".into())
    });
    wait_until("the session sleeps", async || {
        session
            .text(&format!(
                "select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Extension'"
            ))
            .await
            == "1"
    })
    .await;
    waiting
}

/// What a session got that was woken. It looks again after five seconds in any case.
async fn woken(waiting: JoinHandle<String>, what: &str) -> String {
    tokio::time::timeout(Duration::from_secs(4), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}: nobody was woken"))
        .unwrap()
}

const WAIT: &str = "call fetchq.queue_wait(array['q'], '30 s')";
const AWAIT: &str = "call fetchq.doc_await('q', 'asked', '30 s')";

async fn prepares(session: &Session, sql: &str, name: &str) {
    session
        .sql(&format!("begin; {sql}; prepare transaction '{name}'"))
        .await;
}

#[tokio::test]
async fn commit_prepared_wakes_waiters_also_from_another_session() {
    if !is_preloaded() {
        return;
    }
    let server = Server::of_suite();
    let db = server.database("prepared_wake").await;
    let (first, other) = (db.connect().await, db.connect().await);
    first.sql("select fetchq.queue_create('q')").await;
    // The names of prepared transactions are those of the server.
    let name = format!("{}_push", db.name);
    // They have looked before there is anything, and look again soon only where a document is locked.
    let waiting = [
        waits(&server, &db.name, &first, WAIT).await,
        waits(&server, &db.name, &first, WAIT).await,
    ];
    prepares(&first, "select fetchq.doc_push('q', 'a')", &name).await;
    other.sql(&format!("commit prepared '{name}'")).await;
    for waiter in waiting {
        assert_eq!(woken(waiter, "COMMIT PREPARED of a push").await, "q");
    }
    // A document that a prepared transaction has picked is ready when that is rolled back.
    let name = format!("{}_pick", db.name);
    prepares(&first, "select fetchq.doc_pick('q')", &name).await;
    let waiter = waits(&server, &db.name, &first, WAIT).await;
    other.sql(&format!("rollback prepared '{name}'")).await;
    assert_eq!(woken(waiter, "ROLLBACK PREPARED of a pick").await, "q");
    db.remove().await;
}

#[tokio::test]
async fn commit_prepared_wakes_who_awaits_a_document() {
    if !is_preloaded() {
        return;
    }
    let server = Server::of_suite();
    let db = server.database("prepared_await").await;
    let (first, other) = (db.connect().await, db.connect().await);
    first.sql("select fetchq.queue_create('q')").await;
    let name = format!("{}_settle", db.name);
    let settle = "select fetchq.doc_complete('q', 'asked')";
    first
        .sql("select fetchq.doc_push('q', 'asked'); select fetchq.doc_pick('q')")
        .await;
    prepares(&first, settle, &name).await;
    let waiter = waits(&server, &db.name, &first, AWAIT).await;
    other.sql(&format!("commit prepared '{name}'")).await;
    assert_eq!(
        woken(waiter, "COMMIT PREPARED of a settlement").await,
        "completed"
    );
    db.remove().await;
}

/// The documents of a prepared transaction that outlives the server.
#[tokio::test]
async fn commit_prepared_after_a_restart_wakes_waiters() {
    if !is_preloaded() {
        return;
    }
    let cluster = Cluster::new(
        "prepared_restart",
        "max_prepared_transactions = 5\nfsync = off",
    );
    cluster.start();
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    session
        .sql("select fetchq.doc_push('q', 'asked'); select fetchq.doc_pick('q')")
        .await;
    prepares(
        &session,
        "select fetchq.doc_push('q', 'ready'), fetchq.doc_complete('q', 'asked')",
        "outlives",
    )
    .await;
    drop(session);
    cluster.stop("immediate");
    cluster.start();
    let session = server.connect_when_up("postgres").await;
    let waiter = waits(&server, "postgres", &session, WAIT).await;
    let awaiter = waits(&server, "postgres", &session, AWAIT).await;
    session.sql("commit prepared 'outlives'").await;
    assert_eq!(woken(waiter, "a queue").await, "q");
    assert_eq!(woken(awaiter, "a document").await, "completed");
    cluster.stop("fast");
}
