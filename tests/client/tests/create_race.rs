//! Queues and the extension are created and dropped while other sessions use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fetchq_client_tests::{Database, Server, Session, counters_are_exact};
use tokio::sync::Barrier;

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_create_the_same_queue() {
    let db = Server::of_suite().database("create_once").await;
    for round in 0..10 {
        let start = Arc::new(Barrier::new(8));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (db, start) = (db.clone(), start.clone());
            tasks.spawn(async move {
                let session = db.connect().await;
                start.wait().await;
                let sql = format!("select * from fetchq.queue_create('q{round}')");
                let row = session.query_one(&sql, &[]).await.expect("queue_create");
                (row.get::<_, bool>(0), row.get::<_, i32>(1))
            });
        }
        let results = tasks.join_all().await;
        assert_eq!(
            results.iter().filter(|(created, _)| *created).count(),
            1,
            "{results:?}"
        );
        assert!(
            results.iter().all(|(_, id)| *id == results[0].1),
            "{results:?}"
        );
    }
    let session = db.connect().await;
    assert_eq!(
        session.text("select count(*) from fetchq.queues").await,
        "10"
    );
    assert_eq!(
        session
            .text("select count(*) from fetchq.jobs where queue <> '*'")
            .await,
        "40"
    );
    db.remove().await;
}

