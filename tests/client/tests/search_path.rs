//! Objects of other users with names that fetchq uses. fetchq must never use them.

mod hostile;
mod roles;

use fetchq_client_tests::{
    Function, Server, Session, error_of, functions, prepare_queue, state_of, text_of,
};

/// The row without the values that differ between runs: times and generated subjects.
fn masked(function: &Function, row: &tokio_postgres::Row) -> String {
    let columns = row.columns().iter().enumerate();
    let shown: Vec<String> = columns
        .map(|(at, column)| match column.type_().name() {
            "timestamptz" => "time".to_owned(),
            "interval" if function.name == "queue_stats" => "interval".to_owned(),
            _ if ["lease", "pid", "worker_session"].contains(&column.name()) => {
                column.name().to_owned()
            }
            _ if function.name.starts_with("doc_append")
                || (function.name == "trace" && column.name() == "details") =>
            {
                "new".to_owned()
            }
            _ => text_of(row, at),
        })
        .collect();
    shown.join("|")
}

/// Leases a document until the end of the statement. The next call finds that it is to be given back.
const LEASE: &str = "select fetchq.doc_lease('q', 1, binding => 'call');";

/// Calls every function in a session with the given search path, each in a transaction that does
/// `before` first and is rolled back; returns all results, or the errors.
async fn call_all(session: &Session, before: &str, path: &str, all: &[Function]) -> Vec<String> {
    session
        .sql("set fetchq.strict = off; set fetchq.worker = 'caller'")
        .await;
    let mut results = Vec::new();
    for function in all {
        session.sql(&format!("begin; {before}")).await;
        session
            .sql(&format!("set local search_path = {path}"))
            .await;
        let statement = function.prepare(session).await;
        let result = Function::call(session, &statement, &function.valid()).await;
        session.sql("rollback").await;
        let notices: Vec<String> = session
            .notices()
            .iter()
            .map(|n| n.message().to_owned())
            .collect();
        let signature = function.signature();
        let rows = match result {
            Ok(rows) => rows,
            Err(e) => {
                let error = error_of(&e);
                let (code, message) = (error.code().code(), error.message());
                results.push(format!("{signature} failed: {code} {message} {notices:?}"));
                continue;
            }
        };
        let mut rows: Vec<String> = rows.iter().map(|row| masked(function, row)).collect();
        // How long the tasks of maintenance took differs, and what other sessions do. The floor of
        // the planned documents remembers those that were rolled back.
        const CHANGES: [&str; 4] = ["maintenance: ", "planned|", "counter log|", "horizon|"];
        if function.name == "status" {
            rows.retain(|row| !CHANGES.iter().any(|start| row.starts_with(start)));
        }
        // The contents of the shared memory may differ, and what maintenance does at the moment.
        // The subject of a tick has the time of the call.
        if function.name.starts_with("ready_")
            || ["schedule_tick", "maintenance_progress"].contains(&function.name.as_str())
        {
            rows.clear();
        }
        results.push(format!("{signature}: {rows:?} {notices:?}"));
    }
    results
}

/// The queues of `prepare_queue`, with something to do for maintenance: expired leases, due
/// documents, old logs and snapshots. `admin` is a superuser.
async fn prepare(session: &Session, admin: &Session) {
    prepare_queue(session).await;
    session.sql("select fetchq.queue_enable_notify('q')").await;
    let due = "update fetchq.jobs set next_iteration = now() - interval '1 minute'";
    admin.sql(due).await;
    session
        .sql(
            "select fetchq.doc_push('q', 'orphan', 3, 0, now(), '{}'), fetchq.doc_push('q', 'dead', 3, 0, now(), '{}');
             select fetchq.doc_pick('q', 3, 2, '0s');
             -- Long ago, so that status() reports them as late in every run.
             update fetchq_data.q__docs set next_iteration = now() - interval '1 hour' where subject in ('orphan', 'dead');
             update fetchq_data.q__docs set attempts = 9 where subject = 'dead';
             insert into fetchq_data.q__metrics (created_at, metric, value)
                 select now() - interval '30 minutes', 'cnt', i from generate_series(1, 3) i;
             insert into fetchq_data.q__logs (created_at, subject, message) values (now() - interval '1 year', 'active', 'old')",
        )
        .await;
}

async fn compare(name: &str, schema: &str, path: &str) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    prepare(&session, &session).await;
    let all = functions(&session).await;
    let caller = db.connect().await;
    let expected = call_all(&caller, "", "\"$user\", public", &all).await;
    for result in &expected {
        assert!(!result.contains(" failed: "), "{result}");
    }
    traps(&session, schema, path).await;
    let caller = db.connect().await;
    let got = call_all(&caller, "", path, &all).await;
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got, expected, "search_path = {path}");
    }
    // Leases of a call that is over are given back by what looks at the queue.
    for result in call_all(&caller, LEASE, path, &all).await {
        assert!(!result.contains("reached "), "{result}");
    }

    // The extension's own DDL, and a document that passes through the hot calls.
    let worker = db.connect().await;
    worker.sql(&format!("set search_path = {path}")).await;
    for call in [
        "queue_create('r')",
        "queue_enable_notify('r')",
        "doc_push('r', 'd')",
        "doc_pick('r')",
        "doc_reject('r', 'd', 'why', '{}')",
        "doc_pick('r', 0, 5, '1m')",
        "mnt()",
        "queue_truncate('r', true)",
        "schedule_create('s', 'r', '* * * * * *')",
        "schedule_create('s', 'r', '1 day', jitter => '1 h', replace => true)",
        "schedule_run_at(9, '4000-01-01')",
        "schedule_pause('s')",
        "schedule_resume('s')",
        "schedule_list()",
        "queue_drop('r')",
    ] {
        worker.sql(&format!("select fetchq.{call}")).await;
    }
    // The triggers of the tables, fired by plain SQL.
    worker
        .sql("update fetchq.queues set is_active = false; delete from fetchq.jobs; delete from fetchq_data.q__docs")
        .await;
    db.remove().await;
}

/// Creates the traps, and checks that they work.
pub async fn traps(session: &Session, schema: &str, path: &str) {
    hostile::create_all(session, schema).await;
    session
        .sql(&format!("begin; set local search_path = {path}"))
        .await;
    let state = session
        .state("select 'a'::pg_catalog.varchar = 'a'::pg_catalog.varchar")
        .await;
    session.sql("rollback").await;
    assert_eq!(state, "P0001", "the traps do not work");
    session.notices();
}

#[tokio::test]
async fn a_schema_before_pg_catalog() {
    compare("path_before", "evil", "evil, pg_catalog").await;
}

#[tokio::test]
async fn better_matching_objects_in_public() {
    compare("path_public", "public", "\"$user\", public").await;
}

#[tokio::test]
async fn temporary_objects() {
    let db = Server::of_suite().database("path_temp").await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    let all = functions(&session).await;
    // For relations and types, the temporary schema comes first in any search path.
    hostile::create_temporary(&session).await;
    assert_eq!(session.state("select '1'::text").await, "P0001");
    for function in all {
        session.sql("begin").await;
        let statement = function.prepare(&session).await;
        let result = Function::call(&session, &statement, &function.valid()).await;
        session.sql("rollback").await;
        assert!(
            result.is_ok(),
            "{}: {:?}",
            function.signature(),
            result.err()
        );
    }
    db.remove().await;
}
