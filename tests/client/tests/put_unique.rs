//! Documents that are unique by their content: in two sessions at the same time, and from clients that
//! write the same JSON in different ways.

use fetchq_client_tests::{Database, Server, Session, wait_until};
use tokio_postgres::types::Json;

async fn put(session: &Session, payload: &str, options: &str) -> String {
    let call = format!("select fetchq.doc_put('q', payload => '{payload}', {options})");
    session.text(&call).await
}

async fn n(session: &Session) -> String {
    session
        .text("select count(*) from fetchq_data.q__docs")
        .await
}

/// Runs a put in a session while another one has put the same and has not committed. Returns what the
/// second one has done after the first one has ended its transaction with `end`.
async fn beside(db: &Database, one: &Session, first: &str, second: &str, end: &str) -> String {
    let by = "unique_by => '{to,month}', unique_per => '1 year'";
    one.sql("begin").await;
    assert_eq!(put(one, first, by).await, "created");
    let other = db.connect().await;
    let pid = other.text("select pg_backend_pid()").await;
    let second = second.to_owned();
    let waiting = tokio::spawn(async move { put(&other, &second, by).await });
    let is_blocked = format!("select cardinality(pg_blocking_pids({pid})) > 0");
    wait_until("the second session waits", async || {
        one.text(&is_blocked).await == "t"
    })
    .await;
    one.sql(end).await;
    waiting.await.expect("a session")
}

#[tokio::test]
async fn two_transactions_at_once_make_one_document() {
    let db = Server::of_suite().database("put_unique_two").await;
    let one = db.connect().await;
    for direct in ["on", "off"] {
        one.sql(&format!(
            "set fetchq.direct = {direct}; select fetchq.queue_drop(name) from fetchq.queues; select fetchq.queue_create('q')"
        ))
        .await;
        let first = r#"{"to": "ann", "month": 11, "by": 1}"#;
        let second = r#"{"month": 11.0, "by": 2, "to": "ann"}"#;
        assert_eq!(
            beside(&db, &one, first, second, "rollback").await,
            "created"
        );
        one.sql("select fetchq.queue_truncate('q', true)").await;
        assert_eq!(beside(&db, &one, first, second, "commit").await, "ignored");
        assert_eq!(n(&one).await, "1");
    }
}

/// The subject that `doc_put_many` returns for a payload that a client sends as text.
async fn subject_of_text(session: &Session, payload: &str) -> String {
    let docs = format!(r#"[{{"payload": {payload}, "unique_by": ["order", "total"]}}]"#);
    let sql = "select subject from fetchq.doc_put_many('q', $1::text::jsonb)";
    let row = session.query_one(sql, &[&docs]).await.expect("a put");
    row.get(0)
}

#[tokio::test]
async fn every_client_makes_the_same_subject() {
    let db = Server::of_suite().database("put_unique_clients").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    // As json.dumps of Python, JSON.stringify of JavaScript, and others write it.
    let texts = [
        r#"{"order": "Zoë", "total": 10.0, "items": [1, 2]}"#,
        r#"{"total":10,"order":"Zoë"}"#,
        r#"{"order": "Zo\u00eb", "total": 1e1}"#,
        "{\n  \"total\" : 10.00,\n  \"order\" : \"Zo\\u00EB\"\n}",
    ];
    let mut subjects = Vec::new();
    for text in texts {
        subjects.push(subject_of_text(&session, text).await);
    }
    // As a driver that sends JSON values, in binary.
    let value = serde_json::json!([
        {"unique_by": ["total", "order"], "payload": {"total": 10.0, "order": "Zoë"}}
    ]);
    let sql = "select subject from fetchq.doc_put_many('q', $1)";
    let row = session.query_one(sql, &[&Json(value)]).await;
    subjects.push(row.expect("a put").get(0));
    // And psql.
    let call = r#"select fetchq.doc_put('q', payload => '{"total": 10.0e0, "order": "Zoë"}', unique_by => '{order,total}')"#;
    let output = db.psql().args(["-Atc", call]).output();
    let output = output.expect("psql runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ignored");
    assert!(
        subjects.iter().all(|subject| *subject == subjects[0]),
        "{subjects:?}"
    );
    assert_eq!(n(&session).await, "1");
    let other = subject_of_text(&session, r#"{"order": "Zoe", "total": 10}"#).await;
    assert_ne!(other, subjects[0]);
}
