//! The extension or its database is dropped while clients work and a background worker runs.

use fetchq_client_tests::{
    LAUNCHER, Load, processes, state_of, wait_until, with_worker, worker_comes, worker_goes,
};

const CLIENTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn the_extension_dropped_under_load() {
    let cluster = with_worker("drop_extension", "");
    let db = cluster.server().database("drop_extension").await;
    for _ in 0..2 {
        let mut session = db.connect().await;
        worker_comes(&session, &db.name).await;
        let mut load = Load::new(&db).await;
        load.run(CLIENTS, 100).await;
        // DROP may be the victim of a deadlock with the clients' statements.
        let mut tries = 0;
        while let Err(e) = session
            .batch_execute(
                "drop extension fetchq cascade; drop schema if exists fetchq_data cascade",
            )
            .await
        {
            assert_eq!(state_of(&e), "40P01");
            tries += 1;
            assert!(tries < 10, "the extension cannot be dropped");
        }
        let errors = load.ended().await;
        assert_eq!(errors.len(), CLIENTS, "{errors:?}");
        worker_goes(&session, &db.name).await;

        session.sql("create extension fetchq").await;
        worker_comes(&session, &db.name).await;
        let mut load = Load::new(&db).await;
        load.run(CLIENTS, 20).await;
        load.stop().await;
        load.finish(&mut session).await;
        session
            .sql("select fetchq.queue_drop('q'); drop extension fetchq; create extension fetchq")
            .await;
    }
    no_complaints(&cluster.log_lines());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_dropped_under_load() {
    let cluster = with_worker("drop_database", "");
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    for force in ["", " with (force)"] {
        let db = server.database("drop_database").await;
        let mut load = Load::new(&db).await;
        worker_comes(&admin, &db.name).await;
        load.run(CLIENTS, 100).await;
        let drop_it = format!("drop database {}{force}", db.name);
        if force.is_empty() {
            // Only the clients block the command. The background worker has ended, and restarts.
            assert_eq!(admin.state(&drop_it).await, "55006");
            let mut session = db.connect().await;
            worker_comes(&admin, &db.name).await;
            load.run_on(100).await;
            load.stop().await;
            load.finish(&mut session).await;
            std::mem::drop(session);
        }
        admin.sql(&drop_it).await;
        let errors = load.ended().await;
        let expected = if force.is_empty() { 0 } else { CLIENTS };
        assert_eq!(errors.len(), expected, "{errors:?}");
        wait_until("only the launcher is left", async || {
            processes(&admin).await == [LAUNCHER]
        })
        .await;
    }
    no_complaints(&cluster.log_lines());
}

/// Checks that the log has only errors of clients whose tables were dropped, and lines about
/// processes that the server terminated, and no complaint of fetchq.
fn no_complaints(log: &[String]) {
    // Maintenance waits for a lock for a moment only.
    const BY_FORCE: [&str; 3] = [
        "due to administrator command",
        "exited with exit code 1",
        "due to lock timeout",
    ];
    let said: Vec<&String> = log
        .iter()
        .filter(|line| !BY_FORCE.iter().any(|words| line.contains(words)))
        .filter(|line| {
            line.contains("fetchq background worker")
                || line.contains("fetchq launcher")
                || line.contains("PANIC")
        })
        .collect();
    assert!(said.is_empty(), "{said:#?}");
}
