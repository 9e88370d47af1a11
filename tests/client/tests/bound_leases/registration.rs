//! A session whose row in `fetchq.worker_sessions` is gone writes another one before it leases.

use fetchq_client_tests::{Server, wait_until, with_worker};

use super::{bindings, by_clients, complete, lease, sessions_are};

const ROWS: &str = "select count(*) from fetchq.worker_sessions";

#[tokio::test]
async fn a_session_whose_registration_was_deleted_registers_again_before_it_leases() {
    let (_cluster, server, look) = by_clients("bound_deleted").await;
    look.sql("select fetchq.doc_push('q', 'more' || i) from generate_series(1, 20) i")
        .await;
    for binding in ["return", "keep"] {
        for loss in [
            "delete from fetchq.worker_sessions",
            "truncate fetchq.worker_sessions",
            "delete from fetchq.worker_sessions; vacuum fetchq.worker_sessions",
            // The row is there, at another place.
            "vacuum full fetchq.worker_sessions",
            "update fetchq.worker_sessions set name = 'renamed'",
        ] {
            let worker = server.connect("postgres").await;
            let leased = lease(&worker, "q", binding).await;
            complete(&worker, "q", &leased).await;
            for statement in loss.split("; ") {
                look.sql(statement).await;
            }
            let leased = lease(&worker, "q", binding).await;
            assert_eq!(bindings(&look).await, [binding], "{loss}");
            look.sql("select fetchq.mnt()").await;
            complete(&worker, "q", &leased).await;
            lease(&worker, "q", binding).await;
            drop(worker);
            sessions_are(&look, 1).await;
            look.sql("select fetchq.mnt_run('q', 10)").await;
            assert!(bindings(&look).await.is_empty(), "{binding}, {loss}");
        }
    }
}

#[tokio::test]
async fn a_session_whose_registration_is_there_writes_no_other_one() {
    let (_cluster, server, look) = by_clients("bound_there").await;
    let worker = server.connect("postgres").await;
    for statement in [
        "begin; delete from fetchq.worker_sessions; rollback",
        "vacuum fetchq.worker_sessions",
        "select fetchq.mnt()",
    ] {
        let leased = lease(&worker, "q", "keep").await;
        complete(&worker, "q", &leased).await;
        for part in statement.split("; ") {
            look.sql(part).await;
        }
        assert_eq!(look.text(ROWS).await, "1", "{statement}");
    }
    // A row that is being deleted is not relied on.
    look.sql("begin; delete from fetchq.worker_sessions").await;
    let leased = lease(&worker, "q", "keep").await;
    look.sql("commit").await;
    assert_eq!(bindings(&look).await, ["keep"]);
    complete(&worker, "q", &leased).await;
    // The row that this transaction has written is there as well.
    let other = server.connect("postgres").await;
    other
        .sql(
            "begin; select fetchq.doc_lease('q', binding => 'keep'); savepoint s;
             select fetchq.doc_lease('q', binding => 'keep'); commit",
        )
        .await;
    assert_eq!(look.text(ROWS).await, "2");
}

#[tokio::test]
async fn trimming_with_an_old_list_of_sessions_deletes_no_registration_of_one_that_runs() {
    let (_cluster, server, look) = by_clients("bound_trimmed").await;
    for isolation in ["read committed", "repeatable read"] {
        look.sql(&format!(
            "begin isolation level {isolation}; select count(*) from pg_stat_activity"
        ))
        .await;
        let worker = server.connect("postgres").await;
        let leased = lease(&worker, "q", "return").await;
        complete(&worker, "q", &leased).await;
        look.sql("select fetchq.mnt(); commit").await;
        assert_eq!(look.text(ROWS).await, "1", "{isolation}");
        lease(&worker, "q", "return").await;
        drop(worker);
        sessions_are(&look, 1).await;
        look.sql("select fetchq.mnt_run('q', 10)").await;
        assert!(bindings(&look).await.is_empty(), "{isolation}");
        look.sql("select fetchq.mnt()").await;
        assert_eq!(look.text(ROWS).await, "0", "{isolation}");
    }
}

