//! The launcher, the background worker and the server are killed or stopped under load, while
//! only the background worker runs maintenance.
//! No acknowledged change is lost, and everything that is due happens afterwards.

use std::time::{Duration, Instant};

use fetchq_client_tests::{
    Cluster, Database, LAUNCHER, Load, Session, WORKER, counters_are_exact, one_of_each,
    process_id, wait_until, with_worker, worker_comes,
};

/// Changes are written to disk before they are acknowledged.
const DURABLE: &str = "synchronous_commit = on\nfsync = on\nrestart_after_crash = on";
const DATABASE: &str = "postgres";
const CLIENTS: usize = 6;

/// A cluster with the extension in its default database.
async fn durable(name: &str) -> (Cluster, Database) {
    let cluster = with_worker(name, DURABLE);
    let db = Database {
        server: cluster.server(),
        name: DATABASE.to_owned(),
    };
    let session = db.connect().await;
    session.sql("create extension fetchq").await;
    worker_comes(&session, DATABASE).await;
    (cluster, db)
}

#[tokio::test]
async fn a_background_worker_killed_in_the_middle_of_a_batch() {
    const DOCUMENTS: usize = 60_000;
    const BATCH: usize = 10_000;
    let (cluster, db) = durable("batch").await;
    let session = db.connect().await;
    session
        .sql(&format!(
            "select fetchq.queue_create('q');
             update fetchq.jobs set settings = '{{\"delay\": \"100ms\", \"limit\": {BATCH}}}' where task = 'mnt';
             select count(*) from fetchq.doc_put_many('q', (
                 select jsonb_agg(jsonb_build_object('subject', 'd' || n, 'due_at', now() + interval '2 s'))
                 from generate_series(1, {DOCUMENTS}) n))"
        ))
        .await;
    // The background worker has a transaction ID only while it writes.
    let writes = format!(
        "select pid from pg_stat_activity where backend_type = '{WORKER}' and backend_xid is not null"
    );
    let deadline = Instant::now() + Duration::from_secs(30);
    let victim = loop {
        if let Some(pid) = session.column(&writes).await.pop() {
            break pid.parse().unwrap();
        }
        assert!(
            Instant::now() < deadline,
            "the background worker never wrote anything"
        );
    };
    cluster.kill(victim);
    wait_until("the server has noticed", async || {
        session.batch_execute("select").await.is_err()
    })
    .await;

    let mut session = db.server.connect_when_up(DATABASE).await;
    let count = async |session: &Session| -> usize {
        session
            .text("select count(*) from fetchq_data.q__docs where status = 1")
            .await
            .parse()
            .unwrap()
    };
    let mut seen = Vec::new();
    wait_until("all documents are pending", async || {
        seen.push(count(&session).await);
        seen.last() == Some(&DOCUMENTS)
    })
    .await;
    // A batch is complete or absent.
    assert!(seen.iter().all(|n| n % BATCH == 0), "{seen:?}");
    assert!(
        seen[0] < DOCUMENTS,
        "the background worker had finished before it was killed"
    );
    counters_are_exact(&mut session, "q").await;
}

#[derive(Clone, Copy, Debug)]
enum Crash {
    Worker,
    Launcher,
    /// Kills only the postmaster: its children must notice.
    Postmaster,
    Immediate,
    Fast,
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_under_load() {
    let (cluster, db) = durable("crashes").await;
    let mut load = Load::new(&db).await;
    for crash in [
        Crash::Worker,
        Crash::Launcher,
        Crash::Postmaster,
        Crash::Immediate,
        Crash::Fast,
    ] {
        let session = db.server.connect_when_up(DATABASE).await;
        one_of_each(&session, DATABASE).await;
        load.run(CLIENTS, 300).await;
        match crash {
            Crash::Worker => cluster.kill(process_id(&session, WORKER).await.unwrap()),
            Crash::Launcher => cluster.kill(process_id(&session, LAUNCHER).await.unwrap()),
            Crash::Postmaster => cluster.kill(cluster.pid().expect("the server runs")),
            Crash::Immediate => cluster.stops("immediate"),
            Crash::Fast => cluster.stops("fast"),
        }
        let errors = load.ended().await;
        assert_eq!(errors.len(), CLIENTS, "{crash:?}");
        drop(session);
        match crash {
            Crash::Worker | Crash::Launcher => {}
            Crash::Postmaster => {
                wait_until("its processes have ended", async || !cluster.is_running()).await;
                cluster.clear_locks();
                cluster.start();
            }
            Crash::Immediate | Crash::Fast => cluster.start(),
        }
        let mut session = db.server.connect_when_up(DATABASE).await;
        load.compare(&session).await;
        counters_are_exact(&mut session, "q").await;
        one_of_each(&session, DATABASE).await;
        load.finish(&mut session).await;
    }
}

/// Only the one process ends; the server continues.
#[tokio::test(flavor = "multi_thread")]
async fn processes_terminated_under_load() {
    let (_cluster, db) = durable("terminated").await;
    let mut session = db.connect().await;
    let mut load = Load::new(&db).await;
    for victim in [LAUNCHER, WORKER, LAUNCHER] {
        load.run(CLIENTS, 100).await;
        let before = process_id(&session, victim)
            .await
            .expect("the process runs");
        let worker = process_id(&session, WORKER)
            .await
            .expect("the background worker runs");
        session
            .sql(&format!("select pg_terminate_backend({before}, 5000)"))
            .await;
        // A launcher terminates the background workers of the one before it, and starts others.
        for (kind, before) in [(victim, before), (WORKER, worker)] {
            wait_until("a new process runs", async || {
                let now = process_id(&session, kind).await;
                now.is_some_and(|now| now != before)
            })
            .await;
        }
        one_of_each(&session, DATABASE).await;
        load.stop().await;
        load.finish(&mut session).await;
    }
}
