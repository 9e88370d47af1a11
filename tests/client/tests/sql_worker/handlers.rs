//! Which handlers there can be, and what their results do.

use fetchq_client_tests::{Server, counters_are_exact, error_of, state_of};

use super::{HANDLER, document, put};

#[tokio::test]
async fn handlers_are_checked_before_anything_is_picked() {
    let db = Server::of_suite().database("work_check").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "create function takes_json(json) returns void language sql as '';
             create function gives_text(jsonb) returns text language sql as 'select $1::text';
             create function gives_many(jsonb) returns setof jsonb language sql as 'select $1';
             create procedure is_procedure(jsonb) language sql as '';
             create function secret(jsonb) returns void language sql as '';
             revoke all on function secret from public",
        )
        .await;
    put(&session, "x", "{}").await;
    for handler in ["takes_json", "gives_text", "gives_many", "is_procedure"] {
        let call = format!("call fetchq.work('q', '{handler}')");
        let error = session.query(&call, &[]).await.expect_err(handler);
        assert_eq!(state_of(&error), "42883", "{handler}");
        assert!(
            error_of(&error).hint().unwrap_or("").contains("jsonb"),
            "{handler}"
        );
    }
    assert_eq!(session.state("call fetchq.work('q', null)").await, "22004");
    for option in ["max_docs => -1", "idle_timeout => '-1 s'"] {
        let call = format!("call fetchq.work('q', 'handle', {option})");
        let error = session.query(&call, &[]).await.expect_err(option);
        assert_eq!(state_of(&error), "22023", "{option}");
        let name = option.split(' ').next().unwrap();
        assert!(error_of(&error).message().contains(name), "{option}");
    }
    assert_eq!(
        session.state("call fetchq.work('r', 'handle')").await,
        "42704"
    );
    // Where it cannot commit: in a transaction block, beside another statement, in a function.
    session
        .sql("create function works() returns void language plpgsql as $$ declare p int; f int; begin call fetchq.work('q', 'handle', processed => p, failed => f); end $$")
        .await;
    for call in [
        "begin; call fetchq.work('q', 'handle')",
        "rollback; select 1; call fetchq.work('q', 'handle')",
        "select works()",
        "begin; select works()",
    ] {
        session.cannot_wait(call, "fetchq.work").await;
    }
    session.sql("rollback; drop function works()").await;
    let untouched = "select count(*) from fetchq_data.q__docs where status = 2";
    assert_eq!(session.text(untouched).await, "0");
    session
        .sql(
            "drop role if exists fetchq_work_test; create role fetchq_work_test;
              grant usage on schema fetchq, fetchq_data to fetchq_work_test;
              grant all on all tables in schema fetchq to fetchq_work_test;
              grant all on all tables in schema fetchq_data to fetchq_work_test;
              set role fetchq_work_test",
        )
        .await;
    assert_eq!(
        session.state("call fetchq.work('q', 'secret')").await,
        "42501"
    );
    session
        .sql("reset role; drop owned by fetchq_work_test; drop role fetchq_work_test")
        .await;
    assert_eq!(document(&session, "x").await, "1 0");
    db.remove().await;
}

#[tokio::test]
async fn a_handler_decides_the_result() {
    let db = Server::of_suite().database("work_answer").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "create function answer(jsonb) returns jsonb language sql as 'select $1';
             create function later(jsonb) returns timestamptz language sql as
                 'select timestamptz ''2099-01-01'' where $1 ? ''later''';
             create schema \"Odd\"\"Schema\";
             create function \"Odd\"\"Schema\".\"Odd handler\"(jsonb) returns void language sql as ''",
        )
        .await;
    for (handler, payload, becomes) in [
        ("answer", "{}", "3 0 1 {}"),
        ("answer", r#"{"payload": [1]}"#, "3 0 1 [1]"),
        (
            "answer",
            r#"{"action": "kill", "payload": {}}"#,
            "-1 0 1 {}",
        ),
        ("answer", r#"{"action": "drop"}"#, ""),
        (
            "answer",
            r#"{"action": "reschedule", "due_at": "2099-01-01", "payload": {}}"#,
            "0 0 1 {}",
        ),
        (
            "answer",
            r#"{"action": "snooze", "delay": "1 hour"}"#,
            r#"0 0 0 {"delay": "1 hour", "action": "snooze"}"#,
        ),
        (
            "answer",
            r#"{"action": null, "result": 7}"#,
            "3 0 1 {\"action\": null, \"result\": 7} 7",
        ),
        (
            "answer",
            r#"{"action": "reject", "message": "no luck"}"#,
            r#"1 1 1 {"action": "reject", "message": "no luck"} no luck"#,
        ),
        (
            "answer",
            r#"{"action": "snooze", "at": "2099-01-01"}"#,
            r#"1 1 1 {"at": "2099-01-01", "action": "snooze"} settlement 1 is not valid: it has an unknown key "at""#,
        ),
        (
            "answer",
            r#"{"subject": "y"}"#,
            r#"1 1 1 {"subject": "y"} the answer of the handler has a subject or a lease, which are those of its document"#,
        ),
        (
            "answer",
            "[]",
            "1 1 1 [] the answer of the handler is not a JSON object: []",
        ),
        (
            "answer",
            r#"{"action": "sing"}"#,
            r#"1 1 1 {"action": "sing"} settlement 1 is not valid: its action is "sing", expected complete, drop, reject, kill, snooze or reschedule"#,
        ),
        (
            "answer",
            r#"{"action": "reschedule"}"#,
            r#"1 1 1 {"action": "reschedule"} settlement 1 is not valid: it has no delay and no due_at, which reschedule needs"#,
        ),
        ("later", "{}", "3 0 1 {}"),
        ("later", r#"{"later": 1}"#, r#"0 0 1 {"later": 1}"#),
        (r#""Odd""Schema"."Odd handler""#, "{}", "3 0 1 {}"),
    ] {
        session.sql("select fetchq.queue_truncate('q')").await;
        put(&session, "x", payload).await;
        session
            .sql(&format!(
                "call fetchq.work('q', '{handler}', max_docs => 1)"
            ))
            .await;
        let sql = "select coalesce(string_agg(concat_ws(' ', status, attempts, iterations, payload, result, last_error), ''), '')
            from fetchq_data.q__docs";
        assert_eq!(session.text(sql).await, becomes, "{handler} {payload}");
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}
