//! Many queues on a server with room for few locks: what reads all of them keeps none.

use fetchq_client_tests::{Cluster, Session, error_of, state_of};

/// More queues than the server can lock tables of.
const QUEUES: usize = 600;

/// Room for 448 locks of all sessions together, and for some hundreds more in what the server has
/// left of its shared memory.
const FEW_LOCKS: &str = "fsync = off\nmax_locks_per_transaction = 32\nmax_connections = 10\n\
    max_worker_processes = 2\nmax_wal_senders = 0\nautovacuum_max_workers = 1";

/// Creates the queues, each with a leased document `d` and a history, in transactions that need few
/// locks.
async fn create(session: &Session) {
    session
        .sql(
            "create extension fetchq;
             create procedure fill(n int) language plpgsql as $$
             begin
                 for i in 1..n loop
                     perform fetchq.queue_create('q' || i);
                     commit;
                     perform fetchq.queue_configure('q' || i, '{\"history\": {\"dropped\": \"1 day\"}}');
                     perform fetchq.doc_put('q' || i, 'd');
                     perform fetchq.doc_put('q' || i, 'old');
                     perform fetchq.doc_pick('q' || i, 2);
                     perform fetchq.doc_drop('q' || i, 'old');
                     commit;
                 end loop;
             end $$",
        )
        .await;
    session.sql(&format!("call fill({QUEUES})")).await;
}

#[tokio::test]
async fn reading_all_queues_needs_no_lock_for_each() {
    let cluster = Cluster::new("few_locks", FEW_LOCKS);
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    create(&session).await;
    let n = QUEUES.to_string();
    // A transaction that keeps a lock for each queue fails here.
    let locks = session
        .batch_execute(
            "do $$ begin for i in 1..600 loop execute format('select from fetchq_data.q%s__docs', i); end loop; end $$",
        )
        .await
        .expect_err("this server has room for fewer locks");
    assert_eq!(state_of(&locks), "53200");
    for (what, sql) in [
        ("leases", "select count(*) from fetchq.leases"),
        (
            "lease_list",
            "select count(distinct queue) from fetchq.lease_list(max_docs => 100000)",
        ),
        ("workers", "select documents from fetchq.workers"),
        ("trace", "select count(*) from fetchq.trace('d')"),
        ("history", "select count(*) from fetchq.history"),
        (
            "metric_compute_all",
            "select sum(act) from fetchq.metric_compute_all()",
        ),
        (
            "queue_stats",
            "select sum(active) from fetchq.queue_stats()",
        ),
    ] {
        assert_eq!(session.text(sql).await, n, "{what}");
    }
    // In one transaction, and in the order of the pages.
    session
        .sql("begin; select * from fetchq.leases; select * from fetchq.trace('old', 'desc'); select * from fetchq.history; commit")
        .await;
    assert_eq!(
        session
            .text("select string_agg(step::text, ',') from (select step from fetchq.trace('d', 'desc') limit 3) s")
            .await,
        "600,599,598"
    );
    // This number of queues cannot be created at once, and the error says what to do.
    let many = session
        .batch_execute("select fetchq.queue_create('more' || i) from generate_series(1, 600) i")
        .await
        .expect_err("this server has room for fewer locks");
    let error = error_of(&many);
    assert_eq!(state_of(&many), "53200");
    assert!(
        error.message().contains("queue \"more") && error.message().contains("keeps the locks"),
        "{}",
        error.message()
    );
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("several transactions"), "{hint}");
    assert!(hint.contains("max_locks_per_transaction"), "{hint}");
    let created = session.text("select count(*) from fetchq.queues where name ~ 'more'");
    assert_eq!(created.await, "0");
    cluster.stop("fast");
}
