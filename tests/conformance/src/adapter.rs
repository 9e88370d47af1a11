//! An adapter: the program of a client, which does what lines of JSON say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::Notify;

use crate::log::Log;

/// How long a scenario waits for anything. PATIENCE sets other seconds, for a run that has to fail.
pub fn patience() -> Duration {
    let seconds = std::env::var("PATIENCE")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(40))
}

/// A line of the table of adapters.
#[derive(Clone, Debug)]
pub struct Definition {
    pub name: String,
    /// The folder of its client below `clients/`.
    pub folder: String,
    pub argument: String,
    pub clients: PathBuf,
}

impl Definition {
    /// Reads the table.
    pub fn all(table: &str, clients: &Path) -> Vec<Self> {
        let lines = table.lines().map(str::trim);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let mut words = line.split_whitespace().map(str::to_owned);
                Self {
                    name: words.next().expect("a name"),
                    folder: words.next().expect("a folder"),
                    argument: words.next().unwrap_or_default(),
                    clients: clients.to_owned(),
                }
            })
            .collect()
    }

    pub fn folder(&self) -> PathBuf {
        self.clients.join(&self.folder)
    }

    pub fn program(&self) -> PathBuf {
        self.folder().join("conformance/adapter")
    }
}

/// Something that an adapter has told.
#[derive(Clone, Debug)]
pub struct Event {
    pub at: Instant,
    pub value: Value,
}

#[derive(Default)]
struct Told {
    next: u64,
    replies: BTreeMap<u64, Value>,
    events: Vec<Event>,
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    told: Mutex<Told>,
    changed: Notify,
}

/// A running adapter. It is killed when this value is dropped.
pub struct Adapter {
    /// Its name in the log of the scenario.
    name: String,
    pub hello: Value,
    stdin: tokio::sync::Mutex<Option<ChildStdin>>,
    child: Mutex<Child>,
    group: u32,
    shared: Arc<Shared>,
    log: Arc<Log>,
}