#[tokio::test]
async fn the_row_of_a_call_stays_while_its_session_may_commit_a_lease() {
    let (_cluster, server, look) = by_clients("bound_open").await;
    let worker = server.connect("postgres").await;
    let lease = "select from fetchq.doc_lease('q', duration => '1 hour', binding => 'call')";
    // One message of the client is one call, and leaves a transaction open.
    worker
        .sql(&format!("begin; {lease}; commit; begin; {lease}"))
        .await;
    // The call is over: the first document is given back.
    look.sql("select fetchq.mnt(); select fetchq.mnt()").await;
    assert!(bindings(&look).await.is_empty());
    worker.sql("commit").await;
    assert_eq!(bindings(&look).await, ["call"]);
    look.sql("select fetchq.mnt_run('q', 10)").await;
    assert!(bindings(&look).await.is_empty());
    look.sql("select fetchq.mnt()").await;
    assert_eq!(look.text(ROWS).await, "0");
}

#[tokio::test]
async fn trimming_in_an_old_snapshot_keeps_the_row_of_a_lease_that_is_newer() {
    let (_cluster, server, look) = by_clients("bound_snapshot").await;
    let worker = server.connect("postgres").await;
    let leased = lease(&worker, "q", "off").await;
    complete(&worker, "q", &leased).await;
    look.sql("begin isolation level repeatable read; select count(*) from fetchq.worker_sessions")
        .await;
    // The transaction does not see this lease, and that the session has ended.
    lease(&worker, "q", "off").await;
    drop(worker);
    sessions_are(&look, 1).await;
    look.sql("select fetchq.mnt(); commit").await;
    assert_eq!(look.text(ROWS).await, "1");
}

#[tokio::test]
async fn a_session_registers_anew_in_an_extension_that_was_created_again() {
    let db = Server::of_suite().database("registered_again").await;
    let session = db.connect().await;
    let queue = "select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd' || i) from generate_series(1, 5) i";
    for binding in ["off", "return", "off"] {
        session.sql(queue).await;
        for _ in 0..2 {
            lease(&session, "q", binding).await;
        }
        let leases = "select count(*) from fetchq.lease_list('q') where worker <> ''";
        assert_eq!(session.text(leases).await, "2", "{binding}");
        assert_eq!(session.text(ROWS).await, "1", "{binding}");
        session
            .sql("drop extension fetchq cascade; drop schema if exists fetchq_data cascade; create extension fetchq")
            .await;
    }
    drop(session);
    db.remove().await;
}

#[tokio::test]
async fn a_lease_of_a_prepared_transaction_is_bound_to_its_session() {
    let cluster = with_worker(
        "bound_prepared",
        "fetchq.background_worker = off\nfsync = off\nmax_prepared_transactions = 5",
    );
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq; select fetchq.queue_create('q');
         select fetchq.doc_push('q', 'd' || i) from generate_series(1, 5) i",
    )
    .await;
    for binding in ["return", "keep", "call"] {
        let worker = server.connect("postgres").await;
        // The session is known before.
        let leased = lease(&worker, "q", binding).await;
        complete(&worker, "q", &leased).await;
        let pick = format!(
            "select from fetchq.doc_lease('q', duration => '1 hour', binding => '{binding}')"
        );
        worker
            .sql(&format!("begin; {pick}; prepare transaction 'pick'"))
            .await;
        drop(worker);
        sessions_are(&look, 1).await;
        for _ in 0..3 {
            look.sql("select fetchq.mnt_run('q', 10)").await;
            look.sql("update fetchq.jobs set next_iteration = now()")
                .await;
            look.sql("select fetchq.mnt()").await;
        }
        look.sql("commit prepared 'pick'").await;
        assert_eq!(bindings(&look).await, [binding]);
        look.sql("select fetchq.mnt_run('q', 10)").await;
        assert!(bindings(&look).await.is_empty(), "{binding}");
        // Nobody needs the row any longer.
        wait_until("the row is deleted", async || {
            look.sql("update fetchq.jobs set next_iteration = now()")
                .await;
            look.sql("select fetchq.mnt()").await;
            look.text(ROWS).await == "0"
        })
        .await;
    }
}
