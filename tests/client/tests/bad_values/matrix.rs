//! Each argument of each function of fetchq 5 with each value of its type that a caller can get
//! wrong. A call either fails with an error that names the argument, or is listed here as one that
//! is accepted.

use std::collections::{BTreeMap, HashSet};

use fetchq_client_tests::{
    Argument, Database, Function, Layers, NullIs, Server, Session, Value, counters_are_exact,
    error_of, functions, null_is, prepare_queue,
};
use serde_json::json;
use tokio_postgres::types::{ToSql, Type};

/// A value, by the name that `ACCEPTED` has for it, and as SQL. `{known}` is a queue or a subject
/// that exists.
type Given = (&'static str, &'static str);

const TEXTS: &[Given] = &[
    ("null", "null"),
    ("empty", "''"),
    ("control", "E'a\\nb'"),
    ("255 letters", "repeat('🙂', 255)"),
    ("256 letters", "repeat('🙂', 256)"),
    ("odd letters", "U&'\\202E\\0301\\FEFF\\200D%\\\\''\"'"),
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

const JSON_LISTS: &[Given] = &[
    ("null", "null"),
    ("empty", "'{}'"),
    ("with null", "'{null}'"),
    ("one", "array['{}'::jsonb]"),
    ("two", "array['{}', '[]']::jsonb[]"),
    ("two dimensions", "array[array['{}', '{}']]::jsonb[]"),
    ("1 MB", "array[(select to_jsonb(x) from big)]"),
    ("100,000", "array_fill('{}'::jsonb, array[100000])"),
];

const FLOATS: &[Given] = &[
    ("null", "null"),
    ("0", "0"),
    ("negative", "-1"),
    ("NaN", "'NaN'"),
    ("infinity", "'infinity'"),
];

/// All values of an argument.
const ANY: &[&str] = &["*"];

/// Any text, also one of a megabyte.
const ANY_TEXT: &[&str] = ANY;

/// Any text of up to 255 letters.
const SHORT_TEXT: &[&str] = &["empty", "control", "255 letters", "odd letters"];

/// A text that is up to 8 kB long.
const MESSAGE: &[&str] = &[
    "empty",
    "control",
    "255 letters",
    "256 letters",
    "odd letters",
];

/// What is accepted: functions, an argument, and values. `optional.rs` says where NULL is.
const ACCEPTED: &[(&[&str], &str, &[&str])] = &[
    // Payloads and the like are any JSON.
    (
        &[
            "doc_put",
            "doc_append",
            "doc_complete",
            "doc_kill",
            "doc_reschedule",
            "schedule_create",
        ],
        "payload",
        ANY,
    ),
    (&["doc_complete"], "result", ANY),
    (&["doc_extend"], "progress", ANY),
    (&["doc_reject", "doc_kill", "log_error"], "details", ANY),
    (
        &["doc_append_many"],
        "payloads",
        &["empty", "with null", "one", "two", "1 MB", "100,000"],
    ),
    (
        &["doc_complete_many", "doc_reschedule_many"],
        "payloads",
        &["with null", "one", "1 MB"],
    ),
    (
        &["doc_complete_many"],
        "results",
        &["with null", "one", "1 MB"],
    ),
    (
        &["doc_put", "doc_append", "schedule_create"],
        "headers",
        &["object", "unknown key", "1 MB key"],
    ),
    // A document is due at any time, and belongs to any version.
    (
        &[
            "doc_put",
            "doc_reschedule",
            "doc_reschedule_many",
            "doc_revive",
            "doc_snooze",
        ],
        "next_iteration",
        ANY,
    ),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_append_many",
            "doc_lease",
            "doc_lease_any",
            "doc_pop",
            "docs_next",
            "schedule_create",
        ],
        "version",
        ANY,
    ),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_append_many",
            "doc_set_priority",
            "docs_set_priority",
            "schedule_create",
        ],
        "priority",
        ANY,
    ),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_reject",
            "doc_reschedule",
            "doc_snooze",
            "doc_set_due",
            "docs_set_due",
        ],
        "delay",
        &["zero"],
    ),
    // A subject is any text that is short enough; reading one that does not exist gives no row.
    (
        &[
            "doc_put",
            "doc_get",
            "doc_errors",
            "doc_cancel",
            "log_error",
            "trace",
        ],
        "subject",
        SHORT_TEXT,
    ),
    (&["doc_put", "doc_append"], "ordering_key", SHORT_TEXT),
    (&["doc_put", "doc_append"], "max_attempts", &["greatest"]),
    (
        &["doc_put_many"],
        "docs",
        &["list", "duplicates", "list of 100,000"],
    ),
    (
        &["docs_settle", "docs_next"],
        "settlements",
        &["list", "100,000"],
    ),
    (
        &[
            "doc_lease",
            "doc_lease_any",
            "doc_pop",
            "docs_next",
            "docs_list",
            "doc_errors",
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
            "docs_set_due",
            "lease_list",
            "queue_history",
            "mnt_run",
            "mnt_run_all",
            "queue_redrive",
            "queue_trim_history",
        ],
        "max_docs",
        &["0", "greatest"],
    ),
    (
        &["schedule_run", "schedule_run_at"],
        "max_schedules",
        &["0", "greatest"],
    ),
    (&["schedule_preview"], "n", &["0", "greatest"]),
    (
        &[
            "doc_lease",
            "doc_lease_any",
            "docs_next",
            "lease_extend",
            "doc_extend",
        ],
        "duration",
        &["zero"],
    ),
    (&["schedule_create"], "jitter", &["zero"]),
    (
        &["doc_lease", "doc_lease_any", "docs_next"],
        "worker",
        &["control", "odd letters"],
    ),
    (
        &["worker_release", "worker_stop", "worker_stop_requested"],
        "name",
        &["control", "odd letters"],
    ),
    (&["worker_stop_requested", "metric_history"], "since", ANY),
    (&["metric_history"], "until", ANY),
    (
        &["metric_history"],
        "metrics",
        &["empty", "duplicates", "100,000"],
    ),
    (
        &["doc_set_due", "docs_set_due"],
        "next_iteration",
        &["infinity", "-infinity"],
    ),
    // Leases of a list that is empty: nothing is to be done.
    (
        &["doc_complete_many", "doc_drop_many", "doc_reschedule_many"],
        "subjects",
        &["empty"],
    ),
    (&["lease_extend"], "subjects", &["duplicates"]),
    (
        &[
            "docs_list",
            "docs_retry",
            "docs_set_priority",
            "queue_history",
            "queue_redrive",
        ],
        "filter",
        &["object"],
    ),
    // Where a page begins is any text.
    (&["docs_list", "lease_list"], "after", ANY_TEXT),
    (&["doc_reject", "doc_kill", "log_error"], "message", MESSAGE),
    (&["doc_reject", "log_error"], "ref_id", ANY_TEXT),
    (
        &["queue_configure", "queue_create"],
        "settings",
        &["object"],
    ),
    (
        &["queue_default_is_valid"],
        "value",
        &["JSON null", "number"],
    ),
    (&["schedule_create"], "name", &["odd letters"]),
    (&["schedule_create"], "starts_at", &["-infinity"]),
    (&["schedule_create"], "ends_at", &["infinity"]),
    (&["queue_place_set"], "place", &["empty", "odd letters"]),
    // There is none to drop.
    (&["schedule_drop"], "name", ANY_TEXT),
    (&["schedule_preview"], "from_time", ANY),
    (&["schedule_run_at"], "as_of", ANY),
];

