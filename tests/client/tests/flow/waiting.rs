//! Waiting sessions and transactions, when a limit or a pause begins or ends.

use fetchq_client_tests::{Database, Server, Session, wait_until};

/// Starts a session that waits in queue_wait and then leases; returns the subjects.
async fn leases(db: &Database) -> tokio::task::JoinHandle<Vec<String>> {
    let session = db.connect().await;
    session.sql("set application_name = 'leases'").await;
    tokio::spawn(async move {
        let ready = session
            .text("call fetchq.queue_wait(array['q'], '60 s')")
            .await;
        assert_eq!(ready, "q");
        session
            .column("select subject from fetchq.doc_pick('q')")
            .await
    })
}

async fn asleep(session: &Session) {
    wait_until("the session waits", async || {
        session
            .text("select count(*) from pg_stat_activity where application_name = 'leases' and wait_event_type = 'Extension'")
            .await
            == "1"
    })
    .await;
}

#[tokio::test]
async fn waiters_lease_when_a_limit_is_lifted() {
    let db = Server::of_suite().database("flow_wait").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd' || i) from generate_series(1, 9) i").await;

    session.sql("select fetchq.queue_pause('q')").await;
    let waits = leases(&db).await;
    asleep(&session).await;
    session.sql("select fetchq.doc_push('q', 'e')").await;
    session.sql("select fetchq.queue_resume('q')").await;
    assert_eq!(waits.await.unwrap().len(), 1);
    // The pause ends by a plain UPDATE.
    session
        .sql("update fetchq.queues set is_active = false")
        .await;
    let waits = leases(&db).await;
    asleep(&session).await;
    session
        .sql("update fetchq.queues set is_active = true")
        .await;
    assert_eq!(waits.await.unwrap().len(), 1);
    session
        .sql("update fetchq.queues set is_active = false")
        .await;
    assert_eq!(
        session
            .text("call fetchq.queue_wait(array['q'], '50 ms')")
            .await,
        ""
    );
    session
        .sql("update fetchq.queues set is_active = true")
        .await;

    session
        .sql("select fetchq.queue_configure('q', '{\"max_active\": 2}')")
        .await;
    let waits = leases(&db).await;
    asleep(&session).await;
    session.sql("select fetchq.doc_complete('q', min(subject)) from fetchq_data.q__docs where status = 2").await;
    assert_eq!(waits.await.unwrap().len(), 1);
    let waits = leases(&db).await;
    asleep(&session).await;
    session
        .sql("select fetchq.queue_configure('q', '{\"max_active\": 3}')")
        .await;
    assert_eq!(waits.await.unwrap().len(), 1);
    session
        .sql("select fetchq.queue_configure('q', '{\"max_active\": null}')")
        .await;

    session
        .sql(
            "select fetchq.queue_configure('q', '{\"rate\": {\"picks\": 1, \"per\": \"300 ms\"}}')",
        )
        .await;
    assert_eq!(
        session
            .column("select subject from fetchq.doc_pick('q', 3)")
            .await
            .len(),
        1
    );
    assert_eq!(leases(&db).await.await.unwrap().len(), 1);
    assert_eq!(leases(&db).await.await.unwrap().len(), 1);
    session
        .sql(
            "select fetchq.queue_configure('q', '{\"rate\": {\"picks\": 1, \"per\": \"1 hour\"}}')",
        )
        .await;
    let waits = leases(&db).await;
    asleep(&session).await;
    session
        .sql("select fetchq.queue_configure('q', '{\"rate\": null}')")
        .await;
    assert_eq!(waits.await.unwrap().len(), 1);
    db.remove().await;
}

#[tokio::test]
async fn a_pause_applies_to_a_transaction_that_has_picked() {
    let db = Server::of_suite().database("flow_pause").await;
    let (one, two) = (db.connect().await, db.connect().await);
    one.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd' || i) from generate_series(1, 9) i").await;
    for isolation in ["read committed", "repeatable read"] {
        one.sql(&format!("begin isolation level {isolation}")).await;
        assert_eq!(
            one.column("select subject from fetchq.doc_pick('q')")
                .await
                .len(),
            1
        );
        two.sql("select fetchq.queue_pause('q')").await;
        assert_eq!(
            one.column("select subject from fetchq.doc_pick('q')")
                .await
                .len(),
            0
        );
        two.sql("select fetchq.queue_resume('q')").await;
        assert_eq!(
            one.column("select subject from fetchq.doc_pick('q')")
                .await
                .len(),
            1
        );
        one.sql("commit").await;
    }
    db.remove().await;
}
