//! `queue_stats` waits for no lock, and takes none that others would wait for.

use fetchq_client_tests::{Server, state_of};

/// What is known of the queues `a` and `b`: the ready documents, and the pushed ones.
const STATS: &str = "select string_agg(format('%s %s %s', queue, coalesce(ready::text, '-'), coalesce(pushed::text, '-')), ', ' order by queue) from fetchq.queue_stats()";

#[tokio::test]
async fn queue_stats_wait_for_no_lock() {
    let db = Server::of_suite().database("stats_locks").await;
    let owner = db.connect().await;
    let reader = db.connect().await;
    owner
        .sql(
            "select fetchq.queue_create('a'); select fetchq.queue_create('b');
             select fetchq.doc_append('a', '{}'); select fetchq.doc_append('b', '{}'), fetchq.doc_append('b', '{}')",
        )
        .await;
    // A wait would fail.
    reader.sql("set lock_timeout = '1 ms'").await;
    assert_eq!(reader.text(STATS).await, "a 1 1, b 2 2");
    for (locked, expected) in [
        ("fetchq_data.a__docs", "a - 1, b 2 2"),
        ("fetchq_data.a__docs, fetchq_data.b__docs", "a - 1, b - 2"),
        ("fetchq.metrics", "a - -, b - -"),
        ("fetchq.counter_events", "a 1 1, b 2 2"),
        ("fetchq.timings", "a 1 1, b 2 2"),
    ] {
        owner
            .sql(&format!(
                "begin; lock table {locked} in access exclusive mode"
            ))
            .await;
        assert_eq!(reader.text(STATS).await, expected, "{locked} is locked");
        owner.sql("rollback").await;
        assert_eq!(reader.text(STATS).await, "a 1 1, b 2 2", "after {locked}");
    }
    for locked in ["fetchq.queues", "fetchq.rate_permits"] {
        owner
            .sql(&format!(
                "begin; lock table {locked} in access exclusive mode"
            ))
            .await;
        let error = reader.query(STATS, &[]).await.expect_err("it is locked");
        assert_eq!(state_of(&error), "55P03");
        let message = error.as_db_error().expect("error").message().to_owned();
        assert_eq!(message, format!("another session has locked {locked}"));
        owner.sql("rollback").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn queue_stats_take_access_share_locks_only() {
    let db = Server::of_suite().database("stats_modes").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('a'); select fetchq.doc_append('a', '{}');
             select fetchq.doc_push('a', 'later', '{}', now() + interval '1 hour')",
        )
        .await;
    session
        .sql("begin; select * from fetchq.queue_stats()")
        .await;
    let modes = session
        .text("select string_agg(distinct mode, ' ') from pg_locks where pid = pg_backend_pid() and locktype = 'relation'")
        .await;
    assert_eq!(modes, "AccessShareLock");
    // The tables of the queues are not locked any longer.
    let kept = session
        .text("select count(*) from pg_locks l join pg_class c on c.oid = l.relation where l.pid = pg_backend_pid() and c.relname like 'a\\_\\_docs%'")
        .await;
    assert_eq!(kept, "0");
    session.sql("rollback").await;
    db.remove().await;
}

/// A segment of the counter log that is being truncated is locked. Its events are packed, so the
/// totals stay exact.
#[tokio::test]
async fn queue_stats_are_exact_while_a_segment_is_truncated() {
    let db = Server::of_suite().database("stats_truncate").await;
    let owner = db.connect().await;
    let reader = db.connect().await;
    owner
        .sql("select fetchq.queue_create('a'); select fetchq.doc_append('a', '{}') from generate_series(1, 5)")
        .await;
    reader.sql("set lock_timeout = '1 ms'").await;
    // As the pack does it, for a segment that every snapshot knows to be packed.
    owner
        .sql(
            "select fetchq.metric_log_pack();
             insert into fetchq.counter_segments (segment, is_packed) values (6, true)
                 on conflict (segment) do update set is_packed = true",
        )
        .await;
    let lock = "begin; lock table fetchq.counter_log_6 in access exclusive mode";
    owner.sql(lock).await;
    assert_eq!(reader.text(STATS).await, "a 5 5");
    owner.sql("rollback").await;
    // A segment that is locked and not packed may have events.
    owner
        .sql("update fetchq.counter_segments set is_packed = false where segment = 6")
        .await;
    owner.sql(lock).await;
    assert_eq!(reader.text(STATS).await, "a - -");
    owner.sql("rollback").await;
    assert_eq!(reader.text(STATS).await, "a 5 5");
    db.remove().await;
}
