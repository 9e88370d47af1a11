//! The server's launcher and workers.

use std::time::Duration;

use crate::{Cluster, Session, wait_until};

pub const LAUNCHER: &str = "fetchq launcher";
pub const WORKER: &str = "fetchq background worker";

/// A cluster with the worker on, started.
pub fn with_worker(name: &str, settings: &str) -> Cluster {
    let cluster = Cluster::new(
        name,
        &format!("shared_preload_libraries = 'fetchq'\nfetchq.background_worker = on\n{settings}"),
    );
    cluster.start();
    cluster
}

/// Processes of ours: type, and database of a worker. Not those for slow jobs, which
/// come and go.
pub async fn processes(session: &Session) -> Vec<String> {
    session
        .column(
            "select backend_type || coalesce(' of ' || datname, '') from pg_stat_activity
             where backend_type in ('fetchq launcher', 'fetchq background worker')
             order by backend_type desc, datname",
        )
        .await
}

/// The process of a type, if it runs.
pub async fn process_id(session: &Session, backend_type: &str) -> Option<u32> {
    let sql = format!("select pid from pg_stat_activity where backend_type = '{backend_type}'");
    session.column(&sql).await.pop()?.parse().ok()
}

pub async fn has_worker(session: &Session, database: &str) -> bool {
    let wanted = format!("{WORKER} of {database}");
    processes(session).await.contains(&wanted)
}

pub async fn worker_comes(session: &Session, database: &str) {
    wait_until("the worker runs", async || {
        has_worker(session, database).await
    })
    .await;
}

pub async fn worker_goes(session: &Session, database: &str) {
    wait_until("the worker is gone", async || {
        !has_worker(session, database).await
    })
    .await;
}

/// Soon there is one launcher and the worker of the only database, and it stays so.
pub async fn one_of_each(session: &Session, database: &str) {
    let wanted = [LAUNCHER.to_owned(), format!("{WORKER} of {database}")];
    let mut now = Vec::new();
    wait_until("there is a launcher and a worker", async || {
        now = processes(session).await;
        now == wanted
    })
    .await;
    for _ in 0..20 {
        now = processes(session).await;
        assert_eq!(now, wanted);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
