//! Every function of the API, read from the catalog, and a valid value for each argument: one that fits
//! the queues of `prepare_queue`, or that of the contract.
//! A test that goes through all functions therefore cannot forget a new one.

use chrono::{TimeDelta, Utc};
use serde_json::json;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::calls::{contract_value, only_reads};
use crate::{Session, Value};

pub struct Argument {
    pub name: String,
    pub ty: Type,
    /// Its default is NULL.
    pub has_null_default: bool,
}

pub struct Function {
    pub oid: u32,
    pub name: String,
    pub arguments: Vec<Argument>,
    /// It only reads.
    pub reads: bool,
}

/// The lease number of the document `active` of `prepare_queue`, which `doc_pick` has picked.
const ACTIVE_LEASE: i64 = 8;

const FUNCTIONS: &str = "
    select p.oid, p.proname::text,
        coalesce((select array_agg(coalesce(p.proargnames[a.i], '') order by a.i)
            from generate_series(1, p.pronargs) a (i)), '{}'),
        p.proargtypes::oid[],
        coalesce((select array_agg(coalesce(pg_get_function_arg_default(p.oid, a.i) ~ '^NULL::', false) order by a.i)
            from generate_series(1, p.pronargs) a (i)), '{}'),
        p.provolatile <> 'v'
    from pg_proc p
    where p.pronamespace = 'fetchq'::regnamespace and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
    order by p.proname, p.pronargs, p.oid";

/// Returns all functions that can be called.
/// Trigger functions and procedures are left out; waiting.rs tests the procedures.
pub async fn functions(client: &Client) -> Vec<Function> {
    let mut functions = Vec::new();
    for row in client.query(FUNCTIONS, &[]).await.expect("pg_proc") {
        let names: Vec<String> = row.get(2);
        let types: Vec<u32> = row.get(3);
        let null_defaults: Vec<bool> = row.get(4);
        let arguments = (names.into_iter().zip(types).zip(null_defaults))
            .map(|((name, oid), has_null_default)| Argument {
                name,
                ty: Type::from_oid(oid).expect("a built-in type"),
                has_null_default,
            })
            .collect();
        let name: String = row.get(1);
        functions.push(Function {
            oid: row.get(0),
            reads: row.get(5) || only_reads(&name),
            name,
            arguments,
        });
    }
    assert!(
        functions.len() > 70,
        "only {} functions found",
        functions.len()
    );
    functions
}

impl Function {
    /// The form `name(type, type)`, for messages.
    pub fn signature(&self) -> String {
        let types: Vec<&str> = self.arguments.iter().map(|a| a.ty.name()).collect();
        format!("{}({})", self.name, types.join(", "))
    }

    /// Prepares the call, with a parameter of the declared type for every argument.
    pub async fn prepare(&self, client: &Client) -> Statement {
        self.prepare_as(client, |ty| ty.clone()).await
    }

    /// Prepares the call with other types than the declared ones.
    pub async fn prepare_as(&self, client: &Client, ty: impl Fn(&Type) -> Type) -> Statement {
        let types: Vec<Type> = self.arguments.iter().map(|a| ty(&a.ty)).collect();
        let places: Vec<String> = (1..=types.len()).map(|i| format!("${i}")).collect();
        let sql = format!("select * from fetchq.{}({})", self.name, places.join(", "));
        match client.prepare_typed(&sql, &types).await {
            Ok(statement) => statement,
            Err(e) => panic!("{sql} with {types:?}: {e:?}"),
        }
    }

