//! Queue names: valid, invalid, and hostile.

use fetchq_client_tests::{Server, Session, Value, counters_are_exact, functions};

/// Calls of all functions with a queue argument; `{}` stands for the name.
async fn queue_calls(session: &Session) -> Vec<String> {
    let mut calls = Vec::new();
    for function in functions(session).await {
        if let Some(at) = function.arguments.iter().position(|a| a.name == "queue") {
            let args: Vec<String> = function
                .valid()
                .iter()
                .zip(&function.arguments)
                .enumerate()
                .map(|(i, (value, argument))| {
                    let text = match value {
                        _ if i == at => return "'{}'".to_owned(),
                        Value::Null => return format!("null::{}", argument.ty.name()),
                        Value::Float(v) => v.to_string(),
                        Value::Text(v) => v.clone(),
                        Value::Int(v) => v.to_string(),
                        Value::Big(v) => v.to_string(),
                        Value::Bool(v) => v.to_string(),
                        Value::Json(v) => v.to_string(),
                        Value::Time(v) => v.to_rfc3339(),
                        Value::Interval(v) => format!("{v} microseconds"),
                        Value::Texts(v) => format!("{{{}}}", v.join(",")),
                        Value::Jsons(_) => "{1,[]}".to_owned(),
                        other => panic!("{other:?}"),
                    };
                    format!("'{}'::{}", text.replace('\'', "''"), argument.ty.name())
                })
                .collect();
            calls.push(format!(
                "select * from fetchq.{}({})",
                function.name,
                args.join(", ")
            ));
        }
    }
    calls
}

#[tokio::test]
async fn invalid_queue_names() {
    let db = Server::of_suite().database("hostile_names").await;
    let session = db.connect().await;
    session
        .sql("create table users (); select fetchq.queue_create('q')")
        .await;
    let long = "a".repeat(41);
    let mut wrong = Vec::new();
    for call in queue_calls(&session).await {
        for name in [
            "",
            "1q",
            "a-b",
            "a b",
            "a.b",
            "é",
            "*",
            "\"q\"",
            "x\"; drop table users; --",
            "x''; drop table users; --",
            &long,
        ] {
            let state = session
                .state(&call.replace("'{}'", &format!("'{name}'")))
                .await;
            if state != "42602" {
                wrong.push(format!("{call} with name {name}: {state:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(session.text("select count(*) from users").await, "0");
    db.remove().await;
}

#[tokio::test]
async fn valid_queue_names() {
    let db = Server::of_suite().database("legal_names").await;
    let mut session = db.connect().await;
    let longest = "x".repeat(40);
    for (given, name) in [
        ("order", "order"),
        ("Foo", "foo"),
        ("_1", "_1"),
        (longest.as_str(), longest.as_str()),
    ] {
        assert_eq!(
            session
                .text(&format!(
                    "select was_created from fetchq.queue_create('{given}')"
                ))
                .await,
            "t"
        );
        // The folded name is the same queue.
        assert_eq!(
            session
                .text(&format!(
                    "select was_created from fetchq.queue_create('{name}')"
                ))
                .await,
            "f"
        );
        assert_eq!(
            session
                .text(&format!("select fetchq.doc_push('{given}', 'd')"))
                .await,
            "1"
        );
        assert_eq!(
            session
                .column(&format!("select subject from fetchq.doc_pick('{given}')"))
                .await,
            ["d"]
        );
        assert_eq!(
            session
                .text(&format!(
                    "select fetchq.doc_reject('{given}', 'd', 'why', '{{}}')"
                ))
                .await,
            "1"
        );
        session
            .sql(&format!(
                "select fetchq.queue_enable_notify('{given}'); select * from fetchq.mnt()"
            ))
            .await;
        assert_eq!(
            session
                .text(&format!("select name from fetchq.queue_status('{given}')"))
                .await,
            name
        );
        counters_are_exact(&mut session, name).await;
    }
    assert_eq!(
        session
            .column("select name from fetchq.queues order by id")
            .await,
        ["order", "foo", "_1", longest.as_str()]
    );
    for name in ["ORDER", "FOO", "_1", &longest] {
        assert_eq!(
            session
                .text(&format!(
                    "select was_dropped from fetchq.queue_drop('{name}')"
                ))
                .await,
            "t"
        );
    }
    assert_eq!(
        session
            .text("select count(*) from pg_class where relnamespace = 'fetchq_data'::regnamespace")
            .await,
        "0"
    );
    db.remove().await;
}
