//! How many processes there are: idle databases cost none, and as many as have a place stay.

use std::time::Duration;

use fetchq_client_tests::{LAUNCHER, WORKER, processes, wait_until, with_worker};

use super::{ORIGIN, connect_all, copies, has_status, origin, plan, starts};

#[tokio::test]
async fn idle_databases_cost_no_processes() {
    let cluster = with_worker(
        "pool_idle",
        "fetchq.max_workers = 2\nlog_min_messages = debug1",
    );
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    for n in 0..5 {
        admin.sql(&format!("create database without{n}")).await;
    }
    origin(
        &server,
        "select fetchq.doc_push('q', 'far', 0, 0, now() + interval '1 day', '{}')",
    )
    .await;
    let databases = copies(&server, "idle", 5).await;
    let sessions = connect_all(&databases).await;
    // A burst of work first, which ends.
    for session in &sessions {
        plan(session, "a", "50 ms").await;
        has_status(session, "a", "1").await;
    }
    let mut before = 0;
    wait_until("no process is started for six seconds", async || {
        before = starts(&cluster);
        tokio::time::sleep(Duration::from_secs(6)).await;
        starts(&cluster) == before
    })
    .await;
    assert!(before >= databases.len(), "{before}");
    // Each is still served.
    for session in &sessions {
        plan(session, "b", "50 ms").await;
        has_status(session, "b", "1").await;
    }
    assert!(starts(&cluster) > before);
}

#[tokio::test]
async fn as_many_background_workers_as_databases_stay() {
    let cluster = with_worker(
        "pool_stay",
        "fetchq.max_workers = 3\nlog_min_messages = debug1",
    );
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    origin(&server, "select").await;
    copies(&server, "stay", 2).await;
    let wanted: Vec<String> = std::iter::once(LAUNCHER.to_owned())
        .chain([ORIGIN, "stay0", "stay1"].map(|name| format!("{WORKER} of {name}")))
        .collect();
    let all_run = async || {
        wait_until("each database has a background worker", async || {
            processes(&admin).await == wanted
        })
        .await;
    };
    all_run().await;
    // A database without the extension takes a place only until that is known.
    admin.sql("create database without").await;
    wait_until("it was looked at", async || {
        let lines = cluster.log_lines();
        lines.iter().any(|line| {
            line.contains("starting background worker process") && line.contains("without")
        })
    })
    .await;
    all_run().await;
    let pids =
        format!("select pid from pg_stat_activity where backend_type = '{WORKER}' order by pid");
    let before = admin.column(&pids).await;
    for n in 0..20 {
        let session = server.connect(["stay0", "stay1"][n % 2]).await;
        plan(&session, &format!("a{n}"), "50 ms").await;
        has_status(&session, &format!("a{n}"), "1").await;
    }
    assert_eq!(admin.column(&pids).await, before);
    // Fewer places: the others leave, and everything is served.
    admin.sql("alter system set fetchq.max_workers = 1").await;
    admin.sql("select pg_reload_conf()").await;
    wait_until("one is left", async || admin.column(&pids).await.len() == 1).await;
    for name in ["stay0", "stay1", ORIGIN] {
        let session = server.connect(name).await;
        plan(&session, "b", "50 ms").await;
        has_status(&session, "b", "1").await;
    }
}
