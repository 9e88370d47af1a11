//! The adapter for the conformance suite: lines of JSON on stdin and stdout, and calls of the public API.
//!
//! The protocol is that of tests/conformance/README.md. Whatever stands here translates; nothing of it repairs.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fetchq_client::otel::{OpenTelemetry, read_trace};
use fetchq_client::testing::fake;
use fetchq_client::{
    Aborted, BoxError, Client, Context, Declare, Doc, Error, Handling, Interval, Kind, NextPut, On,
    Outcome, Plugin, Putting, Running, TASK_HEADER, Task, TokioPostgres, TxContext, Unique, Worker,
    describe,
};
use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{FutureExt, Link, SpanId, Status, TraceContextExt, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const CAPABILITIES: [&str; 19] = [
    "transactional",
    "rerun",
    "signals",
    "shared",
    "upcast",
    "unique",
    "sync",
    "step",
    "progress",
    "then",
    "redact",
    "middleware",
    "trace",
    "metrics",
    "health",
    "threads",
    "max_bytes",
    "weight",
    "polling",
];

fn send(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct AppError {
    kind: Option<String>,
    message: String,
}

#[derive(Debug, thiserror::Error)]
#[error("unsupported: {0}")]
struct Unsupported(String);

#[derive(Serialize, Deserialize)]
struct Payload {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upcast: Option<Vec<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    script: Option<Vec<Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scripts: Option<Vec<Vec<Value>>>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Task for Payload {
    const QUEUE: &'static str = "";

    fn upcast(from: u32, mut payload: Value) -> Value {
        let list = payload
            .get("upcast")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let list: Vec<Value> = list.into_iter().chain([json!(from + 1)]).collect();
        payload["upcast"] = list.into();
        payload
    }
}

impl Payload {
    fn script(&self, attempt: i64) -> Vec<Value> {
        match &self.scripts {
            Some(scripts) if !scripts.is_empty() => {
                scripts[(attempt.max(1) as usize).min(scripts.len()) - 1].clone()
            }
            _ => self.script.clone().unwrap_or_default(),
        }
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The seconds of an interval such as `"10 minutes"`, or a number.
fn duration(value: &Value) -> Option<Duration> {
    if let Some(seconds) = value.as_f64() {
        return Some(Duration::from_secs_f64(seconds));
    }
    let (number, unit) = value.as_str()?.split_once(' ')?;
    let unit = match unit.trim_end_matches('s') {
        "microsecond" => 1e-6,
        "millisecond" => 1e-3,
        "second" => 1.0,
        "minute" => 60.0,
        "hour" => 3600.0,
        "day" => 86400.0,
        _ => return None,
    };
    Some(Duration::from_secs_f64(number.parse::<f64>().ok()? * unit))
}

fn utf16(value: &Value) -> String {
    let units: Vec<u16> = value
        .as_array()
        .into_iter()
        .flatten()
        .map(|u| u.as_u64().unwrap_or(0) as u16)
        .collect();
    String::from_utf16_lossy(&units)
}

fn doc(fields: &Value) -> Doc {
    let mut doc = Doc::of(text(fields, "queue"), &fields["payload"]);
    if let Some(subject) = fields["subject"].as_str() {
        doc = doc.subject(subject);
    }
    if let Some(task) = fields["task"].as_str() {
        doc = doc.task(task);
    }
    for (key, value) in fields["options"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
    {
        let number = value.as_i64().unwrap_or(0);
        let word = value.as_str().unwrap_or_default();
        doc = match key.as_str() {
            "version" => doc.version(number as u32),
            "priority" => doc.priority(number as i32),
            "max_attempts" => doc.max_attempts(number as u32),
            "delay" => doc.delay(word),
            "at" => doc.at(word),
            "mode" => doc.mode(word),
            "ordering_key" => doc.ordering_key(word),
            "expires_in" => doc.expires_in(word),
            "headers" => doc.with_headers(value.as_object().cloned().unwrap_or_default()),
            "unique" => {
                let by = value["by"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str);
                let unique = Unique::by(by);
                doc.unique(match value["per"].as_str() {
                    Some(per) => unique.per(per),
                    None => unique,
                })
            }
            _ => doc,
        };
    }
    doc
}

/// The outcome that an operation ends with, or the error that it throws.
fn outcome(op: &Value) -> Result<Outcome, BoxError> {
    let delay = op["delay"].as_str();
    let message = text(op, "message");
    let mut given = match text(op, "op") {
        "complete" => Outcome::complete(&op["result"]),
        "snooze" => delay.map_or_else(Outcome::snooze_by_policy, Outcome::snooze),
        "reschedule" => Outcome::reschedule(delay.unwrap_or_default()),
        "reject" => Outcome::reject(message),
        "kill" => Outcome::kill(message),
        "drop" => Outcome::drop_document(),
        "invalid" => return Ok(Outcome::reschedule("-1 hour")),
        "throw" => {
            let units = &op["message_utf16"];
            let message = if units.is_array() {
                utf16(units)
            } else {
                message.to_owned()
            };
            return Err(AppError {
                kind: op["kind"].as_str().map(str::to_owned),
                message,
            }
            .into());
        }
        other => return Err(Unsupported(other.to_owned()).into()),
    };
    if let ("reject", Some(delay)) = (text(op, "op"), delay) {
        given = given.delay(delay);
    }
    if !op["payload"].is_null() {
        given = given.payload(&op["payload"]);
    }
    if !op["details"].is_null() {
        given = given.details(&op["details"]);
    }
    Ok(op["then"]
        .as_array()
        .into_iter()
        .flatten()
        .map(doc)
        .fold(given, Outcome::then))
}

fn error_of(error: &(dyn std::error::Error + 'static)) -> Value {
    let Some(own) = error.downcast_ref::<Error>() else {
        let code = if error.is::<Unsupported>() {
            "unsupported"
        } else {
            "other"
        };
        return json!({"code": code, "message": error.to_string()});
    };
    let code = match own {
        Error::Config(_) => "config",
        Error::Invalid(_) => "invalid",
        Error::Aborted(_) => "other",
        _ => kind(own.kind()),
    };
    let mut line = json!({"code": code, "message": own.to_string()});
    if let Some(state) = own.sqlstate() {
        line["sqlstate"] = state.into();
    }
    line
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Connection => "connection",
        Kind::Conflict => "conflict",
        Kind::Lost => "lost",
        Kind::Config => "config",
        Kind::Data => "data",
    }
}

/// The application could not begin its transaction.
fn unreached(error: sqlx::Error) -> Error {
    Error::Connection(error.to_string())
}

struct Middleware(String);

impl Middleware {
    fn line(&self, around: &str, at: &str, queue: &str, subject: &Value) {
        send(
            &json!({"event": "middleware", "name": self.0, "around": around, "at": at, "queue": queue, "subject": subject}),
        );
    }
}

impl Plugin for Middleware {
    fn put<'a>(&'a self, docs: Vec<Doc>, next: NextPut<'a>) -> Putting<'a> {
        let first = docs.first();
        let queue = first.map_or("", Doc::queue).to_owned();
        let subject = json!(first.and_then(Doc::given_subject));
        Box::pin(async move {
            self.line("put", "before", &queue, &subject);
            let done = next(docs).await;
            self.line("put", "after", &queue, &subject);
            done
        })
    }

    fn handle<'a>(&'a self, context: &'a Context, next: Handling<'a>) -> Handling<'a> {
        Box::pin(async move {
            let subject = context.subject().into();
            self.line("handle", "before", context.queue(), &subject);
            let result = next.await;
            self.line("handle", "after", context.queue(), &subject);
            result
        })
    }
}

/// Sends each span as an event.
#[derive(Debug)]
struct Spans;

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let id = |id: SpanId| (id != SpanId::INVALID).then(|| id.to_string());
            let link = |link: &Link| json!({"trace_id": link.span_context.trace_id().to_string(), "span_id": id(link.span_context.span_id())});
            let links: Vec<Value> = span.links.iter().map(link).collect();
            let attributes: Map<String, Value> = span
                .attributes
                .iter()
                .map(|one| (one.key.to_string(), one.value.to_string().into()))
                .collect();
            let status = match span.status {
                Status::Error { .. } => "error",
                Status::Ok => "ok",
                Status::Unset => "unset",
            };
            send(&json!({
                "event": "span", "name": span.name, "kind": format!("{:?}", span.span_kind).to_lowercase(),
                "trace_id": span.span_context.trace_id().to_string(), "span_id": id(span.span_context.span_id()),
                "parent_id": id(span.parent_span_id), "links": links, "attributes": attributes, "status": status,
            }));
        }
        Ok(())
    }
}

/// A provider whose spans are events.
fn provider() -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_simple_exporter(Spans)
        .build()
}

