//! Documents that expire, and leases that nothing extends any more, where the background worker runs.

use fetchq_client_tests::{counters_are_exact, wait_until, with_worker, worker_comes};

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
