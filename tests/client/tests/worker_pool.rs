//! A bounded number of background workers serves any number of databases.

mod away;
mod idle;
mod losses;
mod turns;

use fetchq_client_tests::{Cluster, Database, Server, Session, WORKER, wait_for_rows};

/// The database from which the others are copied.
const ORIGIN: &str = "origin";

fn database(server: &Server, name: &str) -> Database {
    Database {
        server: server.clone(),
        name: name.to_owned(),
    }
}

/// A database with the extension and a queue, which is to be copied.
async fn origin(server: &Server, sql: &str) {
    let admin = server.connect("postgres").await;
    admin.sql(&format!("create database {ORIGIN}")).await;
    let session = server.connect(ORIGIN).await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    session.sql(sql).await;
}

/// Copies the database with the extension. A command that copies a database waits for the
/// background worker there to exit.
async fn copies(server: &Server, prefix: &str, number: usize) -> Vec<Database> {
    let admin = server.connect("postgres").await;
    let mut made = Vec::new();
    for n in 0..number {
        let db = database(server, &format!("{prefix}{n}"));
        admin
            .sql(&format!("create database {} template {ORIGIN}", db.name))
            .await;
        made.push(db);
    }
    made
}

async fn connect_all(databases: &[Database]) -> Vec<Session> {
    let mut sessions = Vec::new();
    for db in databases {
        sessions.push(db.connect().await);
    }
    sessions
}

async fn switch(admin: &Session, setting: &str) {
    admin
        .sql(&format!(
            "alter system set fetchq.background_worker = {setting}"
        ))
        .await;
    admin.sql("select pg_reload_conf()").await;
}

async fn plan(session: &Session, subject: &str, delay: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_push('q', '{subject}', 0, 0, clock_timestamp() + interval '{delay}', '{{}}')"
        ))
        .await;
}

async fn has_status(session: &Session, subject: &str, status: &str) {
    let sql = format!("select status from fetchq_data.q__docs where subject = '{subject}'");
    wait_for_rows(
        &format!("{subject} has its status"),
        session,
        &sql,
        &[status],
    )
    .await;
}

/// The number of background worker processes that the server has started.
fn starts(cluster: &Cluster) -> usize {
    let lines = cluster.log_lines();
    let starts = lines
        .iter()
        .filter(|line| line.contains(&format!("starting background worker process \"{WORKER}")));
    starts.count()
}
