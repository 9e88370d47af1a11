//! Workers behind PgBouncer in transaction mode, with two server connections for all clients: leases
//! are known by their number and workers by an argument, so no call depends on its session.
//! calls.rs makes every call through it.

use fetchq_client_tests::{
    Database, Pooler, Server, Session, counters_are_exact, state_of, wait_until,
};

async fn start(name: &str) -> (Database, Pooler, Database) {
    let db = Server::of_suite().database(name).await;
    db.connect()
        .await
        .sql("select fetchq.queue_create('q')")
        .await;
    let pooler = Pooler::start(&db).await;
    let pooled = pooler.behind(&db);
    (db, pooler, pooled)
}

const PID: &str = "select pg_backend_pid()";

/// Has `other` hold the server connection that `session` used last, in an open transaction, so that
/// the next call of `session` uses another one. Returns the process of the connection that is held.
async fn take_connection_of(session: &Session, other: &Session) -> String {
    let used = session.text(PID).await;
    other.sql("begin").await;
    assert_eq!(
        other.text(PID).await,
        used,
        "PgBouncer gives the connection that was used last"
    );
    used
}

#[tokio::test]
async fn a_lease_is_settled_on_another_server_connection() {
    let (db, pooler, pooled) = start("pooler_lease").await;
    let (a, b) = (pooled.connect().await, pooled.connect().await);
    a.sql("select fetchq.doc_put('q', i::text) from generate_series(1, 3) i")
        .await;
    let leased = "select lease from fetchq.doc_lease('q', max_docs => 3, duration => '1 hour', worker => 'w1')";
    let lease = a.column(leased).await;
    let lease = &lease[0];
    let held = take_connection_of(&a, &b).await;
    assert_ne!(a.text(PID).await, held);

    let extended = format!(
        "select outcome, stop from fetchq.docs_extend('q', '[{{\"subject\": \"1\", \"lease\": {lease}}}, {{\"subject\": \"2\", \"lease\": {lease}}}, {{\"subject\": \"3\", \"lease\": {lease}}}]', '2 hours')"
    );
    assert_eq!(a.rows(&extended).await, ["extended|f"; 3]);
    let worker = "select distinct worker from fetchq.leases where queue = 'q'";
    assert_eq!(a.column(worker).await, ["w1"]);
    a.sql(&format!(
        "select fetchq.doc_complete('q', '1', lease => {lease})"
    ))
    .await;
    a.sql(&format!(
        "select fetchq.doc_reject('q', '2', 'busy', lease => {lease}, delay => '1 hour')"
    ))
    .await;
    // Another lease is still refused, whatever the session.
    assert_eq!(
        a.state(&format!(
            "select fetchq.doc_drop('q', '3', lease => {lease} + 1)"
        ))
        .await,
        "55000"
    );
    // A worker is stopped by its name, and hears it by the number of its lease.
    db.connect()
        .await
        .sql("select fetchq.worker_stop('w1')")
        .await;
    assert_eq!(a.rows(&extended).await, ["lost|f", "lost|f", "extended|t"]);
    assert_eq!(
        a.text("select affected from fetchq.worker_release('w1')")
            .await,
        "1"
    );
    b.sql("rollback").await;
    counters_are_exact(&mut db.connect().await, "q").await;
    drop(pooler);
    db.remove().await;
}

