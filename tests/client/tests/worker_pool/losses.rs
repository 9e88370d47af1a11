//! Processes crash, and databases are dropped, while databases wait.

use std::collections::BTreeSet;

use fetchq_client_tests::{
    LAUNCHER, WORKER, process_id, processes, wait_for_rows, wait_until, with_worker,
};

use super::{connect_all, copies, has_status, origin, plan};

#[tokio::test]
async fn crashes_while_databases_wait() {
    let cluster = with_worker(
        "pool_crash",
        "fetchq.max_workers = 2\nrestart_after_crash = on",
    );
    let server = cluster.server();
    origin(
        &server,
        "select fetchq.schedule_create('second', 'q', '* * * * * *')",
    )
    .await;
    let databases = copies(&server, "crash", 5).await;
    for (round, victim) in [WORKER, LAUNCHER, WORKER, LAUNCHER].into_iter().enumerate() {
        let admin = server.connect_when_up("postgres").await;
        wait_until("the process runs", async || {
            process_id(&admin, victim).await.is_some()
        })
        .await;
        let Some(pid) = process_id(&admin, victim).await else {
            continue;
        };
        if round < 2 {
            cluster.kill_if_there(pid);
            wait_until("the server has noticed", async || {
                admin.batch_execute("select").await.is_err()
            })
            .await;
        } else {
            admin
                .sql(&format!("select pg_terminate_backend({pid})"))
                .await;
        }
        for db in &databases {
            let session = db.server.connect_when_up(&db.name).await;
            let subject = format!("after{round}");
            plan(&session, &subject, "10 ms").await;
            has_status(&session, &subject, "1").await;
        }
    }
}

#[tokio::test]
async fn databases_are_dropped_while_they_wait() {
    let cluster = with_worker("pool_drop", "fetchq.max_workers = 1");
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    origin(
        &server,
        "select fetchq.schedule_create('second', 'q', '* * * * * *')",
    )
    .await;
    let databases = copies(&server, "drop", 4).await;
    for session in connect_all(&databases).await {
        let ticked = "select count(*) > 0 from fetchq_data.q__docs";
        wait_for_rows("the schedule has ticked", &session, ticked, &["t"]).await;
    }
    for db in &databases[..2] {
        admin.sql(&format!("drop database {}", db.name)).await;
    }
    admin.sql("alter database drop2 rename to renamed").await;
    for name in ["renamed", "drop3"] {
        let session = server.connect(name).await;
        plan(&session, "a", "10 ms").await;
        has_status(&session, "a", "1").await;
    }
    let served: BTreeSet<String> = processes(&admin).await.into_iter().collect();
    assert!(served.len() <= 2, "{served:?}");
}
