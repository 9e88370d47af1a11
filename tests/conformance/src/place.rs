//! Where a scenario happens: its queue, the server, and what stands between it and the adapter.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fetchq_client_tests::{Cluster, Database, Pooler, Server, Session};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::adapter::{Adapter, Definition, patience};
use crate::log::Log;
use crate::proxy::Proxy;

const DATABASE: &str = "postgres";
/// The servers trust everybody; PgBouncer wants a password.
const PASSWORD: &str = "conformance";

/// A server of the driver, which adapters reach by TCP.
pub struct Host {
    pub cluster: Cluster,
    pub port: u16,
    pub db: Database,
}

impl Host {
    /// Starts a server with the extension and its background worker.
    pub async fn start(name: &str, settings: &str) -> Self {
        Self::of(name, settings, Cluster::new).await
    }

    async fn of(name: &str, settings: &str, cluster: fn(&str, &str) -> Cluster) -> Self {
        let port = free_port();
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nmax_connections = 400\nmax_worker_processes = 16
             fetchq.background_worker = on\nfsync = off\nlog_min_messages = fatal\n{settings}"
        );
        let cluster = cluster(name, &settings);
        let mut config = tokio_postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(port)
            .user("postgres")
            .password(PASSWORD);
        let server = Server::new(config);
        let db = Database {
            server,
            name: DATABASE.to_owned(),
        };
        let host = Self { cluster, port, db };
        host.cluster.start();
        host.db.connect().await.sql("create extension fetchq").await;
        host
    }
}

fn free_port() -> u16 {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/free-port.sh");
    let done = std::process::Command::new(script).output();
    let done = done.expect("run free-port.sh");
    let port = String::from_utf8_lossy(&done.stdout);
    port.trim().parse().expect("a port")
}

/// What all scenarios share.
pub struct World {
    pub adapters: Vec<Definition>,
    pub folder: std::path::PathBuf,
    pub seconds: u64,
    pub main: Arc<Host>,
    unloaded: OnceCell<Arc<Host>>,
    behind: OnceCell<Arc<Host>>,
    numbers: AtomicUsize,
}

impl World {
    pub async fn new(adapters: Vec<Definition>, folder: std::path::PathBuf, seconds: u64) -> Self {
        Self {
            adapters,
            folder,
            seconds,
            main: Arc::new(Host::start("conformance", "").await),
            unloaded: OnceCell::new(),
            behind: OnceCell::new(),
            numbers: AtomicUsize::new(0),
        }
    }

    /// A number that no other scenario has.
    pub fn number(&self) -> usize {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A server that does not preload fetchq.
    pub async fn unloaded(&self) -> Arc<Host> {
        let start = || async {
            let host = Host::start("unloaded", "shared_preload_libraries = ''").await;
            Arc::new(host)
        };
        self.unloaded.get_or_init(start).await.clone()
    }

    /// A server whose clock is two days behind that of this machine.
    pub async fn behind(&self) -> Arc<Host> {
        let start = || async {
            let host = Host::of("behind", "", Cluster::with_clock).await;
            host.cluster.stop("fast");
            host.cluster.set_clock(-172_800);
            host.cluster.start();
            Arc::new(host)
        };
        self.behind.get_or_init(start).await.clone()
    }
}

pub struct Place {
    pub world: Arc<World>,
    pub host: Arc<Host>,
    pub adapter: Definition,
    /// The queue, and the beginning of all other names.
    pub queue: String,
    pub sql: Session,
    pub log: Arc<Log>,
    started: AtomicUsize,
}

impl Place {
    pub async fn new(world: &Arc<World>, adapter: &Definition, log: Arc<Log>) -> Self {
        let sql = world.main.db.connect().await;
        Self {
            world: world.clone(),
            host: world.main.clone(),
            adapter: adapter.clone(),
            queue: format!("c{}", world.number()),
            sql,
            log,
            started: AtomicUsize::new(0),
        }
    }

    /// The same on another server.
    pub async fn on(mut self, host: Arc<Host>) -> Self {
        self.sql = host.db.server.connect_when_up(DATABASE).await;
        self.host = host;
        self
    }

