//! The worker without its input and output: what it has to do next, and what an answer means.
//!
//! The engine knows neither a driver nor a connection. The loops of [`crate::worker`] ask it for calls, make them, and
//! report the answers. All times are seconds of the monotonic clock, which the loops pass in.

mod calls;
mod handlers;
mod heartbeat;
mod time;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::client::text;
use crate::context::Context;
use crate::driver::{Query, Row};
use crate::error::{
    Aborted, BoxError, Error, InvalidPayload, Kind, Reason, chain, told, was_aborted,
};
use crate::outcome::Outcome;
use crate::sql::{self, q};
use crate::task::{Doc, TASK_HEADER};
use crate::text::{Interval, array, between, clean, describe, map, seconds};

/// For how long settlements are collected while other handlers run.
const BATCH: f64 = 0.003;
/// From which age on the waiting session watches the lease of a document, and a worker without a free slot waits to be
/// asked to stop. Most handlers have ended before, and need no wait to be begun anew.
const WATCH_AFTER: f64 = 0.03;
/// After how long a request to interrupt a wait is repeated: one that comes before the wait has begun does nothing.
const AGAIN: f64 = 0.06;
/// No document has this version: a wait for it ends for a request to stop, or for what becomes of a lease.
const NO_VERSION: i64 = -(1 << 31);
/// For how long a queue without documents may be left out of the wait.
const HOLD: f64 = 0.05;
/// The longest wait, and the longest behind a pooler, where it keeps a connection from all other programs.
const LONGEST_WAIT: f64 = 60.0;
const POOLED_WAIT: f64 = 10.0;
/// A call that takes so long while a session waits may be held up by a pooler that is too small.
const CROWDED: f64 = 2.0;
/// How often a transactional handler runs anew after its connection has broken.
pub(crate) const RERUNS: u32 = 10;
/// How often a settlement that conflicts is tried, before it is sent alone, and then before it is given up.
const CONFLICTS: u32 = 5;
/// The most settlements of a call.
const MOST: usize = 500;
const NEVER: f64 = f64::INFINITY;

type Hook = Arc<dyn Fn(&str) -> String + Send + Sync>;
type Rule = Arc<dyn Fn(&BoxError, &Context) -> Option<Outcome> + Send + Sync>;

/// Options of a worker.
#[derive(Clone)]
pub(crate) struct Settings {
    pub name: String,
    /// The name belongs to this process.
    pub exclusive: bool,
    pub concurrency: usize,
    pub grace: f64,
    pub abort_grace: f64,
    pub stuck_after: f64,
    pub free_stuck: bool,
    pub polling: bool,
    pub poll: f64,
    pub max_bytes: usize,
    pub redact: Option<Hook>,
}

/// A task as the engine knows it.
#[derive(Clone, Default)]
pub(crate) struct TaskDef {
    pub queue: String,
    pub name: Option<String>,
    pub version: u32,
    pub oldest: u32,
    pub concurrency: Option<usize>,
    pub weight: usize,
    pub lease: Option<Interval>,
    pub timeout: Option<f64>,
    pub conflicts: u32,
    pub kill_invalid: bool,
    pub transactional: bool,
    pub retry: Option<Rule>,
}

/// Sums since the start of a worker, and its slots.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Documents that were settled, by outcome: `complete`, `reject` and others.
    pub settled: BTreeMap<&'static str, u64>,
    /// Leases that were lost.
    pub lost: u64,
    /// Handlers that did not stop.
    pub stuck: u64,
    /// Handlers that have ended.
    pub handled: u64,
    /// The time that they have taken.
    pub handler_seconds: f64,
    /// By how much the heartbeat was late, lately.
    pub heartbeat_lag: f64,
    /// Calls that settle, lease and extend.
    pub calls: u64,
    /// Handlers that run.
    pub slots_used: usize,
    /// Handlers that may run at once.
    pub slots: usize,
}

/// What a worker says to a probe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Whether all is well.
    pub ok: bool,
    /// Whether the database answers.
    pub database: bool,
    /// Whether the loops turn.
    pub loops: bool,
    /// Seconds since leases were last extended.
    pub heartbeat_age: Option<f64>,
    /// Whether it was asked to stop.
    pub stopping: bool,
    /// Whether it polls, because no session can wait.
    pub polling: bool,
}

