//! Each argument of each function of fetchq 5 with each value of its type that a caller can get
//! wrong. A call either fails with an error that names the argument, or is listed here as one that
//! is accepted.

use std::collections::BTreeMap;

use fetchq_client_tests::{
    Database, Function, Server, Session, Value, counters_are_exact, error_of, functions,
    prepare_queue,
};
use tokio_postgres::types::{ToSql, Type};

/// The functions of fetchq 5.
const FUNCTIONS: &[&str] = &[
    "doc_put",
    "doc_put_many",
    "doc_append",
    "doc_lease",
    "doc_lease_any",
    "lease_extend",
    "doc_extend",
    "doc_get",
    "docs_list",
    "doc_errors",
    "queue_configure",
    "queue_settings",
    "queue_stats",
    "queue_create",
    "docs_retry",
    "docs_kill",
    "docs_drop",
    "docs_move",
    "docs_set_priority",
    "doc_complete",
    "doc_reject",
    "doc_kill",
];

/// A value, by the name that `ACCEPTED` has for it, and as SQL. `{known}` is a queue or a subject
/// that exists.
type Given = (&'static str, &'static str);

const TEXTS: &[Given] = &[
    ("null", "null"),
    ("empty", "''"),
    ("control", "E'a\\nb'"),
    ("255 letters", "repeat('🙂', 255)"),
    ("256 letters", "repeat('🙂', 256)"),
    ("1 MB", "repeat('x', 1048576)"),
];

const INTS: &[Given] = &[
    ("null", "null"),
    ("0", "0"),
    ("negative", "-1"),
    ("least", "-2147483648"),
    ("greatest", "2147483647"),
];

const BIGINTS: &[Given] = &[
    ("null", "null"),
    ("0", "0"),
    ("negative", "-1"),
    ("greatest", "9223372036854775807"),
];

const BOOLEANS: &[Given] = &[("null", "null")];

const TIMES: &[Given] = &[
    ("null", "null"),
    ("infinity", "'infinity'"),
    ("-infinity", "'-infinity'"),
];

const INTERVALS: &[Given] = &[
    ("null", "null"),
    ("zero", "'0'"),
    ("negative", "'-1s'"),
    ("negative in sum", "'1 mon -31 days'"),
    ("too long", "'300000 years'"),
    ("longest", "'178000000 years'"),
];

/// Since PostgreSQL 17.
const INFINITE: &[Given] = &[("infinity", "'infinity'"), ("-infinity", "'-infinity'")];

const JSONS: &[Given] = &[
    ("null", "null"),
    ("JSON null", "'null'"),
    ("number", "'1'"),
    ("huge number", "'1e10000'"),
    ("text", "'\"x\"'"),
    ("list", "'[]'"),
    ("list of a number", "'[1]'"),
    ("list of 100,000", "(select docs from big)"),
    (
        "duplicates",
        "'[{\"subject\": \"d\"}, {\"subject\": \"d\"}]'",
    ),
    ("object", "'{}'"),
    ("unknown key", "'{\"nope\": 1}'"),
    ("1 MB", "(select to_jsonb(x) from big)"),
    ("1 MB key", "(select jsonb_build_object(x, 1) from big)"),
    ("deep", "(repeat('[', 5000) || repeat(']', 5000))::jsonb"),
];

const TEXT_LISTS: &[Given] = &[
    ("null", "null"),
    ("empty", "'{}'"),
    ("with null", "array['{known}', null]"),
    ("duplicates", "array['{known}', '{known}']"),
    (
        "two dimensions",
        "array[array['{known}'], array['{known}']]",
    ),
    ("256 letters", "array[repeat('🙂', 256)]"),
    ("1 MB", "array[repeat('x', 1048576)]"),
    (
        "100,000",
        "(select array_agg('s' || n) from generate_series(1, 100000) n)",
    ),
];

const INT_LISTS: &[Given] = &[
    ("null", "null"),
    ("empty", "'{}'"),
    ("with null", "'{null}'"),
    ("0", "'{0}'"),
    ("negative", "'{-1}'"),
    ("two", "'{1, 2}'"),
    ("two dimensions", "'{{1}}'"),
];

/// All values of an argument.
const ANY: &[&str] = &["*"];

