//! The API through a driver that prepares statements and sends typed parameters.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use fetchq_client_tests::{
    Function, Server, Value, counters_are_exact, functions, metrics, prepare_queue, state_of,
};
use serde_json::json;
use tokio_postgres::types::{Json, Type};

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
