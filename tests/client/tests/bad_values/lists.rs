//! Wrong values within JSON: the elements of lists of documents, and the keys of filters.

use fetchq_client_tests::{Session, counters_are_exact, error_of};

use super::matrix::{prepare, state};

/// Elements of a list that `doc_put_many` refuses: SQLSTATE, and what the message says. `…` stands
/// for a long text.
const ELEMENTS: &[(&str, &str, &str)] = &[
    ("1", "22023", "it is a JSON number"),
    ("null", "22023", "it is a JSON null"),
    ("[]", "22023", "it is a JSON array"),
    (r#"{"queue": 1}"#, "22023", "its queue is 1"),
    (r#"{"subject": 1}"#, "22023", "its subject is a JSON number"),
    (
        r#"{"subject": {}}"#,
        "22023",
        "its subject is a JSON object",
    ),
    (r#"{"subject": "…"}"#, "22001", "the subject exceeds"),
    (r#"{"subject": "s", "colour": 1}"#, "22023", "\"colour\""),
    (
        r#"{"subject": "s", "version": "1"}"#,
        "22023",
        "its version is \"1\"",
    ),
    (
        r#"{"subject": "s", "version": 1.5}"#,
        "22023",
        "its version is 1.5",
    ),
    (
        r#"{"subject": "s", "version": 3000000000}"#,
        "22023",
        "its version is 3",
    ),
    (
        r#"{"subject": "s", "version": 1e10000}"#,
        "22023",
        "its version is 1",
    ),
    (
        r#"{"subject": "s", "priority": []}"#,
        "22023",
        "its priority is []",
    ),
    (
        r#"{"subject": "s", "priority": "…"}"#,
        "22023",
        "its priority is \"x",
    ),
    (
        r#"{"subject": "s", "due_at": 5}"#,
        "22023",
        "its due_at is 5",
    ),
    (
        r#"{"subject": "s", "due_at": "soon"}"#,
        "22023",
        "its due_at cannot be read",
    ),
    (
        r#"{"subject": "s", "due_at": "294277-01-01"}"#,
        "22023",
        "its due_at cannot be read",
    ),
    (
        r#"{"subject": "s", "due_at": "2030-01-01 00:00 Mars"}"#,
        "22023",
        "its due_at cannot be read",
    ),
    (r#"{"subject": "s", "delay": 5}"#, "22023", "its delay is 5"),
    (
        r#"{"subject": "s", "delay": "soon"}"#,
        "22023",
        "its delay cannot be read",
    ),
    (
        r#"{"subject": "s", "delay": ""}"#,
        "22023",
        "its delay cannot be read",
    ),
    (
        r#"{"subject": "s", "delay": "-1s"}"#,
        "22023",
        "\"delay\" must be a finite interval",
    ),
    (r#"{"subject": "s", "delay": "infinity"}"#, "22023", "delay"),
    (
        r#"{"subject": "s", "delay": "300000 years"}"#,
        "22008",
        "\"delay\" is too long",
    ),
    (
        r#"{"subject": "s", "delay": "1s", "due_at": "2030-01-01"}"#,
        "22023",
        "\"delay\" and \"due_at\"",
    ),
    (
        r#"{"subject": "s", "ordering_key": 1}"#,
        "22023",
        "its ordering_key is 1",
    ),
    (
        r#"{"subject": "s", "ordering_key": "…"}"#,
        "22001",
        "the ordering key exceeds",
    ),
    (
        r#"{"subject": "s", "max_attempts": 0}"#,
        "22023",
        "\"max_attempts\"",
    ),
    (
        r#"{"subject": "s", "max_attempts": true}"#,
        "22023",
        "its max_attempts is true",
    ),
    (r#"{"subject": ""}"#, "22023", "the subject is empty"),
    (r#"{"subject": "s", "mode": 1}"#, "22023", "its mode is 1"),
    (r#"{"subject": "s", "mode": "latest"}"#, "22023", "\"mode\""),
    (r#"{"subject": "s", "headers": []}"#, "22023", "\"headers\""),
    (
        r#"{"subject": "s", "headers": "x"}"#,
        "22023",
        "\"headers\"",
    ),
    (
        r#"{"subject": "s", "mode": "merge", "payload": []}"#,
        "22023",
        "cannot be merged",
    ),
];

/// Elements that are accepted: null stands for the default.
const GOOD: &[&str] = &[
    r#"{"subject": "g1", "payload": null, "version": null, "priority": null, "due_at": null,
        "delay": null, "ordering_key": null, "max_attempts": null, "mode": null, "headers": null}"#,
    r#"{"subject": "g2", "payload": 1e400, "version": -2147483648, "priority": 2147483647,
        "due_at": "infinity", "ordering_key": "", "max_attempts": 2147483647, "headers": {}}"#,
    r#"{"subject": "g3", "due_at": "-infinity"}"#,
    r#"{"subject": "g1", "delay": "0", "mode": "replace,reset"}"#,
    // They get subjects that are unique.
    "{}",
    r#"{"subject": null, "queue": null}"#,
];

/// A text that is too long for a subject.
fn filled(json: &str) -> String {
    json.replace('…', &"x".repeat(256)).replace('\'', "''")
}

/// The error of a call that is caught, as SQLSTATE, message and hint; None: the call succeeds.
async fn refused(session: &Session, call: &str) -> Option<(String, String, String)> {
    session.sql("begin; savepoint s").await;
    let result = session
        .simple_query(&format!("select * from fetchq.{call}"))
        .await;
    session.sql("rollback to s; commit").await;
    result.err().map(|e| {
        let error = error_of(&e);
        let hint = error.hint().unwrap_or_default().to_owned();
        (
            error.code().code().to_owned(),
            error.message().to_owned(),
            hint,
        )
    })
}

#[tokio::test]
async fn an_element_of_a_list_that_is_wrong_is_named() {
    let (db, mut session) = prepare("bad_elements").await;
    let before = state(&session).await;
    let mut wrong = Vec::new();
    for (element, code, said) in ELEMENTS {
        let list = format!(
            "doc_put_many('q', '[{{\"subject\": \"a\"}}, {{\"subject\": \"b\"}}, {}]')",
            filled(element)
        );
        match refused(&session, &list).await {
            None => wrong.push(format!("{element}: accepted")),
            Some((state, message, hint)) => {
                let is_named = message.starts_with("document 3 of the list is not valid: ");
                if state != *code || !is_named || !message.contains(said) || hint.is_empty() {
                    wrong.push(format!("{element}: {state} {message} | {hint}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(state(&session).await, before, "something was changed");
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        let put = format!(
            "select action from fetchq.doc_put_many('q', '[{}]')",
            GOOD.join(", ")
        );
        assert_eq!(
            session.column(&put).await,
            [
                "created", "created", "created", "updated", "created", "created"
            ]
        );
        session
            .sql("delete from fetchq_data.q__docs where subject ~ '^(g[123]|.{8}-.*)$'; select fetchq.metric_reset('q')")
            .await;
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_value_of_a_megabyte_does_not_fill_the_log() {
    let (db, session) = prepare("bad_megabytes").await;
    session
        .sql("create table big as select repeat('x', 1048576) as x")
        .await;
    let puts = [
        "version",
        "priority",
        "max_attempts",
        "due_at",
        "delay",
        "mode",
        "headers",
        "ordering_key",
        "subject",
    ];
    let settlements = ["lease", "action", "delay", "due_at", "subject"];
    let put = |key: &str| {
        format!(
            "doc_put_many('q', (select jsonb_build_array('{{\"subject\": \"s\"}}' || jsonb_build_object({key}, x)) from big))"
        )
    };
    let settle = |key: &str| {
        format!(
            "docs_settle('q', (select jsonb_build_array('{{\"subject\": \"s\", \"action\": \"snooze\"}}' || jsonb_build_object({key}, x)) from big))"
        )
    };
    let puts = puts.map(|key| put(&format!("'{key}'")));
    let settlements = settlements.map(|key| settle(&format!("'{key}'")));
    let keys = [put("x"), settle("x")];
    for call in puts.iter().chain(&settlements).chain(&keys) {
        let (state, message, hint) = refused(&session, call).await.expect(call);
        let is_short = message.len() < 400 && hint.len() < 400;
        assert!(is_short, "{call}: {state}, {} bytes", message.len());
    }
    db.remove().await;
}

/// Filters that are refused. The message says the key.
const FILTERS: &[&str] = &[
    r#"{"status": 1}"#,
    r#"{"status": "dead"}"#,
    r#"{"status": null}"#,
    r#"{"status": {"a": 1}}"#,
    r#"{"version": 1.5}"#,
    r#"{"version": "0"}"#,
    r#"{"version": 3000000000}"#,
    r#"{"version": 1e10000}"#,
    r#"{"priority": [0, null]}"#,
    r#"{"priority": [1e10000]}"#,
    r#"{"min_priority": [1]}"#,
    r#"{"max_priority": "1"}"#,
    r#"{"min_attempts": true}"#,
    r#"{"older_than": 5}"#,
    r#"{"older_than": "soon"}"#,
    r#"{"older_than": "-1s"}"#,
    r#"{"older_than": "infinity"}"#,
    r#"{"older_than": "10000 years"}"#,
    r#"{"older_than": "300000 years"}"#,
    r#"{"newer_than": "…"}"#,
    r#"{"newer_than": "10000 years"}"#,
    r#"{"subject": 5}"#,
    r#"{"subject_like": "a\\"}"#,
    r#"{"error_like": "a\\"}"#,
    r#"{"created_since": "soon"}"#,
    r#"{"min_ran": "-1s"}"#,
    r#"{"ordering_key": 1}"#,
    r#"{"all": false}"#,
    r#"{"all": "yes"}"#,
    r#"{"all": null}"#,
    r#"{"stauts": "killed", "version": 0}"#,
];

/// Filters that no document matches.
const EMPTY: &[&str] = &[
    r#"{"status": []}"#,
    r#"{"version": []}"#,
    r#"{"priority": [], "all": true}"#,
    r#"{"min_priority": 5, "max_priority": 1}"#,
    r#"{"older_than": "1000 years"}"#,
    r#"{"newer_than": "0"}"#,
    r#"{"payload": []}"#,
    r#"{"payload": null}"#,
    r#"{"payload": {"n": 1e10000}}"#,
    r#"{"subject": ""}"#,
    r#"{"subject": "…"}"#,
    r#"{"subject": []}"#,
    r#"{"created_before": "-infinity"}"#,
    r#"{"ordering_key": ""}"#,
    r#"{"version": [7, 7]}"#,
];

#[tokio::test]
async fn a_filter_that_is_wrong_names_its_key_and_changes_nothing() {
    let (db, mut session) = prepare("bad_filters").await;
    let before = state(&session).await;
    let mut wrong = Vec::new();
    for call in [
        "docs_list('q', ",
        "docs_retry('q', ",
        "docs_kill('q', ",
        "docs_drop('q', ",
        "docs_move('q', 'other', ",
        "docs_set_priority('q', 5, ",
    ] {
        for filter in FILTERS {
            let key = filter.split('"').nth(1).unwrap();
            match refused(&session, &format!("{call}'{}')", filled(filter))).await {
                None => wrong.push(format!("{call}{filter}: accepted")),
                Some((state, message, hint)) => {
                    let is_named = message.contains(&format!("\"{key}\""));
                    let is_good = message.starts_with("invalid filter: ") && message.len() < 300;
                    if state != "22023" || !is_named || !is_good || hint.is_empty() {
                        wrong.push(format!("{call}{filter}: {state} {message} | {hint}"));
                    }
                }
            }
        }
        for filter in EMPTY {
            let rows = session
                .rows(&format!("select * from fetchq.{call}'{}')", filled(filter)))
                .await;
            if !rows.iter().all(|row| row == "0") {
                wrong.push(format!("{call}{filter}: {rows:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(state(&session).await, before, "something was changed");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

/// Settings that are refused, and the setting that the message names.
const SETTINGS: &[(&str, &str)] = &[
    (r#"{"max_attempts": 0}"#, "max_attempts"),
    (r#"{"max_attempts": "3"}"#, "max_attempts"),
    (r#"{"max_attempts": 1e10000}"#, "max_attempts"),
    (r#"{"retry": "30 s"}"#, "retry"),
    (r#"{"retry": []}"#, "retry"),
    (r#"{"retry": {"base": "-1s"}}"#, "retry.base"),
    (r#"{"retry": {"base": "infinity"}}"#, "retry.base"),
    (r#"{"retry": {"factor": 0}}"#, "retry.factor"),
    (r#"{"retry": {"jitter": 2}}"#, "retry.jitter"),
    (r#"{"retry": {"max_delay": 5}}"#, "retry.max_delay"),
    (r#"{"retry": {"nope": 5}}"#, "retry.nope"),
    (r#"{"history": {"completed": "soon"}}"#, "history.completed"),
    (r#"{"dead_letter": 1}"#, "dead_letter"),
    (r#"{"dead_letter": "no name"}"#, "dead_letter"),
    (r#"{"dead_letter": "q"}"#, "dead_letter"),
    (r#"{"max_active": 0}"#, "max_active"),
    (r#"{"max_active": 100001}"#, "max_active"),
    (r#"{"rate": {"picks": -1}}"#, "rate.picks"),
    (r#"{"rate": {"per": "0"}}"#, "rate.per"),
    (r#"{"ordered": 1}"#, "ordered"),
    (r#"{"paused": "true"}"#, "paused"),
    (r#"{"notify": []}"#, "notify"),
    (r#"{"logs_retention": "10000 years"}"#, "logs_retention"),
    (r#"{"metrics_retention": {}}"#, "metrics_retention"),
    (r#"{"current_version": 1.5}"#, "current_version"),
    (r#"{"lease": "0"}"#, "lease"),
    (r#"{"lease": "…"}"#, "lease"),
    (r#"{"nope": 1}"#, "nope"),
    (r#"{"max_attempts": 3, "nope": 1}"#, "nope"),
    (
        r#"{"max_attempts": 3, "max_active": 2, "lease": 1}"#,
        "lease",
    ),
];

#[tokio::test]
async fn a_setting_that_is_wrong_is_named_and_no_other_is_changed() {
    let (db, mut session) = prepare("bad_settings").await;
    let before = state(&session).await;
    let mut wrong = Vec::new();
    for call in ["queue_configure('q', ", "queue_create('fresh', "] {
        for (settings, key) in SETTINGS {
            // A queue that is not created yet is no dead-letter queue of itself.
            let settings = match call.contains("fresh") {
                true => settings.replace("\"q\"", "\"fresh\""),
                false => (*settings).to_owned(),
            };
            match refused(&session, &format!("{call}'{}')", filled(&settings))).await {
                None => wrong.push(format!("{call}{settings}: accepted")),
                Some((state, message, hint)) => {
                    let is_good = message.contains(&format!("\"{key}\"")) && message.len() < 400;
                    if !["22023", "42P02"].contains(&state.as_str()) || !is_good || hint.is_empty()
                    {
                        wrong.push(format!("{call}{settings}: {state} {message} | {hint}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let fresh = "select count(*) from fetchq.queues where name = 'fresh'";
    assert_eq!(session.text(fresh).await, "0");
    assert_eq!(state(&session).await, before, "something was changed");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}
