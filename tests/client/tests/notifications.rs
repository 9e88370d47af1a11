//! Notifications of document states: collected by the background worker, or sent by each commit.

use std::time::{Duration, Instant};

use fetchq_client_tests::{Cluster, Server, Session, wait_until, with_worker, worker_comes};

const STATES: [&str; 5] = ["pln", "pnd", "act", "cpl", "kll"];

async fn listens(session: &Session) {
    for state in STATES {
        session.sql(&format!("listen fetchq__q__{state}")).await;
    }
}

async fn hears(session: &Session, notification: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        session.sql("select").await;
        if session.heard(notification) {
            return;
        }
        if Instant::now() > deadline {
            let processes = "select pid, backend_type, datname, state, wait_event, xact_start, query from pg_stat_activity";
            let others = session.take_notifications().await;
            let processes = session.rows(processes).await.join("\n");
            panic!("{notification} did not come, but {others:?}:\n{processes}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_background_worker_sends_one_notification_for_many() {
    let interval = Duration::from_millis(300);
    let cluster = with_worker(
        "notify",
        "fetchq.notify_interval = '300 ms'\nmax_prepared_transactions = 5",
    );
    let db = cluster.server().database("notify").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_enable_notify('q'); select fetchq.queue_create('silent')")
        .await;
    worker_comes(&session, &db.name).await;
    let listener = db.connect().await;
    listens(&listener).await;
    tokio::time::sleep(interval).await;
    listener.take_notifications().await;

    // Every state, with direct changes and with statements.
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        session
            .sql(
                "select fetchq.doc_push('q', 'a', 0, 0, now(), '{}'); select fetchq.doc_push('q', 'b', 0, 0, now(), '{}');
                 select fetchq.doc_push('q', 'later', 0, 0, now() + interval '1 hour', '{}')",
            )
            .await;
        hears(&listener, "fetchq__q__pnd true").await;
        hears(&listener, "fetchq__q__pln true").await;
        session
            .sql("select fetchq.doc_pick('q', 0, 2, '1 hour')")
            .await;
        hears(&listener, "fetchq__q__act true").await;
        session
            .sql("select fetchq.doc_complete('q', 'a'), fetchq.doc_kill('q', 'b')")
            .await;
        hears(&listener, "fetchq__q__cpl true").await;
        hears(&listener, "fetchq__q__kll true").await;
        session.sql("select fetchq.queue_truncate('q', true)").await;
        tokio::time::sleep(2 * interval).await;
        listener.take_notifications().await;
    }
    session.sql("reset fetchq.direct").await;

    // Many commits cause few messages.
    let begin = Instant::now();
    for n in 0..300 {
        session
            .sql(&format!("select fetchq.doc_push('q', 'n{n}')"))
            .await;
    }
    hears(&listener, "fetchq__q__pnd true").await;
    tokio::time::sleep(interval).await;
    let at_most = begin.elapsed().as_millis() / interval.as_millis() + 2;
    let heard = listener.take_notifications().await;
    assert!(
        !heard.is_empty() && heard.len() as u128 <= at_most,
        "{} in {:?}",
        heard.len(),
        begin.elapsed()
    );

    // Changes that were rolled back, or that happened in another queue.
    session
        .sql("begin; select fetchq.doc_append('q', '{}'); rollback")
        .await;
    session
        .sql("select fetchq.doc_append('silent', '{}')")
        .await;
    tokio::time::sleep(2 * interval).await;
    assert_eq!(listener.take_notifications().await, [""; 0]);
    // A transaction whose documents will be notified can be prepared.
    session
        .sql("begin; select fetchq.doc_append('q', '{}'); prepare transaction 'p'")
        .await;
    session.sql("commit prepared 'p'").await;

    // Changes by plain SQL and by maintenance.
    session
        .sql("insert into fetchq_data.q__docs (subject, status) values ('plain', 1)")
        .await;
    hears(&listener, "fetchq__q__pnd true").await;
    tokio::time::sleep(2 * interval).await;
    listener.take_notifications().await;
    session
        .sql("select fetchq.doc_push('q', 'soon', 0, 0, clock_timestamp() + interval '400 ms', '{}')")
        .await;
    hears(&listener, "fetchq__q__pnd true").await;

    // Notifications sent by each commit, because the queue is set so.
    session.sql("set fetchq.notify = 'commit'").await;
    session
        .sql("select fetchq.doc_push('q', 'by commit')")
        .await;
    hears(&listener, "fetchq__q__pnd by commit").await;
    session.sql("reset fetchq.notify").await;

    // Without a background worker the commit sends them. A new background worker sends again.
    tokio::time::sleep(2 * interval).await;
    session
        .sql("alter system set fetchq.background_worker = off")
        .await;
    session.sql("select pg_reload_conf()").await;
    wait_until("the background worker has ended", async || {
        session
            .text("select has_background_worker from fetchq.info()")
            .await
            == "f"
    })
    .await;
    listener.take_notifications().await;
    session.sql("select fetchq.doc_push('q', 'without')").await;
    hears(&listener, "fetchq__q__pnd without").await;
    listener.take_notifications().await;
    session
        .sql("alter system reset fetchq.background_worker")
        .await;
    session.sql("select pg_reload_conf()").await;
    hears(&listener, "fetchq__q__pnd true").await;
}

#[tokio::test]
async fn a_background_worker_that_ends_before_the_commit() {
    let cluster: Cluster = with_worker("notify_end", "");
    let db = cluster.server().database("notify_end").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_enable_notify('q')")
        .await;
    worker_comes(&session, &db.name).await;
    let listener = db.connect().await;
    listens(&listener).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    listener.take_notifications().await;
    session.sql("begin; select fetchq.doc_push('q', 'a')").await;
    let admin = db.connect().await;
    admin
        .sql("alter system set fetchq.background_worker = off")
        .await;
    admin.sql("select pg_reload_conf()").await;
    wait_until("the background worker has ended", async || {
        admin
            .text("select has_background_worker from fetchq.info()")
            .await
            == "f"
    })
    .await;
    listener.take_notifications().await;
    session.sql("commit").await;
    hears(&listener, "fetchq__q__pnd true").await;
}

#[tokio::test]
async fn without_a_background_worker_each_commit_notifies() {
    let db = Server::of_suite().database("notify_commit").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_enable_notify('q')")
        .await;
    listens(&session).await;
    session.sql("select fetchq.doc_push('q', 'a')").await;
    session.sql("select fetchq.doc_pick('q')").await;
    session.sql("select fetchq.doc_complete('q', 'a')").await;
    assert_eq!(
        session.take_notifications().await,
        ["fetchq__q__pnd a", "fetchq__q__act a", "fetchq__q__cpl a"]
    );
    db.remove().await;
}
