//! The layers of the functions, and a call of each function of layer 5 as tests/calls.json describes
//! it. All drivers make these calls.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde_json::{Map, Value as Json};
use tokio_postgres::{Client, Row};

use crate::{Session, Value};

/// Which functions are compatible calls; all others belong to layer 5.
pub struct Layers {
    pub compatible: Vec<String>,
    /// Compatible calls that belong to layer 5 too.
    pub both: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Json {
    let text = std::fs::read_to_string(root().join(path)).expect(path);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn texts(json: &Json) -> Vec<String> {
    let list = json.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |item: &Json| item.as_str().expect("a text").to_owned();
    list.iter().map(text).collect()
}

impl Layers {
    pub fn read() -> Self {
        let json = read("src/sql/fetchq4.json");
        Self {
            compatible: texts(&json["compatible"]),
            both: texts(&json["both"]),
        }
    }

    /// Whether a function belongs to layer 5.
    pub fn is_layer5(&self, name: &str) -> bool {
        !self.compatible.iter().any(|n| n == name)
    }
}

/// A call of tests/calls.json.
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

/// Returns all calls of tests/calls.json.
pub fn calls() -> Vec<Call> {
    let json = read("tests/calls.json");
    let calls = json["calls"].as_object().expect("calls");
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
    calls.iter().map(one).collect()
}

/// Makes the documents that the calls need.
pub async fn prepare_calls(session: &Session) {
    for statement in texts(&read("tests/calls.json")["prepare"]) {
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
    match kind(value) {
        Some(("value of", query)) => {
            let query = query.as_str().expect("a query");
            Value::Big(client.query_one(query, &[]).await.expect(query).get(0))
        }
        Some(("json", json)) => Value::Json(json.clone()),
        Some(("jsons", list)) => Value::Jsons(list.as_array().expect("a list").clone()),
        Some(("interval", seconds)) => Value::Text(format!("{seconds} seconds")),
        Some(("time", time)) => {
            let time = DateTime::parse_from_rfc3339(time.as_str().expect("a time"));
            Value::Time(time.expect("a time").with_timezone(&Utc))
        }
        Some(("function", name)) => Value::text(name.as_str().expect("a name")),
        Some((other, _)) => panic!("tests/calls.json: unknown kind {other}"),
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
    }
}