/// What is accepted: functions, an argument, and values.
const ACCEPTED: &[(&[&str], &str, &[&str])] = &[
    // Payloads and the like are any JSON.
    (
        &["doc_put", "doc_append", "doc_complete", "doc_kill"],
        "payload",
        ANY,
    ),
    (&["doc_complete"], "result", ANY),
    (&["doc_extend"], "progress", ANY),
    (&["doc_reject", "doc_kill"], "details", ANY),
    (
        &["doc_put", "doc_append"],
        "headers",
        &["null", "object", "unknown key", "1 MB key"],
    ),
    // A document is due at any time, and belongs to any version.
    (&["doc_put"], "next_iteration", ANY),
    (
        &["doc_put", "doc_append", "doc_lease", "doc_lease_any"],
        "version",
        ANY,
    ),
    (&["doc_put", "doc_append"], "priority", ANY),
    (
        &["docs_set_priority"],
        "priority",
        &["0", "negative", "least", "greatest"],
    ),
    (
        &["doc_put", "doc_append", "doc_reject"],
        "delay",
        &["null", "zero"],
    ),
    // A subject is any text that is short enough; reading one that does not exist gives no row.
    (
        &["doc_put", "doc_get", "doc_errors"],
        "subject",
        &["empty", "control", "255 letters"],
    ),
    (
        &["doc_put", "doc_append"],
        "ordering_key",
        &["null", "empty", "control", "255 letters"],
    ),
    (
        &["doc_put", "doc_append"],
        "max_attempts",
        &["null", "greatest"],
    ),
    (&["doc_put", "doc_put_many"], "mode", &["null"]),
    (
        &["doc_put_many"],
        "docs",
        &["list", "duplicates", "list of 100,000"],
    ),
    (
        &[
            "doc_lease",
            "doc_lease_any",
            "docs_list",
            "doc_errors",
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
        ],
        "max_docs",
        &["null", "0", "greatest"],
    ),
    (
        &["doc_lease", "doc_lease_any", "lease_extend"],
        "duration",
        &["null", "zero"],
    ),
    (&["doc_extend"], "duration", &["zero"]),
    (
        &["doc_lease", "doc_lease_any"],
        "worker",
        &["null", "control"],
    ),
    (&["doc_lease", "doc_lease_any"], "binding", &["null"]),
    (&["doc_lease_any"], "weights", &["null"]),
    (
        &["doc_complete", "doc_kill", "doc_reject", "doc_extend"],
        "lease",
        &["null"],
    ),
    (&["lease_extend"], "subjects", &["null", "duplicates"]),
    (
        &["docs_list", "docs_retry", "docs_set_priority"],
        "filter",
        &["null", "object"],
    ),
    (
        &[
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
        ],
        "dry_run",
        &["null"],
    ),
    // Where a page begins is any text.
    (&["docs_list"], "after", ANY),
    (
        &["doc_reject", "doc_kill"],
        "message",
        &["empty", "control", "255 letters", "256 letters"],
    ),
    (&["doc_reject"], "ref_id", ANY),
    (&["queue_configure"], "settings", &["object"]),
    (&["queue_create"], "settings", &["null", "object"]),
    (&["queue_stats"], "queue", &["null"]),
];

/// What a message says instead of the name of an argument.
const SAID: &[(&str, &[&str])] = &[
    ("queue", &["queue name"]),
    ("queues", &["queue name"]),
    ("target", &["queue name"]),
    ("subject", &["document \""]),
    (
        "subjects",
        &["the subject exceeds", "none of the documents"],
    ),
    ("ordering_key", &["ordering key"]),
    ("docs", &["document 1 of the list"]),
    ("settings", &["setting \""]),
    ("filter", &["a filter"]),
];

/// SQLSTATEs of errors that say which argument is wrong.
const STATES: &[&str] = &[
    "21000", "22001", "22004", "22008", "22023", "2202E", "42602", "42P02", "55000",
];

/// The longest message, in bytes: a subject has up to 1,020. What a caller passes is not repeated at
/// full length.
const MESSAGE_MAX: usize = 1200;

/// Whether a call with this value is accepted.
fn is_accepted(function: &str, argument: &str, value: &str) -> bool {
    ACCEPTED.iter().any(|(functions, name, values)| {
        functions.contains(&function)
            && *name == argument
            && (*values == ANY || values.contains(&value))
    })
}

/// The values for a type.
fn values(ty: &Type, knows_infinity: bool) -> Vec<Given> {
    let list = match *ty {
        Type::TEXT => TEXTS,
        Type::INT4 => INTS,
        Type::INT8 => BIGINTS,
        Type::BOOL => BOOLEANS,
        Type::TIMESTAMPTZ => TIMES,
        Type::INTERVAL => INTERVALS,
        Type::JSONB => JSONS,
        Type::TEXT_ARRAY => TEXT_LISTS,
        Type::INT4_ARRAY => INT_LISTS,
        ref other => panic!("matrix.rs has no values of type {other}"),
    };
    let more = match *ty {
        Type::INTERVAL if knows_infinity => INFINITE,
        _ => &[],
    };
    list.iter().chain(more).copied().collect()
}

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
    if function.name == "doc_put" {
        // Only one of both may be given.
        let other = match function.arguments[at].name.as_str() {
            "delay" => "next_iteration",
            _ => "delay",
        };
        for (argument, value) in function.arguments.iter().zip(&mut valid) {
            // The other modes accept any payload.
            if argument.name == other || argument.name == "mode" {
                *value = Value::Null;
            }
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

/// What is wrong with an error for an argument.
fn complaints(error: &tokio_postgres::Error, argument: &str) -> Vec<String> {
    let error = error_of(error);
    let message = error.message();
    let said = SAID.iter().filter(|(name, _)| *name == argument);
    let mut names = said.flat_map(|(_, said)| said.iter().copied());
    let mut complaints = Vec::new();
    if !message.contains(argument) && !names.any(|name| message.contains(name)) {
        complaints.push("does not name the argument".to_owned());
    }
    if !STATES.contains(&error.code().code()) {
        complaints.push(format!("has SQLSTATE {}", error.code().code()));
    }
    if error.hint().is_none_or(str::is_empty) {
        complaints.push("has no hint".to_owned());
    }
    if message.len() > MESSAGE_MAX {
        complaints.push(format!("has {} bytes", message.len()));
    }
    complaints
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
    for function in functions(&session).await {
        // The form of the contract is another function.
        let is_contract = function.name == "queue_create" && function.arguments.len() == 1;
        if !FUNCTIONS.contains(&function.name.as_str()) || is_contract {
            continue;
        }
        for (at, argument) in function.arguments.iter().enumerate() {
            for (label, value) in values(&argument.ty, version >= 170_000) {
                *tried.entry(function.name.clone()).or_default() += 1;
                let case = format!("{}: {} is {label}", function.name, argument.name);
                let accepted = is_accepted(&function.name, &argument.name, label);
                match attempt(&session, &function, at, value).await {
                    None if accepted => {}
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
    let names: Vec<&str> = tried.keys().map(String::as_str).collect();
    let mut expected = FUNCTIONS.to_vec();
    expected.sort_unstable();
    assert_eq!(names, expected);
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
