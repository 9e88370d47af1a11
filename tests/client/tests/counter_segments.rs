//! The segments of the counter log: one that is packed is truncated when every snapshot knows of it.

use fetchq_client_tests::Cluster;

const SETTINGS: &str = "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = off\nfsync = off\nautovacuum = off";

const PACK: &str = "select fetchq.metric_log_pack()";

/// After 2^31 transactions, the ID of the transaction that has packed a segment looks like one of the
/// future. Its row is frozen by then. COPY FREEZE makes such a row at once: it is frozen, and its ID is
/// later than the oldest transaction that runs.
#[tokio::test]
async fn a_packed_segment_whose_row_is_frozen_is_truncated() {
    let cluster = Cluster::new("frozen_segment", SETTINGS);
    cluster.start();
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session.sql("create extension fetchq").await;
    let old = server.connect("postgres").await;
    old.sql("begin; select pg_current_xact_id_if_assigned(), txid_current()")
        .await;
    session
        .sql(
            "begin;
             truncate fetchq.counter_segments;
             copy fetchq.counter_segments (segment, is_current, is_packed)
                from program 'printf \"1\\tt\\tf\\n6\\tf\\tt\\n\"' with (freeze);
             commit",
        )
        .await;
    // Not in a transaction block.
    session.sql(PACK).await;
    let packed = "select segment from fetchq.counter_segments where is_packed";
    assert!(session.column(packed).await.is_empty());
    // A row that is not frozen is not known to the old transaction.
    session
        .sql("update fetchq.counter_segments set is_packed = true where segment = 6")
        .await;
    session.sql(PACK).await;
    assert_eq!(session.column(packed).await, ["6"]);
    old.sql("commit").await;
    session.sql(PACK).await;
    assert!(session.column(packed).await.is_empty());
}

/// More sums than a pack of a whole segment keeps in memory, of two queues and one that no longer exists.
#[tokio::test]
async fn a_segment_with_many_different_events_is_packed_exactly() {
    let cluster = Cluster::new("many_events", SETTINGS);
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    session.sql("create extension fetchq").await;
    session
        .sql("select fetchq.queue_create('a'), fetchq.queue_create('b')")
        .await;
    session.sql(PACK).await;
    // 150,600 rows, no two of a queue alike.
    session
        .sql(
            "insert into fetchq.counter_log_1 (queue_id, version, n, event, bucket)
             select q, nullif(n % 40, 0), nullif(1 + n % 3, 1), event, nullif(n / 40 % 251, 0)
             from (select id from fetchq.queues where name in ('a', 'b') union all select 1000000) q (q),
                (select event from fetchq.counter_events where event < 1000 group by 1 order by 1 limit 5) e (event),
                generate_series(1, 10040) n",
        )
        .await;
    let metrics =
        "select string_agg(concat_ws(' ', queue, metric, value), ', ' order by queue, metric)
        from fetchq.metrics_exact where queue in ('a', 'b')";
    let before = session.text(metrics).await;
    assert!(before.contains("a v39"), "{before}");
    let times = "select sum(n) from (
        select n from fetchq.counter_tail where bucket is not null and queue_id <> 1000000
        union all select unnest(counts) from fetchq.timings) t";
    let timed = session.text(times).await;
    let rows = session
        .text("select count(*) from fetchq.counter_tail")
        .await;
    assert_eq!(rows, "150600");
    session.sql("begin").await;
    assert_eq!(session.text(PACK).await, "100400");
    session.sql("rollback").await;
    assert_eq!(session.text(metrics).await, before);
    assert_eq!(session.text(PACK).await, "100400");
    assert_eq!(
        session
            .text("select count(*) from fetchq.counter_tail")
            .await,
        "0"
    );
    assert_eq!(session.text(metrics).await, before);
    assert_eq!(session.text(times).await, timed);
}

/// Writers remember the segment that they write to. Whichever it is, they learn that it was packed: the
/// events that follow would be lost in it.
#[tokio::test]
async fn a_writer_learns_that_the_last_segment_was_packed() {
    let cluster = Cluster::new("last_segment", SETTINGS);
    cluster.start();
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session.sql("create extension fetchq").await;
    session.sql("select fetchq.queue_create('q')").await;
    session.sql(PACK).await;
    let last: usize = session
        .text("select count(*) from pg_inherits where inhparent = 'fetchq.counter_log'::regclass")
        .await
        .parse()
        .expect("a number");
    // A segment that is in use is neither packed nor chosen. While these transactions last, none is truncated.
    let use_segments = async |from: usize, to: usize| {
        let user = server.connect("postgres").await;
        user.sql("begin").await;
        for n in from..=to {
            user.sql(&format!(
                "insert into fetchq.counter_log_{n} (queue_id, event) values (0, 0)"
            ))
            .await;
        }
        user
    };
    let many = use_segments(2, last - 2).await;
    let one = use_segments(last - 1, last - 1).await;
    let writer = server.connect("postgres").await;
    let put = "select fetchq.doc_append('q', '{}')";
    // More than 2 MB, from which on the second segment is packed as a whole.
    let fill = |n: usize| {
        format!(
            "insert into fetchq.counter_log_{n} (queue_id, event)
             select l.queue_id, l.event from only fetchq.counter_log_{n} l, generate_series(1, 100000)"
        )
    };
    let current = "select segment from fetchq.counter_segments where is_current";
    let exact = "select value from fetchq.metrics_exact where queue = 'q' and metric = 'cnt'";
    writer.sql(put).await;
    session.sql(&fill(1)).await;
    session.sql(PACK).await;
    assert_eq!(session.column(current).await, [last.to_string()]);
    one.sql("rollback").await;
    session
        .sql(&format!("truncate fetchq.counter_log_{}", last - 1))
        .await;
    writer.sql(put).await;
    assert_eq!(session.text(exact).await, "100002");
    session.sql(&fill(last)).await;
    session.sql(PACK).await;
    assert_eq!(session.column(current).await, [(last - 1).to_string()]);
    writer.sql(put).await;
    assert_eq!(session.text(exact).await, "200003");
    many.sql("rollback").await;
    session.sql(PACK).await;
    session.sql(PACK).await;
    let packed = "select segment from fetchq.counter_segments where is_packed";
    assert!(session.column(packed).await.is_empty());
    assert_eq!(session.text(exact).await, "200003");
}
