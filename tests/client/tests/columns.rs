//! The columns that a document carries through its life: headers, due_at, picked_at, result,
//! progress, lease. Every verb runs on the direct path and by statements, and must write the same.

mod verbs;

use fetchq_client_tests::{Server, Session};

/// headers, when it was due, whether picked_at is the time of the pick, result, progress, and
/// whether the lease is the number of the pick.
const COLUMNS: &str = "select d.headers, extract(epoch from d.due_at at time zone 'UTC')::int,
        d.picked_at = (select at from pick), d.result, d.progress";

const DOCS: &str = "fetchq_data.q__docs d";

/// What a document has once it is picked: the result and the progress of before.
const PICKED_AGAIN: &str = r#"{"of": "producer"}|1577836800|t|{"old": 1}|{"done": 3}"#;

const KEEP: &str = "select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}}')";

/// The settings of a queue under which a document is picked: each leads to other code.
const QUEUES: [(&str, &str); 4] = [
    ("plain", ""),
    (
        "capped",
        "select fetchq.queue_configure('q', '{\"max_active\": 3}')",
    ),
    (
        "rated",
        "select fetchq.queue_configure('q', '{\"rate\": {\"picks\": 100, \"per\": \"1 minute\"}}')",
    ),
    (
        "ordered",
        "select fetchq.queue_configure('q', '{\"ordered\": true}')",
    ),
];

const PICKS: [(&str, &str); 3] = [
    (
        "doc_pick",
        "select lease from fetchq.doc_pick('q', 0, 5, '1h')",
    ),
    (
        "doc_lease_any",
        "select lease from fetchq.doc_lease_any(array['letters', 'q'], 5, '1h')",
    ),
    (
        "pick by the six columns",
        "select lease from fetchq.doc_pick('q')",
    ),
];

/// A document that was due in 2020, with headers, the result of an earlier iteration and the
/// progress of an earlier lease, picked now. Returns its lease.
async fn pick(session: &Session, before: &str, pick: &str) -> String {
    session
        .sql(&format!(
            "set fetchq.worker = 'columns'; set fetchq.strict = on;
             drop table if exists pick;
             select fetchq.queue_drop(name) from fetchq.queues where name in ('q', 'letters');
             select fetchq.queue_create('q'), fetchq.queue_create('letters');
             {before};
             insert into fetchq_data.q__docs (subject, status, next_iteration, headers, result, progress)
             values ('a', 1, '2020-01-01 00:00:00+00', '{{\"of\": \"producer\"}}', '{{\"old\": 1}}', '{{\"done\": 3}}');
             begin"
        ))
        .await;
    let lease = session.text(pick).await;
    session
        .sql("create temp table pick as select now() as at; commit")
        .await;
    lease
}

#[tokio::test]
async fn every_pick_writes_the_same_columns() {
    let db = Server::of_suite().database("columns_picks").await;
    let session = db.connect().await;
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for (queue, settings) in QUEUES {
            for (name, statement) in PICKS {
                let lease = pick(&session, settings, statement).await;
                let found = session
                    .rows(&format!("{COLUMNS}, d.lease = {lease} from {DOCS}"))
                    .await;
                let expected = format!("{PICKED_AGAIN}|t");
                assert_eq!(
                    found,
                    [expected],
                    "{name} of a queue that is {queue}, fetchq.direct = {direct}"
                );
            }
        }
    }
    drop(session);
    db.remove().await;
}

#[tokio::test]
async fn a_popped_document_is_in_the_history_with_the_time_when_it_was_due() {
    let db = Server::of_suite().database("columns_pop").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q');
             select fetchq.queue_configure('q', '{\"history\": {\"completed\": null, \"killed\": null, \"dropped\": \"1 day\"}}');
             insert into fetchq_data.q__docs (subject, status, next_iteration, headers, progress)
             values ('a', 1, '2020-01-01 00:00:00+00', '{\"of\": \"producer\"}', '{\"done\": 3}');
             select fetchq.doc_pop('q')",
        )
        .await;
    let found = session
        .rows(
            "select outcome, headers, extract(epoch from due_at)::int, picked_at = settled_at, result, progress
             from fetchq.history",
        )
        .await;
    assert_eq!(found, [r#"popped|{"of": "producer"}|1577836800|t||"#]);
    drop(session);
    db.remove().await;
}

/// Where a killed document is: what the queue is set to, and the query for its last error.
const KILLED: [(&str, &str); 3] = [
    ("", "select last_error from fetchq_data.q__docs"),
    (KEEP, "select last_error from fetchq.history"),
    (
        "select fetchq.queue_configure('q', '{\"dead_letter\": \"letters\"}')",
        "select last_error || ', ' || (origin ->> 'error') from fetchq_data.letters__docs",
    ),
];

#[tokio::test]
async fn a_kill_with_a_message_says_why_wherever_the_document_is() {
    let db = Server::of_suite().database("columns_kill").await;
    let session = db.connect().await;
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for (settings, last_error) in KILLED {
            let lease = pick(&session, settings, PICKS[0].1).await;
            let kill = format!(
                "select fetchq.doc_kill('q', 'a', lease => {lease}, message => 'no such order', details => '{{\"n\": 7}}')"
            );
            assert_eq!(session.text(&kill).await, "1");
            let expected = match settings.contains("dead") {
                true => "no such order, no such order",
                false => "no such order",
            };
            assert_eq!(session.text(last_error).await, expected, "{settings}");
            let log = "select subject, message, details, attempt from fetchq_data.q__logs";
            assert_eq!(session.rows(log).await, [r#"a|no such order|{"n": 7}|1"#]);
            assert_eq!(session.state(&kill).await, "55000");
            assert_eq!(session.rows(log).await.len(), 1, "{settings}");
        }
    }
    drop(session);
    db.remove().await;
}

#[tokio::test]
async fn progress_can_be_read_while_the_document_runs() {
    let db = Server::of_suite().database("columns_progress").await;
    let (session, other) = (db.connect().await, db.connect().await);
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        let lease = pick(&session, "", PICKS[0].1).await;
        let progress = "select progress from fetchq_data.q__docs";
        // That of the last attempt, which this one goes on from.
        assert_eq!(other.text(progress).await, "{\"done\": 3}");
        for (given, stored) in [("'[1]'", "[1]"), ("null", "[1]"), ("'[2]'", "[2]")] {
            session
                .sql(&format!(
                    "select fetchq.doc_extend('q', 'a', '1h', {lease}, {given})"
                ))
                .await;
            assert_eq!(other.text(progress).await, stored);
        }
    }
    drop(session);
    drop(other);
    db.remove().await;
}
