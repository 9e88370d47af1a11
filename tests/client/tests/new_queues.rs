//! A queue with the defaults of fetchq, as a new user has it.

use fetchq_client_tests::{Server, counters_are_exact, wait_until};

#[tokio::test]
async fn a_failure_is_retried_after_seconds_and_what_is_done_leaves_for_a_history_that_ends() {
    let db = Server::of_suite().database("new_queues").await;
    let mut session = db.connect().await;
    session
        .sql(
            "set fetchq.queue_defaults = ''; select fetchq.queue_create('q');
             select fetchq.doc_put('q', 'a', '{\"n\": 1}'), fetchq.doc_put('q', 'b')",
        )
        .await;
    // A change of the setting changes no queue that exists.
    session.sql("set fetchq.queue_defaults = '{}'").await;
    let lease = "select subject || ' ' || attempts || ' ' || max_attempts || ' ' || lease from fetchq.doc_lease('q', 1)";
    let next = async || session.column(lease).await.pop();
    let first = next().await.expect("a document");
    let (what, number) = first.rsplit_once(' ').expect("a number");
    assert_eq!(what, "a 1 25");
    let reject = format!("select fetchq.doc_reject('q', 'a', 'no', lease => {number})");
    session.sql(&reject).await;
    let second = next().await.expect("the other document");
    let (what, number) = second.rsplit_once(' ').expect("a number");
    assert_eq!(what, "b 1 25");
    session
        .sql(&format!(
            "select fetchq.doc_kill('q', 'b', lease => {number})"
        ))
        .await;

    // It is not ready at once, and so it is after some seconds.
    assert_eq!(next().await, None);
    let mut third = None;
    wait_until("the failed document is leased again", async || {
        third = next().await;
        third.is_some()
    })
    .await;
    let third = third.unwrap_or_default();
    let (what, number) = third.rsplit_once(' ').expect("a number");
    assert_eq!(what, "a 2 25");
    let complete = format!(
        "select fetchq.doc_complete('q', 'a', lease => {number}, result => '{{\"sent\": true}}')"
    );
    session.sql(&complete).await;

    // The table is empty, both subjects are free, and the results are there.
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.q__docs")
            .await,
        "0"
    );
    let shown = "select subject || ' ' || outcome || ' ' || coalesce(result::text, '-') from fetchq.queue_history('q') order by 1";
    assert_eq!(
        session.column(shown).await,
        ["a completed {\"sent\": true}", "b killed -"]
    );
    let awaited = "call fetchq.doc_await('q', 'a', '1 s')";
    assert_eq!(session.text(awaited).await, "completed");
    counters_are_exact(&mut session, "q").await;

    // Maintenance removes each after its time.
    for (age, left) in [
        ("6 days", vec!["a", "b"]),
        ("8 days", vec!["b"]),
        ("29 days", vec!["b"]),
        ("31 days", vec![]),
    ] {
        session
            .sql(&format!(
                "update fetchq_data.q__history set settled_at = now() - interval '{age}';
                 update fetchq.jobs set next_iteration = now(), attempts = 0; select fetchq.mnt_job_run(100)"
            ))
            .await;
        let subjects = "select subject from fetchq_data.q__history order by 1";
        assert_eq!(session.column(subjects).await, left, "after {age}");
    }
    drop(session);
    db.remove().await;
}