/// What a message says instead of the name of an argument.
const SAID: &[(&str, &[&str])] = &[
    ("queue", &["queue name"]),
    ("queues", &["queue name"]),
    ("target", &["queue name"]),
    ("subject", &["document \""]),
    (
        "subjects",
        &[
            "the subject exceeds",
            "none of the documents",
            "are not active",
        ],
    ),
    ("ordering_key", &["ordering key"]),
    ("metrics", &["metric name"]),
    ("docs", &["document 1 of the list"]),
    ("settings", &["setting \""]),
    ("settlements", &["settlement "]),
    ("role", &["role \""]),
    ("schedule", &["neither a cron expression nor an interval"]),
    ("timezone", &["time zone"]),
    ("starts_at", &["never ticks"]),
    ("ends_at", &["never ticks"]),
    ("name", &["schedule \""]),
    ("filter", &["a filter"]),
];

/// SQLSTATEs of errors that say which argument is wrong.
const STATES: &[&str] = &[
    "21000", "22001", "22004", "22007", "22008", "22023", "2202E", "42602", "42704", "42P02",
    "55000",
];

/// The longest message, in bytes: a subject has up to 1,020. What a caller passes is not repeated at
/// full length.
const MESSAGE_MAX: usize = 1200;

/// Whether a call with this value is accepted.
fn is_accepted(function: &str, argument: &str, value: &str) -> bool {
    if value == "null" {
        return null_is(function, argument) == NullIs::Default;
    }
    ACCEPTED.iter().any(|(functions, name, values)| {
        functions.contains(&function)
            && *name == argument
            && (*values == ANY || values.contains(&value))
    })
}

