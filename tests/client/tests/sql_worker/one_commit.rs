//! The transaction that settles a document leases the next one.

use fetchq_client_tests::{Server, counters_are_exact};

use super::{HANDLER, document, ledger, named, put, works};

/// Documents that were leased by the transaction that settled another one.
const LEASED_WITH: &str = "select count(*) from fetchq_data.q__docs d
    join fetchq_data.q__docs before on before.last_iteration = d.picked_at and before.subject <> d.subject";

#[tokio::test]
async fn settling_and_the_next_lease_are_one_transaction() {
    let db = Server::of_suite().database("work_one").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    for i in 1..=5 {
        put(&session, &format!("d{i}"), "{}").await;
    }
    let done = works(db.connect().await, ", max_docs => 4").await.unwrap();
    assert_eq!(done.expect("a worker"), (4, 0));
    assert_eq!(session.text(LEASED_WITH).await, "3");
    // After the last one that was asked for, none is leased.
    assert_eq!(document(&session, "d5").await, "1 0");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn after_a_stop_no_document_is_leased() {
    let db = Server::of_suite().database("work_one_stop").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "create function stops(jsonb) returns void language sql
             as $$ select fetchq.worker_stop('self') $$",
        )
        .await;
    put(&session, "a", "{}").await;
    put(&session, "b", "{}").await;
    let worker = named(&db.server, &db.name, "self").await;
    let row = worker
        .query_one("call fetchq.work('q', 'stops')", &[])
        .await
        .expect("the worker ends without an error");
    assert_eq!(row.get::<_, i32>("processed"), 1);
    assert_eq!(document(&session, "b").await, "1 0");
    let was_leased = "select picked_at is not null from fetchq_data.q__docs where subject = 'b'";
    assert_eq!(session.text(was_leased).await, "f");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_lease_begins_after_a_long_handler() {
    let db = Server::of_suite().database("work_one_long").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 1.3}").await;
    put(&session, "next", "{}").await;
    let done = works(
        db.connect().await,
        ", max_docs => 2, duration => '1 second'",
    );
    assert_eq!(done.await.unwrap().expect("a worker"), (2, 0));
    assert_eq!(ledger(&session).await, ["next 1", "slow 1"]);
    // `last_iteration` is when the transaction of the handler began.
    let after = "select extract(epoch from n.picked_at - s.last_iteration) >= 1.3
        from fetchq_data.q__docs n, fetchq_data.q__docs s where n.subject = 'next' and s.subject = 'slow'";
    assert_eq!(session.text(after).await, "t");
    db.remove().await;
}
