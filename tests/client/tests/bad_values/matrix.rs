//! Each argument of each function of fetchq 5 with each value of its type that a caller can get
//! wrong. A call either fails with an error that names the argument, or tests/contract.json
//! says that it is accepted.

mod errors;
mod given;

use std::collections::{BTreeMap, HashSet};

use fetchq_client_tests::{
    Database, Function, Server, Session, Value, accepting, counters_are_exact, error_of, functions,
    is_accepted, is_layer5, prepare_queue,
};
use serde_json::json;
use tokio_postgres::types::{ToSql, Type};

use errors::complaints;
use given::values;

/// A database with the queues of `prepare_queue`, and the table of big values.
pub async fn prepare(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    session
        .sql(
            "set client_min_messages = error; set fetchq.strict = on;
             create temp table big as select repeat('x', 1048576) as x,
                 (select jsonb_agg(jsonb_build_object('subject', 's' || n)) from generate_series(1, 100000) n) as docs",
        )
        .await;
    (db, session)
}

/// All rows that a call can change. The sequence numbers of documents are left out.
pub async fn state(session: &Session) -> String {
    let rows = "select concat_ws(E'\\n',
        (select string_agg((to_jsonb(d) - 'seq')::text, ';' order by subject) from fetchq_data.q__docs d),
        (select string_agg((to_jsonb(d) - 'seq')::text, ';' order by subject) from fetchq_data.other__docs d),
        (select string_agg(l::text, ';' order by id) from fetchq_data.q__logs l),
        (select string_agg(j::text, ';' order by id) from fetchq.jobs j),
        (select string_agg(q::text, ';' order by id) from fetchq.queues q),
        (select string_agg(concat_ws(' ', queue, metric, value), ';' order by queue, metric) from fetchq.metrics_live m),
        (select count(*) from fetchq.lease_slots), (select count(*) from fetchq.worker_sessions))";
    session.text(rows).await
}

/// Runs a call in a subtransaction that is rolled back, as a caller does that catches the error.
/// Returns the error.
async fn attempt(
    session: &Session,
    function: &Function,
    at: usize,
    value: &str,
) -> Option<tokio_postgres::Error> {
    let mut valid: Vec<Value> = function.valid();
    let is_delay = function.arguments[at].name == "delay" && value != "null";
    for (argument, value) in function.arguments.iter().zip(&mut valid) {
        match argument.name.as_str() {
            // Only one of both may be given, and one must be.
            "due_at" if is_delay => *value = Value::Null,
            // Only a queue that is not here can live elsewhere.
            "queue" if function.name == "queue_place_set" => *value = Value::text("away"),
            // The other modes accept any payload.
            "mode" if function.name == "doc_put" => *value = Value::Null,
            // Whatever is wrong is the value that is tried, and no document that is not there.
            "subjects" if function.name.ends_with("_many") => *value = Value::texts(&["active"]),
            "payloads" | "results" if function.arguments[at].name == "subjects" => {
                *value = Value::Null
            }
            "payloads" | "results" => *value = Value::Jsons(vec![json!({"a": 1})]),
            _ => {}
        }
    }
    let known = match function.arguments[at].name.as_str() {
        "queues" => "q",
        _ => "active",
    };
    let ty = function.arguments[at].ty.name().replace('_', "");
    let array = match function.arguments[at].ty.name().starts_with('_') {
        true => "[]",
        false => "",
    };
    let value = value.replace("{known}", known);
    let places: Vec<String> = (0..valid.len())
        .map(|place| match place {
            _ if place == at => format!("({value})::{ty}{array}"),
            _ if place < at => format!("${}", place + 1),
            _ => format!("${place}"),
        })
        .collect();
    let others: Vec<usize> = (0..valid.len()).filter(|place| *place != at).collect();
    let types: Vec<Type> = others
        .iter()
        .map(|place| function.arguments[*place].ty.clone())
        .collect();
    let params: Vec<&(dyn ToSql + Sync)> = others
        .iter()
        .map(|place| &valid[*place] as &(dyn ToSql + Sync))
        .collect();
    let sql = format!(
        "select * from fetchq.{}({})",
        function.name,
        places.join(", ")
    );
    let statement = session
        .prepare_typed(&sql, &types)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    session.sql("begin; savepoint s").await;
    let error = session.query(&statement, &params).await.err();
    session.sql("rollback to s; commit").await;
    error
}

#[tokio::test]
async fn each_argument_with_each_wrong_value() {
    let (db, mut session) = prepare("matrix").await;
    let version: i32 = session
        .text("show server_version_num")
        .await
        .parse()
        .unwrap();
    let before = state(&session).await;
    let mut wrong = Vec::new();
    let mut tried: BTreeMap<String, usize> = BTreeMap::new();
    let mut used = HashSet::new();
    for function in functions(&session).await {
        if !is_layer5(&function.name) {
            continue;
        }
        for (at, argument) in function.arguments.iter().enumerate() {
            for (label, value) in values(argument, version >= 170_000) {
                *tried.entry(function.name.clone()).or_default() += 1;
                let case = format!("{}: {} is {label}", function.name, argument.name);
                let accepted = is_accepted(&function, argument, label);
                match attempt(&session, &function, at, value).await {
                    None if accepted => {
                        used.insert((function.name.clone(), argument.name.clone()));
                    }
                    None => wrong.push(format!("{case}: accepted")),
                    Some(e) if accepted => wrong.push(format!("{case}: {e:?}")),
                    Some(e) => {
                        let said = complaints(&e, &argument.name).join(", ");
                        if !said.is_empty() {
                            let message: String =
                                error_of(&e).message().chars().take(200).collect();
                            wrong.push(format!("{case}: the error {said}: {message}"));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried.len() > 60, "only {} functions", tried.len());
    let unused: Vec<_> = (accepting().into_iter())
        .filter(|pair| !used.contains(pair))
        .collect();
    assert!(unused.is_empty(), "not accepted, or unknown: {unused:?}");
    assert_eq!(state(&session).await, before, "something was changed");
    for queue in ["q", "other"] {
        counters_are_exact(&mut session, queue).await;
    }
    // The documents can still be picked: nothing has hidden them.
    let picked = session
        .column("select subject from fetchq.doc_lease('q', 10)")
        .await;
    assert_eq!(picked, ["pending"]);
    db.remove().await;
}

/// The server refuses what is not of the type of an argument: no overload takes it.
#[tokio::test]
async fn no_argument_takes_a_value_of_another_type() {
    let db = Server::of_suite().database("matrix_types").await;
    let session = db.connect().await;
    let mut wrong = Vec::new();
    for function in functions(&session).await {
        if !is_layer5(&function.name) {
            continue;
        }
        for at in 0..function.arguments.len() {
            let given: Vec<String> = (function.arguments.iter().enumerate())
                .map(|(i, argument)| {
                    let value = match &argument.ty {
                        _ if i != at => "null",
                        &Type::TEXT => "'{}'::jsonb",
                        _ => "'nope'",
                    };
                    format!("{} => {value}", argument.name)
                })
                .collect();
            let sql = format!(
                "select * from fetchq.{}({})",
                function.name,
                given.join(", ")
            );
            let state = session.state(&sql).await;
            if !["42883", "22P02", "22007"].contains(&state.as_str()) {
                wrong.push(format!("{sql}: {state:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    db.remove().await;
}
