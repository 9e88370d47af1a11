//! Processes are killed with SIGKILL: a backend in the middle of a transaction, and the whole
//! server under load.
//! Acknowledged changes are durable; unacknowledged changes leave no trace.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use fetchq_client_tests::{Cluster, Server, Session, counters_are_exact, in_snapshot, wait_until};

/// A cluster with a queue `q`, which writes to disk before it acknowledges, leases too.
async fn cluster(name: &str) -> (Cluster, Server) {
    let cluster = Cluster::new(
        name,
        "synchronous_commit = on\nfetchq.synchronous_leases = on\nfsync = on\nlog_min_messages = error",
    );
    cluster.start();
    let server = cluster.server();
    server
        .connect("postgres")
        .await
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    (cluster, server)
}

#[tokio::test]
async fn a_backend_killed_in_a_transaction() {
    let (cluster, server) = cluster("backend").await;
    for what in [
        "select fetchq.doc_push('q', 'mine')",
        "select fetchq.doc_append('q', '{}') from generate_series(1, 100)",
        "select fetchq.doc_upsert('q', 'p1', 0, 7, now() + interval '1 day', '{}')",
        "select fetchq.doc_pick('q', 2)",
        "select fetchq.doc_pick('q', 1), fetchq.doc_push('q', 'mine')",
        "select fetchq.doc_complete('q', 'leased')",
        "select fetchq.doc_reject('q', 'leased', 'why', '{}')",
        "select fetchq.doc_drop('q', 'leased')",
        "savepoint s; select fetchq.doc_drop('q', 'leased'); release s; select fetchq.metric_log_pack()",
        "select fetchq.queue_drop('q')",
    ] {
        let mut session = server.connect_when_up("postgres").await;
        session.sql("select fetchq.queue_truncate('q', true); select fetchq.doc_push('q', 'leased'); select fetchq.doc_pick('q', 0, 1, '1 hour')").await;
        session
            .sql("select fetchq.doc_push('q', 'p1'); select fetchq.doc_push('q', 'p2')")
            .await;
        let documents = "select * from fetchq_data.q__docs order by subject";
        let before = (
            in_snapshot(&mut session, "q").await,
            session.rows(documents).await,
        );
        let victim = server.connect_when_up("postgres").await;
        let pid = victim
            .text("select pg_backend_pid()")
            .await
            .parse()
            .unwrap();
        victim.sql(&format!("begin; {what}")).await;
        cluster.kill(pid);
        // All sessions end with the killed backend, because the server restarts.
        wait_until("the server has noticed", async || {
            session.batch_execute("select").await.is_err()
        })
        .await;
        let mut session = server.connect_when_up("postgres").await;
        let after = (
            in_snapshot(&mut session, "q").await,
            session.rows(documents).await,
        );
        assert_eq!(after, before, "{what}");
        // Documents that the killed backend had locked or leased are free.
        assert_eq!(
            session
                .column("select subject from fetchq.doc_pick('q', 10)")
                .await,
            ["p1", "p2"],
            "{what}"
        );
        assert_eq!(
            session
                .text("select fetchq.doc_complete('q', 'leased')")
                .await,
            "1",
            "{what}"
        );
        counters_are_exact(&mut session, "q").await;
    }
}

/// The changes that the server has acknowledged.
#[derive(Default)]
struct Acknowledged {
    pushed: HashSet<String>,
    picked: HashSet<String>,
    settled: HashSet<String>,
    /// Documents whose settling was requested but not answered.
    unknown: HashSet<String>,
}

