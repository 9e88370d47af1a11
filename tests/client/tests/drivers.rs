//! The API through a driver that prepares statements and sends typed parameters.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use fetchq_client_tests::{
    Function, Server, Value, counters_are_exact, functions, metrics, prepare_queue, state_of,
};
use serde_json::json;
use tokio_postgres::types::{Json, Type};

/// The result columns of each function, by name and argument types. The types reach users: a
/// JavaScript driver returns an int8 as a string.
const RESULTS: &[(&str, &str)] = &[
    ("init()", "was_initialized bool"),
    (
        "queue_create(text, jsonb)",
        "was_created bool, queue_id int4",
    ),
    ("queue_configure(text, jsonb)", "all_settings jsonb"),
    (
        "metric_history(text, timestamptz, timestamptz, interval, _text)",
        "at timestamptz, metric varchar, value int8",
    ),
    (
        "doc_set_due(text, text, timestamptz, interval)",
        "affected int8",
    ),
    ("doc_set_priority(text, text, int4)", "affected int8"),
    (
        "docs_set_due(text, timestamptz, interval, jsonb, int4, bool)",
        "affected int8",
    ),
    (
        "schedule_tick(text, text)",
        "subject text, was_created bool",
    ),
    ("queue_place_set(text, text)", "was_set bool"),
    ("queue_settings(text)", "all_settings jsonb"),
    ("queue_default_is_valid(text, jsonb)", "is_valid bool"),
    ("queue_drop(text)", "was_dropped bool, queue_id int4"),
    ("queue_get_id(text)", "queue_id int8"),
    ("queue_grant(text, text, text)", "was_granted bool"),
    (
        "queue_grants(text)",
        "queue varchar, role name, kind text, is_direct bool",
    ),
    ("queue_has_right(text, text)", "has_right bool"),
    ("queue_revoke(text, text, text)", "was_revoked bool"),
    (
        "worker_stop_requested(text, text, timestamptz)",
        "is_requested bool",
    ),
    ("queue_create_indexes(text)", "was_created bool"),
    ("queue_create_indexes(text, int4, int4)", "was_created bool"),
    ("queue_drop_indexes(text)", "was_dropped bool"),
    ("queue_drop_version(text, int4)", "was_dropped bool"),
    (
        "queue_set_max_attempts(text, int4)",
        "affected_rows int4, was_reindexed bool",
    ),
    (
        "queue_set_current_version(text, int4)",
        "affected_rows int4, was_reindexed bool",
    ),
    ("queue_set_logs_retention(text, text)", "affected_rows int4"),
    (
        "queue_set_metrics_retention(text, text)",
        "affected_rows int4",
    ),
    ("queue_drop_logs(text)", "affected_rows int4"),
    ("queue_drop_logs(text, text)", "affected_rows int4"),
    ("queue_drop_logs(text, timestamptz)", "affected_rows int4"),
    ("queue_drop_metrics(text)", "removed_rows int4"),
    ("queue_drop_metrics(text, jsonb)", "removed_rows int4"),
    ("queue_enable_notify(text)", "success bool"),
    ("queue_disable_notify(text)", "success bool"),
    ("queue_status()", "id int4, name varchar, is_active bool"),
    (
        "queue_status(text)",
        "id int4, name varchar, is_active bool",
    ),
    ("queue_top(text, int4, int4, int4)", PICKED),
    ("queue_truncate(text, bool)", "success bool"),
    ("queue_truncate_all(bool)", "success bool"),
    (
        "doc_append(text, jsonb, int4, int4, text, int4, interval, jsonb)",
        "subject varchar",
    ),
    (
        "doc_push(text, text, jsonb, timestamptz)",
        "queued_docs int4",
    ),
    (
        "doc_push(text, text, int4, int4, timestamptz, jsonb)",
        "queued_docs int4",
    ),
    (
        "doc_push(text, int4, timestamptz, text)",
        "queued_docs int4",
    ),
    (
        "doc_upsert(text, text, int4, int4, timestamptz, jsonb)",
        "queued_docs int4, updated_docs int4",
    ),
    ("doc_pick(text, int4, text)", LEASED),
    ("doc_pick(text, text)", LEASED),
    ("doc_pick(text, interval)", LEASED),
    ("doc_pick(text, int4, int4, text)", LEASED),
    ("doc_pick(text, int4, int4, interval)", LEASED),
    (
        "doc_lease(text, int4, interval, int4, text, text)",
        "subject text, payload jsonb, headers jsonb, version int4, priority int4, attempts int4, max_attempts int4, \
    iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, lease_ends timestamptz, lease int8, last_error text",
    ),
    (
        "docs_settle(text, jsonb, text)",
        "subject text, outcome text, status text",
    ),
    (
        "docs_next(text, jsonb, int4, interval, int4, text, text, text)",
        "subject text, payload jsonb, headers jsonb, version int4, priority int4, attempts int4, max_attempts int4, \
    iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, lease_ends timestamptz, lease int8, last_error text",
    ),
    (
        "doc_lease_any(_text, int4, interval, int4, _int4, text, text)",
        "queue text, subject text, payload jsonb, headers jsonb, version int4, priority int4, attempts int4, max_attempts int4, \
    iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, lease_ends timestamptz, lease int8, last_error text",
    ),
    ("doc_append_many(text, _jsonb, int4, int4)", "subject text"),
    (
        "doc_complete_many(text, _text, _jsonb, int8, _jsonb)",
        "subject text, settled bool",
    ),
    (
        "doc_drop_many(text, _text, int8)",
        "subject text, settled bool",
    ),
    (
        "doc_reschedule_many(text, _text, timestamptz, _jsonb, int8)",
        "subject text, settled bool",
    ),
    (
        "ready_stats()",
        "slots int4, slots_used int4, advances int8, advances_discarded int8, polls_answered int8, full_scans int8, floor_misses int8",
    ),
    (
        "ready_floors(text)",
        "index text, version int4, level int4, next_iteration timestamptz, attempts int4, seq int8, is_empty bool",
    ),
    (
        "doc_complete(text, text, jsonb, int8, jsonb)",
        "affected_rows int4",
    ),
    (
        "doc_kill(text, text, jsonb, int8, text, jsonb)",
        "affected_rows int4",
    ),
    (
        "lease_extend(text, int8, interval, _text)",
        "affected int8, lease_ends timestamptz, stop bool",
    ),
    ("doc_drop(text, text, int8)", "affected_rows int4"),
    (
        "doc_reschedule(text, text, timestamptz, jsonb, int8, interval)",
        "affected_rows int4",
    ),
    (
        "doc_reject(text, text, text, jsonb, text, int8, interval)",
        "affected_rows int4",
    ),
    (
        "log_error(text, text, text, jsonb, text)",
        "queued_logs bool",
    ),
    (
        "metric_get(text)",
        "metric varchar, current_value int8, last_update timestamptz",
    ),
    (
        "metric_get(text, text)",
        "current_value int4, last_update timestamptz, does_exists bool",
    ),
    ("metric_get_common(text)", COMMON),
    (
        "metric_get_total(text)",
        "current_value int4, does_exists bool",
    ),
    (
        "metric_compute(text)",
        "cnt int4, pln int4, pnd int4, act int4, kll int4, cpl int4",
    ),
    (
        "metric_compute_all()",
        "queue varchar, cnt int4, pln int4, pnd int4, act int4, cpl int4, kll int4",
    ),
    (
        "metric_reset(text)",
        "cnt int4, pln int4, pnd int4, act int4, cpl int4, kll int4",
    ),
    (
        "metric_reset_all()",
        "queue varchar, cnt int4, pln int4, pnd int4, act int4, cpl int4, kll int4",
    ),
    (
        "metric_set(text, text, int4)",
        "current_value int4, was_created bool",
    ),
    (
        "metric_increment(text, text, int4)",
        "current_value int4, was_created bool",
    ),
    (
        "metric_log_increment(text, text, int4)",
        "affected_rows int4",
    ),
    (
        "metric_log_decrement(text, text, int4)",
        "affected_rows int4",
    ),
    ("metric_log_set(text, text, int4)", "affected_rows int4"),
    ("metric_log_pack()", "affected_rows int4"),
    ("metric_snap(text)", "success bool, inserts int4"),
    ("metric_snap(text, text)", "success bool, inserts int4"),
    ("metric_snap(text, jsonb)", "success bool, inserts int4"),
    ("mnt()", "processed int4, packed int4"),
    ("mnt(text)", "processed int4, packed int4"),
    (
        "mnt_run(text, int4)",
        "activated_count int4, rescheduled_count int4, killed_count int4",
    ),
    (
        "mnt_run_all(int4)",
        "queue varchar, activated_count int4, rescheduled_count int4, killed_count int4",
    ),
    ("mnt_make_pending(text, int4)", "affected_rows int4"),
    ("mnt_reschedule_orphans(text, int4)", "affected_rows int4"),
    ("mnt_mark_dead(text, int4)", "affected_rows int4"),
    ("mnt_job_reschedule(int4, text)", "success bool"),
    ("mnt_job_run(int4)", "success bool, processed int4"),
    ("mnt_job_run(text, int4)", "success bool, processed int4"),
    (
        "trace(text, text)",
        "step int4, created_at timestamptz, queue varchar, type varchar, info varchar, details jsonb",
    ),
    (
        "queue_stats(text)",
        "queue text, ready int8, retrying int8, blocked int8, planned int8, active int8, completed int8, killed int8, \
         oldest_ready interval, next_due timestamptz, pushed int8, picked int8, succeeded int8, failed int8, lost int8, \
         wait_p50 interval, wait_p95 interval, wait_p99 interval, run_p50 interval, run_p95 interval, run_p99 interval, \
         is_paused bool",
    ),
    (
        "metric_export(text)",
        "family text, name text, labels jsonb, value float8",
    ),
    ("metric_families()", "family text, type text, help text"),
    ("doc_get(text, text)", DOCUMENT),
    ("docs_list(text, jsonb, int4, text)", DOCUMENT),
    (
        "doc_errors(text, text, int4)",
        "at timestamptz, attempt int4, message text, details jsonb, ref_id text",
    ),
    (
        "utils_ts_retain(text, text, text, timestamptz, timestamptz)",
        "removed_rows int8",
    ),
    ("upgrade__310__320()", "success bool"),
    ("upgrade__320__330()", "success bool"),
    ("upgrade__330__400()", "success bool"),
    ("destroy_with_terrible_consequences()", "was_destroyed bool"),
];
const PICKED: &str = "subject varchar, payload jsonb, version int4, priority int4, attempts int4, iterations int8, \
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz";
/// The columns of a pick, with the lease number.
const LEASED: &str = "subject varchar, payload jsonb, version int4, priority int4, attempts int4, iterations int8, \
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease int8";
/// The type `fetchq.document`.
const DOCUMENT: &str = "subject text, status text, payload jsonb, headers jsonb, version int4, priority int4, \
    attempts int4, max_attempts int4, iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, \
    settled_at timestamptz, lease_ends timestamptz, worker text, result jsonb, progress jsonb, last_error text, \
    ordering_key text, origin jsonb, is_from_history bool";
