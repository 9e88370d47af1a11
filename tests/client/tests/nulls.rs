//! NULL for every argument of every function.

use fetchq_client_tests::{Function, Server, Value, error_of, functions, prepare_queue, state_of};

/// Arguments that may be NULL: functions, argument.
const OPTIONAL: &[(&[&str], &str)] = &[
    (&["doc_complete_many", "doc_reschedule_many"], "payloads"),
    (&["doc_complete", "doc_kill", "doc_reschedule"], "payload"),
    (
        &[
            "doc_complete",
            "doc_kill",
            "doc_reschedule",
            "doc_drop",
            "doc_reject",
            "doc_snooze",
            "doc_extend",
            "doc_complete_many",
            "doc_reschedule_many",
            "doc_drop_many",
        ],
        "lease",
    ),
    (
        &[
            "doc_reject",
            "doc_put",
            "doc_append",
            "doc_reschedule",
            "doc_snooze",
        ],
        "delay",
    ),
    (&["doc_put", "doc_append"], "payload"),
    (&["doc_put", "doc_snooze"], "next_iteration"),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_lease",
            "doc_lease_any",
            "docs_next",
        ],
        "version",
    ),
    (&["doc_put", "doc_append"], "priority"),
    (&["doc_put", "doc_put_many"], "mode"),
    (&["doc_put", "doc_append"], "ordering_key"),
    (&["doc_put", "doc_append"], "max_attempts"),
    (&["doc_put", "doc_append"], "headers"),
    (
        &[
            "doc_lease",
            "doc_lease_any",
            "docs_next",
            "docs_list",
            "doc_errors",
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
        ],
        "max_docs",
    ),
    (&["docs_list", "docs_retry", "docs_set_priority"], "filter"),
    (
        &[
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
        ],
        "dry_run",
    ),
    (&["doc_reject", "log_error", "doc_kill"], "details"),
    (&["doc_complete"], "result"),
    (&["doc_complete_many"], "results"),
    (&["doc_extend"], "progress"),
    (&["doc_reject", "log_error"], "ref_id"),
    (&["queue_history", "queue_grants", "queue_stats"], "queue"),
    (&["docs_list"], "after"),
    (&["schedule_create"], "starts_at"),
    (&["schedule_create"], "ends_at"),
    (&["doc_lease_any"], "weights"),
    (
        &["doc_lease", "doc_lease_any", "docs_next", "lease_extend"],
        "duration",
    ),
    (&["docs_next"], "settlements"),
    (&["docs_settle", "docs_next"], "on_lost"),
    (&["lease_extend"], "subjects"),
    (&["doc_lease", "doc_lease_any", "docs_next"], "worker"),
    (&["doc_lease", "doc_lease_any", "docs_next"], "binding"),
    (&["queue_create"], "settings"),
];

/// Arguments whose default is refused, and so is NULL: the SQLSTATE says more than that it is NULL.
const REFUSED: (&[&str], &str, &str) =
    (&["docs_kill", "docs_drop", "docs_move"], "filter", "21000");

#[tokio::test]
async fn null_for_every_argument_of_every_function() {
    let db = Server::of_suite().database("nulls").await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    let mut wrong = Vec::new();
    for function in functions(&session).await {
        let statement = function.prepare(&session).await;
        for (at, argument) in function.arguments.iter().enumerate() {
            let mut values = function.valid();
            values[at] = Value::Null;
            session.sql("begin").await;
            let result = Function::call(&session, &statement, &values).await;
            session.sql("rollback").await;
            let may = OPTIONAL
                .iter()
                .any(|(names, a)| names.contains(&function.name.as_str()) && *a == argument.name);
            let case = format!(
                "{} with NULL for \"{}\"",
                function.signature(),
                argument.name
            );
            match result {
                Ok(_) if may => {}
                Ok(_) => wrong.push(format!("{case}: accepted")),
                Err(e) if may => wrong.push(format!("{case}: {e:?}")),
                Err(e) => {
                    let told = error_of(&e).message().to_owned();
                    let (names, refused, state) = REFUSED;
                    let is_refused =
                        names.contains(&function.name.as_str()) && refused == argument.name;
                    if is_refused && state_of(&e) == state {
                        continue;
                    }
                    if state_of(&e) != "22004" || !told.contains(&format!("\"{}\"", argument.name))
                    {
                        wrong.push(format!("{case}: {} {told}", state_of(&e)));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    db.remove().await;
}

#[tokio::test]
async fn a_null_payload_keeps_the_payload() {
    let db = Server::of_suite().database("null_payload").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    for settle in [
        "doc_complete('q', 'd', null)",
        "doc_kill('q', 'd', null)",
        "doc_reschedule('q', 'd', now(), null)",
        "doc_reject('q', 'd', 'why', null, null)",
    ] {
        session
            .sql("select fetchq.doc_push('q', 'd', '{\"keep\": 1}'); select fetchq.doc_pick('q')")
            .await;
        assert_eq!(
            session.text(&format!("select fetchq.{settle}")).await,
            "1",
            "{settle}"
        );
        let payload = session
            .text("select payload from fetchq_data.q__docs where subject = 'd'")
            .await;
        assert_eq!(payload, r#"{"keep": 1}"#, "{settle}");
        session
            .sql("delete from fetchq_data.q__docs; select fetchq.metric_reset('q')")
            .await;
    }
    db.remove().await;
}
