//! Documents that expire, and leases that nothing extends any more, where the background worker runs.

use fetchq_client_tests::{
    Server, Session, WORKER, counters_are_exact, process_id, wait_until, with_worker, worker_comes,
};

#[tokio::test]
async fn a_document_expires_in_an_idle_queue_and_not_during_an_outage_alone() {
    let cluster = with_worker("time_limits", "fsync = off");
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq;
         select fetchq.queue_create('q', '{\"history\": {\"killed\": \"1 day\"}}');
         select fetchq.queue_create('keys', '{\"ordered\": true}')",
    )
    .await;
    worker_comes(&look, "postgres").await;

    // Nothing else happens in the queue.
    look.sql("select fetchq.doc_put('q', 'code', expires_in => '200 ms'), fetchq.doc_put('q', 'later', expires_in => '1 hour')")
        .await;
    let outcome = "select outcome from fetchq.history where queue = 'q' and subject = 'code'";
    wait_until("the code has expired", async || {
        look.column(outcome).await == ["expired"]
    })
    .await;
    // It was put by a transaction that commits after that time.
    look.sql(
        "begin; select fetchq.doc_put('q', 'late', expires_in => '100 ms'), pg_sleep(0.5); commit",
    )
    .await;
    wait_until("the late one has expired", async || {
        look.column("select outcome from fetchq.history where queue = 'q' and subject = 'late'")
            .await
            == ["expired"]
    })
    .await;
    // The first of a key expires, and the next one may run.
    look.sql("select fetchq.doc_put('keys', 'a', ordering_key => 'k', expires_in => '200 ms'), fetchq.doc_put('keys', 'b', ordering_key => 'k')")
        .await;
    wait_until("the first one has expired", async || {
        look.column("select status from fetchq.doc_get('keys', 'a')")
            .await
            .iter()
            .all(|status| status != "pending")
    })
    .await;
    let picked = look
        .column("select subject from fetchq.doc_pick('keys', 0, 2, '1 hour')")
        .await;
    assert_eq!(picked, ["b"]);

    // The server is down when a code expires. Nobody gets it afterwards, and nothing puts it in a queue
    // of failures.
    look.sql("select fetchq.doc_put('q', 'mail', expires_in => '300 ms')")
        .await;
    cluster.stop("immediate");
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    cluster.start();
    let mut look = server.connect("postgres").await;
    let picked = look
        .column("select subject from fetchq.doc_pick('q', 0, 10, '1 hour')")
        .await;
    assert_eq!(picked, ["later"]);
    wait_until("the mail has expired", async || {
        look.column("select outcome from fetchq.history where queue = 'q' and subject = 'mail'")
            .await
            == ["expired"]
    })
    .await;
    for queue in ["q", "keys"] {
        counters_are_exact(&mut look, queue).await;
    }
}

#[tokio::test]
async fn a_handler_that_hangs_and_extends_does_not_hold_its_document_for_ever() {
    let cluster = with_worker("max_run", "fsync = off");
    let server = cluster.server();
    let mut look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq;
         select fetchq.queue_create('q', '{\"max_run\": \"1 s\", \"max_attempts\": 5}');
         select fetchq.doc_put('q', s) from unnest(array['extended', 'kept']) s",
    )
    .await;
    worker_comes(&look, "postgres").await;

    // One handler extends its lease again and again.
    let hangs = server.connect("postgres").await;
    let lease = hangs
        .column("select lease::text from fetchq.doc_pick('q', 0, 1, '1 minute') where subject = 'extended'")
        .await;
    // The lease of the other one lasts as long as its session, which does not end.
    let keeps = server.connect("postgres").await;
    keeps.sql("set fetchq.session_leases = keep").await;
    let kept = keeps
        .column("select subject from fetchq.doc_pick('q', 0, 1, '1 minute')")
        .await;
    assert_eq!(kept, ["kept"]);
    wait_until("the first handler has lost its lease", async || {
        let extension = format!(
            "select fetchq.doc_extend('q', 'extended', '1 minute', {})",
            lease[0]
        );
        hangs.batch_execute(&extension).await.is_err()
    })
    .await;
    wait_until("both documents are given to others", async || {
        look.column(
            "select count(*)::text from fetchq_data.q__docs where attempts = 1 and status <> 2",
        )
        .await
            == ["2"]
    })
    .await;
    counters_are_exact(&mut look, "q").await;
}

