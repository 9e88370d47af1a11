//! The launcher and the background workers.

use std::time::Duration;

use crate::{Cluster, Session, wait_until};

pub const LAUNCHER: &str = "fetchq launcher";
pub const WORKER: &str = "fetchq background worker";

/// A cluster with the background worker enabled, started.
pub fn with_worker(name: &str, settings: &str) -> Cluster {
    let cluster = Cluster::new(
        name,
        &format!("shared_preload_libraries = 'fetchq'\nfetchq.background_worker = on\n{settings}"),
    );
    cluster.start();
    cluster
}

/// The processes of fetchq: their type, and the database of a background worker.
/// Jobs processes are left out, because they start and end at any time.
pub async fn processes(session: &Session) -> Vec<String> {
    session
        .column(
            "select backend_type || coalesce(' of ' || datname, '') from pg_stat_activity
             where backend_type in ('fetchq launcher', 'fetchq background worker')
             order by backend_type desc, datname",
        )
        .await
}

/// The process ID of a backend type, if it runs.
pub async fn process_id(session: &Session, backend_type: &str) -> Option<u32> {
    let sql = format!("select pid from pg_stat_activity where backend_type = '{backend_type}'");
    session.column(&sql).await.pop()?.parse().ok()
}

pub async fn has_worker(session: &Session, database: &str) -> bool {
    let wanted = format!("{WORKER} of {database}");
    processes(session).await.contains(&wanted)
}

pub async fn worker_comes(session: &Session, database: &str) {
    wait_until("the background worker runs", async || {
        has_worker(session, database).await
    })
    .await;
}

pub async fn worker_goes(session: &Session, database: &str) {
    wait_until("the background worker has ended", async || {
        !has_worker(session, database).await
    })
    .await;
}

/// Waits until one launcher and one background worker run, and checks that this lasts.
pub async fn one_of_each(session: &Session, database: &str) {
    let wanted = [LAUNCHER.to_owned(), format!("{WORKER} of {database}")];
    let mut now = Vec::new();
    wait_until("one launcher and one background worker run", async || {
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