/// What wakes the loops.
#[derive(Default)]
pub(crate) struct Topics {
    pub calls: [Notify; 2],
    pub waits: Vec<Notify>,
    pub beat: Notify,
    pub tick: Notify,
}

impl Topics {
    fn call(&self) {
        self.calls.iter().for_each(Notify::notify_one);
    }

    fn wait(&self) {
        self.waits.iter().for_each(Notify::notify_one);
    }

    fn all(&self) {
        self.call();
        self.wait();
        self.beat.notify_one();
        self.tick.notify_one();
    }
}

/// A document that is leased, as its handler sees it.
pub(crate) struct Leased {
    pub id: u64,
    pub queue: String,
    pub subject: String,
    pub payload: Option<String>,
    pub headers: Map<String, Value>,
    pub attempts: i64,
    pub max_attempts: Option<i64>,
    pub lease: i64,
    pub priority: i64,
    pub last_error: Option<String>,
    pub version: u32,
    pub token: CancellationToken,
    pub reason: OnceLock<Reason>,
    pub progress: Mutex<Value>,
    pub follow_ups: Mutex<Vec<Doc>>,
}

/// Callers that wait until the progress of a document is stored.
enum Stored {
    Tell(oneshot::Sender<Result<(), Error>>),
    Settle(Box<Settled>),
}

struct Run {
    leased: Arc<Leased>,
    lane: usize,
    seconds: f64,
    ends: f64,
    sent: f64,
    deadline: f64,
    next_beat: f64,
    beat_sent: f64,
    dirty: bool,
    stored: Vec<Stored>,
    aborted_at: f64,
    started: Option<f64>,
    timeout_at: f64,
    has_job: bool,
    stuck: bool,
    limited: bool,
    settling: bool,
    size: usize,
}

impl Run {
    fn reason(&self) -> Option<Reason> {
        self.leased.reason.get().copied()
    }

    fn is_void(&self) -> bool {
        matches!(self.reason(), Some(Reason::Cancelled | Reason::Lost))
    }

    fn extends(&self) -> bool {
        !self.stuck && !self.is_void() && (!self.limited || !self.stored.is_empty() || self.dirty)
    }
}

/// A settlement on its way. `run` is None for a document that was leased without our knowing.
struct Settled {
    run: Option<u64>,
    subject: String,
    body: String,
    action: &'static str,
    last_resort: bool,
    resent: bool,
    conflicts: u32,
}

/// The slots of a queue, which all its tasks and versions share.
struct Slots {
    limit: usize,
    weight: usize,
    jobs: usize,
}

/// One version of one queue: at most one call at a time settles and leases its documents.
struct Lane {
    queue: String,
    version: u32,
    slots: usize,
    tasks: Vec<(Option<String>, usize)>,
    lease: Option<String>,
    ready: bool,
    calling: bool,
    settle: Vec<Settled>,
    settle_at: f64,
    not_before: f64,
    failures: u32,
    isolate: usize,
    misses: u32,
    quiet_at: f64,
    poll_at: f64,
    sweeps: Vec<(f64, i64)>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Next,
    Settle,
    /// Looks for documents that were leased by a call without an answer.
    Leases,
}

/// A call for a lane.
pub(crate) struct Call {
    id: u64,
    lane: usize,
    what: What,
    settled: Vec<Settled>,
    max_docs: usize,
    pid: i64,
    pub sent: f64,
    pub query: Query,
}

/// A call that extends leases.
pub(crate) struct Beat {
    runs: Vec<u64>,
    stored: HashMap<u64, Vec<Stored>>,
    sent: f64,
    pub query: Query,
}

/// The lanes of a version, for which one session waits.
struct Group {
    version: u32,
    lanes: Vec<usize>,
    /// The requests to stop that it knows, as the literal of an array.
    mark: Option<String>,
    call: Option<WaitCall>,
    not_before: f64,
    /// Since when it has no queue to wait for, or since the wait before has ended.
    busy_at: f64,
    timeout: f64,
    failures: u32,
    interrupted_at: f64,
}

struct WaitCall {
    /// Those of whose documents it wants to know.
    queues: BTreeSet<String>,
    watched: HashSet<u64>,
    sent: f64,
    longest: f64,
    interrupted: bool,
}

