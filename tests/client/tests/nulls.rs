//! NULL for every argument of every function.

use fetchq_client_tests::{
    Function, NullIs, Server, Value, error_of, functions, null_is, prepare_queue, state_of,
};

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
            let case = format!(
                "{} with NULL for \"{}\"",
                function.signature(),
                argument.name
            );
            let expected = null_is(&function, argument);
            match (result, expected) {
                (Ok(_), NullIs::Default) => {}
                (Ok(_), _) => wrong.push(format!("{case}: accepted")),
                (Err(e), NullIs::Default) => wrong.push(format!("{case}: {e:?}")),
                (Err(e), NullIs::Refused(state)) => {
                    if state_of(&e) != state {
                        wrong.push(format!("{case}: {e:?}"));
                    }
                }
                (Err(e), NullIs::Missing) => {
                    let told = error_of(&e).message().to_owned();
                    let is_named = told.contains(&format!("\"{}\"", argument.name));
                    if state_of(&e) != "22004" || !is_named {
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
