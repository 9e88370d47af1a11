//! The launcher and the background workers do what is due, recover from failures, and do not
//! block other sessions.

mod due;
mod locks;
mod presence;
mod reports;

use fetchq_client_tests::{Cluster, Database, Session, wait_until};

/// Pushes a document that is planned for a moment from now.
async fn planned(session: &Session, subject: &str, delay: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_push('q', '{subject}', 0, 0, clock_timestamp() + interval '{delay}', '{{}}')"
        ))
        .await;
}

async fn becomes(session: &Session, subject: &str, status: i32) {
    wait_until("the document has its status", async || {
        session
            .text(&format!(
                "select status from fetchq_data.q__docs where subject = '{subject}'"
            ))
            .await
            == status.to_string()
    })
    .await;
}

async fn with_queue(cluster: &Cluster, name: &str) -> (Database, Session) {
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}
