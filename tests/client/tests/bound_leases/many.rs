//! A role with many worker sessions: what others read, and how many rows a session keeps.

use fetchq_client_tests::{Session, skips_test, wait_until, with_worker, worker_comes};

use super::{by_clients, lease};

/// Worker sessions of a queue that nobody reads, of this session: a bound one in three.
const MANY: &str = "insert into fetchq.worker_sessions (id, queue_id, name, pid, backend_start, since, binding)
    select i, fetchq.queue_get_id('crowd'), 'w' || i, a.pid, a.backend_start, now(), (i % 3 = 0)::int
    from generate_series(1, 17000) i, pg_stat_activity a where a.pid = pg_backend_pid();
    analyze fetchq.worker_sessions";

/// Makes the recount of the queue `mine` the only job that is due.
const ONE_DUE: &str = "update fetchq.jobs set attempts = 0, next_iteration = now()
    + case when queue = 'mine' and task = 'cmp' then '-1 second' else '1 hour' end::interval";

/// The nodes of plans that read worker sessions, of statements that this session has run.
fn reads(session: &Session) -> Vec<String> {
    let notices = session.notices();
    let plans = notices.iter().filter(|n| n.message().contains("plan:"));
    let lines = plans.flat_map(|n| n.message().lines().map(str::to_owned).collect::<Vec<_>>());
    lines
        .filter(|line| line.contains("Scan") && line.contains("worker_sessions"))
        .collect()
}

/// Checks that these nodes read by an index, and no more rows than these.
fn reads_few(call: &str, nodes: &[String], most: u32) {
    assert!(!nodes.is_empty(), "{call}: no plan was shown");
    for node in nodes {
        assert!(node.contains("using worker_sessions_"), "{call}: {node}");
        // (actual rows=1 loops=1), from PostgreSQL 18 on (actual rows=1.00 loops=1)
        let rows = node.rsplit("rows=").next().unwrap();
        let rows: String = rows.chars().take_while(char::is_ascii_digit).collect();
        let rows: u32 = rows.parse().unwrap();
        assert!(rows <= most, "{call}: {node}");
    }
}

#[tokio::test]
async fn calls_read_no_worker_sessions_of_others() {
    if skips_test("auto_explain") {
        return;
    }
    let (_cluster, server, look) = by_clients("bound_many").await;
    // The maintenance of the oldest queue cleans up for all.
    look.sql("select fetchq.queue_create(q) from unnest('{crowd,mine}'::text[]) q; select fetchq.doc_push('mine', 'd')")
        .await;
    // The session keeps the plans that it has made while the tables were empty.
    let worker = server.connect("postgres").await;
    worker
        .sql("set fetchq.worker = 'mine'; select fetchq.worker_stop('mine')")
        .await;
    let leased = lease(&worker, "mine", "keep").await;
    let (subject, lease) = leased.split_once('|').unwrap();
    let calls = [
        format!("select fetchq.doc_extend('mine', '{subject}', '1 hour', lease => {lease})"),
        format!(
            "select fetchq.docs_extend('mine', '[{{\"subject\": \"{subject}\", \"lease\": {lease}}}]', '1 hour')"
        ),
        "select fetchq.mnt_run('mine', 10)".to_owned(),
        "select fetchq.mnt_job_run(1)".to_owned(),
    ];
    for call in &calls {
        worker.sql(ONE_DUE).await;
        worker.sql(call).await;
    }
    look.sql(MANY).await;
    look.sql("select fetchq.worker_stop('w' || i) from generate_series(1, 1000) i; analyze fetchq.stop_requests")
        .await;
    let fresh = server.connect("postgres").await;
    for session in [&worker, &fresh] {
        session
            .sql(
                "load 'auto_explain'; set auto_explain.log_min_duration = 0;
                 set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on;
                 set auto_explain.log_timing = off; set auto_explain.log_level = notice;
                 set fetchq.direct = off; set client_min_messages = notice",
            )
            .await;
        for call in &calls {
            session.sql(ONE_DUE).await;
            session.notices();
            session.sql(call).await;
            reads_few(call, &reads(session), 2);
        }
    }
}

#[tokio::test]
async fn the_background_worker_reads_only_bound_worker_sessions() {
    if skips_test("auto_explain") {
        return;
    }
    let cluster = with_worker(
        "bound_look",
        "shared_preload_libraries = 'fetchq,auto_explain'\nauto_explain.log_min_duration = 0
         auto_explain.log_analyze = on\nauto_explain.log_timing = off\nfsync = off",
    );
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql("create extension fetchq; select fetchq.queue_create('crowd')")
        .await;
    worker_comes(&look, "postgres").await;
    look.sql(&MANY.replace("(i % 3 = 0)::int", "0")).await;
    let nodes = || -> Vec<String> {
        let lines = cluster.log_lines().into_iter();
        lines
            .filter(|line| line.contains("Scan") && line.contains("on worker_sessions"))
            .collect()
    };
    let before = nodes().len();
    wait_until("the background worker has looked again", async || {
        nodes().len() > before + 2
    })
    .await;
    reads_few("the background worker", &nodes()[before..], 0);
}

#[tokio::test]
async fn a_session_keeps_no_more_rows_than_it_remembers() {
    let (_cluster, server, look) = by_clients("bound_forgotten").await;
    let worker = server.connect("postgres").await;
    // The row of a lease stays, however old it is.
    worker.sql("set fetchq.worker = 'first'").await;
    let leased = lease(&worker, "q", "keep").await;
    worker
        .sql(
            "insert into fetchq.worker_sessions (id, queue_id, name, pid, backend_start, since, binding)
             select w.id + i, w.queue_id, 'w' || i, w.pid, w.backend_start, w.since, w.binding
             from generate_series(1, 21000) i, fetchq.worker_sessions w",
        )
        .await;
    let rows =
        "select count(*), count(*) filter (where name = 'first') from fetchq.worker_sessions";
    look.sql("select fetchq.mnt()").await;
    assert_eq!(look.rows(rows).await, ["20001|1"]);
    super::complete(&worker, "q", &leased).await;
    look.sql("select fetchq.mnt()").await;
    assert_eq!(look.rows(rows).await, ["20000|0"]);
    // The session notices.
    super::lease(&worker, "q", "keep").await;
    assert_eq!(super::bindings(&look).await, ["keep"]);
}