    /// Something about the scenario for its output.
    pub fn note(&self, text: &str) {
        self.log.add("note", '=', text);
        println!("    {} {text}", self.adapter.name);
    }

    /// Creates the queue, with a retry that is due in a day.
    pub async fn create(&self) {
        self.create_with(json!({"retry": {"base": "1 day"}})).await;
    }

    pub async fn create_with(&self, settings: Value) {
        self.create_queue(&self.queue, settings).await;
    }

    pub async fn create_queue(&self, queue: &str, settings: Value) {
        let sql = format!(
            "select fetchq.queue_create('{queue}'); select fetchq.queue_configure('{queue}', '{settings}')"
        );
        self.sql.sql(&sql).await;
    }

    /// Puts a document, by SQL.
    pub async fn put(&self, subject: &str, payload: Value) {
        self.put_with(&self.queue, subject, payload, "").await;
    }

    /// Puts a document with further arguments.
    pub async fn put_with(&self, queue: &str, subject: &str, payload: Value, arguments: &str) {
        let payload = payload.to_string().replace('\'', "''");
        let sql = format!("select fetchq.doc_put('{queue}', '{subject}', '{payload}' {arguments})");
        assert_eq!(self.sql.text(&sql).await, "created", "{sql}");
    }

    /// Puts documents `prefix1` to `prefixN`.
    pub async fn put_many(&self, prefix: &str, n: usize, payload: Value) {
        for number in 1..=n {
            self.put(&format!("{prefix}{number}"), payload.clone())
                .await;
        }
    }

    /// The status and the attempts of a document.
    pub async fn state(&self, subject: &str) -> String {
        self.state_in(&self.queue, subject).await
    }

    pub async fn state_in(&self, queue: &str, subject: &str) -> String {
        let sql =
            format!("select status || ' ' || attempts from fetchq.doc_get('{queue}', '{subject}')");
        self.sql
            .column(&sql)
            .await
            .pop()
            .unwrap_or("missing".to_owned())
    }

    /// Waits until a document has a status and a number of attempts, as in `completed 0`.
    pub async fn becomes(&self, subject: &str, wanted: &str) {
        self.becomes_in(&self.queue, subject, wanted).await;
    }

    pub async fn becomes_in(&self, queue: &str, subject: &str, wanted: &str) {
        let sql = format!(
            "select coalesce((select status || ' ' || attempts from fetchq.doc_get('{queue}', '{subject}')), 'missing')"
        );
        self.sees(&format!("{subject} becomes"), &sql, wanted).await;
    }

    /// Waits until a query gives a value.
    pub async fn sees(&self, what: &str, sql: &str, wanted: &str) {
        let deadline = Instant::now() + patience();
        loop {
            let now = self.sql.text(sql).await;
            if now == wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "timed out while waiting until {what} {wanted}: it is {now}"
            );
            pause(20).await;
        }
    }

    /// How many documents of the queue have a status.
    pub async fn count(&self, status: &str) -> usize {
        self.number(&format!(
            "select count(*) from fetchq.docs_list('{}', '{{\"status\": \"{status}\"}}', 1000)",
            self.queue
        ))
        .await
    }

    /// Waits until as many documents of the queue have a status.
    pub async fn counts(&self, status: &str, n: usize) {
        let sql = format!(
            "select count(*) from fetchq.docs_list('{}', '{{\"status\": \"{status}\"}}', 1000)",
            self.queue
        );
        self.sees(
            &format!("the number of {status} documents is"),
            &sql,
            &n.to_string(),
        )
        .await;
    }

    pub async fn number(&self, sql: &str) -> usize {
        let text = self.sql.text(sql).await;
        text.parse()
            .unwrap_or_else(|_| panic!("{sql} gives {text}"))
    }

    /// A column of a document.
    pub async fn column(&self, subject: &str, column: &str) -> String {
        let sql = format!(
            "select {column} from fetchq.doc_get('{}', '{subject}')",
            self.queue
        );
        self.sql.text(&sql).await
    }

    /// The address of the server for adapters.
    pub fn url(&self) -> String {
        self.url_by(self.host.port)
    }

    /// The address by a port of this machine. The sessions can be found by their name.
    pub fn url_by(&self, port: u16) -> String {
        format!(
            "postgres://postgres:{PASSWORD}@127.0.0.1:{port}/{DATABASE}?application_name={}",
            self.queue
        )
    }

