//! `call fetchq.work(…)`: each handler takes effect exactly once, whatever fails.

mod ends;
mod failures;
mod handlers;
mod leases;
mod next_lease;
mod one_commit;
mod settings;

use fetchq_client_tests::{Server, Session, wait_until};
use tokio::task::JoinHandle;
use tokio_postgres::Error;

/// The handlers of these tests: they write a row to the ledger, and then do what the payload
/// requests.
const HANDLER: &str = "
    create table ledger (subject text, attempts int, pid int default pg_backend_pid());
    create function handle(queue text, doc jsonb) returns void language plpgsql as $$
    declare
        what jsonb := doc -> 'payload';
    begin
        insert into ledger values (doc ->> 'subject', (doc ->> 'attempts')::int);
        perform pg_sleep((what ->> 'sleep')::float) where (doc ->> 'attempts')::int = 1;
        if (what ->> 'fails')::int >= (doc ->> 'attempts')::int then
            raise exception 'bad luck' using errcode = 'DE001', detail = 'very bad';
        end if;
    end $$;
    select fetchq.queue_create('q');
    select fetchq.queue_configure('q', '{\"retry\": {\"base\": \"10 ms\"}, \"max_attempts\": 3}')";

type Ended = Result<(i32, i32), Error>;

/// Starts a worker; returns the numbers of documents that it has processed and that failed.
fn works(session: Session, arguments: &str) -> JoinHandle<Ended> {
    let call = format!("call fetchq.work('q', 'handle'{arguments})");
    tokio::spawn(async move {
        let row = session.query_one(&call, &[]).await?;
        Ok((row.get("processed"), row.get("failed")))
    })
}

async fn named(server: &Server, database: &str, name: &str) -> Session {
    let session = server.connect(database).await;
    session.sql(&format!("set fetchq.worker = '{name}'")).await;
    session
}

/// Waits until a handler runs, and returns its process ID.
async fn in_handler(session: &Session) -> String {
    let sql = "select pid from pg_stat_activity where wait_event = 'PgSleep'";
    let mut found = Vec::new();
    wait_until("a handler runs", async || {
        found = session.column(sql).await;
        found.len() == 1
    })
    .await;
    found.remove(0)
}

async fn put(session: &Session, subject: &str, payload: &str) {
    let sql = format!("select fetchq.doc_put('q', '{subject}', '{payload}')");
    assert_eq!(session.text(&sql).await, "created");
}

async fn ledger(session: &Session) -> Vec<String> {
    let sql = "select subject || ' ' || attempts from ledger order by 1";
    session.column(sql).await
}

async fn document(session: &Session, subject: &str) -> String {
    let sql = format!(
        "select status || ' ' || attempts from fetchq_data.q__docs where subject = '{subject}'"
    );
    session.text(&sql).await
}
