//! `metric_export`: its numbers agree with the counters while clients work, no counter of it goes
//! back, and it waits for no lock and takes none that others would wait for.

use std::collections::BTreeMap;

use fetchq_client_tests::{Cluster, Load, Server, Session, metrics, state_of, timed, wait_until};
use tokio_postgres::{Client, IsolationLevel};

/// The samples, by their names and labels.
async fn samples(client: &Client) -> BTreeMap<String, f64> {
    let rows = client
        .query(
            "select name || labels::text, value from fetchq.metric_samples",
            &[],
        )
        .await
        .expect("metric_samples");
    let all: BTreeMap<String, f64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(all.len(), rows.len(), "a sample is there twice");
    all
}

/// What differs between the samples of the queue `q` and its counters, in one snapshot; and the
/// samples. None while another session, such as a vacuum, has locked the counters.
async fn compare(session: &mut Session) -> (Vec<String>, Option<BTreeMap<String, f64>>) {
    let tx = session
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()
        .await
        .expect("begin");
    let all = samples(tx.client()).await;
    let exact = metrics(tx.client(), "q").await;
    let timed = [
        ("wait", timed(tx.client(), "q", "wait").await),
        ("run", timed(tx.client(), "q", "run").await),
    ];
    tx.commit().await.expect("commit");
    let mut wrong = Vec::new();
    if all
        .keys()
        .any(|name| name.starts_with("fetchq_metric_missing"))
    {
        return (wrong, None);
    }
    let metric = |name: &str| exact.get(name).copied().unwrap_or(0) as f64;
    let with = |prefix: &str| -> f64 {
        let found = all.iter().filter(|(name, _)| name.starts_with(prefix));
        found.map(|(_, value)| value).sum()
    };
    let documents = |state: &str| {
        with(&format!(
            "fetchq_documents{{\"queue\": \"q\", \"state\": \"{state}\""
        ))
    };
    let pending: f64 = ["ready", "retrying", "blocked", "pending"]
        .map(documents)
        .iter()
        .sum();
    let settled = |outcome: &str| {
        with(&format!(
            "fetchq_settled_total{{\"queue\": \"q\", \"outcome\": \"{outcome}\""
        ))
    };
    let pairs = [
        ("cnt", with("fetchq_documents"), metric("cnt")),
        ("pnd", pending, metric("pnd")),
        ("pln", documents("planned"), metric("pln")),
        ("act", documents("active"), metric("act")),
        ("cpl", documents("completed"), metric("cpl")),
        ("kll", documents("killed"), metric("kll")),
        ("ent", with("fetchq_pushed_total"), metric("ent")),
        ("pkd", with("fetchq_picked_total"), metric("pkd")),
        ("orp", with("fetchq_leases_lost_total"), metric("orp")),
        ("ded", with("fetchq_dead_letters_total"), metric("ded")),
        ("prc", with("fetchq_settled_total"), metric("prc")),
        ("res", settled("rescheduled"), metric("res")),
        ("rej", settled("rejected"), metric("rej")),
        (
            "suc",
            settled("succeeded") + settled("rescheduled"),
            metric("suc"),
        ),
        ("wait", with("fetchq_wait_seconds_count"), timed[0].1 as f64),
        ("run", with("fetchq_run_seconds_count"), timed[1].1 as f64),
    ];
    for (name, told, exact) in pairs {
        if told != exact {
            wrong.push(format!("{name}: {told} instead of {exact}"));
        }
    }
    (wrong, Some(all))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exported_metrics_agree_with_the_counters_under_load() {
    let cluster = Cluster::new("export_load", "fsync = off\nfetchq.background_worker = on");
    cluster.start();
    let db = cluster.server().database("export_load").await;
    let mut load = Load::new(&db).await;
    let mut session = db.connect().await;
    load.run(4, 50).await;
    let mut before: BTreeMap<String, f64> = BTreeMap::new();
    let mut compared = 0;
    while compared < 30 {
        load.run_on(5).await;
        let (wrong, all) = compare(&mut session).await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let Some(all) = all else { continue };
        let is_counter = |name: &str| {
            let name = name.split('{').next().unwrap_or(name);
            ["_total", "_bucket", "_sum", "_count"]
                .iter()
                .any(|end| name.ends_with(end))
        };
        for (name, value) in all.iter().filter(|(name, _)| is_counter(name)) {
            let earlier = before.get(name).copied().unwrap_or(0.0);
            assert!(
                *value >= earlier,
                "{name} went from {earlier} back to {value}"
            );
        }
        for (name, _) in before.iter().filter(|(name, _)| is_counter(name)) {
            assert!(all.contains_key(name), "{name} is gone");
        }
        before = all;
        compared += 1;
    }
    load.stop().await;
}

/// What is known of the queue `a`: the pushed documents, the ready ones, the waits; and what is missing.
const KNOWN: &str = "select concat_ws(' ',
        coalesce(max(value) filter (where family = 'fetchq_pushed_total')::text, '-'),
        coalesce(max(value) filter (where labels ->> 'state' = 'ready')::text, '-'),
        coalesce(max(value) filter (where name = 'fetchq_wait_seconds_count')::text, '-'),
        (select string_agg(replace(m.labels ->> 'metric', 'fetchq_', '') || ' ' || (m.labels ->> 'reason'), ', ')
            from fetchq.metric_export('fetchq_metric_missing') m))
    from fetchq.metric_samples where labels ->> 'queue' = 'a'";