    /// A query that counts the sessions of the adapter which a condition selects.
    pub fn sessions(&self, condition: &str) -> String {
        format!(
            "select count(*) from pg_stat_activity where application_name = '{}' and {condition}",
            self.queue
        )
    }

    pub async fn proxy(&self) -> Proxy {
        Proxy::start(self.host.port).await
    }

    pub async fn pooler(&self, size: usize) -> Pooler {
        let name = format!(
            "{}-{}",
            self.queue,
            self.started.fetch_add(1, Ordering::Relaxed)
        );
        Pooler::named(&self.host.db, &name, size).await
    }

    /// Starts the program of the adapter.
    pub async fn program(&self) -> Adapter {
        self.program_with(&[]).await
    }

    pub async fn program_with(&self, environment: &[(&str, String)]) -> Adapter {
        let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{}#{number}", self.adapter.name);
        Adapter::start(&self.adapter, &name, environment, self.log.clone()).await
    }

    /// Starts the program of another adapter of the table.
    pub async fn program_of(&self, other: &Definition) -> Adapter {
        let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        Adapter::start(
            other,
            &format!("{}#{number}", other.name),
            &[],
            self.log.clone(),
        )
        .await
    }

    /// Starts the program, and connects it.
    pub async fn client(&self) -> Adapter {
        self.connected(json!({})).await
    }

    /// The same with other fields of `connect`.
    pub async fn connected(&self, connect: Value) -> Adapter {
        let adapter = self.program().await;
        adapter.ok(self.connect(connect)).await;
        adapter
    }

    pub fn connect(&self, more: Value) -> Value {
        with(
            json!({"do": "connect", "url": self.url(), "pool": 10, "pooled": false}),
            more,
        )
    }

    /// A `start` of the worker `w` for a task of the queue.
    pub fn start(&self, task: Value, more: Value) -> Value {
        let task = with(
            json!({"queue": self.queue, "concurrency": 5, "lease": "1 minute"}),
            task,
        );
        let start =
            json!({"do": "start", "worker": "w", "concurrency": 10, "grace": 20, "tasks": [task]});
        with(start, more)
    }

    /// A running worker for the queue, with other fields of its task and of `start`.
    pub async fn worker(&self, task: Value, more: Value) -> Adapter {
        self.worker_on(json!({}), task, more).await
    }

    /// The same with other fields of `connect`.
    pub async fn worker_on(&self, connect: Value, task: Value, more: Value) -> Adapter {
        let adapter = self.connected(connect).await;
        adapter.ok(self.start(task, more)).await;
        adapter
    }

    /// Creates what a scenario needs to make the documents of its queue fail in the database: a trigger
    /// on the table of documents, whose body raises errors.
    pub async fn trigger(&self, when: &str, body: &str) {
        let queue = &self.queue;
        let sql = format!(
            "create function {queue}_fails() returns trigger language plpgsql as $$ begin {body} return new; end $$;
             create trigger {queue}_fails before update on fetchq_data.{queue}__docs
                 for each row when ({when}) execute function {queue}_fails()"
        );
        self.sql.sql(&sql).await;
    }

    pub async fn untrigger(&self) {
        let sql = format!(
            "drop trigger {0}_fails on fetchq_data.{0}__docs",
            self.queue
        );
        self.sql.sql(&sql).await;
    }
}

/// An object with further fields, which count.
pub fn with(mut object: Value, more: Value) -> Value {
    let Value::Object(more) = more else {
        panic!("not an object: {more}");
    };
    for (name, value) in more {
        object[name] = value;
    }
    object
}

/// A payload whose script waits for a gate.
pub fn gated(gate: &str) -> Value {
    json!({"script": [{"op": "gate", "gate": gate}]})
}

pub async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Polls until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !holds().await {
        assert!(
            Instant::now() < deadline,
            "timed out while waiting until {what}"
        );
        pause(20).await;
    }
}

/// Checks again and again, for some seconds, that a condition holds.
pub async fn stays(what: &str, seconds: u64, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        assert!(holds().await, "it does not stay so that {what}");
        pause(100).await;
    }
}