/// What a session that waits does next.
pub(crate) enum Next {
    Wait(Query),
    Pause(f64),
}

/// What a transactional handler does after its transaction was not committed.
pub(crate) enum After {
    Again,
    Confirm,
    Drop,
    Settle(BoxError),
}

/// Where a transaction has failed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Phase {
    Handler,
    Settle,
    Commit,
}

/// A document whose handler is to be started.
pub(crate) struct Job {
    pub leased: Arc<Leased>,
    pub task: usize,
}

pub(crate) struct Engine {
    pub settings: Settings,
    pub tasks: Vec<TaskDef>,
    pub topics: Topics,
    pub abandoned: CancellationToken,
    state: Mutex<State>,
    base: Instant,
}

struct State {
    lanes: Vec<Lane>,
    slots: Vec<Slots>,
    groups: Vec<Group>,
    runs: HashMap<u64, Run>,
    keys: HashMap<(String, String), u64>,
    jobs: HashMap<u64, usize>,
    ids: u64,
    turn: usize,
    bytes: usize,
    mean: f64,
    calls: HashMap<u64, f64>,
    beating: Option<f64>,
    polling: bool,
    pooled: bool,
    crowded_at: Option<f64>,
    stopping: bool,
    aborting: bool,
    grace: f64,
    stop_at: f64,
    give_up_at: f64,
    gave_up: bool,
    abandon_at: f64,
    abandoned: bool,
    fatal: Option<Error>,
    last_beat: Option<f64>,
    down_since: Option<f64>,
    /// When deadlines are looked at next.
    tick_at: f64,
    unknown: HashMap<String, f64>,
    metrics: Metrics,
}

/// From 250 ms to 30 s, with jitter.
pub(crate) fn backoff(failures: u32) -> f64 {
    (0.25 * 2f64.powi(failures.saturating_sub(1).min(10) as i32)).min(30.0) * between(0.75, 1.25)
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Info,
    Warn,
    Error,
}

impl Engine {
    pub(crate) fn new(settings: Settings, tasks: Vec<TaskDef>) -> Result<Self, Error> {
        if settings.concurrency < 1
            || settings.name.is_empty()
            || settings.name.chars().count() > 200
        {
            let problem =
                "a worker has a concurrency of at least 1, and a name of 1 to 200 characters";
            return Err(Error::Config(problem.into()));
        }
        let (lanes, slots) = lanes_of(&tasks, settings.concurrency)?;
        let versions: BTreeSet<u32> = lanes.iter().map(|lane| lane.version).collect();
        let group = |version: &u32| Group {
            version: *version,
            lanes: (0..lanes.len())
                .filter(|n| lanes[*n].version == *version)
                .collect(),
            mark: None,
            call: None,
            not_before: 0.0,
            busy_at: NEVER,
            timeout: NEVER,
            failures: 0,
            interrupted_at: -NEVER,
        };
        let groups: Vec<Group> = versions.iter().map(group).collect();
        let topics = Topics {
            waits: groups.iter().map(|_| Notify::new()).collect(),
            ..Topics::default()
        };
        let state = State {
            groups,
            lanes,
            slots,
            runs: HashMap::new(),
            keys: HashMap::new(),
            jobs: HashMap::new(),
            ids: 0,
            turn: 0,
            bytes: 0,
            mean: 65536.0, // The expected size of a payload, as long as none was seen.
            calls: HashMap::new(),
            beating: None,
            polling: settings.polling,
            pooled: false,
            crowded_at: None,
            stopping: false,
            aborting: false,
            grace: settings.grace,
            stop_at: NEVER,
            give_up_at: NEVER,
            gave_up: false,
            abandon_at: NEVER,
            abandoned: false,
            fatal: None,
            last_beat: None,
            down_since: None,
            tick_at: 0.0,
            unknown: HashMap::new(),
            metrics: Metrics::default(),
        };
        let abandoned = CancellationToken::new();
        Ok(Self {
            settings,
            tasks,
            topics,
            abandoned,
            state: Mutex::new(state),
            base: Instant::now(),
        })
    }

