//! A worker that is stopped or cancelled keeps no document.

use fetchq_client_tests::{Server, counters_are_exact, state_of, wait_until};

use super::{HANDLER, document, in_handler, ledger, named, put, works};

#[tokio::test]
async fn a_worker_stops_on_request() {
    let db = Server::of_suite().database("work_stop").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 1.5}").await;
    put(&session, "next", "{}").await;
    let busy = works(named(&db.server, &db.name, "busy").await, "");
    in_handler(&session).await;
    session.sql("select fetchq.worker_stop('busy')").await;
    assert_eq!(
        busy.await
            .unwrap()
            .expect("the worker ends without an error"),
        (1, 0)
    );
    assert_eq!(ledger(&session).await, ["slow 1"]);

    // A worker of that name that is started later works normally.
    let worker = named(&db.server, &db.name, "busy").await;
    let done = works(worker, ", max_docs => 1").await.unwrap();
    assert_eq!(done.expect("the worker ends without an error"), (1, 0));

    // The worker waits, and has no lease meanwhile.
    let worker = named(&db.server, &db.name, "idle").await;
    worker.sql("set application_name = 'idle'").await;
    let idle = works(worker, "");
    let sleeps = "select count(*) from pg_stat_activity where application_name = 'idle'
        and wait_event_type = 'Extension' and backend_xmin is null and backend_xid is null
        and not exists (select from pg_locks l where l.pid = pg_stat_activity.pid and l.relation::regclass::text like '%docs%')";
    wait_until("the worker sleeps", async || {
        session.text(sleeps).await == "1"
    })
    .await;
    session.sql("select fetchq.worker_stop('idle')").await;
    assert_eq!(
        idle.await
            .unwrap()
            .expect("the worker ends without an error"),
        (0, 0)
    );
    db.remove().await;
}

#[tokio::test]
async fn a_cancelled_worker_releases_its_document() {
    let db = Server::of_suite().database("work_cancel").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 60}").await;
    let worker = works(db.connect().await, "");
    let pid = in_handler(&session).await;
    session
        .sql(&format!("select pg_cancel_backend({pid})"))
        .await;
    let error = worker.await.unwrap().expect_err("the call was cancelled");
    assert_eq!(state_of(&error), "57014");
    assert_eq!(document(&session, "slow").await, "1 0");
    assert_eq!(ledger(&session).await, [""; 0]);
    counters_are_exact(&mut session, "q").await;

    // A worker that waits has no lease to give up.
    session.sql("select fetchq.queue_truncate('q')").await;
    let worker = db.connect().await;
    worker.sql("set application_name = 'idle'").await;
    let pid = worker.text("select pg_backend_pid()").await;
    let worker = works(worker, "");
    let sleeps = "select count(*) from pg_stat_activity
        where application_name = 'idle' and wait_event_type = 'Extension'";
    wait_until("the worker sleeps", async || {
        session.text(sleeps).await == "1"
    })
    .await;
    session
        .sql(&format!("select pg_cancel_backend({pid})"))
        .await;
    let error = worker.await.unwrap().expect_err("the call was cancelled");
    assert_eq!(state_of(&error), "57014");
    db.remove().await;
}
