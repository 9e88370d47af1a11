//! The transaction that settles a document leases the next one.

use fetchq_client_tests::{Server, counters_are_exact};

use super::{HANDLER, document, ledger, named, put, works};

/// Notes the transactions that change documents.
const NOTED: &str = "
    create table changes (subject text, status int, xid text default txid_current()::text);
    create function note() returns trigger language plpgsql as $$ begin
        insert into public.changes values (new.subject, new.status); return null; end $$;
    create trigger note after update on fetchq_data.q__docs for each row execute function note()";

/// Documents that were leased by the transaction that settled another one.
const LEASED_WITH: &str = "select count(*) from changes leased join changes settled using (xid)
    where leased.status = 2 and settled.status = 3";

#[tokio::test]
async fn settling_and_the_next_lease_are_one_transaction() {
    let db = Server::of_suite().database("work_one").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    session.sql(NOTED).await;
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

#[tokio::test]
async fn a_run_is_the_time_of_the_handler_and_of_no_other_one() {
    let db = Server::of_suite().database("work_one_run").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    for direct in ["on", "off"] {
        session
            .sql(
                "select fetchq.queue_truncate('q', empty => true);
                 select fetchq.metric_log_pack();
                 delete from fetchq.timings",
            )
            .await;
        put(&session, "half", "{\"sleep\": 0.6}").await;
        put(&session, "quick", "{}").await;
        put(&session, "long", "{\"sleep\": 1.3}").await;
        let worker = db.connect().await;
        worker.sql(&format!("set fetchq.direct = {direct}")).await;
        let done = works(worker, ", max_docs => 3").await.unwrap();
        assert_eq!(done.expect("a worker"), (3, 0));
        // The transaction that ran the handler has leased the next document at its end.
        // `last_iteration` is when it began.
        let after = "select extract(epoch from q.picked_at - h.last_iteration) >= 0.6
            from fetchq_data.q__docs q, fetchq_data.q__docs h where q.subject = 'quick' and h.subject = 'half'";
        assert_eq!(session.text(after).await, "t", "direct = {direct}");
        // Two of three runs are as long as their handlers. A percentile is never too short.
        let runs = "select run_p50 >= '0.6 s', run_p99 >= '1.3 s' from fetchq.queue_stats('q')";
        assert_eq!(session.rows(runs).await, ["t|t"], "direct = {direct}");
    }
    db.remove().await;
}
