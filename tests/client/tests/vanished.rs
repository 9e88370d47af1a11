//! A client that is killed while it waits: its session of the server ends within
//! `client_connection_check_interval`, and without that when the wait is over.

use std::process::{Child, Stdio};

use fetchq_client_tests::{Database, Pooler, Server, Session, counters_are_exact, wait_until};

/// How many sessions run this call.
async fn sessions(session: &Session, call: &str, is_asleep: bool) -> i64 {
    let sql = "select count(*) from pg_stat_activity
        where datname = current_database() and query = $1 and state = 'active'
            and ($2 is false or wait_event_type = 'Extension')";
    let count = session.query_one(sql, &[&call, &is_asleep]).await;
    count.expect("pg_stat_activity").get(0)
}

/// Starts a client that waits in a call, kills it when it sleeps, and waits until its session has
/// ended.
async fn kill_client(db: &Database, session: &Session, call: &str) {
    let mut client: Child = db
        .psql()
        .args(["-c", call])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("psql");
    wait_until("the client waits", async || {
        sessions(session, call, true).await == 1
    })
    .await;
    client.kill().expect("SIGKILL");
    client.wait().expect("its end");
    wait_until("the session has ended", async || {
        sessions(session, call, false).await == 0
    })
    .await;
}

/// A database with queue `q`, whose one document is planned.
async fn start(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.doc_put('q', 'a', delay => '1 day');
             create function handle(payload jsonb) returns void language sql as 'select'",
        )
        .await;
    (db, session)
}

/// PostgreSQL 14 and newer can look whether the client is there.
async fn checks_connections(db: &Database, session: &Session) -> bool {
    let sql = format!(
        "alter database {} set client_connection_check_interval = '100 ms'",
        db.name
    );
    session.state(&sql).await.is_empty()
}

/// Longer than a test waits.
const LONG: [&str; 3] = [
    "call fetchq.doc_await('q', 'a', '1 hour')",
    "call fetchq.queue_wait(array['q'], '1 hour')",
    "call fetchq.work('q', 'handle')",
];

const SHORT: [&str; 2] = [
    "call fetchq.doc_await('q', 'a', '3 s')",
    "call fetchq.queue_wait(array['q'], '3 s')",
];

#[tokio::test]
async fn the_session_of_a_killed_client_ends() {
    let (db, mut session) = start("vanished").await;
    for call in SHORT {
        kill_client(&db, &session, call).await;
    }
    if checks_connections(&db, &session).await {
        for call in LONG {
            kill_client(&db, &session, call).await;
        }
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn the_session_of_a_client_killed_behind_the_pooler_ends() {
    let (db, mut session) = start("vanished_pooled").await;
    let has_check = checks_connections(&db, &session).await;
    session
        .sql(&format!(
            "alter database {} reset client_connection_check_interval",
            db.name
        ))
        .await;
    let pooler = Pooler::start(&db).await;
    let pooled = pooler.behind(&db);
    for call in SHORT {
        kill_client(&pooled, &session, call).await;
    }
    drop(pooler);
    if has_check && checks_connections(&db, &session).await {
        let pooler = Pooler::start(&db).await;
        let pooled = pooler.behind(&db);
        for call in LONG {
            kill_client(&pooled, &session, call).await;
        }
        // More than the pool has connections: their places in it are free.
        for _ in 0..3 {
            kill_client(&pooled, &session, LONG[0]).await;
        }
        drop(pooler);
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}