#[tokio::test]
async fn many_workers_share_two_server_connections() {
    let (db, pooler, pooled) = start("pooler_many").await;
    let direct = db.connect().await;
    direct
        .sql("select fetchq.doc_put('q', i::text) from generate_series(1, 60) i")
        .await;
    let mut workers = Vec::new();
    for n in 0..6 {
        let session = pooled.connect().await;
        workers.push(tokio::spawn(async move {
            let mut wrong = Vec::new();
            let pick = format!(
                "select subject, lease from fetchq.doc_lease('q', duration => '1 hour', worker => 'worker {n}')"
            );
            while let Some(doc) = session.rows(&pick).await.pop() {
                let (subject, lease) = doc.split_once('|').expect("two columns");
                let by = format!("select worker from fetchq.doc_get('q', '{subject}')");
                let by = session.text(&by).await;
                if by != format!("worker {n}") {
                    wrong.push(format!("{subject} was leased by {by}, not by worker {n}"));
                }
                let done = format!("select fetchq.doc_complete('q', '{subject}', lease => {lease})");
                session.sql(&done).await;
            }
            wrong
        }));
    }
    for worker in workers {
        let wrong = worker.await.expect("a worker");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    let counts = "select count(*), min(iterations), max(iterations) from fetchq_data.q__docs where status = 3";
    assert_eq!(direct.rows(counts).await, ["60|1|1"]);
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    assert_eq!(
        direct.text(sessions).await,
        "2",
        "the clients shared two connections"
    );
    counters_are_exact(&mut db.connect().await, "q").await;
    drop(pooler);
    db.remove().await;
}

#[tokio::test]
async fn a_commit_through_the_pooler_wakes_who_waits_behind_it() {
    let (db, pooler, pooled) = start("pooler_wait").await;
    let waits = pooled.connect().await;
    let waiter = tokio::spawn(async move {
        let call = "call fetchq.queue_wait(queues => array['q'], timeout => '1 min')";
        waits.column(call).await
    });
    let direct = db.connect().await;
    wait_until("the client waits", async || {
        let asleep = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Extension'";
        direct.text(asleep).await == "1"
    })
    .await;
    let b = pooled.connect().await;
    b.sql("select fetchq.doc_put('q', 'new')").await;
    assert_eq!(waiter.await.expect("the waiter"), ["q"]);
    // In a transaction nobody can wait, with or without a pooler, and the error says so.
    b.sql("begin").await;
    let call = "call fetchq.queue_wait(queues => array['q'], timeout => '1 s')";
    b.cannot_wait(call, "fetchq.queue_wait").await;
    b.sql("rollback").await;
    drop(pooler);
    db.remove().await;
}

/// What a session remembers is shared behind a pooler: the guide says what to do instead.
#[tokio::test]
async fn settings_of_a_session_reach_other_clients() {
    let (db, pooler, pooled) = start("pooler_settings").await;
    let (a, b) = (pooled.connect().await, pooled.connect().await);
    b.sql("select fetchq.doc_put('q', i::text) from generate_series(1, 2) i")
        .await;
    a.sql("set fetchq.worker = 'a'").await;
    b.sql("select fetchq.doc_lease('q')").await;
    let worker = "select worker from fetchq.leases order by picked_at desc limit 1";
    assert_eq!(b.text(worker).await, "a", "b leases in the name of a");
    // An argument is of the call alone.
    b.sql("select fetchq.doc_lease('q', worker => 'b')").await;
    assert_eq!(b.text(worker).await, "b");
    drop(pooler);
    db.remove().await;
}

/// A lease that is bound to its session is bound to the session of the server, which belongs to the
/// pooler: it outlives the client, and ends when the pooler closes the connection.
#[tokio::test]
async fn a_bound_lease_is_bound_to_the_connection_of_the_pooler() {
    let (db, pooler, pooled) = start("pooler_binding").await;
    let direct = db.connect().await;
    direct
        .sql("select fetchq.doc_put('q', i::text) from generate_series(1, 2) i")
        .await;
    let a = pooled.connect().await;
    let lease = "select lease from fetchq.doc_lease('q', max_docs => 2, duration => '1 hour', binding => 'return')";
    let lease = a.column(lease).await[0].clone();
    let bound = a.text(PID).await;
    drop(a);
    // The client has gone, and its lease holds: another client can settle by it.
    let b = pooled.connect().await;
    direct.sql("select * from fetchq.mnt_run('q', 100)").await;
    b.sql(&format!(
        "select fetchq.doc_complete('q', '1', lease => {lease})"
    ))
    .await;
    // The pooler closes the connection while a client works.
    direct
        .sql(&format!("select pg_terminate_backend({bound})"))
        .await;
    wait_until("the lease has ended", async || {
        direct.sql("select * from fetchq.mnt_run('q', 100)").await;
        direct
            .text("select status from fetchq.doc_get('q', '2')")
            .await
            == "pending"
    })
    .await;
    let b = pooled.connect().await;
    let late = format!("select fetchq.doc_complete('q', '2', lease => {lease})");
    let e = b.simple_query(&late).await.expect_err("the lease is lost");
    assert_eq!(state_of(&e), "55000");
    drop(pooler);
    db.remove().await;
}

/// Prepared statements are of the server connection, and PgBouncer 1.18 does not know them: drivers
/// that prepare by themselves have to be told not to.
#[tokio::test]
async fn prepared_statements_of_a_driver_fail_behind_this_pooler() {
    let (db, pooler, pooled) = start("pooler_prepared").await;
    let (a, b) = (pooled.connect().await, pooled.connect().await);
    let statement = a.prepare("select fetchq.doc_get('q', $1)").await;
    let statement = statement.expect("the first one");
    let held = take_connection_of(&a, &b).await;
    let error = a
        .query(&statement, &[&"x"])
        .await
        .expect_err("another connection");
    assert_eq!(state_of(&error), "26000");
    assert!(!held.is_empty());
    b.sql("rollback").await;
    // Without a name it works: in one round trip, with the types of the parameters.
    let typed = [(
        &"x" as &(dyn tokio_postgres::types::ToSql + Sync),
        tokio_postgres::types::Type::TEXT,
    )];
    let rows = b
        .query_typed("select * from fetchq.doc_get('q', $1)", &typed)
        .await;
    assert_eq!(rows.expect("unnamed").len(), 0);
    drop(pooler);
    db.remove().await;
}