/// The outcome of a document in the history of `q` comes.
async fn expires(look: &Session, subject: &str) {
    let outcome =
        format!("select outcome from fetchq.history where queue = 'q' and subject = '{subject}'");
    wait_until(&format!("{subject} has expired"), async || {
        look.column(&outcome).await == ["expired"]
    })
    .await;
}

#[tokio::test]
async fn a_document_expires_in_time_whatever_has_become_of_the_one_before() {
    let cluster = with_worker("expiry_notes", "fsync = off\nmax_prepared_transactions = 5");
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq;
         select fetchq.queue_create('q', '{\"history\": {\"killed\": \"1 day\"}}')",
    )
    .await;
    worker_comes(&look, "postgres").await;

    // This session has told of a time, and what was to expire then is gone when the background worker
    // looks for another reason.
    look.sql("select fetchq.doc_put('q', 'first', expires_in => '3 s')")
        .await;
    look.sql("select fetchq.doc_pop('q')").await;
    let other = server.connect("postgres").await;
    other
        .sql("select fetchq.doc_put('q', 'other', expires_in => '300 ms')")
        .await;
    expires(&look, "other").await;
    look.sql("select fetchq.doc_put('q', 'second', expires_in => '3500 ms')")
        .await;
    expires(&look, "second").await;

    // Another background worker than the one that knows has to look.
    look.sql("select fetchq.doc_put('q', 'third', expires_in => '5 s')")
        .await;
    look.sql("select fetchq.doc_pop('q')").await;
    let worker = process_id(&look, WORKER).await;
    cluster.kill(worker.expect("a background worker"));
    wait_until("the server has noticed", async || look.is_closed()).await;
    let mut look = server.connect_when_up("postgres").await;
    worker_comes(&look, "postgres").await;
    look.sql("select fetchq.doc_put('q', 'fourth', expires_in => '1 s')")
        .await;
    expires(&look, "fourth").await;
    counters_are_exact(&mut look, "q").await;
}

#[tokio::test]
async fn a_document_of_a_prepared_transaction_expires_in_time_whenever_that_commits() {
    let cluster = with_worker(
        "expiry_prepared",
        "fsync = off\nmax_prepared_transactions = 5",
    );
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq;
         select fetchq.queue_create('q', '{\"history\": {\"killed\": \"1 day\"}}')",
    )
    .await;
    worker_comes(&look, "postgres").await;
    let prepare = |subject: &str, after: &str| {
        format!(
            "begin; select fetchq.doc_put('q', '{subject}', expires_in => '{after}');
             prepare transaction '{subject}'"
        )
    };
    // Another session commits it, after it would have expired, and before.
    let other = server.connect("postgres").await;
    look.sql(&prepare("late", "200 ms")).await;
    other.sql("select pg_sleep(1.5)").await;
    other.sql("commit prepared 'late'").await;
    expires(&look, "late").await;
    look.sql(&prepare("early", "1 s")).await;
    other.sql("commit prepared 'early'").await;
    expires(&look, "early").await;

    // The server crashes meanwhile, so nobody knows of it.
    look.sql(&prepare("crash", "200 ms")).await;
    cluster.stop("immediate");
    cluster.start();
    let mut look = server.connect("postgres").await;
    worker_comes(&look, "postgres").await;
    look.sql("select pg_sleep(1.5)").await;
    look.sql("commit prepared 'crash'").await;
    expires(&look, "crash").await;
    // One that is rolled back leaves nothing behind.
    look.sql(&prepare("none", "200 ms")).await;
    look.sql("rollback prepared 'none'").await;
    counters_are_exact(&mut look, "q").await;
}

