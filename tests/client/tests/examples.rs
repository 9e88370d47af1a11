//! Tests of the example worker in psql. The suites of the clients test the other ones.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fetchq_client_tests::{Database, Server, Session, counters_are_exact, run, wait_until};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn psql() -> Command {
    let mut command = Command::new(root().join("examples/psql-worker.sh"));
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = std::env::var("FETCHQ_PG_BINDIR")
        .expect("FETCHQ_PG_BINDIR is not set: run this test with scripts/test.sh client");
    command.env("PATH", format!("{bin}:{path}"));
    command
}

/// A running worker. It is killed when this value is dropped after a failure.
struct Worker(Child);

impl Worker {
    fn start(mut command: Command, db: &Database, grace: &str, lease: &str) -> Self {
        let url = std::env::var("FETCHQ_URL")
            .expect("FETCHQ_URL is not set: run this test with scripts/test.sh client");
        let server = url.rsplit_once('/').expect("a database").0;
        let child = command
            .args(["q", "example"])
            .env("DATABASE_URL", format!("{server}/{}", db.name))
            .env("GRACE", grace)
            .env("LEASE", lease)
            .stdin(Stdio::null())
            .spawn()
            .expect("start the worker");
        Self(child)
    }

    fn signal(&self, signal: &str) {
        run(Command::new("kill").args([signal, &self.0.id().to_string()]));
    }

    /// Kills the worker and the psql that its script has started.
    fn kill_all(&self) {
        let own = self.0.id().to_string();
        let children = Command::new("pgrep").args(["-P", &own]).output();
        let children = children.expect("pgrep").stdout;
        let children = String::from_utf8_lossy(&children).into_owned();
        run(Command::new("kill")
            .args(["-KILL", &own])
            .args(children.split_whitespace()));
    }

    async fn status(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the worker ends", async || {
            status = self.0.try_wait().expect("wait");
            status.is_some()
        })
        .await;
        status.unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn put(session: &Session, subject: &str, payload: &str) {
    let sql = format!("select fetchq.doc_put('q', '{subject}', '{payload}')");
    assert_eq!(session.text(&sql).await, "created");
}

/// Waits until a document has a status and a number of attempts; maintenance runs meanwhile.
async fn becomes(session: &Session, subject: &str, wanted: &str) {
    let sql = format!(
        "select status || ' ' || attempts from fetchq_data.q__docs where subject = '{subject}'"
    );
    wait_until(&format!("{subject} becomes {wanted}"), async || {
        session.sql("select fetchq.mnt_run('q', 100)").await;
        session.text(&sql).await == wanted
    })
    .await;
}

#[tokio::test]
async fn the_worker_in_psql() {
    let session = Server::of_suite().connect("postgres").await;
    let version = session.text("show server_version_num").await;
    if version.parse::<u32>().unwrap() < 140_000 {
        // Before version 14 the server does not notice that psql was killed.
        return;
    }
    let db = Server::of_suite().database("example_psql").await;
    let mut session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.queue_configure('q', '{\"retry\": {\"base\": \"1 day\"}}');
             create table results (subject text, result jsonb)",
        )
        .await;

    // A document that succeeds, one that fails, one that is cancelled, one that outlasts its lease.
    put(&session, "good", "{}").await;
    put(&session, "bad", r#"{"fail": "bad luck"}"#).await;
    let mut worker = Worker::start(psql(), &db, "20", "3");
    becomes(&session, "good", "3 0").await;
    becomes(&session, "bad", "1 1").await;
    let error = "select last_error from fetchq_data.q__docs where subject = 'bad'";
    assert_eq!(session.text(error).await, "bad luck");
    put(&session, "cancelled", r#"{"sleep": 2}"#).await;
    becomes(&session, "cancelled", "2 1").await;
    session
        .sql("select fetchq.doc_cancel('q', 'cancelled')")
        .await;
    put(&session, "long", r#"{"sleep": 5}"#).await;
    becomes(&session, "long", "2 1").await;
    // The worker is asked to stop while it works, and has enough time to finish.
    worker.signal("-TERM");
    becomes(&session, "long", "3 0").await;
    assert_eq!(worker.status().await, Some(0));

    // The worker has no time to finish: the document is released at once.
    put(&session, "endless", r#"{"sleep": 600}"#).await;
    let mut worker = Worker::start(psql(), &db, "0.3", "60");
    becomes(&session, "endless", "2 1").await;
    worker.signal("-TERM");
    assert_eq!(worker.status().await, Some(0));
    let sql = "select status || ' ' || attempts from fetchq_data.q__docs where subject = 'endless'";
    assert_eq!(session.text(sql).await, "1 0");

    // A killed worker: its session ends, and so does the lease, long before it expires.
    let mut worker = Worker::start(psql(), &db, "20", "86400");
    becomes(&session, "endless", "2 1").await;
    worker.kill_all();
    worker.status().await;
    becomes(&session, "endless", "1 1").await;

    // An idle worker is asked to stop.
    session.sql("select fetchq.queue_truncate('q')").await;
    let mut worker = Worker::start(psql(), &db, "20", "60");
    put(&session, "last", "{}").await;
    becomes(&session, "last", "3 0").await;
    session.sql("select fetchq.worker_stop('example')").await;
    assert_eq!(worker.status().await, Some(0));

    let results = "select string_agg(subject, ' ' order by subject) from results";
    assert_eq!(session.text(results).await, "good last long");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

/// A document that fails is rejected with its error, whatever the error is, and the worker goes on.
/// The finished document is settled when the next one cannot be leased.
#[tokio::test]
async fn the_worker_in_psql_survives_its_documents() {
    let db = Server::of_suite().database("example_psql_fails").await;
    let mut session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.queue_configure('q', '{\"retry\": {\"base\": \"1 day\"}}');
             create table results (subject text, result jsonb);
             create sequence unused;
             create function fails() returns trigger language plpgsql as $$ begin
                 perform currval('unused'); return new; end $$;
             create trigger refuse before insert on results
                 for each row when (new.subject = 'refused') execute function fails();
             create trigger refuse before update on fetchq_data.q__docs
                 for each row when (new.status = 2 and new.subject = 'stuck') execute function fails()",
        )
        .await;
    // The results cannot be written, with the SQLSTATE of a lost lease.
    put(&session, "refused", "{}").await;
    let long = "é".repeat(9000);
    put(&session, "verbose", &format!("{{\"fail\": \"{long}\"}}")).await;
    put(&session, "after", "{}").await;
    let mut worker = Worker::start(psql(), &db, "20", "60");
    becomes(&session, "refused", "1 1").await;
    becomes(&session, "verbose", "1 1").await;
    becomes(&session, "after", "3 0").await;
    let error =
        |subject| format!("select last_error from fetchq_data.q__docs where subject = '{subject}'");
    let told = session.text(&error("refused")).await;
    assert!(told.contains("currval of sequence"), "{told}");
    assert_eq!(session.text(&error("verbose")).await, "é".repeat(2000));
    session.sql("select fetchq.worker_stop('example')").await;
    assert_eq!(worker.status().await, Some(0));

    // The finished document is settled, and the error of the next one ends the worker.
    put(&session, "first", "{}").await;
    put(&session, "stuck", "{}").await;
    let mut worker = Worker::start(psql(), &db, "20", "60");
    assert_ne!(worker.status().await, Some(0));
    becomes(&session, "first", "3 0").await;
    becomes(&session, "stuck", "1 0").await;
    let results = "select string_agg(subject, ' ' order by subject) from results";
    assert_eq!(session.text(results).await, "after first");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}