const COMMON: &str = "cnt int4, pnd int4, pln int4, act int4, cpl int4, kll int4, ent int4, drp int4, pkd int4, \
    prc int4, res int4, rej int4, orp int4, err int4";

#[tokio::test]
async fn result_columns_have_the_declared_types() {
    let db = Server::of_suite().database("result_types").await;
    let session = db.connect().await;
    let found: BTreeMap<String, String> = functions(&session)
        .await
        .iter()
        .map(|f| (f.signature(), f.result()))
        .collect();
    let mut wrong = Vec::new();
    for (signature, result) in RESULTS {
        // Defaults replace overloads: a call with fewer arguments finds the longer form.
        match found.get(*signature) {
            Some(got) if got == result => {}
            Some(got) => wrong.push(format!("{signature}: {got}")),
            None if *signature == "mnt()" => {}
            None => wrong.push(format!("{signature} does not exist")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let info = &found["info()"];
    assert!(info.starts_with("version text, "), "{info}");
    let all = &found["metric_get_all()"];
    assert_eq!(*all, format!("queue varchar, {COMMON}"));
    let jobs = &found["mnt_job_pick(text, int4)"];
    assert_eq!(
        jobs,
        "id int4, task varchar, queue varchar, attempts int4, iterations int8, next_iteration timestamptz, \
         last_iteration timestamptz, settings jsonb, payload jsonb"
    );
    db.remove().await;
}

#[tokio::test]
async fn every_function_prepared_and_run_many_times() {
    let db = Server::of_suite().database("prepared").await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    for function in functions(&session).await {
        // Text parameters are sent as text and as varchar; no call may be ambiguous.
        for text in [Type::TEXT, Type::VARCHAR] {
            let as_type = |ty: &Type| {
                if *ty == Type::TEXT {
                    text.clone()
                } else {
                    ty.clone()
                }
            };
            let statement = function.prepare_as(&session, as_type).await;
            session.sql("begin").await;
            let rounds = match function.name.as_str() {
                // It drops the function, so it can run only once.
                name if name.starts_with("destroy") => 1,
                // A document that was revived cannot be revived again.
                "doc_revive" => 1,
                _ => 12,
            };
            for round in 1..=rounds {
                let result = Function::call(&session, &statement, &function.valid()).await;
                let rows = result
                    .unwrap_or_else(|e| panic!("{}, round {round}: {e:?}", function.signature()));
                for row in &rows {
                    for at in 0..row.len() {
                        fetchq_client_tests::text_of(row, at); // The value decodes as its declared type.
                    }
                }
            }
            session.sql("rollback").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn parameters_of_unstated_types() {
    let db = Server::of_suite().database("untyped").await;
    let session = db.connect().await;
    // The types that the server infers for $1, $2, … when the driver does not declare them.
    for (call, types) in [
        ("doc_push($1, $2)", vec![Type::TEXT, Type::TEXT]),
        (
            "doc_push($1, $2, $3)",
            vec![Type::TEXT, Type::TEXT, Type::JSONB],
        ),
        ("doc_push($1, $2, $3, $4)", vec![Type::TEXT; 4]),
        (
            "doc_push($1, $2, $3, $4, $5, $6)",
            vec![
                Type::TEXT,
                Type::TEXT,
                Type::INT4,
                Type::INT4,
                Type::TIMESTAMPTZ,
                Type::JSONB,
            ],
        ),
        ("doc_append($1, $2)", vec![Type::TEXT, Type::JSONB]),
        (
            "doc_append($1, $2, $3, $4)",
            vec![Type::TEXT, Type::JSONB, Type::INT4, Type::INT4],
        ),
        (
            "doc_upsert($1, $2, $3, $4, $5, $6)",
            vec![
                Type::TEXT,
                Type::TEXT,
                Type::INT4,
                Type::INT4,
                Type::TIMESTAMPTZ,
                Type::JSONB,
            ],
        ),
        ("doc_pick($1)", vec![Type::TEXT]),
        ("doc_pick($1, 5)", vec![Type::TEXT]),
        ("doc_pick($1, $2)", vec![Type::TEXT, Type::TEXT]),
        (
            "doc_pick($1, $2, $3, $4)",
            vec![Type::TEXT, Type::INT4, Type::INT4, Type::TEXT],
        ),
        ("doc_complete($1, $2)", vec![Type::TEXT, Type::TEXT]),
        (
            "doc_complete($1, $2, $3)",
            vec![Type::TEXT, Type::TEXT, Type::JSONB],
        ),
        (
            "doc_kill($1, $2, $3)",
            vec![Type::TEXT, Type::TEXT, Type::JSONB],
        ),
        ("doc_drop($1, $2)", vec![Type::TEXT, Type::TEXT]),
        (
            "doc_reschedule($1, $2, $3)",
            vec![Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ],
        ),
        (
            "doc_reschedule($1, $2, $3, $4)",
            vec![Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ, Type::JSONB],
        ),
        (
            "doc_reject($1, $2, $3, $4)",
            vec![Type::TEXT, Type::TEXT, Type::TEXT, Type::JSONB],
        ),
        (
            "doc_reject($1, $2, $3, $4, $5)",
            vec![Type::TEXT, Type::TEXT, Type::TEXT, Type::JSONB, Type::TEXT],
        ),
        (
            "log_error($1, $2, $3, $4)",
            vec![Type::TEXT, Type::TEXT, Type::TEXT, Type::JSONB],
        ),
        ("queue_drop_logs($1, $2)", vec![Type::TEXT, Type::TEXT]),
        (
            "doc_append_many($1, $2)",
            vec![Type::TEXT, Type::JSONB_ARRAY],
        ),
        (
            "doc_complete_many($1, $2)",
            vec![Type::TEXT, Type::TEXT_ARRAY],
        ),
        (
            "doc_complete_many($1, $2, $3)",
            vec![Type::TEXT, Type::TEXT_ARRAY, Type::JSONB_ARRAY],
        ),
        ("doc_drop_many($1, $2)", vec![Type::TEXT, Type::TEXT_ARRAY]),
        (
            "doc_reschedule_many($1, $2, $3)",
            vec![Type::TEXT, Type::TEXT_ARRAY, Type::TIMESTAMPTZ],
        ),
        ("metric_snap($1, $2)", vec![Type::TEXT, Type::TEXT]),
        ("metric_get($1, $2)", vec![Type::TEXT, Type::TEXT]),
        ("queue_truncate($1)", vec![Type::TEXT]),
        ("mnt()", vec![]),
        ("mnt_job_run()", vec![]),
    ] {
        let sql = format!("select * from fetchq.{call}");
        match session.prepare(&sql).await {
            Ok(statement) => assert_eq!(statement.params(), types, "{sql}"),
            Err(e) => panic!("{sql}: {e:?}"),
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn the_two_pushes_of_four_untyped_arguments() {
    let db = Server::of_suite().database("untyped_push").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let push = session
        .prepare("select fetchq.doc_push($1, $2, $3, $4)")
        .await
        .unwrap();
    for (subject, payload, at, queued) in [
        ("a", r#"{"it's": 1}"#, "2020-01-01 00:00:00+00", 1),
        ("a", "{}", "now", 0),
        ("b", "[]", "infinity", 1),
        (
            "3",
            "('l1', 4, '{}', {DATA}), ('l2', 5, '{\"n\": 2}', {DATA})",
            "2021-01-01",
            2,
        ),
    ] {
        // The list is the last argument, after version and date.
        let (third, last) = if payload.starts_with('(') {
            (at, payload)
        } else {
            (payload, at)
        };
        let n: i32 = session
            .query_one(&push, &[&"q", &subject, &third, &last])
            .await
            .unwrap()
            .get(0);
        assert_eq!(n, queued, "{subject}");
    }
    session
        .sql("select fetchq.doc_push('q', 'literal', '{}', '2022-01-01')")
        .await;
    assert_eq!(
        session
            .rows("select subject, version, priority, status, extract(year from next_iteration), payload from fetchq_data.q__docs order by seq")
            .await,
        [
            r#"a|0|0|1|2020|{"it's": 1}"#,
            "b|0|0|0|Infinity|[]",
            "l1|3|4|1|2021|{}",
            r#"l2|3|5|1|2021|{"n": 2}"#,
            "literal|0|0|1|2022|{}"
        ]
    );
    for (values, state) in [
        ("'q', 'c', '{broken', '2022-01-01'", "22P02"),
        ("'q', 'c', '{}', 'someday'", "22007"),
        (
            "'q', 'c', '2022-01-01', '(''d'', 0, ''{}'', {DATA})'",
            "22023",
        ),
        (
            "'q', '0', '2022-01-01', '(now(), 0, ''{}'', {DATA})'",
            "22023",
        ),
        ("'q', repeat('s', 256), '{}', '2022-01-01'", "22001"),
    ] {
        assert_eq!(
            session
                .state(&format!("select fetchq.doc_push({values})"))
                .await,
            state,
            "{values}"
        );
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_worker_with_prepared_statements() {
    let db = Server::of_suite().database("worker").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let push = session
        .prepare("select fetchq.doc_push($1, $2, $3::jsonb, $4::timestamptz)")
        .await
        .unwrap();
    let push_full = session
        .prepare("select fetchq.doc_push($1, $2, $3, $4, $5, $6)")
        .await
        .unwrap();
    let by_text = session
        .prepare("select * from fetchq.doc_pick($1, $2, $3, $4)")
        .await
        .unwrap();
    let by_interval = session
        .prepare_typed(
            "select * from fetchq.doc_pick($1, $2, $3, $4)",
            &[Type::TEXT, Type::INT4, Type::INT4, Type::INTERVAL],
        )
        .await
        .unwrap();
    let complete = session
        .prepare("select fetchq.doc_complete($1, $2, $3)")
        .await
        .unwrap();
    let reschedule = session
        .prepare("select fetchq.doc_reschedule($1, $2, $3, $4)")
        .await
        .unwrap();
    let reject = session
        .prepare("select fetchq.doc_reject($1, $2, $3, $4, $5)")
        .await
        .unwrap();
    let kill = session
        .prepare("select fetchq.doc_kill($1, $2)")
        .await
        .unwrap();
    let remove = session
        .prepare("select fetchq.doc_drop($1, $2)")
        .await
        .unwrap();

    let rounds = 12;
    for round in 0..rounds {
        // One document for each way of settling, picked in the order of their priorities.
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        let subjects: Vec<String> = (0..5).map(|i| format!("{round}-{i}")).collect();
        for (i, subject) in subjects.iter().enumerate().skip(1) {
            let payload = json!({"n": i, "text": "it's \\ 🙂"});
            let n: i32 = session
                .query_one(
                    &push_full,
                    &[&"q", subject, &0i32, &(10 - i as i32), &long_ago, &payload],
                )
                .await
                .unwrap()
                .get(0);
            assert_eq!(n, 1);
        }
        let payload = Json(BTreeMap::from([("n", 0)]));
        let pushed = session
            .query_one(&push, &[&"q", &subjects[0], &payload, &Utc::now()])
            .await
            .unwrap();
        assert_eq!(pushed.get::<_, i32>(0), 1);

        let before = Utc::now();
        let (first, rest) = if round % 2 == 0 {
            (&by_text, &by_interval)
        } else {
            (&by_interval, &by_text)
        };
        let mut picked = Vec::new();
        for (statement, limit) in [(first, 2i32), (rest, 10)] {
            let lease: Value = if std::ptr::eq(statement, &by_text) {
                Value::text("1 hour")
            } else {
                Value::Interval(3_600_000_000)
            };
            picked.extend(
                session
                    .query(statement, &[&"q", &0i32, &limit, &lease])
                    .await
                    .unwrap(),
            );
        }
        let order: Vec<String> = picked.iter().map(|row| row.get("subject")).collect();
        let expected: Vec<&String> = [1, 2, 3, 4, 0].iter().map(|i| &subjects[*i]).collect();
        assert_eq!(order.iter().collect::<Vec<_>>(), expected);
        let row = &picked[0];
        assert_eq!(
            row.get::<_, serde_json::Value>("payload"),
            json!({"n": 1, "text": "it's \\ 🙂"})
        );
        assert_eq!(
            (
                row.get::<_, i32>("version"),
                row.get::<_, i32>("priority"),
                row.get::<_, i32>("attempts")
            ),
            (0, 9, 1)
        );
        assert_eq!(row.get::<_, i64>("iterations"), 0);
        assert_eq!(row.get::<_, Option<DateTime<Utc>>>("last_iteration"), None);
        assert_eq!(row.get::<_, Option<SystemTime>>("lock_upgrade"), None);
        // The lease expires one hour after the pick, by the clock of this machine.
        let until: DateTime<Utc> = row.get("next_iteration");
        assert!(
            until > before + TimeDelta::minutes(59) && until < Utc::now() + TimeDelta::minutes(61),
            "{until}"
        );

        let tomorrow = Utc::now() + TimeDelta::days(1);
        let details = json!({"why": ["it's", null]});
        let none: Option<serde_json::Value> = None;
        for (statement, params) in [
            (
                &complete,
                vec![
                    &"q" as &(dyn tokio_postgres::types::ToSql + Sync),
                    &order[0],
                    &details,
                ],
            ),
            (&reschedule, vec![&"q", &order[1], &tomorrow, &none]),
            (
                &reject,
                vec![&"q", &order[2], &"it's broken", &details, &None::<&str>],
            ),
            (&kill, vec![&"q", &order[3]]),
            (&remove, vec![&"q", &order[4]]),
        ] {
            let n: i32 = session.query_one(statement, &params).await.unwrap().get(0);
            assert_eq!(n, 1, "round {round}");
            let twice = session.query_one(statement, &params).await.unwrap_err();
            assert_eq!(state_of(&twice), "55000", "a document was settled twice");
        }
        counters_are_exact(&mut session, "q").await;
    }
    let n = rounds;
    let expected = [
        ("act", 0),
        ("cnt", 4 * n),
        ("cpl", n),
        ("drp", n),
        ("ent", 5 * n),
        ("err", n),
        ("kll", n),
        ("pkd", 5 * n),
        ("pln", n),
        ("pnd", n),
        ("prc", 5 * n),
        ("rej", n),
        ("res", n),
        ("v0", 4 * n),
    ];
    let got = metrics(&session, "q").await;
    for (metric, value) in expected {
        assert_eq!(
            got.get(metric).copied().unwrap_or(0),
            value,
            "{metric} of {got:?}"
        );
    }
    let logged = session
        .query(
            "select message, details, ref_id from fetchq_data.q__logs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(logged.len(), n as usize);
    for row in logged {
        assert_eq!(row.get::<_, String>(0), "it's broken");
        assert_eq!(
            row.get::<_, serde_json::Value>(1),
            json!({"why": ["it's", null]})
        );
        assert_eq!(row.get::<_, Option<String>>(2), None);
    }
    db.remove().await;
}
