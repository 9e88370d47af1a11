//! The lease of a document while its handler runs: it is extended, it is lost, or its session ends.

use std::sync::Arc;
use std::time::Duration;

use fetchq_client_tests::{
    Cluster, Server, Session, counters_are_exact, state_of, wait_until, with_worker, worker_comes,
};

use super::{HANDLER, document, in_handler, ledger, put, works};

#[tokio::test]
async fn work_under_a_lost_lease_is_rolled_back() {
    let db = Server::of_suite().database("work_lost").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 1.5}").await;
    put(&session, "next", "{}").await;
    let worker = works(db.connect().await, ", max_docs => 2");
    in_handler(&session).await;
    let cancel = "select was_cancelled from fetchq.doc_cancel('q', 'slow')";
    assert_eq!(session.text(cancel).await, "t");
    assert_eq!(worker.await.unwrap().expect("the worker continues"), (1, 1));
    assert_eq!(ledger(&session).await, ["next 1"]);
    assert_eq!(document(&session, "slow").await, "-1 0");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

async fn cluster(name: &str, settings: &str) -> (Cluster, Server, Session) {
    let cluster = with_worker(name, settings);
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session.sql("create extension fetchq").await;
    worker_comes(&session, "postgres").await;
    session.sql(HANDLER).await;
    (cluster, server, session)
}

#[tokio::test]
async fn a_document_is_picked_again_when_its_session_ends() {
    let (cluster, server, mut session) = cluster("work-end", "").await;
    for how in ["terminate", "kill"] {
        session
            .sql("select fetchq.queue_truncate('q'); truncate ledger")
            .await;
        put(&session, "slow", "{\"sleep\": 600}").await;
        // The lease lasts a day, so it does not expire during the test.
        let first = works(server.connect("postgres").await, ", duration => '1 day'");
        let pid = in_handler(&session).await;
        if how == "terminate" {
            session
                .sql(&format!("select pg_terminate_backend({pid})"))
                .await;
        } else {
            // The server restarts, and the test's session ends with it.
            cluster.kill(pid.parse().unwrap());
        }
        assert!(first.await.unwrap().is_err());
        if how == "kill" {
            // (the backend is gone a moment before the server knows of it)
            wait_until("the server starts again", async || {
                session.batch_execute("select").await.is_err()
            })
            .await;
            session = server.connect_when_up("postgres").await;
            worker_comes(&session, "postgres").await;
        }
        let second = works(server.connect("postgres").await, ", max_docs => 1");
        assert_eq!(
            second.await.unwrap().expect("the worker succeeds"),
            (1, 0),
            "{how}"
        );
        assert_eq!(ledger(&session).await, ["slow 2"], "{how}");
        assert_eq!(document(&session, "slow").await, "3 0", "{how}");
        counters_are_exact(&mut session, "q").await;
    }
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_the_handler() {
    let (_cluster, server, mut session) = cluster("work-long", "").await;
    put(&session, "slow", "{\"sleep\": 8}").await;
    let first = works(
        server.connect("postgres").await,
        ", max_docs => 1, duration => '3 s'",
    );
    // (if the second were quicker, the first would wait for a document for ever)
    in_handler(&session).await;
    // The second one must not be the one that leases it: the first one waits for a document.
    wait_until("the first worker has leased the document", async || {
        session.column("select count(*) from fetchq.leases").await == ["1"]
    })
    .await;
    let second = works(server.connect("postgres").await, ", idle_timeout => '8 s'");
    assert_eq!(
        first.await.unwrap().unwrap().0 + second.await.unwrap().unwrap().0,
        1
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ledger(&session).await, ["slow 1"]);
    counters_are_exact(&mut session, "q").await;
}

#[tokio::test]
async fn a_cancel_between_two_documents_keeps_no_lease() {
    // Commits take long, so most cancels come when a commit has leased the next document.
    let slow = "fsync = on\nsynchronous_commit = on\ncommit_delay = 100000\ncommit_siblings = 0";
    let (_cluster, server, mut session) = cluster("work-between", slow).await;
    let put = "select fetchq.doc_put('q', 'd' || i) from generate_series(1, 300) i";
    session.sql(put).await;
    // The session lives on. The lease lasts a day, so it does not expire during the test.
    let worker = Arc::new(server.connect("postgres").await);
    let pid = worker.text("select pg_backend_pid()").await;
    let mut left = 0;
    for _ in 0..20 {
        let works = {
            let worker = worker.clone();
            let call = "call fetchq.work('q', 'handle', duration => '1 day')";
            tokio::spawn(async move { worker.query(call, &[]).await.map(|rows| rows.len()) })
        };
        let before = ledger(&session).await.len();
        wait_until("the worker works", async || {
            ledger(&session).await.len() > before + 1
        })
        .await;
        session
            .sql(&format!("select pg_cancel_backend({pid})"))
            .await;
        let error = works.await.unwrap().expect_err("the call was cancelled");
        assert_eq!(state_of(&error), "57014");
        let leases = "select count(*) from fetchq.leases";
        left += session.text(leases).await.parse::<i32>().unwrap();
        wait_until("no document is leased", async || {
            session.text(leases).await == "0"
        })
        .await;
        if left >= 3 {
            break;
        }
    }
    assert!(left > 0, "no cancel came between two documents");
    // The documents that were leased are as if they had not been.
    let picked = "select count(*) from fetchq_data.q__docs where status <> 3 and (status, attempts) <> (1, 0)";
    assert_eq!(session.text(picked).await, "0");
    counters_are_exact(&mut session, "q").await;
}
