//! The contract: which functions are calls of fetchq 4 only, as src/fetchq4/sql/ says, and what
//! tests/contract.json says of all others: a call that all drivers make, what NULL is, the unusual
//! values that are accepted, and whether a function only reads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value as Json};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::{Argument, Function, Session, Value};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Json {
    let text = std::fs::read_to_string(root().join(path)).expect(path);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

static CONTRACT: LazyLock<Json> = LazyLock::new(|| read("tests/contract.json"));

/// The functions that are declared in src/fetchq4/sql/.
static OF_FETCHQ4: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let folder = root().join("src/fetchq4/sql");
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("src/fetchq4/sql") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a script");
        for line in text.lines() {
            let declared = line.strip_prefix("create function fetchq.");
            names.extend(
                declared
                    .and_then(|rest| rest.split_once('('))
                    .map(|(name, _)| name.to_owned()),
            );
        }
    }
    assert!(names.len() > 30, "only {names:?}");
    names
});

/// Whether a function belongs to layer 5: it is not a call of fetchq 4 only.
pub fn is_layer5(name: &str) -> bool {
    !OF_FETCHQ4.contains(name)
}

/// Whether a function of layer 5 is a call of fetchq 4 too.
pub fn is_of_both(name: &str) -> bool {
    CONTRACT["calls"][name]["fetchq 4"] == true
}

/// Whether a function only reads though it is volatile.
pub fn only_reads(name: &str) -> bool {
    CONTRACT["calls"][name]["reads"] == true
}

/// The least right with which a call is not refused. None for a function without an entry.
pub fn needs(name: &str) -> Option<&'static str> {
    CONTRACT["calls"][name]["needs"].as_str()
}

/// What NULL is for an argument of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullIs {
    /// As if the argument was left out.
    Default,
    /// Refused as the default is, with this SQLSTATE.
    Refused(&'static str),
    /// A missing value.
    Missing,
}

/// What NULL is for an argument: what the contract says, else what the default says.
pub fn null_is(function: &Function, argument: &Argument) -> NullIs {
    match CONTRACT["calls"][&function.name]["null"][&argument.name].as_str() {
        Some("default") => NullIs::Default,
        Some("missing") => NullIs::Missing,
        Some(state) => NullIs::Refused(state),
        None if argument.has_null_default => NullIs::Default,
        None => NullIs::Missing,
    }
}

/// Whether a call with one of the values of bad_values/matrix/given.rs is accepted.
pub fn is_accepted(function: &Function, argument: &Argument, value: &str) -> bool {
    if value == "null" {
        return null_is(function, argument) == NullIs::Default;
    }
    let accepted = &CONTRACT["calls"][&function.name]["accepts"][&argument.name];
    match accepted.as_str() {
        Some("any") => true,
        Some(list) => texts(&CONTRACT["lists"][list]).iter().any(|v| v == value),
        None => texts(accepted).iter().any(|v| v == value),
    }
}

/// The functions and arguments with accepted values.
pub fn accepting() -> Vec<(String, String)> {
    let pairs = calls_json().flat_map(|(name, call)| {
        let arguments = call["accepts"].as_object().into_iter().flatten();
        arguments.map(|(argument, _)| (name.clone(), argument.clone()))
    });
    pairs.collect()
}

fn calls_json() -> impl Iterator<Item = (&'static String, &'static Json)> {
    CONTRACT["calls"].as_object().expect("calls").iter()
}

/// The value that the contract has for an argument of a function, as a parameter of its type. None
/// where it is read from a query, and for a function without an entry.
pub(crate) fn contract_value(function: &str, argument: &Argument) -> Option<Value> {
    let value = CONTRACT["calls"][function]["arguments"].get(&argument.name)?;
    match kind(value) {
        Some(("interval", seconds)) => Some(Value::Interval(seconds.as_i64()? * 1_000_000)),
        None if argument.ty == Type::INT8 && value.is_number() => value.as_i64().map(Value::Big),
        _ => constant(value),
    }
}

fn texts(json: &Json) -> Vec<String> {
    let list = json.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |item: &Json| item.as_str().expect("a text").to_owned();
    list.iter().map(text).collect()
}

/// A call of tests/contract.json.
pub struct Call {
    pub name: String,
    pub arguments: Map<String, Json>,
    pub before: Vec<String>,
    pub after: Vec<String>,
    /// How many rows it gives; None for any number.
    pub rows: Option<usize>,
    pub check: Option<String>,
    pub is_procedure: bool,
}