#[tokio::test]
async fn the_export_waits_for_no_lock_and_says_what_is_missing() {
    let db = Server::of_suite().database("export_locks").await;
    let owner = db.connect().await;
    let reader = db.connect().await;
    owner
        .sql(
            "select fetchq.queue_create('a'); select fetchq.doc_append('a', '{}'), fetchq.doc_append('a', '{}');
             select fetchq.doc_lease('a')",
        )
        .await;
    // A wait would fail.
    reader.sql("set lock_timeout = '1 ms'").await;
    assert_eq!(reader.text(KNOWN).await, "2 1 1");
    let counted = "- - - documents locked, oldest_ready_age_seconds locked, pushed_total locked, picked_total locked, \
         settled_total locked, leases_lost_total locked, expired_total locked, dead_letters_total locked, wait_seconds locked, run_seconds locked";
    for (locked, expected) in [
        ("fetchq_data.a__docs", "2 - 1"),
        ("fetchq.metrics", counted),
        ("fetchq.counter_log", counted),
        (
            "fetchq.timings",
            "2 1 - wait_seconds locked, run_seconds locked",
        ),
        ("fetchq.worker_sessions", "2 1 1 workers locked"),
        ("fetchq.schedules", "2 1 1 schedules locked"),
        (
            "fetchq.jobs",
            "2 1 1 maintenance_last_run_age_seconds locked, maintenance_failing_jobs locked",
        ),
    ] {
        owner
            .sql(&format!(
                "begin; lock table only {locked} in access exclusive mode"
            ))
            .await;
        assert_eq!(reader.text(KNOWN).await, expected, "{locked} is locked");
        owner.sql("rollback").await;
        assert_eq!(reader.text(KNOWN).await, "2 1 1", "after {locked}");
    }
    owner
        .sql("begin; lock table fetchq.queues in access exclusive mode")
        .await;
    let error = reader.query(KNOWN, &[]).await.expect_err("it is locked");
    assert_eq!(state_of(&error), "55P03");
    owner.sql("rollback").await;
    db.remove().await;
}

#[tokio::test]
async fn the_export_takes_access_share_locks_only() {
    let db = Server::of_suite().database("export_modes").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('a'); select fetchq.doc_append('a', '{}')")
        .await;
    session
        .sql("begin; select * from fetchq.metric_samples")
        .await;
    let modes = session
        .text("select string_agg(distinct mode, ' ') from pg_locks where pid = pg_backend_pid() and locktype = 'relation'")
        .await;
    assert_eq!(modes, "AccessShareLock");
    session.sql("rollback").await;
    db.remove().await;
}

