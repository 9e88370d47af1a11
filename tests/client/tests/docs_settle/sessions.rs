//! Several sessions that settle lists at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fetchq_client_tests::{Server, counters_are_exact};
use tokio::sync::Barrier;

use super::{lease, mixed};

#[tokio::test]
async fn overlapping_lists_in_opposite_order_do_not_deadlock() {
    const DOCUMENTS: usize = 40;
    const ROUNDS: usize = 12;
    let db = Server::of_suite().database("settle_overlap").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'), fetchq.queue_create('dead')")
        .await;
    for settings in [
        r#"{"dead_letter": null}"#,
        r#"{"history": {"completed": "1 day", "dropped": "1 day"}, "dead_letter": "dead"}"#,
    ] {
        session
            .sql(&format!("select fetchq.queue_configure('q', '{settings}')"))
            .await;
        for round in 0..ROUNDS {
            session.sql("select fetchq.queue_truncate('q', true)").await;
            let lease = lease(&session, DOCUMENTS).await;
            let settled = Arc::new(AtomicUsize::new(0));
            let barrier = Arc::new(Barrier::new(2));
            let mut sessions = Vec::new();
            for number in 0..2 {
                let one = db.connect().await;
                let (settled, barrier) = (settled.clone(), barrier.clone());
                // With the same lease number, so that each document can be settled by both. The
                // second one takes other actions, too.
                let list = match number {
                    0 => mixed(1..=DOCUMENTS, &lease),
                    _ => mixed((1..=DOCUMENTS).rev(), &lease)
                        .replace("complete", "drop")
                        .replace(", \"result\": 7", ""),
                };
                sessions.push(tokio::spawn(async move {
                    if round % 2 == 1 {
                        one.sql("set fetchq.direct = off").await;
                    }
                    let call = format!("select outcome from fetchq.docs_settle('q', {list})");
                    barrier.wait().await;
                    let outcomes = one.query(&call, &[]).await.expect("docs_settle");
                    let of = |word: &str| {
                        let is_word = |row: &&tokio_postgres::Row| row.get::<_, &str>(0) == word;
                        outcomes.iter().filter(is_word).count()
                    };
                    let not_settled = of("lost") + of("missing") + of("repeated");
                    assert_eq!(of("settled") + not_settled, DOCUMENTS);
                    settled.fetch_add(of("settled"), Ordering::Relaxed);
                }));
            }
            for one in sessions {
                one.await.unwrap();
            }
            assert_eq!(settled.load(Ordering::Relaxed), DOCUMENTS);
            let active = "select count(*) from fetchq_data.q__docs where status = 2";
            assert_eq!(session.text(active).await, "0");
            counters_are_exact(&mut session, "q").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn workers_whose_loop_is_one_call() {
    const DOCUMENTS: usize = 400;
    let db = Server::of_suite().database("settle_loop").await;
    let mut session = db.connect().await;
    session
        .sql(&format!(
            "create table ledger (subject text primary key);
             select fetchq.queue_create('q', '{{\"retry\": {{\"base\": \"0\"}}}}');
             select fetchq.doc_put('q', 'd' || i, '{{}}') from generate_series(1, {DOCUMENTS}) i"
        ))
        .await;
    let mut workers = Vec::new();
    for number in 0..4 {
        let worker = db.connect().await;
        workers.push(tokio::spawn(async move {
            if number == 0 {
                worker.sql("set fetchq.direct = off").await;
            }
            // Each document fails once; the second time its effect and its end are one transaction.
            let next = "select coalesce(jsonb_agg(case attempts
                     when 1 then jsonb_build_object('subject', subject, 'lease', lease, 'action', 'reject', 'message', 'once')
                     else jsonb_build_object('subject', subject, 'lease', lease::text, 'action', 'complete', 'result', attempts) end), '[]')
                 from fetchq.docs_next('q', $1, 7, on_lost => 'error')";
            let mut list = serde_json::json!([]);
            let mut idle = 0;
            while idle < 20 {
                let effects = "insert into ledger select s ->> 'subject' from jsonb_array_elements($1::jsonb) s where s ->> 'action' = 'complete'";
                worker.sql("begin").await;
                worker.execute(effects, &[&list]).await.expect("once");
                list = worker.query_one(next, &[&list]).await.expect("docs_next").get(0);
                worker.sql("commit").await;
                idle = if list == serde_json::json!([]) { idle + 1 } else { 0 };
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let completed = "select count(*) from fetchq_data.q__docs where status = 3 and result = '2' and iterations = 2";
    assert_eq!(session.text(completed).await, DOCUMENTS.to_string());
    assert_eq!(
        session.text("select count(*) from ledger").await,
        DOCUMENTS.to_string()
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}