/// Returns all calls of tests/contract.json.
pub fn calls() -> Vec<Call> {
    let one = |(name, call): (&String, &Json)| Call {
        name: name.clone(),
        arguments: call["arguments"].as_object().expect("arguments").clone(),
        before: texts(&call["before"]),
        after: texts(&call["after"]),
        rows: match call.get("rows") {
            None => Some(1),
            Some(rows) => rows.as_u64().map(|n| n as usize),
        },
        check: call["check"].as_str().map(str::to_owned),
        is_procedure: call["procedure"] == true,
    };
    calls_json().map(one).collect()
}

/// Makes the documents that the calls need.
pub async fn prepare_calls(session: &Session) {
    for statement in texts(&CONTRACT["prepare"]) {
        session.sql(&statement).await;
    }
}

fn kind(json: &Json) -> Option<(&str, &Json)> {
    let (kind, content) = json.as_object()?.iter().next()?;
    Some((kind, content))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Call {
    /// The statement with `place(kind, n)` for the n-th argument, counted from 1.
    pub fn statement(&self, mut place: impl FnMut(&Json, usize) -> String) -> String {
        let arguments: Vec<String> = (self.arguments.iter().enumerate())
            .map(|(i, (name, value))| format!("{name} => {}", place(value, i + 1)))
            .collect();
        let verb = if self.is_procedure {
            "call"
        } else {
            "select * from"
        };
        format!("{verb} fetchq.{}({})", self.name, arguments.join(", "))
    }

    /// The statement for psql: with values as literals that have no type.
    pub fn with_literals(&self) -> String {
        self.statement(|value, _| match kind(value) {
            Some(("value of", query)) => format!("({})", query.as_str().expect("a query")),
            Some(("json", json)) => literal(&json.to_string()),
            Some(("jsons", list)) => {
                let list = list.as_array().expect("a list");
                let items: Vec<String> = list.iter().map(|v| v.to_string()).collect();
                literal(&array_of(&items))
            }
            Some(("interval", seconds)) => literal(&format!("{seconds} seconds")),
            Some((_, text)) => literal(text.as_str().expect("a text")),
            None => match value {
                Json::String(text) => literal(text),
                Json::Array(list) => {
                    let text = |v: &Json| v.as_str().map_or(v.to_string(), str::to_owned);
                    let items: Vec<String> = list.iter().map(text).collect();
                    literal(&array_of(&items))
                }
                other => other.to_string(),
            },
        })
    }

    /// Makes the call with the types that are natural for tokio-postgres, and returns its rows.
    ///
    /// This driver has no type for intervals and for regproc: it sends text, and the statement has
    /// a cast.
    pub async fn run(&self, client: &Client) -> Result<Vec<Row>, tokio_postgres::Error> {
        let sql = self.statement(|value, n| match kind(value) {
            Some(("interval", _)) => format!("${n}::text::interval"),
            Some(("function", _)) => format!("${n}::text::regproc"),
            _ => format!("${n}"),
        });
        let mut values = Vec::new();
        for value in self.arguments.values() {
            values.push(natural(client, value).await);
        }
        let params: Vec<_> = values
            .iter()
            .map(|v| v as &(dyn tokio_postgres::types::ToSql + Sync))
            .collect();
        client.query(&sql, &params).await
    }
}

fn array_of(items: &[String]) -> String {
    let quoted = |item: &String| format!("\"{}\"", item.replace('\\', "\\\\").replace('"', "\\\""));
    let items: Vec<String> = items.iter().map(quoted).collect();
    format!("{{{}}}", items.join(","))
}

async fn natural(client: &Client, value: &Json) -> Value {
    if let Some(("value of", query)) = kind(value) {
        let query = query.as_str().expect("a query");
        return Value::Big(client.query_one(query, &[]).await.expect(query).get(0));
    }
    constant(value).expect("a constant")
}

/// A value with a type that is natural for tokio-postgres. None for one that is read from a query.
fn constant(value: &Json) -> Option<Value> {
    Some(match kind(value) {
        Some(("value of", _)) => return None,
        Some(("json", json)) => Value::Json(json.clone()),
        Some(("jsons", list)) => Value::Jsons(list.as_array().expect("a list").clone()),
        Some(("interval", seconds)) => Value::Text(format!("{seconds} seconds")),
        Some(("time", time)) => {
            let time = DateTime::parse_from_rfc3339(time.as_str().expect("a time"));
            Value::Time(time.expect("a time").with_timezone(&Utc))
        }
        Some(("function", name)) => Value::text(name.as_str().expect("a name")),
        Some((other, _)) => panic!("tests/contract.json: unknown kind {other}"),
        None => match value {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => Value::Int(n.as_i64().expect("an integer") as i32),
            Json::String(text) => Value::text(text),
            Json::Array(list) if list.iter().all(Json::is_number) => {
                Value::Ints(list.iter().map(|n| n.as_i64().unwrap() as i32).collect())
            }
            _ => Value::Texts(texts(value)),
        },
    })
}