/// The trace context of a command.
fn trace_of(line: &Value) -> opentelemetry::Context {
    read_trace(line["context"].as_object().unwrap_or(&Map::new()))
}

/// Sends each line of the log as an event, with the fields of the spans around it.
struct Log(Arc<Mutex<HashMap<String, String>>>);

#[derive(Clone, Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0
            .insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::Id,
        context: LayerContext<'_, S>,
    ) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: LayerContext<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warn",
            tracing::Level::INFO => "info",
            _ => return,
        };
        if !event.metadata().target().starts_with("fetchq") {
            return;
        }
        let mut fields = Fields::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.0.extend(of_span.0.clone());
            }
        }
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let worker = fields
            .0
            .get("worker")
            .and_then(Value::as_str)
            .and_then(|name| lock(&self.0).get(name).cloned());
        send(
            &json!({"event": "log", "worker": worker, "level": level, "message": message, "fields": fields.0}),
        );
    }
}

#[derive(Default)]
struct Adapter {
    /// Puts are made with sqlx.
    with_sqlx: bool,
    pool: Mutex<Option<sqlx::PgPool>>,
    /// The queues whose spans are children of those of producers.
    children: Arc<Mutex<HashSet<String>>>,
    url: Mutex<String>,
    client: Mutex<Option<Client>>,
    workers: Mutex<HashMap<String, Running>>,
    handles: Arc<Mutex<HashMap<String, String>>>,
    gates: Mutex<HashMap<String, CancellationToken>>,
    redact: Mutex<bool>,
}