const SETTLEMENTS: &[Given] = &[
    (
        "100,000",
        "(select jsonb_agg(s || '{\"action\": \"drop\"}') from big, jsonb_array_elements(docs) s)",
    ),
    (
        "the same twice",
        "'[{\"subject\": \"active\", \"action\": \"drop\"}, {\"subject\": \"active\", \"action\": \"kill\"}]'",
    ),
    (
        "negative delay",
        "'[{\"subject\": \"active\", \"action\": \"snooze\", \"delay\": \"-1s\"}]'",
    ),
    (
        "delay that is too long",
        "'[{\"subject\": \"active\", \"action\": \"snooze\", \"delay\": \"178000000 years\"}]'",
    ),
    (
        "unknown key of one",
        "'[{\"subject\": \"active\", \"action\": \"drop\", \"nope\": 1}]'",
    ),
    (
        "256 letters",
        "jsonb_build_array(jsonb_build_object('subject', repeat('🙂', 256), 'action', 'drop'))",
    ),
    (
        "1 MB message",
        "(select jsonb_build_array(jsonb_build_object('subject', 'active', 'action', 'reject', 'message', x)) from big)",
    ),
];

/// The values for an argument.
fn values(argument: &Argument, knows_infinity: bool) -> Vec<Given> {
    let ty = &argument.ty;
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
        Type::JSONB_ARRAY => JSON_LISTS,
        Type::FLOAT8 => FLOATS,
        ref other => panic!("matrix.rs has no values of type {other}"),
    };
    let more = match *ty {
        Type::INTERVAL if knows_infinity => INFINITE,
        Type::JSONB if argument.name == "settlements" => SETTLEMENTS,
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
    let is_delay = function.arguments[at].name == "delay" && value != "null";
    for (argument, value) in function.arguments.iter().zip(&mut valid) {
        match argument.name.as_str() {
            // Only one of both may be given, and one must be.
            "next_iteration" if is_delay => *value = Value::Null,
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
    let mut used = HashSet::new();
    let layers = Layers::read();
    for function in functions(&session).await {
        if !layers.is_layer5(&function.name) {
            continue;
        }
        for (at, argument) in function.arguments.iter().enumerate() {
            for (label, value) in values(argument, version >= 170_000) {
                *tried.entry(function.name.clone()).or_default() += 1;
                let case = format!("{}: {} is {label}", function.name, argument.name);
                let accepted = is_accepted(&function.name, &argument.name, label);
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
    let unused = ACCEPTED.iter().flat_map(|(functions, argument, _)| {
        let of = |function: &&str| ((*function).to_owned(), (*argument).to_owned());
        functions.iter().map(of).filter(|pair| !used.contains(pair))
    });
    let unused: Vec<_> = unused.collect();
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
    let layers = Layers::read();
    let mut wrong = Vec::new();
    for function in functions(&session).await {
        if !layers.is_layer5(&function.name) {
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