/// A worker that has ended is not counted, and one with two sessions is counted twice.
#[tokio::test]
async fn connected_sessions_are_counted_as_workers() {
    let db = Server::of_suite().database("export_workers").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('a'); select fetchq.doc_append('a', '{}') from generate_series(1, 5)")
        .await;
    let workers = async || {
        let sql = "select value::int from fetchq.metric_export('fetchq_workers') where labels ->> 'queue' = 'a'";
        session.text(sql).await
    };
    assert_eq!(workers().await, "0");
    let first = db.connect().await;
    let second = db.connect().await;
    for worker in [&first, &second, &second] {
        worker
            .sql("select fetchq.doc_lease('a', worker => 'w')")
            .await;
    }
    assert_eq!(workers().await, "2");
    drop(second);
    wait_until("the session has ended", async || workers().await == "1").await;
    db.remove().await;
}

/// Without the library in shared_preload_libraries, and on a standby, the export has what is there,
/// and says what is not.
#[tokio::test]
async fn the_export_works_without_shared_memory_and_on_a_standby() {
    const INFO: &str = "select concat_ws(' ', labels ->> 'role', labels ->> 'preloaded') from fetchq.metric_export('fetchq_info')";
    const MISSING: &str =
        "select string_agg((labels ->> 'metric') || ' ' || (labels ->> 'reason'), ', ')
        from fetchq.metric_export('fetchq_metric_missing')";
    const TOTALS: &str =
        "select string_agg(concat_ws(' ', name, labels, value), ', ' order by name, labels::text)
        from fetchq.metric_samples where type <> 'gauge' or family = 'fetchq_documents'";
    let cluster = Cluster::new(
        "export_primary",
        "fsync = off\nshared_preload_libraries = ''",
    );
    cluster.start();
    let primary = cluster.server().connect("postgres").await;
    primary
        .sql(
            "create extension fetchq; select fetchq.queue_create('a');
             select fetchq.doc_append('a', '{}') from generate_series(1, 5); select fetchq.doc_lease('a', 2)",
        )
        .await;
    let standby_cluster = cluster.standby("export_standby", "shared_preload_libraries = ''");
    let standby = standby_cluster.server().connect("postgres").await;
    assert_eq!(primary.text(INFO).await, "primary false");
    assert_eq!(standby.text(INFO).await, "standby false");
    let no_memory = "fetchq_floor_misses_total no shared memory";
    assert_eq!(primary.text(MISSING).await, no_memory);
    assert_eq!(
        standby.text(MISSING).await,
        format!("fetchq_workers standby, {no_memory}")
    );
    let workers = "select value::int from fetchq.metric_export('fetchq_workers')";
    assert_eq!(primary.text(workers).await, "1");
    let totals = primary.text(TOTALS).await;
    assert!(
        totals.contains("fetchq_picked_total {\"queue\": \"a\"} 2"),
        "{totals}"
    );
    wait_until("the standby has replayed all changes", async || {
        standby.text(TOTALS).await == totals
    })
    .await;
}

/// Parsing the labels of a sample takes kilobytes, which must not add up. With 300 queues it was some 40
/// MB, and the rows take 2 MB.
#[tokio::test]
async fn a_long_export_takes_the_memory_of_its_rows_only() {
    let db = Server::of_suite().database("export_memory").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q' || n) from generate_series(1, 300) n;
             select fetchq.doc_append('q' || n, '{}') from generate_series(1, 300) n;
             select subject from generate_series(1, 300) n, fetchq.doc_lease('q' || n)",
        )
        .await;
    let reader = db.connect().await;
    let peak = async || {
        let sql = "select substring(pg_read_file('/proc/self/status') from 'VmHWM:\\s*(\\d+)')";
        reader.text(sql).await.parse::<i64>().expect("kilobytes")
    };
    // What a session remembers of the queues is there before.
    reader.sql("select * from fetchq.queue_stats(); select * from fetchq.metric_export('fetchq_workers')").await;
    let before = peak().await;
    let n = reader
        .text("select count(*) from fetchq.metric_export()")
        .await;
    assert!(n.parse::<i64>().expect("a number") > 300 * 40, "{n}");
    let grown = peak().await - before;
    assert!(grown < 15_000, "{grown} kB for {n} samples");
    db.remove().await;
}
