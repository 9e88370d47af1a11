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
