//! Redrives and bulk actions of many sessions between the same queues.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fetchq_client_tests::{Server, counters_are_exact, in_snapshot};
use tokio::task::JoinSet;

use super::{finish, run_loop, until};

#[tokio::test(flavor = "multi_thread")]
async fn redrives_between_two_ordered_queues() {
    let db = Server::of_suite().database("redrive_sides").await;
    let mut session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('a'), fetchq.queue_create('b');
             select fetchq.queue_configure('a', '{\"ordered\": true}'), fetchq.queue_configure('b', '{\"ordered\": true}');
             select fetchq.queue_configure('a', '{\"dead_letter\": \"b\"}'), fetchq.queue_configure('b', '{\"dead_letter\": \"a\"}');
             select fetchq.doc_push(q, 'd' || i) from unnest('{a,b}'::text[]) q, generate_series(1, 100) i;
             select fetchq.doc_pick(q, 50) from unnest('{a,b}'::text[]) q;
             select fetchq.doc_kill(q, 'd' || i) from unnest('{a,b}'::text[]) q, generate_series(1, 50) i",
        )
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for calls in [
        &["fetchq.queue_redrive('a', 7)"][..],
        &["fetchq.queue_redrive('b', 7)"][..],
    ] {
        for _ in 0..4 {
            tasks.spawn(run_loop(db.clone(), calls, stop.clone()));
        }
    }
    let mut watcher = db.connect().await;
    let mut looks = 0;
    until(
        &mut tasks,
        "the queue was checked often enough",
        async || {
            counters_are_exact(&mut watcher, "a").await;
            counters_are_exact(&mut watcher, "b").await;
            looks += 1;
            looks > 100
        },
    )
    .await;
    finish(&mut tasks, &stop).await;
    counters_are_exact(&mut session, "a").await;
    db.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_bulk_actions() {
    bulk_actions("bulk_admin", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_actions_on_ordered_queues() {
    bulk_actions(
        "bulk_ordered",
        "update fetchq_data.a__docs set ordering_key = seq % 7; update fetchq_data.b__docs set ordering_key = seq % 7;
         select fetchq.queue_configure('a', '{\"ordered\": true}'), fetchq.queue_configure('b', '{\"ordered\": true}')",
    )
    .await;
}

async fn bulk_actions(name: &str, prepare: &str) {
    let db = Server::of_suite().database(name).await;
    let mut session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('a'), fetchq.queue_create('b');
             select fetchq.doc_push(q, 'd' || i, 0, 0, now() + case when i % 3 = 0 then interval '1 day' else '0' end, '{}')
             from unnest('{a,b}'::text[]) with ordinality u (q, n), generate_series(1, 600) i where i % 2 = n - 1 or i % 10 = 0",
        )
        .await;
    session.sql(prepare).await;
    let all = session
        .text("select count(*) from (select from fetchq_data.a__docs union all select from fetchq_data.b__docs) x")
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for calls in [
        &["fetchq.docs_move('a', 'b', '{\"all\": true}', 40)"][..],
        &["fetchq.docs_move('b', 'a', '{\"all\": true}', 30)"][..],
        &["fetchq.docs_move('a', 'b', '{\"status\": \"killed\"}', 300)"][..],
        &["fetchq.docs_move('b', 'a', '{\"subject_like\": \"d1%\"}', 300)"][..],
        &[
            "fetchq.docs_set_priority('a', 1, '{}', 50)",
            "fetchq.docs_set_priority('a', 2, '{}', 50)",
        ][..],
        &[
            "fetchq.docs_kill('a', '{\"all\": true}', 20)",
            "fetchq.docs_retry('a', '{}', 20)",
        ][..],
        &[
            "fetchq.docs_retry('b', '{}', 100)",
            "fetchq.docs_kill('b', '{\"status\": [\"active\", \"pending\"]}', 9)",
        ][..],
        &[
            "fetchq.doc_pick('a', 5)",
            "fetchq.doc_pick('b', 5)",
            "fetchq.docs_kill('a', '{\"status\": \"active\"}', 9)",
        ][..],
        &["fetchq.metric_log_pack()"][..],
    ] {
        tasks.spawn(run_loop(db.clone(), calls, stop.clone()));
    }
    let mut watcher = db.connect().await;
    let mut looks = 0;
    until(&mut tasks, "the queues were checked often enough", async || {
        counters_are_exact(&mut watcher, "a").await;
        counters_are_exact(&mut watcher, "b").await;
        let sql = "select count(*) from (select from fetchq_data.a__docs union all select from fetchq_data.b__docs) x";
        assert_eq!(watcher.text(sql).await, all);
        looks += 1;
        looks > 150
    })
    .await;
    finish(&mut tasks, &stop).await;
    for (queue, other) in [("a", "b"), ("b", "a")] {
        let metrics = in_snapshot(&mut session, queue).await;
        assert!(
            metrics["drp"] > 0 && metrics["can"] > 0 && metrics["rev"] > 0,
            "{metrics:?}"
        );
        // In the end every document can be moved.
        session
            .sql(&format!(
                "select fetchq.docs_kill('{queue}', '{{\"status\": \"active\"}}', 9999)"
            ))
            .await;
        let left = session
            .text(&format!(
                "select fetchq.docs_move('{queue}', '{other}', '{{\"all\": true}}', 9999);
                 select count(*) from fetchq_data.{queue}__docs where subject not in (select subject from fetchq_data.{other}__docs)"
            ))
            .await;
        assert_eq!(left, "0");
        counters_are_exact(&mut session, queue).await;
        counters_are_exact(&mut session, other).await;
    }
    // Every pending document can be picked: no ready floor hides one.
    for queue in ["a", "b"] {
        session
            .sql(&format!(
                "select fetchq.queue_configure('{queue}', '{{\"ordered\": false}}')"
            ))
            .await;
        session
            .sql(&format!(
                "select fetchq.docs_retry('{queue}', '{{}}', 9999)"
            ))
            .await;
        let there = session
            .text(&format!("select count(*) from fetchq_data.{queue}__docs"))
            .await;
        let picked = session
            .text(&format!(
                "select count(*) from fetchq.doc_pick('{queue}', 9999)"
            ))
            .await;
        assert_eq!(picked, there);
    }
    db.remove().await;
}