    pub(crate) fn now(&self) -> f64 {
        self.base.elapsed().as_secs_f64()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queues(&self) -> BTreeSet<String> {
        self.lock()
            .lanes
            .iter()
            .map(|lane| lane.queue.clone())
            .collect()
    }

    pub(crate) fn set_pooled(&self, pooled: bool) {
        self.lock().pooled = pooled;
    }

    fn log(&self, level: Level, leased: &Leased, message: &str) {
        let (queue, subject) = (leased.queue.as_str(), leased.subject.as_str());
        let (attempt, worker) = (leased.attempts, self.settings.name.as_str());
        match level {
            Level::Info => {
                tracing::info!(target: "fetchq", queue, subject, attempt, worker, "{queue}: {subject}: {message}")
            }
            Level::Warn => {
                tracing::warn!(target: "fetchq", queue, subject, attempt, worker, "{queue}: {subject}: {message}")
            }
            Level::Error => {
                tracing::error!(target: "fetchq", queue, subject, attempt, worker, "{queue}: {subject}: {message}")
            }
        }
    }
}

impl State {
    fn finished(&self) -> bool {
        if self.abandoned {
            return true;
        }
        if !self.stopping || !self.calls.is_empty() {
            return false;
        }
        let left = !self.runs.is_empty() || self.lanes.iter().any(|lane| !lane.settle.is_empty());
        !left || (self.gave_up && self.down_since.is_some())
    }
}

/// The leases that the waiting session should watch, and when another one will be old enough.
fn watchable(s: &State, now: f64) -> (HashSet<u64>, f64) {
    let (mut old, mut younger) = (HashSet::new(), NEVER);
    for (id, run) in &s.runs {
        let at = run.sent + WATCH_AFTER;
        if run.reason().is_some() || run.settling {
            continue;
        } else if at <= now {
            old.insert(*id);
        } else {
            younger = younger.min(at);
        }
    }
    (old, younger)
}

fn tell(stored: Vec<Stored>, error: &Error) {
    for done in stored {
        if let Stored::Tell(sender) = done {
            let _ = sender.send(Err(error.clone()));
        }
    }
}

/// A lane for each version of each queue. Tasks that share a queue share its slots.
fn lanes_of(tasks: &[TaskDef], concurrency: usize) -> Result<(Vec<Lane>, Vec<Slots>), Error> {
    let (mut lanes, mut slots): (Vec<Lane>, Vec<Slots>) = (Vec::new(), Vec::new());
    let mut of_queue: HashMap<&str, usize> = HashMap::new();
    for (index, task) in tasks.iter().enumerate() {
        let limit = task
            .concurrency
            .unwrap_or(concurrency)
            .clamp(1, concurrency);
        let shared = *of_queue.entry(&task.queue).or_insert_with(|| {
            slots.push(Slots {
                limit: 0,
                weight: task.weight.max(1),
                jobs: 0,
            });
            slots.len() - 1
        });
        slots[shared].limit = (slots[shared].limit + limit).min(concurrency);
        for version in task.oldest.min(task.version)..=task.version {
            let found = lanes
                .iter()
                .position(|lane| lane.queue == task.queue && lane.version == version);
            let lane = found.unwrap_or_else(|| {
                lanes.push(Lane {
                    queue: task.queue.clone(),
                    version,
                    slots: shared,
                    tasks: Vec::new(),
                    lease: None,
                    ready: true,
                    calling: false,
                    settle: Vec::new(),
                    settle_at: NEVER,
                    not_before: 0.0,
                    failures: 0,
                    isolate: 0,
                    misses: 0,
                    quiet_at: NEVER,
                    poll_at: NEVER,
                    sweeps: Vec::new(),
                    closed: false,
                });
                lanes.len() - 1
            });
            let lane = &mut lanes[lane];
            if lane.tasks.iter().any(|(name, _)| *name == task.name) {
                return Err(Error::Config(format!(
                    "two handlers for the queue {} and version {version}: give one of them a name",
                    task.queue
                )));
            }
            lane.tasks.push((task.name.clone(), index));
            if let Some(lease) = &task.lease {
                lane.lease = Some(lease.0.clone());
            }
        }
    }
    if lanes.is_empty() {
        return Err(Error::Config("the worker has no handlers".into()));
    }
    Ok((lanes, slots))
}