    /// Runs a prepared call.
    pub async fn call(
        client: &Client,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<Row>, Error> {
        let params: Vec<_> = values
            .iter()
            .map(|v| v as &(dyn tokio_postgres::types::ToSql + Sync))
            .collect();
        client.query(statement, &params).await
    }

    /// Values for a call that succeeds on the queues of `prepare_queue`.
    pub fn valid(&self) -> Vec<Value> {
        self.arguments.iter().map(|a| self.valid_for(a)).collect()
    }

    fn valid_for(&self, argument: &Argument) -> Value {
        let settles = matches!(
            self.name.as_str(),
            "doc_complete"
                | "doc_kill"
                | "doc_drop"
                | "doc_reschedule"
                | "doc_reject"
                | "trace"
                | "log_error"
                | "doc_complete_many"
                | "doc_drop_many"
                | "doc_reschedule_many"
                | "doc_snooze"
                | "doc_extend"
                | "doc_cancel"
        );
        match (argument.name.as_str(), &argument.ty) {
            ("queue", _) => Value::text("q"),
            ("queues", _) => Value::texts(&["q"]),
            // The queue is here.
            ("place", _) => Value::text(""),
            ("subject", _) if settles => Value::text("active"),
            ("subject", _) if self.name == "doc_revive" => Value::text("killed"),
            ("subject", _) if self.name == "doc_set_due" || self.name == "doc_set_priority" => {
                Value::text("planned")
            }
            ("subject", _) => Value::text("new"),
            ("subjects", _) if settles => Value::texts(&["active", "nobody"]),
            ("subjects", _) => Value::texts(&["m1", "m2"]),
            ("payloads" | "results", _) => Value::Jsons(vec![json!({"a": 1}), json!([])]),
            ("docs", &Type::JSONB) => Value::Json(json!([
                {"subject": "m1", "payload": {"a": 1}, "version": 0, "priority": 5, "due_at": "2020-01-01"},
                {"subject": "m2"},
            ])),
            // The form for arguments without a type.
            ("payload", &Type::TEXT) => Value::text("{\"a\": 1}"),
            ("next_iteration", &Type::TEXT) => Value::text("2020-01-01"),
            ("payload" | "details" | "result" | "progress", _) => Value::Json(json!({"a": 1})),
            ("policy", _) => Value::Json(json!([{"retain": "minute", "from": "1h", "to": "0s"}])),
            ("metrics", &Type::TEXT_ARRAY) => Value::texts(&["cnt", "pnd"]),
            ("until", _) => Value::Time(Utc::now()),
            ("metrics", _) => Value::Json(json!(["cnt", "pnd"])),
            ("retention", _) if self.name == "queue_set_metrics_retention" => {
                Value::text(r#"[{"retain": "hour", "from": "1d", "to": "1h"}]"#)
            }
            ("extensions", _) => Value::Json(json!([
                {"subject": "active", "lease": ACTIVE_LEASE, "progress": {"a": 1}},
                {"subject": "nobody", "lease": ACTIVE_LEASE},
            ])),
            // NULL means any worker.
            ("lease", _) => Value::Null,
            // Not beside next_iteration.
            ("delay", _)
                if [
                    "doc_put",
                    "doc_reschedule",
                    "doc_snooze",
                    "doc_set_due",
                    "docs_set_due",
                ]
                .contains(&self.name.as_str()) =>
            {
                Value::Null
            }
            ("headers", _) => Value::Json(json!({"trace": "1"})),
            ("delay", &Type::INTERVAL) => Value::Interval(1_000_000),
            ("retention" | "older_than" | "delay", _) => Value::text("1h"),
            ("timeout", &Type::INTERVAL) => Value::Interval(1000),
            ("duration", &Type::INTERVAL) => Value::Interval(300_000_000),
            ("duration", _) => Value::text("5m"),
            ("documents", _) => {
                Value::text("('m1', 0, '{\"a\": 1}', {DATA}), ('m2', 5, '{}', {DATA})")
            }
            ("mode", _) => Value::text("merge,reset"),
            ("ordering_key", _) => Value::text("customer 1"),
            ("message", _) => Value::text("it's broken"),
            ("ref_id", _) => Value::text("ref"),
            ("metric", _) => Value::text("custom"),
            // A subject, and a position in a history.
            ("after", _) => Value::text("1-1"),
            ("table_name", _) => Value::text("fetchq_data.q__metrics"),
            ("field", _) => Value::text("created_at"),
            ("unit", _) => Value::text("minute"),
            ("from_time", _) => Value::Time(Utc::now() - TimeDelta::hours(1)),
            ("due_at" | "next_iteration" | "before" | "to_time", _) => {
                Value::Time(Utc::now() - TimeDelta::seconds(60))
            }
            ("version" | "priority" | "skip", _) => Value::Int(0),
            ("weights", _) => Value::Ints(vec![3]),
            ("value", &Type::JSONB) => Value::Json(json!(7)),
            ("max_docs" | "max_jobs" | "value" | "max_attempts" | "attempts", _) => Value::Int(7),
            ("id", _) => Value::Int(1),
            ("name", _) if self.name == "schedule_create" => Value::text("new"),
            ("name", _) => Value::text("nightly"),
            ("schedule", _) => Value::text("0 0 1 1 *"),
            ("starts_at" | "as_of", _) => Value::Time(Utc::now() - TimeDelta::seconds(60)),
            ("ends_at", _) => Value::Time(Utc::now() + TimeDelta::days(1000)),
            ("empty", _) => Value::Bool(true),
            ("role", _) => Value::text("pg_monitor"),
            ("kind", _) => Value::text("reader"),
            ("since", _) => Value::Time(Utc::now() - TimeDelta::days(1)),
            ("target", _) => Value::text("other"),
            // What is not settled is an error of docs_next unless the call says otherwise.
            ("settlements", _) if self.name.starts_with("docs_next") => {
                Value::Json(json!([{"subject": "active", "action": "complete"}]))
            }
            // One document is active, and the other one is not there.
            ("settlements", _) => Value::Json(json!([
                {"subject": "active", "action": "complete", "result": {"a": 1}},
                {"subject": "nobody", "action": "reject", "message": "m", "delay": "1 hour"},
            ])),
            ("on_lost", _) if self.name == "docs_settle" => Value::text("report"),
            ("on_lost", _) => Value::text("ignore"),
            ("settings", _) => Value::Json(json!({"max_attempts": 7, "retry": {"base": "10 s"}})),
            ("worker", _) => Value::text("worker 1"),
            ("binding", _) => Value::text("return"),
            ("filter", _)
                if ["queue_history", "queue_drop_history"].contains(&self.name.as_str()) =>
            {
                Value::Json(json!({"outcome": "dropped"}))
            }
            ("filter", _) => Value::Json(json!({"status": ["planned", "pending", "killed"]})),
            ("dry_run", _) => Value::Bool(false),
            // The value of the call that all drivers make.
            (name, _) => contract_value(&self.name, argument).unwrap_or_else(|| {
                panic!("{}: there is no valid value for {name}", self.signature())
            }),
        }
    }
}

/// Creates queue `other`, and queue `q` with a document in every state (`pending`, `planned`,
/// `active`, `completed`, `killed`), logs, snapshots, and a schedule. In this session,
/// settling a document that is not active is no error: calls are repeated, and lists have one such
/// document.
pub async fn prepare_queue(session: &Session) {
    session.sql("set fetchq.strict = off").await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.queue_create('other');
             select fetchq.doc_push('q', s) from unnest(array['active', 'completed', 'killed']) s;
             select fetchq.doc_pick('q', 0, 3, '1h');
             select fetchq.doc_complete('q', 'completed');
             select fetchq.doc_kill('q', 'killed');
             select fetchq.doc_push('q', 'pending', '{\"n\": 1}');
             select fetchq.doc_push('q', 'planned', '{\"n\": 2}', now() + interval '1 day');
             select fetchq.log_error('q', 'active', 'first try', '{\"why\": \"bad luck\"}', 'r1');
             select fetchq.metric_set('q', 'custom', 3);
             select fetchq.schedule_create('nightly', 'q', '0 0 1 1 *');
             update fetchq_data.q__docs set lease = 8 where subject = 'active';
             select fetchq.metric_snap('q')",
        )
        .await;
}