type Answer = Result<Value, BoxError>;

impl Adapter {
    fn gate(&self, name: &str) -> CancellationToken {
        lock(&self.gates)
            .entry(name.to_owned())
            .or_default()
            .clone()
    }

    fn client(&self) -> Result<Client, BoxError> {
        lock(&self.client)
            .clone()
            .ok_or_else(|| "not connected".into())
    }

    async fn answer(self: Arc<Self>, line: Value) {
        let answer = self.act(&line).await;
        match answer {
            Ok(ok) => send(&json!({"reply": line["id"], "ok": ok})),
            Err(error) => send(&json!({"reply": line["id"], "error": error_of(&*error)})),
        }
    }

    async fn act(self: &Arc<Self>, line: &Value) -> Answer {
        let (queue, subject) = (text(line, "queue"), text(line, "subject"));
        match text(line, "do") {
            "hello" => Ok(json!({
                "protocol": 1, "name": if self.with_sqlx { "rust-sqlx" } else { "rust-tokio-postgres" }, "pid": std::process::id(), "language": "Rust",
                "client": concat!("fetchq-client ", env!("CARGO_PKG_VERSION")), "driver": if self.with_sqlx { "tokio-postgres 0.7, and sqlx 0.9 for puts" } else { "tokio-postgres 0.7" },
                "capabilities": CAPABILITIES,
            })),
            "connect" => {
                *lock(&self.url) = text(line, "url").to_owned();
                *lock(&self.redact) = line["redact"].as_bool().unwrap_or(false);
                let driver = TokioPostgres::connect(
                    text(line, "url"),
                    line["pool"].as_u64().unwrap_or(10) as usize,
                )?;
                if self.with_sqlx {
                    let size = line["pool"].as_u64().unwrap_or(10) as u32;
                    let options = sqlx::postgres::PgPoolOptions::new().max_connections(size);
                    let mut url: sqlx::postgres::PgConnectOptions = text(line, "url").parse()?;
                    if line["pooled"] == true {
                        url = url.extra_float_digits(None); // PgBouncer refuses it.
                    }
                    *lock(&self.pool) = Some(options.connect_lazy_with(url));
                }
                let mut client = Client::new(driver);
                if line["trace"] == true {
                    let children = Arc::clone(&self.children);
                    client = client.with(
                        OpenTelemetry::with_tracer(provider().tracer("fetchq"))
                            .child_if(move |context| lock(&children).contains(context.queue())),
                    );
                }
                for name in line["middleware"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                {
                    client = client.with(Middleware(name.to_owned()));
                }
                *lock(&self.client) = Some(client);
                Ok(json!({}))
            }
            "put" => self.put(line).with_context(trace_of(line)).await,
            "put_many" => {
                let docs = line["docs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(doc)
                    .collect();
                let puts = self.client()?.put_many(docs).await?;
                let puts: Vec<Value> = puts
                    .iter()
                    .map(|p| json!({"subject": p.subject, "action": p.action}))
                    .collect();
                Ok(json!({"puts": puts}))
            }
            "cancel" => {
                let done = self.client()?.cancel(queue, subject).await?;
                Ok(json!({"cancelled": done.was_cancelled, "status": done.status}))
            }
            "get" => Ok(match self.client()?.get(queue, subject).await? {
                None => json!({"doc": null}),
                Some(doc) => json!({"doc": {
                    "subject": doc.subject, "status": doc.status, "attempts": doc.attempts, "payload": doc.payload,
                    "result": doc.result, "last_error": doc.last_error,
                }}),
            }),
            "wait" => {
                let timeout = Duration::from_secs_f64(line["timeout"].as_f64().unwrap_or(30.0));
                let done = self.client()?.wait(queue, subject, timeout).await?;
                Ok(json!({"status": done.status, "result": done.result, "message": done.message}))
            }
            "sync" => self.sync(line).await,
            "start" => self.start(line).await,
            "open" => {
                self.gate(text(line, "gate")).cancel();
                Ok(json!({}))
            }
            "vector" => vector(line).await,
            "crash" => crash().await,
            "exit" => {
                self.exit().await;
                Ok(json!({}))
            }
            what @ ("stop" | "health" | "metrics") => {
                let worker = lock(&self.workers).get(text(line, "worker")).cloned();
                let worker = worker.ok_or_else(|| Unsupported("no such worker".into()))?;
                Ok(match what {
                    "stop" if line["now"] == true => {
                        worker.stop_now();
                        json!({})
                    }
                    "stop" => {
                        worker.stop();
                        json!({})
                    }
                    "health" => {
                        let health = worker.health();
                        json!({"ok": health.ok, "database": health.database, "loops": health.loops,
                            "heartbeat_age": health.heartbeat_age})
                    }
                    _ => {
                        let m = worker.metrics();
                        json!({"settled": m.settled, "lost": m.lost, "stuck": m.stuck, "slots_used": m.slots_used,
                            "slots": m.slots, "handled": m.handled, "handler_seconds": m.handler_seconds,
                            "heartbeat_lag": m.heartbeat_lag, "calls": m.calls})
                    }
                })
            }
            other => Err(Unsupported(other.to_owned()).into()),
        }
    }

    async fn put(&self, line: &Value) -> Answer {
        let client = self.client()?;
        let tx = &line["tx"];
        let (sql, commits) = (tx["sql"].as_str(), tx["end"] != "rollback");
        let pool = lock(&self.pool).clone();
        let done = if let Some(pool) = pool {
            let mut transaction = pool.begin().await.map_err(unreached)?;
            if let Some(sql) = sql {
                let sql = sqlx::AssertSqlSafe(sql.to_owned());
                sqlx::raw_sql(sql).execute(&mut *transaction).await?;
            }
            let done = client.put_doc(doc(line)).tx(&mut transaction).await?;
            if commits {
                transaction.commit().await?
            } else {
                transaction.rollback().await?
            }
            done
        } else if tx.is_null() {
            client.put_doc(doc(line)).await?
        } else {
            let url = lock(&self.url).clone();
            let (mut conn, connection) =
                tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            let transaction = conn.transaction().await?;
            if let Some(sql) = sql {
                transaction.batch_execute(sql).await?;
            }
            let done = client.put_doc(doc(line)).tx(&transaction).await?;
            if commits {
                transaction.commit().await?
            } else {
                transaction.rollback().await?
            }
            done
        };
        Ok(json!({"subject": done.subject, "action": done.action}))
    }

    async fn sync(&self, line: &Value) -> Answer {
        let names: Vec<&str> = ["queues", "schedules"]
            .iter()
            .flat_map(|key| {
                line[*key]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name.as_str())
            })
            .collect();
        let mut declare = Declare::owner(format!("of {}", names.join(" ")));
        for (name, settings) in line["queues"].as_object().into_iter().flatten() {
            declare = declare.queue(name, settings.clone());
        }
        for (name, schedule) in line["schedules"].as_object().into_iter().flatten() {
            let zone = schedule["timezone"].as_str().unwrap_or("UTC");
            declare = declare.schedule(
                name,
                text(schedule, "cron"),
                zone,
                &doc(schedule),
                Value::Null,
            );
        }
        self.client()?.sync(&declare).await?;
        Ok(json!({}))
    }

    async fn start(self: &Arc<Self>, line: &Value) -> Answer {
        let handle = text(line, "worker").to_owned();
        let mut worker = Worker::new(self.client()?);
        if let Some(name) = line["name"].as_str() {
            worker = worker.name(name);
        }
        if let Some(concurrency) = line["concurrency"].as_u64() {
            worker = worker.concurrency(concurrency as usize);
        }
        if let Some(grace) = duration(&line["grace"]) {
            worker = worker.grace(grace);
        }
        if let Some(time) = duration(&line["stuck_after"]) {
            worker = worker.stuck_after(time);
        }
        if let Some(bytes) = line["max_bytes"].as_u64() {
            worker = worker.max_bytes(bytes as usize);
        }
        if line["polling"] == true {
            worker = worker.polling(Duration::from_millis(200));
        }
        if *lock(&self.redact) {
            worker = worker.redact(|text| text.replace("secret", "***"));
        }
        for task in line["tasks"].as_array().into_iter().flatten() {
            let on = on(task);
            if task["trace_child"] == true {
                lock(&self.children).insert(text(task, "queue").to_owned());
            }
            let (me, name) = (Arc::clone(self), handle.clone());
            worker = if task["transactional"] == true {
                worker.handle_tx(
                    move |payload: Payload, ctx: TxContext| {
                        let (me, name) = (Arc::clone(&me), name.clone());
                        async move { me.handle(&name, payload, &ctx, Some(ctx.tx())).await }
                    },
                    on,
                )
            } else {
                worker.handle(
                    move |payload: Payload, ctx: Context| {
                        let (me, name) = (Arc::clone(&me), name.clone());
                        async move { me.handle(&name, payload, &ctx, None).await }
                    },
                    on,
                )
            };
        }
        lock(&self.handles).insert(worker.given_name().to_owned(), handle.clone());
        let running = worker.start().await?;
        lock(&self.workers).insert(handle.clone(), running.clone());
        let signals = line["signals"] == true;
        tokio::spawn(async move {
            let ended = if signals {
                running.stop_on_signals().await
            } else {
                running.join().await
            };
            let error = ended.err().map(|error| error_of(&error));
            send(&json!({"event": "stopped", "worker": handle, "error": error}));
        });
        Ok(json!({}))
    }

    async fn exit(&self) {
        let workers: Vec<Running> = lock(&self.workers).values().cloned().collect();
        workers
            .iter()
            .for_each(|worker| worker.stop_within(Duration::ZERO));
        for worker in workers {
            let _ = tokio::time::timeout(Duration::from_secs(10), worker.join()).await;
        }
        std::process::exit(0);
    }

    async fn handle(
        &self,
        worker: &str,
        payload: Payload,
        ctx: &Context,
        tx: Option<&tokio_postgres::Client>,
    ) -> Result<Outcome, BoxError> {
        let at = json!({"worker": worker, "queue": ctx.queue(), "subject": ctx.subject(), "attempt": ctx.attempt(),
            "lease": ctx.lease().to_string()});
        let event = |more: Value| {
            let mut line = at.clone();
            for (key, value) in more.as_object().into_iter().flatten() {
                line[key] = value.clone();
            }
            send(&line);
        };
        event(
            json!({"event": "began", "task": ctx.task(), "version": ctx.version(), "payload": payload,
            "headers": ctx.headers(), "progress": ctx.stored()}),
        );
        let mut result = Ok(None);
        for op in payload.script(ctx.attempt()) {
            result = self.operate(&op, ctx, tx, &event).await;
            if !matches!(result, Ok(None)) {
                break;
            }
        }
        let how = match &result {
            Ok(_) => "returned",
            Err(error) if error.is::<Aborted>() => "aborted",
            Err(_) => "raised",
        };
        event(json!({"event": "ended", "how": how}));
        result.map(|outcome| outcome.unwrap_or_else(Outcome::done))
    }

    async fn operate(
        &self,
        op: &Value,
        ctx: &Context,
        tx: Option<&tokio_postgres::Client>,
        event: &(dyn Fn(Value) + Send + Sync),
    ) -> Result<Option<Outcome>, BoxError> {
        let seconds = Duration::from_secs_f64(op["seconds"].as_f64().unwrap_or(0.0));
        match text(op, "op") {
            what @ ("sleep" | "gate") => {
                let gate = self.gate(text(op, "gate"));
                let waiting = async {
                    if what == "sleep" {
                        tokio::time::sleep(seconds).await
                    } else {
                        gate.cancelled().await
                    }
                };
                tokio::pin!(waiting);
                let why = tokio::select! {
                    () = &mut waiting => return Ok(None),
                    why = ctx.stopped() => why,
                };
                event(json!({"event": "aborted", "reason": why.0.to_string()}));
                match op["on_abort"].as_str().unwrap_or("raise") {
                    "raise" => return Err(why.into()),
                    "complete" => {
                        return Ok(Some(Outcome::complete(
                            json!({"aborted": why.0.to_string()}),
                        )));
                    }
                    "throw" => {
                        return Err(AppError {
                            kind: None,
                            message: "failed while stopping".into(),
                        }
                        .into());
                    }
                    _ => waiting.await,
                }
            }
            "block" => {
                let end = Instant::now() + seconds;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            }
            "step" => {
                let mut ran = false;
                let work = || {
                    ran = true;
                    std::future::ready(Ok::<Value, BoxError>(op["value"].clone()))
                };
                let value: Value = ctx.step(text(op, "name"), work).await?;
                event(json!({"event": "step", "name": op["name"], "ran": ran, "value": value}));
            }
            "progress" => ctx.progress(&op["value"])?,
            "log" => tracing::info!(target: "fetchq", "{}", text(op, "message")),
            "sql" => {
                tx.ok_or("there is no transaction")?
                    .batch_execute(text(op, "sql"))
                    .await?
            }
            "put" => {
                let client = self.client()?;
                let put = client.put_doc(doc(op));
                match tx {
                    Some(tx) => put.tx(tx).await?,
                    None => put.await?,
                };
            }
            "hold" => {
                let client = self.client()?;
                let mut held = Vec::new();
                for _ in 0..op["connections"].as_u64().unwrap_or(0) {
                    let get = client.driver().pool().get();
                    if let Ok(Ok(one)) = tokio::time::timeout(Duration::from_secs(5), get).await {
                        held.push(one);
                    }
                }
                event(json!({"event": "held", "connections": held.len()}));
                self.gate(text(op, "gate")).cancelled().await;
            }
            "crash" => {
                crash().await?;
            }
            _ => return outcome(op).map(Some),
        }
        Ok(None)
    }
}

fn on(task: &Value) -> On {
    let version = task["version"].as_u64().unwrap_or(0) as u32;
    let oldest = if task["upcast"] == true { 0 } else { version };
    let mut on = On::new()
        .queue(text(task, "queue"))
        .versions(oldest, version);
    if let Some(name) = task["task"].as_str() {
        on = on.name(name);
    }
    if let Some(concurrency) = task["concurrency"].as_u64() {
        on = on.concurrency(concurrency as usize);
    }
    if let Some(weight) = task["weight"].as_u64() {
        on = on.weight(weight as usize);
    }
    if let Some(lease) = task["lease"].as_str() {
        on = on.lease(lease);
    }
    if let Some(timeout) = duration(&task["timeout"]) {
        on = on.timeout(timeout);
    }
    if task["rerun"] == true {
        on = on.conflicts(5);
    }
    if task["poison"] == "kill" {
        on = on.kill_invalid();
    }
    let rules = task["retry"].as_array().cloned().unwrap_or_default();
    on.retry(move |error, _| {
        let kind = error.downcast_ref::<AppError>()?.kind.as_deref()?;
        let rule = rules.iter().find(|rule| rule["kind"] == kind)?;
        let mut rule = rule.clone();
        if rule["op"] == "throw" {
            rule["op"] = "reject".into();
        }
        outcome(&rule).ok()
    })
}

async fn vector(line: &Value) -> Answer {
    let output = match text(line, "kind") {
        "message" if line["input_utf16"].is_array() => {
            describe(&utf16(&line["input_utf16"])).into()
        }
        "message" => {
            let unit = &line["input_repeat"][0];
            let one = if unit.is_array() {
                utf16(unit)
            } else {
                utf16(&json!([unit]))
            };
            describe(&one.repeat(line["input_repeat"][1].as_u64().unwrap_or(0) as usize)).into()
        }
        "interval" => {
            let seconds = line["seconds"].as_f64().unwrap_or(0.0);
            Interval::from(Duration::from_secs_f64(seconds))
                .as_str()
                .into()
        }
        "headers" => {
            let fields = json!({"queue": "q", "task": line["task"], "options": {"headers": line["headers"]}});
            let (client, recorded) = fake()?;
            let client = match line["context"].is_null() {
                true => client,
                false => client.with(OpenTelemetry::with_tracer(provider().tracer("fetchq"))),
            };
            client
                .put_doc(doc(&fields))
                .into_future()
                .with_context(trace_of(line))
                .await?;
            let docs = recorded.docs();
            Value::Object(docs.first().map(Doc::headers).unwrap_or_default())
        }
        "consumer" => {
            let headers = line["headers"].as_object().cloned().unwrap_or_default();
            let task = headers.get(TASK_HEADER).and_then(Value::as_str);
            let trace = read_trace(&headers);
            let span = trace.span().span_context().clone();
            let valid = |id: String| span.is_valid().then_some(id);
            let baggage: Vec<String> = trace
                .baggage()
                .iter()
                .map(|(key, (value, _))| format!("{key}={}", value.as_str()))
                .collect();
            json!({"task": task, "trace_id": valid(span.trace_id().to_string()),
                "span_id": valid(span.span_id().to_string()),
                "baggage": (!baggage.is_empty()).then(|| baggage.join(","))})
        }
        "retry" => kind(Kind::of(text(line, "sqlstate"), line["routine"].as_str())).into(),
        other => return Err(Unsupported(other.to_owned()).into()),
    };
    Ok(json!({"output": output}))
}

/// Ends this process by SIGKILL.
async fn crash() -> Answer {
    std::process::Command::new("kill")
        .args(["-9", &std::process::id().to_string()])
        .status()?;
    std::future::pending().await
}

#[tokio::main(flavor = "multi_thread", worker_threads = 16)]
async fn main() {
    let adapter = Arc::new(Adapter {
        with_sqlx: std::env::args().nth(1).as_deref() == Some("sqlx"),
        ..Adapter::default()
    });
    let subscriber = tracing_subscriber::registry().with(Log(Arc::clone(&adapter.handles)));
    let _ = tracing::subscriber::set_global_default(subscriber);
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Ok(line) = serde_json::from_str::<Value>(&line) {
                let _ = sender.send(line);
            }
        }
    });
    while let Some(line) = lines.recv().await {
        tokio::spawn(Arc::clone(&adapter).answer(line));
    }
    adapter.exit().await;
}