impl Adapter {
    /// Starts the program, and greets it. `environment` is set besides.
    pub async fn start(
        definition: &Definition,
        name: &str,
        environment: &[(&str, String)],
        log: Arc<Log>,
    ) -> Self {
        let mut command = Command::new(definition.program());
        // Settings for another server must not reach it.
        for (variable, _) in std::env::vars() {
            if variable.starts_with("PG") || variable.starts_with("FETCHQ") {
                command.env_remove(variable);
            }
        }
        let mut child = command
            .args(Some(&definition.argument).filter(|argument| !argument.is_empty()))
            .current_dir(definition.folder())
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("start {}: {e}", definition.program().display()));
        let shared = Arc::new(Shared::default());
        let stdout = child.stdout.take().expect("its output");
        let (told, lines, who) = (shared.clone(), log.clone(), name.to_owned());
        tokio::spawn(async move {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
                let at = Instant::now();
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                lines.add(&who, '<', &text);
                let value = serde_json::from_slice(&line).unwrap_or_else(
                    |e| json!({"event": "not JSON", "error": e.to_string(), "line": text}),
                );
                told.add(at, value);
                line.clear();
            }
            told.told.lock().unwrap().has_ended = true;
            told.changed.notify_waiters();
            lines.add(&who, '<', "(end)");
        });
        let stderr = child.stderr.take().expect("its messages");
        let (lines, who) = (log.clone(), name.to_owned());
        tokio::spawn(async move {
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
                lines.add(&who, '!', String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        });
        let mut adapter = Self {
            name: name.to_owned(),
            hello: Value::Null,
            stdin: tokio::sync::Mutex::new(child.stdin.take()),
            group: child.id().expect("a process"),
            child: Mutex::new(child),
            shared,
            log,
        };
        adapter.hello = adapter.ok(json!({"do": "hello", "protocol": 1})).await;
        assert_eq!(adapter.hello["protocol"], 1, "it speaks another protocol");
        adapter
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn capabilities(&self) -> BTreeSet<String> {
        let list = self.hello["capabilities"].as_array().cloned();
        let names = list.unwrap_or_default().into_iter();
        names
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect()
    }

    pub fn can(&self, capability: &str) -> bool {
        self.capabilities().contains(capability)
    }

    pub fn pid(&self) -> u32 {
        let pid = self.hello["pid"].as_u64().expect("hello says its pid");
        pid.try_into().expect("a process id")
    }

    /// Sends a command, and does not wait for the reply. Returns its number.
    pub async fn tell(&self, mut command: Value) -> u64 {
        let id = {
            let mut told = self.shared.told.lock().unwrap();
            told.next += 1;
            told.next
        };
        command["id"] = json!(id);
        let line = command.to_string();
        self.log.add(&self.name, '>', &line);
        let mut stdin = self.stdin.lock().await;
        if let Some(stdin) = &mut *stdin {
            // One that has ended does not read; the reply fails then.
            let _ = stdin.write_all(format!("{line}\n").as_bytes()).await;
            let _ = stdin.flush().await;
        }
        id
    }

    /// The reply to a command.
    pub async fn reply(&self, id: u64) -> Result<Value, Value> {
        let mut reply = self
            .until(&format!("the reply to command {id}"), |told| {
                told.replies.remove(&id)
            })
            .await;
        if reply["error"].is_object() {
            return Err(reply["error"].take());
        }
        assert!(reply["ok"].is_object(), "neither ok nor error: {reply}");
        Ok(reply["ok"].take())
    }

    /// Sends a command, and waits for the reply.
    pub async fn ask(&self, command: Value) -> Result<Value, Value> {
        let id = self.tell(command).await;
        self.reply(id).await
    }

    /// Sends a command that must succeed.
    pub async fn ok(&self, command: Value) -> Value {
        let text = command.to_string();
        match self.ask(command).await {
            Ok(value) => value,
            Err(error) => panic!("{text} failed: {error}"),
        }
    }

    /// Sends a command that must fail, and returns the error.
    pub async fn err(&self, command: Value) -> Value {
        let text = command.to_string();
        match self.ask(command).await {
            Ok(value) => panic!("{text} succeeded: {value}"),
            Err(error) => error,
        }
    }

    async fn until<T>(&self, what: &str, find: impl FnMut(&mut Told) -> Option<T>) -> T {
        let patience = tokio::time::timeout(patience(), self.found(what, find)).await;
        patience.unwrap_or_else(|_| panic!("{}: timed out while waiting for {what}", self.name))
    }

    async fn found<T>(&self, what: &str, mut find: impl FnMut(&mut Told) -> Option<T>) -> T {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let has_ended = {
                let mut told = self.shared.told.lock().unwrap();
                if let Some(found) = find(&mut told) {
                    return found;
                }
                told.has_ended
            };
            assert!(!has_ended, "{} ended while waiting for {what}", self.name);
            changed.await;
        }
    }

    /// The n-th event of a kind, from 1, that has these fields.
    pub async fn nth(&self, n: usize, event: &str, fields: Value) -> Event {
        let what = format!("event {n} of {event} with {fields}");
        self.until(&what, |told| {
            let fitting = |at: &&Event| is_like(&at.value, event, &fields);
            told.events.iter().filter(fitting).nth(n - 1).cloned()
        })
        .await
    }

    /// The first event of a kind that has these fields.
    pub async fn event(&self, event: &str, fields: Value) -> Event {
        self.nth(1, event, fields).await
    }

    /// Waits until there are as many events of a kind with these fields, and fails if there are more. A document can be
    /// seen completed before the program's line about it has been read.
    pub async fn exactly(&self, n: usize, event: &str, fields: Value) {
        self.nth(n, event, fields.clone()).await;
        assert_eq!(self.count(event, fields), n);
    }

    /// All events of a kind that have these fields.
    pub fn events(&self, event: &str, fields: Value) -> Vec<Event> {
        let told = self.shared.told.lock().unwrap();
        let fitting = |at: &&Event| is_like(&at.value, event, &fields);
        told.events.iter().filter(fitting).cloned().collect()
    }

    /// How many events of a kind there are that have these fields.
    pub fn count(&self, event: &str, fields: Value) -> usize {
        self.events(event, fields).len()
    }

    /// The lines that the client has logged at a level or above: `info`, `warn` or `error`.
    pub fn logged(&self, least: &str) -> Vec<Value> {
        let rank = |level: &str| ["info", "warn", "error"].iter().position(|at| *at == level);
        let lines = self
            .events("log", json!({}))
            .into_iter()
            .map(|line| line.value);
        lines
            .filter(|line| rank(line["level"].as_str().unwrap_or_default()) >= rank(least))
            .collect()
    }

    /// Opens a gate.
    pub async fn open(&self, gate: &str) {
        self.ok(json!({"do": "open", "gate": gate})).await;
    }

    /// Asks the worker `w` to stop, and waits until it has.
    pub async fn stop(&self) -> Event {
        self.ok(json!({"do": "stop", "worker": "w"})).await;
        self.event("stopped", json!({"worker": "w"})).await
    }

    /// Sends a signal to the process of the client.
    pub fn signal(&self, name: &str) {
        self.log.add(&self.name, '>', &format!("(signal {name})"));
        let pid = self.pid().to_string();
        fetchq_client_tests::run(std::process::Command::new("kill").args(["-s", name, &pid]));
    }

    /// Ends the input of the program.
    pub async fn close(&self) {
        self.log.add(&self.name, '>', "(end)");
        self.stdin.lock().await.take();
    }

    /// Kills the process and all that it has started.
    pub fn kill(&self) {
        self.log.add(&self.name, '>', "(killed)");
        kill_group(self.group);
    }

    /// Waits for the end of the process, and returns its status.
    pub async fn status(&self) -> Option<i32> {
        let deadline = Instant::now() + patience();
        loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().expect("wait") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "{} does not end", self.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Shared {
    fn add(&self, at: Instant, value: Value) {
        let mut told = self.told.lock().unwrap();
        match value["reply"].as_u64() {
            Some(id) => drop(told.replies.insert(id, value)),
            None => told.events.push(Event { at, value }),
        }
        drop(told);
        self.changed.notify_waiters();
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        kill_group(self.group);
        let _ = self.child.lock().unwrap().try_wait();
    }
}

fn kill_group(group: u32) {
    // It may have ended.
    let _ = std::process::Command::new("kill")
        .args(["-s", "KILL", "--", &format!("-{group}")])
        .stderr(Stdio::null())
        .status();
}

fn is_like(value: &Value, event: &str, fields: &Value) -> bool {
    let fields = fields.as_object().expect("an object");
    value["event"] == event && fields.iter().all(|(name, wanted)| value[name] == *wanted)
}