/// Uses a queue that is created and dropped repeatedly. A call returns a value, possibly with a
/// warning that the queue or the document does not exist. No call may fail, in particular not
/// with a deadlock.
async fn use_queue(db: Database, number: u32, finished: Arc<AtomicBool>) -> u32 {
    let session = db.connect().await;
    session.sql("set fetchq.strict = off").await;
    let (mut turn, mut worked) = (0u32, 0);
    while !finished.load(Ordering::Relaxed) {
        turn += 1;
        let subject = format!("{number}-{turn}");
        let block = turn % 3 == 0;
        if block {
            session.sql("begin").await;
        }
        let run = async |call: String| -> Vec<String> {
            session
                .column(&format!("select * from fetchq.{call}"))
                .await
        };
        let pushed = run(format!("doc_push('q', '{subject}')")).await;
        assert!(pushed == ["0"] || pushed == ["1"], "{pushed:?}");
        worked += u32::from(pushed == ["1"]);
        run("doc_append('q', '{}')".into()).await;
        for picked in run(format!("doc_pick('q', {})", 1 + turn % 3)).await {
            let settle = match turn % 4 {
                0 => format!("doc_complete('q', '{picked}')"),
                1 => format!("doc_reject('q', '{picked}', 'why', '{{}}')"),
                2 => format!("doc_drop('q', '{picked}')"),
                _ => format!("doc_reschedule('q', '{picked}', now())"),
            };
            run(settle).await;
        }
        run("mnt_run_all(10)".into()).await;
        if turn % 5 == 0 {
            run("metric_log_pack()".into()).await;
        }
        if block {
            session
                .sql(if turn % 2 == 0 { "commit" } else { "rollback" })
                .await;
        }
        for notice in session.notices() {
            let code = notice.code().code();
            assert!(code == "42704" || code == "55000", "{notice:?}");
        }
    }
    worked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_created_and_dropped_while_it_is_used() {
    let db = Server::of_suite().database("come_and_go").await;
    let finished = Arc::new(AtomicBool::new(false));
    let mut users = Vec::new();
    for number in 0..4 {
        users.push(tokio::spawn(use_queue(
            db.clone(),
            number,
            finished.clone(),
        )));
    }
    let mut makers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let db = db.clone();
        makers.spawn(async move {
            let session = db.connect().await;
            session.sql("set fetchq.strict = off").await;
            let (mut created, mut dropped) = (0, 0);
            for _ in 0..40 {
                created += u32::from(
                    session
                        .text("select was_created from fetchq.queue_create('q')")
                        .await
                        == "t",
                );
                dropped += u32::from(
                    session
                        .text("select was_dropped from fetchq.queue_drop('q')")
                        .await
                        == "t",
                );
                for notice in session.notices() {
                    assert_eq!(notice.code().code(), "42704", "{notice:?}");
                }
            }
            (created, dropped)
        });
    }
    let mut counts = (0, 0);
    while let Some(ended) = makers.join_next().await {
        let (created, dropped) = ended.expect("creating and dropping");
        counts = (counts.0 + created, counts.1 + dropped);
    }
    finished.store(true, Ordering::Relaxed);
    let mut worked = 0;
    for user in users {
        worked += user.await.expect("using the queue");
    }
    assert!(
        counts.0 > 0 && counts.0 == counts.1,
        "not every queue that was created was dropped: {counts:?}"
    );
    assert!(worked > 0, "no user ever found the queue");
    // Nothing of the queue is left.
    let mut session = db.connect().await;
    session.sql("select fetchq.metric_log_pack()").await;
    for left in [
        "select count(*) from fetchq.queues",
        "select count(*) from fetchq.jobs where queue <> '*'",
        "select count(*) from fetchq.metrics",
        "select count(*) from fetchq.counter_log",
        "select count(*) from pg_class where relnamespace = 'fetchq_data'::regnamespace",
    ] {
        assert_eq!(session.text(left).await, "0", "{left}");
    }
    session
        .sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd')")
        .await;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

/// Runs a document through all hot statements, so that their plans are cached.
async fn work(session: &Session) {
    for settle in [
        "doc_complete('q', 'd')",
        "doc_reject('q', 'd', 'why', '{}')",
        "doc_kill('q', 'd')",
        "doc_drop('q', 'd')",
    ] {
        assert_eq!(session.text("select fetchq.doc_push('q', 'd')").await, "1");
        assert_eq!(
            session
                .rows("select * from fetchq.doc_upsert('q', 'd', 0, 1, now(), '{}')")
                .await,
            ["0|1"]
        );
        assert_eq!(
            session
                .column("select subject from fetchq.doc_pick('q')")
                .await,
            ["d"]
        );
        assert_eq!(
            session.text(&format!("select fetchq.{settle}")).await,
            "1",
            "{settle}"
        );
        session.sql("delete from fetchq_data.q__docs").await;
        session.sql("select fetchq.doc_append('q', '{}')").await;
        assert_eq!(
            session
                .column("select subject from fetchq.doc_pick('q', 0, 5, '1m')")
                .await
                .len(),
            1
        );
        session.sql("delete from fetchq_data.q__docs; select fetchq.mnt_run('q', 10); select fetchq.metric_reset('q')").await;
    }
}

#[tokio::test]
async fn dropped_and_created_again_in_one_session() {
    let db = Server::of_suite().database("again").await;
    let mut session = db.connect().await;
    session.sql("set fetchq.strict = off").await;
    for _ in 0..3 {
        session.sql("select fetchq.queue_create('q')").await;
        work(&session).await;
        session.sql("select fetchq.doc_push('q', 'left')").await;
        counters_are_exact(&mut session, "q").await;
        assert_eq!(
            session
                .text("select was_dropped from fetchq.queue_drop('q')")
                .await,
            "t"
        );
        assert_eq!(session.text("select fetchq.doc_push('q', 'd')").await, "0");
    }
    // Once in one transaction, and once in a transaction that is rolled back.
    session
        .sql("begin; select fetchq.queue_create('q'); select fetchq.doc_push('q', 'a')")
        .await;
    session
        .sql("select fetchq.queue_drop('q'); select fetchq.queue_create('q')")
        .await;
    work(&session).await;
    session.sql("rollback").await;
    assert_eq!(session.text("select fetchq.doc_push('q', 'd')").await, "0");
    session.sql("select fetchq.queue_create('q')").await;
    session
        .sql("begin; select fetchq.queue_drop('q'); rollback")
        .await;
    work(&session).await;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn dropped_by_another_session() {
    let db = Server::of_suite().database("dropped_by_other").await;
    let mut session = db.connect().await;
    session.sql("set fetchq.strict = off").await;
    let other = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    work(&session).await;
    // The queue is dropped between pick and complete.
    session
        .sql("select fetchq.doc_push('q', 'd'); select fetchq.doc_pick('q')")
        .await;
    other.sql("select fetchq.queue_drop('q')").await;
    session.notices();
    assert_eq!(
        session.text("select fetchq.doc_complete('q', 'd')").await,
        "0"
    );
    let notices = session.notices();
    assert_eq!(
        notices.iter().map(|n| n.code().code()).collect::<Vec<_>>(),
        ["42704"],
        "{notices:?}"
    );
    other.sql("select fetchq.queue_create('q')").await;
    work(&session).await;
    // The queue is dropped and created again between two calls.
    session
        .sql("select fetchq.doc_push('q', 'd'); select fetchq.doc_pick('q')")
        .await;
    other
        .sql("select fetchq.queue_drop('q'); select fetchq.queue_create('q')")
        .await;
    assert_eq!(
        session.text("select fetchq.doc_complete('q', 'd')").await,
        "0"
    );
    work(&session).await;
    // The queue's indexes and triggers are changed.
    other.sql("select fetchq.queue_drop_indexes('q'); select fetchq.queue_create_indexes('q'); select fetchq.queue_enable_notify('q')").await;
    work(&session).await;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

/// Checks that no object of fetchq is left in the catalog.
async fn nothing_is_left(session: &Session) {
    for left in [
        "select count(*) from pg_namespace where nspname like 'fetchq%'",
        "select count(*) from pg_proc where probin like '%fetchq%' or prosrc like '%fetchq%'",
        "select count(*) from pg_class where relname like '%\\_\\_docs%' or relname like '%\\_\\_logs%'",
        "select count(*) from pg_extension where extname = 'fetchq'",
    ] {
        assert_eq!(session.text(left).await, "0", "{left}");
    }
}

#[tokio::test]
async fn the_extension_dropped_and_created_in_one_session() {
    let db = Server::of_suite().database("drop_extension").await;
    let mut session = db.connect().await;
    session.sql("set fetchq.strict = off").await;
    for drop in [
        "drop extension fetchq cascade",
        "select fetchq.destroy_with_terrible_consequences()",
    ] {
        for _ in 0..2 {
            session.sql("select fetchq.queue_create('q'); select fetchq.queue_enable_notify('q'); select fetchq.queue_create('r')").await;
            work(&session).await;
            assert_eq!(session.state("drop extension fetchq").await, "2BP01");
            assert_eq!(
                session.text("select count(*) from fetchq.queues").await,
                "2"
            );
            work(&session).await;
            session.sql(drop).await;
            nothing_is_left(&session).await;
            session.sql("create extension fetchq").await;
            assert_eq!(
                session.text("select fetchq.doc_push('q', 'd')").await,
                "0",
                "no queue exists yet"
            );
        }
    }
    session.sql("select fetchq.queue_create('q')").await;
    work(&session).await;
    counters_are_exact(&mut session, "q").await;
    // Another session drops and creates the extension, while this session has cached plans.
    let other = db.connect().await;
    other
        .sql("drop extension fetchq cascade; create extension fetchq")
        .await;
    other.sql("select fetchq.queue_create('q')").await;
    work(&session).await;
    counters_are_exact(&mut session, "q").await;
    // Without queues, the extension can be dropped without CASCADE.
    session
        .sql("select fetchq.queue_drop('q'); drop extension fetchq")
        .await;
    nothing_is_left(&session).await;
    db.remove().await;
}
