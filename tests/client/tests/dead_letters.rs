//! Dead-letter queues, history and bulk administration under load.
//! Every document is in exactly one table, whatever is rolled back or terminated.

mod bulk;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fetchq_client_tests::{Database, counters_are_exact, wait_until, with_worker, worker_comes};
use tokio::task::JoinSet;

/// Runs calls in a loop until `stop` is set; all of them must succeed.
async fn run_loop(db: Database, calls: &'static [&'static str], stop: Arc<AtomicBool>) {
    let session = db.connect().await;
    while !stop.load(Ordering::Relaxed) {
        for call in calls {
            session.sql(&format!("select * from {call}")).await;
        }
        let told: Vec<String> = session
            .notices()
            .iter()
            .filter(|n| n.severity() == "WARNING")
            .map(|n| n.message().to_owned())
            .collect();
        assert!(told.is_empty(), "{told:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn finish(tasks: &mut JoinSet<()>, stop: &AtomicBool) {
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a task failed");
    }
}

/// Waits until `done` returns true; fails at once when a task fails.
async fn until(tasks: &mut JoinSet<()>, what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if done().await {
            return;
        }
        if let Some(ended) = tasks.try_join_next() {
            ended.expect("a task failed");
            panic!("a task ended before {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("timed out while waiting until {what}");
}

#[tokio::test]
async fn a_failed_dead_letter_does_not_block_other_documents() {
    let cluster = with_worker("dead-stuck", "");
    let mut session = cluster.server().connect("postgres").await;
    session.sql("create extension fetchq").await;
    worker_comes(&session, "postgres").await;
    // One transaction does all of this, so that maintenance never sees the queue with its target.
    session
        .sql(
            "begin;
             select fetchq.queue_create('q'), fetchq.queue_create('dead');
             select fetchq.queue_configure('q', '{\"dead_letter\": \"dead\"}');
             select fetchq.doc_put('q', 'poison', max_attempts => 1), fetchq.doc_put('q', 'orphan');
             select fetchq.doc_pick('q', 0, 2, '1 ms');
             drop table fetchq_data.dead__docs;
             commit",
        )
        .await;
    let states = "select string_agg(subject || ' ' || status, ', ' order by subject) from fetchq_data.q__docs";
    for n in 1..=3 {
        let later = format!("later-{n}");
        session
            .sql(&format!(
                "select fetchq.doc_put('q', '{later}', '{{}}', now() + interval '200 ms')"
            ))
            .await;
        wait_until("the other documents are processed", async || {
            let states = session.text(states).await;
            states.contains("orphan 1") && states.contains(&format!("{later} 1"))
        })
        .await;
    }
    assert!(session.text(states).await.ends_with("poison 2"));
    session
        .sql(
            "select fetchq.queue_create('other'); select fetchq.queue_configure('q', '{\"dead_letter\": \"other\"}')",
        )
        .await;
    let dead_letters = "select coalesce(string_agg(subject, ','), '') from fetchq_data.other__docs";
    wait_until("the document is in the dead-letter queue", async || {
        session.text(dead_letters).await == "poison"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
    // The log reports it, but not ten times per second.
    let told = cluster.log_lines();
    let told = told.iter().filter(|line| line.contains("cannot leave it"));
    assert!((1..20).contains(&told.count()));
}

#[tokio::test]
async fn a_locked_dead_letter_queue_delays_nobody_else() {
    let cluster = with_worker("locked_letters", "");
    let db = cluster.server().database("locked_letters").await;
    let session = db.connect().await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "select fetchq.queue_create('mail'), fetchq.queue_create('q'), fetchq.queue_create('dead');
             update fetchq.queues set dead_letter = 'dead', max_attempts = 1 where name = 'q'",
        )
        .await;
    // Another transaction inserts the subject and does not commit; a second one locks the table.
    let other = db.connect().await;
    for (block, subject) in [
        (
            "insert into fetchq_data.dead__docs (subject) values ('a')",
            "a",
        ),
        ("lock table fetchq_data.dead__docs", "b"),
    ] {
        other.sql(&format!("begin; {block}")).await;
        session
            .sql(&format!(
                "select fetchq.doc_push('q', '{subject}');
                 select fetchq.doc_pick('q', 0, 1, '1 ms')"
            ))
            .await;
        session
            .sql(&format!(
                "select fetchq.doc_push('mail', 'of {subject}', 0, 0, clock_timestamp() + interval '1 s', '{{}}')"
            ))
            .await;
        wait_until("the other queue goes on", async || {
            session
                .text(&format!(
                    "select status from fetchq_data.mail__docs where subject = 'of {subject}'"
                ))
                .await
                == "1"
        })
        .await;
        let status = session
            .text(&format!(
                "select status from fetchq_data.q__docs where subject = '{subject}'"
            ))
            .await;
        assert_eq!(status, "2");
        other.sql("rollback").await;
        wait_until("the document has moved", async || {
            session
                .text(&format!(
                    "select count(*) from fetchq_data.q__docs where subject = '{subject}'"
                ))
                .await
                == "0"
        })
        .await;
    }
}
