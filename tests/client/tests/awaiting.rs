//! `doc_await`: every way to settle a document wakes its awaiters, and tells what became of it.

mod rights;
mod slots;
mod ways;

use std::time::Duration;

use fetchq_client_tests::{Database, Session, wait_until};
use tokio::task::JoinHandle;

fn is_preloaded() -> bool {
    std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1")
}

type Outcome = Result<String, tokio_postgres::Error>;

/// A session that waits in the background: for what a call returns, with `|` between the columns.
async fn waits(db: &Database, call: &str) -> JoinHandle<Outcome> {
    let session = db.connect().await;
    session.sql("set application_name = 'awaits'").await;
    // Together they would be in a transaction block.
    let (before, call) = call.rsplit_once('\n').unwrap_or(("", call));
    session.sql(before).await;
    let call = call.to_owned();
    tokio::spawn(async move {
        let messages = session.simple_query(&call).await?;
        let row = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.expect("a row");
        let columns: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or("")).collect();
        Ok(columns.join("|"))
    })
}

const ASLEEP: &str = "select count(*) from pg_stat_activity
    where application_name = 'awaits' and wait_event_type = 'Extension'";

async fn asleep(session: &Session, n: usize) {
    wait_until("the sessions sleep", async || {
        session.text(ASLEEP).await == n.to_string()
    })
    .await;
}

/// What a session got, woken by a commit: without that it looks again after five seconds.
async fn woken(waiting: JoinHandle<Outcome>, what: &str) -> Outcome {
    let outcome = tokio::time::timeout(Duration::from_secs(4), waiting).await;
    outcome
        .unwrap_or_else(|_| panic!("{what}: nobody was woken"))
        .unwrap()
}

const CALL: &str = "call fetchq.doc_await('q', 'a', '60 s')";

const HISTORY: &str =
    r#"{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}"#;
const DEAD: &str = r#"{"dead_letter": "dead"}"#;
/// A queue with the documents a and x, which have one attempt.
async fn queue(session: &Session, settings: &str) {
    session
        .sql(&format!(
            "set fetchq.strict = off; select fetchq.queue_drop('q'), fetchq.queue_drop('dead'); reset fetchq.strict;
            select fetchq.queue_create('q'), fetchq.queue_create('dead');
            select fetchq.queue_configure('q', '{{\"max_attempts\": 1}}');
            select fetchq.queue_configure('q', '{settings}');
            select fetchq.doc_push('q', 'a'), fetchq.doc_push('q', 'x')"
        ))
        .await;
}