/// Works until the server is gone.
async fn load(
    session: Session,
    number: u32,
    acknowledged: Arc<Mutex<Acknowledged>>,
) -> Result<(), tokio_postgres::Error> {
    for turn in 0.. {
        let subject = format!("{number}-{turn}");
        session
            .query_one("select fetchq.doc_push('q', $1)", &[&subject])
            .await?;
        acknowledged.lock().unwrap().pushed.insert(subject);
        let picked = session
            .query(
                "select subject from fetchq.doc_pick('q', 0, 2, '3 seconds')",
                &[],
            )
            .await?;
        let picked: Vec<String> = picked.iter().map(|row| row.get(0)).collect();
        {
            let mut acknowledged = acknowledged.lock().unwrap();
            for subject in &picked {
                assert!(
                    acknowledged.picked.insert(subject.clone()),
                    "{subject} was picked twice"
                );
            }
        }
        for subject in picked {
            if turn % 5 == 0 {
                continue; // The lease stays.
            }
            acknowledged.lock().unwrap().unknown.insert(subject.clone());
            let n: i32 = session
                .query_one("select fetchq.doc_complete('q', $1)", &[&subject])
                .await?
                .get(0);
            assert_eq!(n, 1);
            let mut acknowledged = acknowledged.lock().unwrap();
            acknowledged.unknown.remove(&subject);
            acknowledged.settled.insert(subject);
        }
        if turn % 20 == 0 {
            session
                .query("select fetchq.metric_log_pack()", &[])
                .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_killed_under_load() {
    let (cluster, server) = cluster("server").await;
    let acknowledged = Arc::new(Mutex::new(Acknowledged::default()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        tasks.spawn(load(
            server.connect("postgres").await,
            number,
            acknowledged.clone(),
        ));
    }
    wait_until("enough documents are settled", async || {
        acknowledged.lock().unwrap().settled.len() > 300
    })
    .await;
    let postmaster = cluster.pid().expect("the server runs");
    let backends = server
        .connect("postgres")
        .await
        .column("select pid from pg_stat_activity where pid <> pg_backend_pid()")
        .await;
    cluster.kill(postmaster);
    for pid in backends {
        // The whole server is killed at once; some processes may have ended already.
        cluster.kill_if_there(pid.parse().unwrap());
    }
    while let Some(ended) = tasks.join_next().await {
        ended
            .expect("a worker failed")
            .expect_err("the server is gone");
    }
    wait_until("its processes have ended", async || !cluster.is_running()).await;
    cluster.clear_locks();
    cluster.start();

    let mut session = server.connect_when_up("postgres").await;
    let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    let with = async |session: &Session, condition: &str| -> HashSet<String> {
        let sql = format!("select subject from fetchq_data.q__docs where {condition}");
        session.column(&sql).await.into_iter().collect()
    };
    let there = with(&session, "true").await;
    let completed = with(&session, "status = 3").await;
    let not_pending = with(&session, "status <> 1").await;
    assert!(
        acknowledged.pushed.is_subset(&there),
        "lost: {:?}",
        acknowledged.pushed.difference(&there)
    );
    assert!(
        acknowledged.settled.is_subset(&completed),
        "undone: {:?}",
        acknowledged.settled.difference(&completed)
    );
    assert!(
        acknowledged.picked.is_subset(&not_pending),
        "picks undone: {:?}",
        acknowledged.picked.difference(&not_pending)
    );
    for subject in completed.difference(&acknowledged.settled) {
        assert!(
            acknowledged.unknown.contains(subject),
            "{subject} is completed, but no worker requested it"
        );
    }
    counters_are_exact(&mut session, "q").await;

    // The leases expire, and each remaining document is picked and completed once.
    let left: HashSet<String> = there.difference(&completed).cloned().collect();
    assert!(!left.is_empty());
    let mut done = HashSet::new();
    wait_until("all leases have expired", async || {
        session.sql("select * from fetchq.mnt_run_all(1000)").await;
        for subject in session
            .column("select subject from fetchq.doc_pick('q', 1000)")
            .await
        {
            assert!(done.insert(subject.clone()), "{subject} was picked twice");
            assert_eq!(
                session
                    .text(&format!("select fetchq.doc_complete('q', '{subject}')"))
                    .await,
                "1"
            );
        }
        done == left
    })
    .await;
    session.sql("select * from fetchq.mnt()").await;
    counters_are_exact(&mut session, "q").await;
    let metrics = in_snapshot(&mut session, "q").await;
    assert_eq!(
        (metrics["cpl"], metrics["prc"]),
        (there.len() as i64, there.len() as i64)
    );
    assert_eq!(metrics["ent"], there.len() as i64);
}