#[tokio::test]
async fn a_document_that_waits_again_expires_in_time() {
    let cluster = with_worker("expiry_again", "fsync = off");
    let server = cluster.server();
    let mut look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq;
         select fetchq.queue_create(q, '{\"history\": {\"killed\": \"1 day\"}}')
         from unnest(array['q', 'from']) as q",
    )
    .await;
    worker_comes(&look, "postgres").await;
    // What is leased does not expire meanwhile; what is handed back at once does.
    for (subject, back) in [
        (
            "snoozed",
            "select fetchq.doc_snooze('q', 'snoozed', delay => '0', lease => $lease)",
        ),
        ("released", "select fetchq.worker_release('w')"),
    ] {
        look.sql(&format!(
            "select fetchq.doc_put('q', '{subject}', expires_in => '700 ms')"
        ))
        .await;
        let lease = look
            .text("select lease from fetchq.doc_lease('q', 1, '1 hour', worker => 'w')")
            .await;
        // The background worker looks, finds nothing, and has nothing more to look for.
        look.sql("select pg_sleep(1)").await;
        look.sql(&back.replace("$lease", &lease)).await;
        expires(&look, subject).await;
    }
    look.sql("select fetchq.doc_put('from', 'moved', expires_in => '1 s')")
        .await;
    look.sql("select fetchq.docs_move('from', 'q', '{\"all\": true}')")
        .await;
    expires(&look, "moved").await;
    look.sql("select fetchq.doc_put('q', 'sooner', delay => '1 day', expires_in => '300 ms')")
        .await;
    look.sql("select fetchq.doc_set_due('q', 'sooner', now())")
        .await;
    expires(&look, "sooner").await;
    for queue in ["q", "from"] {
        counters_are_exact(&mut look, queue).await;
    }
}

#[tokio::test]
async fn what_expires_during_a_transaction_is_not_leased_by_it() {
    for direct in ["on", "off"] {
        let db = Server::of_suite()
            .database(&format!("expiry_clock_{direct}"))
            .await;
        let session = db.connect().await;
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; select fetchq.queue_create('q')"
            ))
            .await;
        session
            .sql("select fetchq.doc_put('q', 'code', expires_in => '200 ms')")
            .await;
        session.sql("begin; select pg_sleep(0.4)").await;
        let leased = session
            .column("select subject from fetchq.doc_lease('q')")
            .await;
        assert!(leased.is_empty(), "{leased:?}");
        let picked = session
            .column("select subject from fetchq.doc_pick('q', 0, 1, '1 hour')")
            .await;
        assert!(picked.is_empty(), "{picked:?}");
        session.sql("commit").await;
        db.remove().await;
    }
}

#[tokio::test]
async fn a_retry_of_all_leaves_what_has_expired() {
    let db = Server::of_suite().database("expiry_retry").await;
    let session = db.connect().await;
    for (queue, history) in [("kept", "{}"), ("moved", r#"{"killed": "1 day"}"#)] {
        session
            .sql(&format!(
                "select fetchq.queue_create('{queue}', '{{\"history\": {history}}}')"
            ))
            .await;
        session
            .sql(&format!(
                "select fetchq.doc_put('{queue}', 'code', expires_in => '1 ms')"
            ))
            .await;
        // The background worker or this session kills it, whoever comes first.
        let kill = format!("select fetchq.mnt_run('{queue}', 10)");
        let waits =
            format!("select exists (select from fetchq_data.{queue}__docs where status in (0, 1))");
        wait_until("the document is killed", async || {
            session.sql(&kill).await;
            session.text(&waits).await == "f"
        })
        .await;
        let retry = format!("select fetchq.docs_retry('{queue}', '{{}}')");
        assert_eq!(session.text(&retry).await, "0", "{queue}");
        let status = format!("select status from fetchq.doc_get('{queue}', 'code')");
        assert_ne!(session.text(&status).await, "pending", "{queue}");
        let revive = format!("select fetchq.doc_revive('{queue}', 'code')");
        assert_eq!(session.text(&revive).await, "1", "{queue}");
    }
    db.remove().await;
}
