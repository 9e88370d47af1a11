//! The worker without its input and output: what it has to do next, and what an answer means.
//!
//! The engine knows neither a driver nor a connection. The loops of [`crate::worker`] ask it for calls, make them, and
//! report the answers. All times are seconds of the monotonic clock, which the loops pass in.

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
/// From which age on the waiting session watches the lease of a document. The end of one that is watched ends the
/// wait, so short ones are not.
const WATCH_AFTER: f64 = 0.1;
/// The shortest wait while there are younger ones.
const SHORT_WAIT: f64 = 0.05;
/// For how long a queue without documents may be left out of the wait.
const HOLD: f64 = 0.05;
/// The longest wait, and the longest behind a pooler, where it keeps a connection from all other programs.
const LONGEST_WAIT: f64 = 60.0;
const POOLED_WAIT: f64 = 10.0;
/// How often a worker that is too busy to wait looks whether it was asked to stop.
const PROBE: f64 = 5.0;
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

/// Who waits until the progress of a document is stored.
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
    probe_at: f64,
    timeout: f64,
    failures: u32,
    interrupted_at: f64,
}

struct WaitCall {
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
            probe_at: 0.0,
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

    // ------------------------------------------------------------------------------------------------- calls

    /// The next call that is due, or when one is.
    pub(crate) fn take_call(&self, now: f64) -> Result<Call, f64> {
        let mut s = self.lock();
        if s.abandoned {
            return Err(NEVER);
        }
        let count = s.lanes.len();
        let mut earliest = NEVER;
        for step in 0..count {
            let lane = (s.turn + step) % count;
            let due = self.due(&s, lane, now);
            if due > now {
                earliest = earliest.min(due);
                continue;
            }
            s.turn = lane + 1; // The others come first next time.
            return Ok(self.make_call(&mut s, lane, now));
        }
        Err(earliest)
    }

    fn due(&self, s: &State, at: usize, now: f64) -> f64 {
        let lane = &s.lanes[at];
        if lane.calling || (s.gave_up && s.finished()) {
            return NEVER;
        }
        let mut due = lane.sweeps.first().map_or(NEVER, |sweep| sweep.0);
        let leases = !s.stopping && self.room(s, at) > 0;
        if !lane.settle.is_empty() {
            due = due.min(if s.slots[lane.slots].jobs == 0 || s.stopping {
                now
            } else {
                lane.settle_at
            });
        } else if leases && (lane.ready || now >= lane.poll_at) {
            due = now;
        } else if leases && lane.poll_at < due {
            due = lane.poll_at;
        }
        due.max(lane.not_before)
    }

    fn make_call(&self, s: &mut State, at: usize, now: f64) -> Call {
        s.ids += 1;
        let id = s.ids;
        s.calls.insert(id, now);
        let name = &self.settings.name;
        let lane = &mut s.lanes[at];
        lane.calling = true;
        lane.quiet_at = NEVER;
        if lane.sweeps.first().is_some_and(|sweep| sweep.0 <= now) {
            let (_, pid) = lane.sweeps.remove(0);
            let query = q!(sql::LEASES, lane.queue, name, pid, self.settings.exclusive);
            return Call {
                id,
                lane: at,
                what: What::Leases,
                settled: Vec::new(),
                max_docs: 0,
                pid,
                sent: now,
                query,
            };
        }
        let most = if lane.isolate > 0 { 1 } else { MOST }.min(lane.settle.len());
        let settled: Vec<Settled> = lane.settle.drain(..most).collect();
        lane.settle_at = NEVER;
        let bodies: Vec<&str> = settled.iter().map(|one| one.body.as_str()).collect();
        let body = format!("[{}]", bodies.join(","));
        // What was sent before is sent alone: the server then says of each document what has become of it.
        let alone = s.stopping || lane.isolate > 0 || settled.iter().any(|one| one.resent);
        let room = if alone { 0 } else { self.room(s, at) };
        let lane = &s.lanes[at];
        let (what, query) = if room == 0 {
            (What::Settle, q!(sql::SETTLE, lane.queue, body, "report"))
        } else {
            let mut query = q!(sql::NEXT, lane.queue, body, room, "", lane.version, name);
            query.values[3].clone_from(&lane.lease);
            (What::Next, query)
        };
        Call {
            id,
            lane: at,
            what,
            settled,
            max_docs: room,
            pid: 0,
            sent: now,
            query,
        }
    }

    /// For how many documents there is room: by the task, by the process, and by their size.
    fn room(&self, s: &State, at: usize) -> usize {
        let lane = &s.lanes[at];
        if lane.closed {
            return 0;
        }
        let limit = self.settings.concurrency;
        let mine = &s.slots[lane.slots];
        let left = limit.saturating_sub(s.jobs.len());
        let mut free = left;
        if s.slots.len() > 1 && free > 0 {
            let total: usize = s.slots.iter().map(|slots| slots.weight).sum();
            let share = |slots: &Slots| {
                (limit * slots.weight / total.max(1))
                    .max(1)
                    .min(slots.limit)
            };
            let hungry: BTreeSet<usize> = s
                .lanes
                .iter()
                .filter(|lane| lane.ready)
                .map(|lane| lane.slots)
                .collect();
            for other in hungry.into_iter().filter(|other| *other != lane.slots) {
                let other = &s.slots[other];
                free = free.saturating_sub(share(other).saturating_sub(other.jobs));
            }
            free = free.max(share(mine).saturating_sub(mine.jobs)).min(left);
        }
        free = free.min(mine.limit.saturating_sub(mine.jobs));
        let fitting = (self.settings.max_bytes.saturating_sub(s.bytes) as f64 / s.mean) as usize;
        free.min(if s.bytes > 0 { fitting } else { fitting.max(1) })
    }

    /// A call has succeeded: what was sent is settled, and what it has leased is to be started.
    pub(crate) fn answered(
        &self,
        call: Call,
        rows: &[Row],
        notices: &[(String, String)],
        now: f64,
    ) -> Vec<Job> {
        let mut guard = self.lock();
        let s = &mut *guard;
        self.call_done(s, &call, now);
        s.lanes[call.lane].failures = 0;
        if call.what == What::Leases {
            self.hand_back(s, &call, rows, now);
            return Vec::new();
        }
        if call.what == What::Settle {
            self.report(s, &call, rows);
        }
        for (_, message) in notices.iter().filter(|(state, _)| state == "55000") {
            let number = message
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(1);
            s.metrics.lost += number;
            let (queue, worker) = (
                s.lanes[call.lane].queue.as_str(),
                self.settings.name.as_str(),
            );
            tracing::warn!(target: "fetchq", queue, worker, "{message}");
        }
        for one in &call.settled {
            self.is_settled(s, one.run, one.action);
        }
        let jobs = if call.what == What::Next {
            self.lease(s, &call, rows, now)
        } else {
            Vec::new()
        };
        let lane = &mut s.lanes[call.lane];
        lane.isolate = lane.isolate.saturating_sub(1);
        if call.max_docs > 0 {
            lane.ready = rows.len() >= call.max_docs;
            lane.misses = if rows.is_empty() && call.settled.is_empty() {
                lane.misses + 1
            } else {
                0
            };
        }
        if !lane.ready {
            let jitter = if lane.misses > 0 {
                between(0.0, (0.01 * 2f64.powi(lane.misses as i32)).min(1.0))
            } else {
                0.0
            };
            lane.quiet_at = now + jitter;
            lane.poll_at = if s.polling {
                now + self.settings.poll * between(0.75, 1.25)
            } else {
                NEVER
            };
            self.topics.wait();
            self.topics.tick.notify_one();
        }
        self.topics.call();
        jobs
    }

    fn call_done(&self, s: &mut State, call: &Call, now: f64) {
        s.calls.remove(&call.id);
        s.lanes[call.lane].calling = false;
        s.metrics.calls += 1;
        s.down_since = None;
        self.was_held_up(s, call.sent, now);
    }

    /// Whether a call went on as soon as the waiting session had given its connection back.
    fn was_held_up(&self, s: &mut State, sent: f64, now: f64) {
        if let Some(at) = s.crowded_at.filter(|at| sent < *at) {
            if now - at < 1.0 {
                self.poll_now(
                    s,
                    "a call was held up while a session waited: the pooler has too few connections",
                );
            }
            s.crowded_at = None;
        } else if s.pooled && now - sent > CROWDED {
            self.poll_now(
                s,
                "a call was held up by other sessions: the pooler has too few connections",
            );
        }
    }

    fn lease(&self, s: &mut State, call: &Call, rows: &[Row], now: f64) -> Vec<Job> {
        let mut jobs = Vec::new();
        for row in rows {
            let run = self.read(s, call, row);
            let (id, task) = (
                run.leased.id,
                self.task_of(&s.lanes[call.lane], &run.leased),
            );
            let key = (run.leased.queue.clone(), run.leased.subject.clone());
            // A lease number of ours that is older was lost, or its settlement came before.
            if let Some(former) = s.keys.get(&key).copied() {
                self.abort(s, former, Reason::Lost, now);
                self.forget(s, former);
            }
            s.keys.insert(key, id);
            s.bytes += run.size;
            s.mean += (run.size as f64 + 100.0 - s.mean) / 10.0;
            let leased = Arc::clone(&run.leased);
            s.runs.insert(id, run);
            match task {
                Some(task) if !s.stopping => {
                    let slots = s.lanes[call.lane].slots;
                    s.jobs.insert(id, slots);
                    s.slots[slots].jobs += 1;
                    if let Some(run) = s.runs.get_mut(&id) {
                        run.has_job = true;
                    }
                    jobs.push(Job { leased, task });
                }
                Some(_) => self.finish(s, id, Outcome::snooze_by_policy(), now),
                None => {
                    let delay = self.unknown(s, &leased);
                    self.finish(s, id, Outcome::snooze(seconds(delay)), now);
                }
            }
        }
        if !rows.is_empty() {
            self.topics.tick.notify_one();
            self.topics.beat.notify_one();
            self.topics.wait();
        }
        jobs
    }

    fn read(&self, s: &mut State, call: &Call, row: &Row) -> Run {
        s.ids += 1;
        let lane = &s.lanes[call.lane];
        let number = |index: usize| row.get(index).and_then(Value::as_f64).unwrap_or(0.0);
        let json =
            |index: usize| text(row.get(index)).and_then(|text| serde_json::from_str(&text).ok());
        let headers = match json(2) {
            Some(Value::Object(headers)) => headers,
            _ => Map::new(),
        };
        let payload = text(row.get(1));
        let (size, length) = (payload.as_deref().map_or(0, str::len), number(6));
        let leased = Leased {
            id: s.ids,
            queue: lane.queue.clone(),
            subject: text(row.first()).unwrap_or_default(),
            payload,
            headers,
            attempts: number(3) as i64,
            max_attempts: row.get(4).and_then(Value::as_i64),
            lease: row.get(5).and_then(Value::as_i64).unwrap_or(0),
            priority: number(8) as i64,
            last_error: text(row.get(9)),
            version: lane.version,
            token: CancellationToken::new(),
            reason: OnceLock::new(),
            progress: Mutex::new(json(10).unwrap_or(Value::Null)),
            follow_ups: Mutex::default(),
        };
        Run {
            leased: Arc::new(leased),
            lane: call.lane,
            seconds: length,
            ends: number(7),
            sent: call.sent,
            // Not from the time of the answer: the lease began before it.
            deadline: call.sent + length,
            next_beat: call.sent + length / 3.0 * between(0.8, 1.0),
            beat_sent: call.sent,
            dirty: false,
            stored: Vec::new(),
            aborted_at: NEVER,
            started: None,
            timeout_at: NEVER,
            has_job: false,
            stuck: false,
            limited: false,
            settling: false,
            size,
        }
    }

    fn task_of(&self, lane: &Lane, leased: &Leased) -> Option<usize> {
        let name = leased.headers.get(TASK_HEADER).and_then(Value::as_str);
        let named = |name: Option<&str>| {
            lane.tasks
                .iter()
                .find(|task| task.0.as_deref() == name)
                .map(|task| task.1)
        };
        let alone = lane.tasks.len() == 1;
        match name {
            None if alone => lane.tasks.first().map(|task| task.1),
            None => named(None),
            Some(_) => named(name).or_else(|| if alone { named(None) } else { None }),
        }
    }

    /// How long a document of a task that this process does not know is left to others: each time longer.
    fn unknown(&self, s: &mut State, leased: &Leased) -> f64 {
        let name = leased
            .headers
            .get(TASK_HEADER)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned();
        let delay = s.unknown.entry(name.clone()).or_insert(5.0);
        *delay = (*delay * 2.0).min(300.0);
        self.log(
            Level::Warn,
            leased,
            &format!("there is no task {name:?} here: snoozed for {delay} s"),
        );
        *delay
    }

    fn report(&self, s: &mut State, call: &Call, rows: &[Row]) {
        for (one, row) in call.settled.iter().zip(rows) {
            // What was settled by a call whose answer was lost is no loss. The server says so ("repeated"), but
            // where a document has left the queue, or is due again.
            if one.run.is_none() || (one.resent && matches!(one.action, "drop" | "snooze")) {
                continue;
            }
            let outcome = row.get(1).and_then(Value::as_str).unwrap_or_default();
            if matches!(outcome, "lost" | "missing" | "not_active") {
                self.lost(s, call.lane, &one.subject, outcome);
            }
        }
    }

    /// A lease was lost before its document was settled: another worker has it, or it was cancelled.
    fn lost(&self, s: &mut State, lane: usize, subject: &str, why: &str) {
        s.metrics.lost += 1;
        let (queue, worker) = (s.lanes[lane].queue.as_str(), self.settings.name.as_str());
        tracing::warn!(target: "fetchq", queue, subject, worker, "{queue}: {subject} was not settled: {why}");
    }

    fn is_settled(&self, s: &mut State, run: Option<u64>, action: &'static str) {
        *s.metrics.settled.entry(action).or_default() += 1;
        if let Some(run) = run {
            self.forget(s, run);
        }
    }

    /// A call has failed. What it was to settle is kept.
    pub(crate) fn failed(&self, mut call: Call, error: &Error, pid: i64, now: f64) {
        let mut guard = self.lock();
        let s = &mut *guard;
        let down_since = s.down_since;
        self.call_done(s, &call, now);
        let lane = &mut s.lanes[call.lane];
        lane.settle_at = now;
        lane.failures += 1;
        let failures = lane.failures;
        match error.kind() {
            Kind::Data if call.what == What::Leases => {}
            Kind::Connection => {
                call.settled.iter_mut().for_each(|one| one.resent = true);
                lane.settle.splice(0..0, call.settled.drain(..));
                if call.what == What::Next {
                    // It may have leased documents without our knowing. The server may still be at it.
                    lane.sweeps = vec![(now + 0.5, pid), (now + 10.0, pid)];
                }
                lane.not_before = now + backoff(failures);
                s.down_since = down_since.or(Some(now));
                self.warn_call(s, &call, error);
            }
            Kind::Conflict => {
                let some = between(0.005, 0.02) * 2f64.powi(failures.min(6) as i32);
                lane.not_before = now
                    + if failures <= 20 {
                        some
                    } else {
                        backoff(failures - 20)
                    };
                if failures > CONFLICTS && call.settled.len() > 1 {
                    lane.isolate = call.settled.len();
                    lane.settle.splice(0..0, call.settled.drain(..));
                } else if lane.isolate > 0 || (failures > CONFLICTS && call.settled.len() == 1) {
                    // The others must not wait for one that conflicts for ever.
                    lane.isolate = lane.isolate.max(lane.settle.len() + 1);
                    for mut one in call.settled.drain(..) {
                        one.conflicts += 1;
                        if one.conflicts > CONFLICTS {
                            self.refused(s, call.lane, one, error, now);
                        } else {
                            s.lanes[call.lane].settle.push(one);
                        }
                    }
                } else {
                    lane.settle.splice(0..0, call.settled.drain(..));
                }
            }
            _ if call.settled.len() > 1 => {
                // The server refuses a list: find out which one it is.
                lane.isolate = call.settled.len();
                lane.settle.splice(0..0, call.settled.drain(..));
            }
            _ if call.settled.len() == 1 => {
                if let Some(one) = call.settled.pop() {
                    self.refused(s, call.lane, one, error, now);
                }
            }
            Kind::Config => self.end(s, error),
            _ => {
                lane.not_before = now + backoff(failures);
                self.warn_call(s, &call, error);
            }
        }
        self.topics.call();
    }

    fn warn_call(&self, s: &State, call: &Call, error: &Error) {
        let lane = &s.lanes[call.lane];
        let (queue, worker) = (lane.queue.as_str(), self.settings.name.as_str());
        if matches!(lane.failures, 1 | 5) || lane.failures.is_multiple_of(20) {
            tracing::warn!(target: "fetchq", queue, worker, "{queue}: {:?} failed, and is repeated: {error}", call.what);
        } else {
            tracing::debug!(target: "fetchq", queue, worker, "{queue}: {:?} failed, and is repeated: {error}", call.what);
        }
    }

    /// The server refuses a settlement: the document is rejected instead, or its lease expires.
    fn refused(&self, s: &mut State, lane: usize, one: Settled, error: &Error, now: f64) {
        let run = one.run.and_then(|id| s.runs.get(&id));
        let Some(run) = run.filter(|_| !one.last_resort) else {
            let queue = s.lanes[lane].queue.as_str();
            tracing::error!(target: "fetchq", queue, subject = one.subject, "{queue}: a settlement is refused, and the lease expires: {error}");
            if let Some(id) = one.run {
                self.forget(s, id);
            }
            return;
        };
        self.log(
            Level::Error,
            &run.leased,
            &format!("the settlement is refused: {error}"),
        );
        let outcome = self.redacted(Outcome::reject(format!(
            "the settlement was refused: {error}"
        )));
        if let Ok(body) = outcome.settlement(&run.leased.subject, run.leased.lease, &[]) {
            let settled = Settled {
                body,
                action: outcome.action,
                last_resort: true,
                resent: false,
                conflicts: 0,
                ..one
            };
            s.lanes[lane].settle.insert(0, settled);
            s.lanes[lane].settle_at = now;
        }
    }

    fn hand_back(&self, s: &mut State, call: &Call, rows: &[Row], now: f64) {
        let queue = &s.lanes[call.lane].queue;
        let others = s
            .lanes
            .iter()
            .any(|other| other.calling && other.queue == *queue);
        let lane = &mut s.lanes[call.lane];
        for row in rows {
            let (subject, lease) = (
                text(row.first()).unwrap_or_default(),
                row.get(1).and_then(Value::as_i64).unwrap_or(0),
            );
            let known = s
                .keys
                .get(&(lane.queue.clone(), subject.clone()))
                .and_then(|id| s.runs.get(id));
            if known.is_some_and(|run| run.leased.lease == lease) {
                continue;
            }
            if others {
                // The answer of another call may bring it.
                lane.sweeps.insert(0, (now + 1.0, call.pid));
                break;
            }
            tracing::info!(target: "fetchq", queue = lane.queue, subject, "{subject} was leased by a call without an answer, and goes back");
            let outcome = Outcome::snooze_by_policy();
            if let Ok(body) = outcome.settlement(&subject, lease, &[]) {
                let action = outcome.action;
                lane.settle.push(Settled {
                    run: None,
                    subject,
                    body,
                    action,
                    last_resort: false,
                    resent: false,
                    conflicts: 0,
                });
            }
        }
        lane.settle_at = now;
        self.topics.call();
    }

    /// Rights or declarations are wrong: the worker stops, and whoever waits for it gets the error.
    fn end(&self, s: &mut State, error: &Error) {
        if s.fatal.is_none() {
            s.fatal = Some(error.clone());
            tracing::error!(target: "fetchq", worker = self.settings.name, "the worker stops: {error}");
        }
        s.stopping = true;
        self.topics.all();
    }

    // ---------------------------------------------------------------------------------------------- handlers

    /// A handler is about to start. False: it must not, because the worker stops or the lease is gone.
    pub(crate) fn begin(&self, id: u64, task: usize, now: f64) -> bool {
        let mut guard = self.lock();
        let s = &mut *guard;
        let stopping = s.stopping;
        let begins = match s.runs.get_mut(&id) {
            Some(run) if !stopping && run.reason().is_none() && run.deadline > now => {
                run.started = Some(now);
                run.timeout_at = self.tasks[task]
                    .timeout
                    .map_or(NEVER, |timeout| now + timeout);
                true
            }
            Some(run) => {
                if run.reason().is_none() {
                    self.finish(s, id, Outcome::snooze_by_policy(), now);
                } else {
                    self.forget(s, id);
                }
                false
            }
            None => false,
        };
        if !begins {
            self.release(s, id);
        }
        begins
    }

    /// A handler has ended, with an outcome or an error.
    pub(crate) fn ended(
        &self,
        context: &Context,
        task: usize,
        result: Result<Outcome, BoxError>,
        now: f64,
    ) {
        let leased = &context.leased;
        // The rule of the application runs without the lock.
        let reason = leased.reason.get().copied();
        let outcome = match result {
            Ok(outcome) if reason != Some(Reason::Timeout) => outcome,
            Ok(_) => self.verdict(Aborted(Reason::Timeout).into(), context, task),
            Err(error) => self.verdict(error, context, task),
        };
        let mut guard = self.lock();
        let s = &mut *guard;
        self.release(s, leased.id);
        self.handled(s, leased.id, now);
        if let Some(run) = s.runs.get(&leased.id) {
            if run.settling {
                return;
            }
            if run.is_void() || (run.stuck && now >= run.deadline) {
                self.forget(s, leased.id);
            } else {
                self.finish(s, leased.id, outcome, now);
            }
        }
        self.topics.call();
    }

    fn handled(&self, s: &mut State, id: u64, now: f64) {
        s.metrics.handled += 1;
        let started = s.runs.get(&id).and_then(|run| run.started);
        s.metrics.handler_seconds += started.map_or(0.0, |started| now - started);
    }

    /// What becomes of a document whose handler has failed.
    fn verdict(&self, error: BoxError, context: &Context, task: usize) -> Outcome {
        let task = &self.tasks[task];
        let mut error = error;
        if was_aborted(&*error) {
            match context.leased.reason.get() {
                Some(Reason::Shutdown) => return Outcome::snooze_by_policy(),
                Some(Reason::Timeout) => {
                    let limit = task.timeout.unwrap_or_default();
                    error = format!("timeout: the handler was stopped after {limit} s").into();
                }
                _ => {}
            }
        }
        let given = if error.is::<InvalidPayload>() {
            task.kill_invalid.then(|| Outcome::kill(error.to_string()))
        } else {
            task.retry.as_ref().and_then(|rule| rule(&error, context))
        };
        let mut outcome = given.unwrap_or_else(|| Outcome::reject(""));
        if outcome.fails() {
            if outcome.message().is_empty() {
                outcome
                    .keys
                    .insert("message".into(), describe(&told(&*error)).into());
            }
            if !outcome.keys.contains_key("details") {
                let causes: Vec<String> = chain(&*error).map(ToString::to_string).collect();
                let stack: String = causes.join("\ncaused by: ").chars().take(4000).collect();
                outcome.keys.insert(
                    "details".into(),
                    json!({"stack": stack, "worker": self.settings.name}),
                );
            }
        }
        outcome
    }

    fn redacted(&self, mut outcome: Outcome) -> Outcome {
        if outcome.fails() {
            for key in ["message", "details"] {
                if let Some(value) = outcome.keys.remove(key) {
                    let value = clean(value);
                    let value = match &self.settings.redact {
                        Some(hook) => map(value, &|text| hook(text)),
                        None => value,
                    };
                    let value = match value {
                        Value::String(message) if key == "message" => describe(&message).into(),
                        other => other,
                    };
                    outcome.keys.insert(key.to_owned(), value);
                }
            }
        }
        outcome
    }

    fn finish(&self, s: &mut State, id: u64, outcome: Outcome, now: f64) {
        let Some(run) = s.runs.get_mut(&id) else {
            return;
        };
        let leased = Arc::clone(&run.leased);
        let follow_ups = leased
            .follow_ups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut outcome = self.redacted(outcome);
        let body = outcome
            .settlement(&leased.subject, leased.lease, &follow_ups)
            .or_else(|error| {
                outcome = self.redacted(Outcome::reject(error.to_string()));
                outcome.settlement(&leased.subject, leased.lease, &[])
            });
        let Ok(body) = body else { return };
        run.settling = true;
        let one = Settled {
            run: Some(id),
            subject: leased.subject.clone(),
            body,
            action: outcome.action,
            last_resort: false,
            resent: false,
            conflicts: 0,
        };
        if run.dirty && !outcome.succeeds() && !run.stuck {
            // The next attempt has to find the progress of this one: it is stored first.
            run.next_beat = 0.0;
            run.stored.push(Stored::Settle(Box::new(one)));
            self.topics.beat.notify_one();
        } else {
            let (lane, at) = (run.lane, now + BATCH.min(run.seconds / 10.0));
            self.queue(s, lane, one, at);
        }
        self.log_outcome(&leased, &outcome);
    }

    fn queue(&self, s: &mut State, lane: usize, one: Settled, at: f64) {
        let lane = &mut s.lanes[lane];
        lane.settle.push(one);
        if at < lane.settle_at {
            lane.settle_at = at;
            self.topics.call();
        }
    }

    fn log_outcome(&self, leased: &Leased, outcome: &Outcome) {
        if !outcome.fails() {
            return;
        }
        let killed = outcome.action == "kill";
        let last = killed
            || leased
                .max_attempts
                .is_some_and(|most| leased.attempts >= most);
        let most = leased
            .max_attempts
            .map_or_else(String::new, |most| format!(" of {most}"));
        let how = if killed { "was killed" } else { "failed" };
        let message = format!(
            "attempt {}{most} {how}: {}",
            leased.attempts,
            outcome.message()
        );
        self.log(
            if last { Level::Error } else { Level::Warn },
            leased,
            &message,
        );
    }

    /// A transactional handler has ended, and its settlement is about to be sent: from now on the lease ends by that,
    /// and nothing aborts it.
    pub(crate) fn settles(&self, id: u64) -> Result<(), Aborted> {
        let mut s = self.lock();
        let Some(run) = s.runs.get_mut(&id) else {
            return Err(Aborted(Reason::Lost));
        };
        match run.reason() {
            Some(Reason::Shutdown) | None => {
                run.settling = true;
                Ok(())
            }
            Some(reason) => Err(Aborted(reason)),
        }
    }

    /// The settlement of a transactional handler.
    pub(crate) fn settlement(
        &self,
        leased: &Leased,
        outcome: &mut Outcome,
    ) -> Result<Query, Error> {
        let follow_ups = leased
            .follow_ups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        *outcome = self.redacted(outcome.clone());
        let body = outcome.settlement(&leased.subject, leased.lease, &follow_ups)?;
        Ok(q!(sql::SETTLE, leased.queue, format!("[{body}]"), "error"))
    }

    /// A transactional handler has committed its writes and its settlement.
    pub(crate) fn committed(&self, leased: &Leased, outcome: &Outcome, now: f64) {
        let mut s = self.lock();
        self.release(&mut s, leased.id);
        self.handled(&mut s, leased.id, now);
        self.log_outcome(leased, outcome);
        self.is_settled(&mut s, Some(leased.id), outcome.action);
        self.topics.call();
    }

    /// A handler has ended whose document is not ours any more: there is nothing to settle.
    pub(crate) fn dropped(&self, leased: &Leased, why: Option<&str>, now: f64) {
        let mut s = self.lock();
        self.release(&mut s, leased.id);
        self.handled(&mut s, leased.id, now);
        if let (Some(why), None) = (why, leased.reason.get()) {
            let lane = s.runs.get(&leased.id).map_or(0, |run| run.lane);
            self.lost(&mut s, lane, &leased.subject, why);
        }
        self.forget(&mut s, leased.id);
        self.topics.call();
    }

    /// What to do after a transaction without a commit. `database` is the error of the database behind the error.
    pub(crate) fn after_rollback(
        &self,
        job: &Job,
        error: BoxError,
        database: Option<&Error>,
        phase: Phase,
        broken: bool,
        reruns: u32,
    ) -> After {
        let mut s = self.lock();
        if let Some(run) = s.runs.get_mut(&job.leased.id) {
            run.settling = false;
        }
        let reason = job.leased.reason.get().copied();
        let kind = database.map_or(Kind::Data, Error::kind);
        let lost = phase != Phase::Handler && kind == Kind::Lost;
        if matches!(reason, Some(Reason::Cancelled | Reason::Lost)) || lost {
            return After::Drop;
        }
        if reason.is_some() {
            return After::Settle(error);
        }
        // The connection has broken. Was it committed? Only an answer to a commit would say so.
        if kind == Kind::Connection && (broken || phase == Phase::Commit) && reruns < RERUNS {
            return After::Confirm;
        }
        let state = database.and_then(Error::sqlstate);
        if matches!(state, Some("40001" | "40P01")) && reruns < self.tasks[job.task].conflicts {
            return After::Again;
        }
        if phase == Phase::Settle && kind == Kind::Data {
            return After::Settle(format!("the settlement was refused: {}", told(&*error)).into());
        }
        After::Settle(error)
    }

    fn release(&self, s: &mut State, id: u64) {
        if let Some(slots) = s.jobs.remove(&id) {
            s.slots[slots].jobs -= 1;
            if s.jobs.len() + 1 == self.settings.concurrency {
                self.topics.call(); // Queues that had no slot left may have one now.
            }
        }
    }

    /// The document is not ours any more.
    fn forget(&self, s: &mut State, id: u64) {
        let Some(run) = s.runs.remove(&id) else {
            return;
        };
        s.bytes -= run.size;
        let key = (run.leased.queue.clone(), run.leased.subject.clone());
        if s.keys.get(&key) == Some(&id) {
            s.keys.remove(&key);
        }
        tell(
            run.stored,
            &Aborted(run.leased.reason.get().copied().unwrap_or(Reason::Lost)).into(),
        );
        if s.stopping && s.runs.is_empty() {
            self.topics.all();
        }
    }

    fn abort(&self, s: &mut State, id: u64, reason: Reason, now: f64) {
        let Some(run) = s.runs.get_mut(&id) else {
            return;
        };
        if run.settling || run.leased.reason.set(reason).is_err() {
            return;
        }
        run.aborted_at = now;
        if reason == Reason::Lost {
            s.metrics.lost += 1;
        }
        run.leased.token.cancel();
        tell(std::mem::take(&mut run.stored), &Aborted(reason).into());
        let level = if reason == Reason::Shutdown {
            Level::Info
        } else {
            Level::Warn
        };
        self.log(level, &run.leased, &format!("stopped: {reason}"));
    }

    // --------------------------------------------------------------------------------------------- heartbeat

    /// Stores the progress of a document with the next heartbeat: at once if somebody waits for it.
    pub(crate) fn store(
        &self,
        leased: &Leased,
        change: impl FnOnce(&mut Value),
        done: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let mut s = self.lock();
        let run = s
            .runs
            .get_mut(&leased.id)
            .filter(|run| run.reason().is_none());
        let Some(run) = run else {
            let reason = leased.reason.get().copied().unwrap_or(Reason::Lost);
            tell(
                done.map(Stored::Tell).into_iter().collect(),
                &Aborted(reason).into(),
            );
            return;
        };
        change(
            &mut leased
                .progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        run.dirty = true;
        run.next_beat = if done.is_some() {
            0.0
        } else {
            run.next_beat.min(run.beat_sent + 1.0)
        };
        run.stored.extend(done.map(Stored::Tell));
        self.topics.beat.notify_one();
    }

    /// Asks the server whether a lease still holds, after a commit without an answer.
    pub(crate) fn confirm(&self, leased: &Leased, done: oneshot::Sender<Result<(), Error>>) {
        let mut s = self.lock();
        match s
            .runs
            .get_mut(&leased.id)
            .filter(|run| run.reason().is_none())
        {
            Some(run) => {
                run.stored.push(Stored::Tell(done));
                run.next_beat = 0.0;
            }
            None => tell(vec![Stored::Tell(done)], &Aborted(Reason::Lost).into()),
        }
        self.topics.beat.notify_one();
    }

    /// The call that extends leases which are due, or when one is: one call for all of one lease duration.
    pub(crate) fn take_beat(&self, now: f64) -> Result<Beat, f64> {
        let mut guard = self.lock();
        let s = &mut *guard;
        let first = s
            .runs
            .values()
            .filter(|run| run.extends())
            .min_by(|a, b| a.next_beat.total_cmp(&b.next_beat));
        let Some(first) = first else {
            return Err(NEVER);
        };
        if first.next_beat > now {
            return Err(first.next_beat);
        }
        let late = if first.next_beat > 0.0 {
            now - first.next_beat
        } else {
            0.0
        };
        s.metrics.heartbeat_lag = late.max(s.metrics.heartbeat_lag * 0.9);
        let lease = s.lanes[first.lane].lease.clone();
        let (mut items, mut runs, mut stored) = (Vec::new(), Vec::new(), HashMap::new());
        for (id, run) in &mut s.runs {
            // Those that would be due soon come along.
            let soon =
                run.next_beat <= now + run.seconds / 6.0 || run.dirty || !run.stored.is_empty();
            if !soon || !run.extends() || s.lanes[run.lane].lease != lease {
                continue;
            }
            let mut item = json!({"queue": run.leased.queue, "subject": run.leased.subject, "lease": run.leased.lease});
            if run.dirty {
                item["progress"] = run
                    .leased
                    .progress
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                run.dirty = false;
            }
            run.next_beat = NEVER;
            stored.insert(*id, std::mem::take(&mut run.stored));
            items.push(item);
            runs.push(*id);
        }
        s.beating = Some(now);
        let mut query = q!(sql::EXTEND, Value::Array(items), "");
        query.values[1] = lease;
        Ok(Beat {
            runs,
            stored,
            sent: now,
            query,
        })
    }

    /// Leases were extended, or not.
    pub(crate) fn beaten(&self, mut beat: Beat, rows: &[Row], now: f64) {
        let mut guard = self.lock();
        let s = &mut *guard;
        s.last_beat = Some(now);
        s.down_since = None;
        s.beating = None;
        s.metrics.calls += 1;
        self.was_held_up(s, beat.sent, now);
        let mut stop = BTreeSet::new();
        for row in rows {
            let (queue, subject) = (
                text(row.first()).unwrap_or_default(),
                text(row.get(1)).unwrap_or_default(),
            );
            if row.get(4).and_then(Value::as_bool) == Some(true) {
                stop.insert(queue.clone());
            }
            let outcome = row.get(2).and_then(Value::as_str).unwrap_or_default();
            let ends = row.get(3).and_then(Value::as_f64).unwrap_or(0.0);
            let Some(id) = s
                .keys
                .get(&(queue, subject))
                .copied()
                .filter(|id| beat.runs.contains(id))
            else {
                continue;
            };
            let stored = beat.stored.remove(&id).unwrap_or_default();
            let Some(run) = s.runs.get_mut(&id) else {
                continue;
            };
            if matches!(outcome, "extended" | "limited") {
                if outcome == "limited" {
                    run.deadline += ends - run.ends;
                    run.limited = true;
                } else {
                    run.deadline = beat.sent + run.seconds;
                }
                run.ends = ends;
                run.beat_sent = beat.sent;
                run.next_beat = run
                    .next_beat
                    .min(beat.sent + run.seconds / 3.0 * between(0.8, 1.0));
                if run.dirty {
                    run.next_beat = run.next_beat.min(now + 1.0);
                }
                self.are_stored(s, id, stored);
            } else if run.settling {
                // Its settlement says what has become of it.
                self.are_stored(s, id, stored);
            } else {
                run.stored.extend(stored);
                let reason = if outcome == "cancelled" {
                    Reason::Cancelled
                } else {
                    Reason::Lost
                };
                self.abort(s, id, reason, now);
            }
        }
        // Those of documents that are gone.
        for (_, stored) in beat.stored {
            tell(stored, &Aborted(Reason::Lost).into());
        }
        for queue in stop {
            self.asked_to_stop(s, Some(&queue));
        }
        self.topics.beat.notify_one();
    }

    fn are_stored(&self, s: &mut State, id: u64, stored: Vec<Stored>) {
        for done in stored {
            match done {
                Stored::Tell(sender) => {
                    let _ = sender.send(Ok(()));
                }
                Stored::Settle(one) => {
                    if let Some(lane) = s.runs.get(&id).map(|run| run.lane) {
                        self.queue(s, lane, *one, 0.0);
                    }
                }
            }
        }
    }

    /// A heartbeat has failed. Gives for how long to wait before the next one.
    pub(crate) fn beat_failed(&self, beat: Beat, error: &Error, now: f64) -> f64 {
        let mut guard = self.lock();
        let s = &mut *guard;
        let kind = error.kind();
        s.beating = None;
        if kind == Kind::Connection && s.down_since.is_none() {
            s.down_since = Some(now);
        }
        let mut shortest = 10f64;
        for (id, stored) in beat.stored {
            let Some(run) = s.runs.get_mut(&id) else {
                tell(stored, error);
                continue;
            };
            shortest = shortest.min(run.seconds);
            run.next_beat = now;
            if kind == Kind::Data {
                // Progress that the server refuses must not cost the leases of all others.
                let (settles, told): (Vec<_>, Vec<_>) = stored
                    .into_iter()
                    .partition(|one| matches!(one, Stored::Settle(_)));
                tell(told, error);
                self.are_stored(s, id, settles);
            } else {
                run.dirty |= !run
                    .leased
                    .progress
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .is_null();
                run.stored.extend(stored);
            }
        }
        if kind == Kind::Config {
            self.end(s, error);
        }
        tracing::warn!(target: "fetchq", worker = self.settings.name, "the heartbeat failed: {error}");
        between(0.2, 0.4).min(shortest / 20.0)
    }

    /// Somebody has called `worker_stop()`: for all queues, or for one, if he may not work on the others.
    fn asked_to_stop(&self, s: &mut State, queue: Option<&str>) {
        for lane in &mut s.lanes {
            lane.closed |= queue.is_none_or(|queue| queue == lane.queue);
        }
        if s.lanes.iter().all(|lane| lane.closed) && !s.stopping {
            tracing::info!(target: "fetchq", worker = self.settings.name, "the worker was asked to stop");
            s.stopping = true;
            self.topics.all();
        }
    }

    // ----------------------------------------------------------------------------------------------- waiting

    /// The wait that the session of a group should make now, or until when it has none to make.
    pub(crate) fn take_wait(&self, at: usize, now: f64) -> Next {
        let mut guard = self.lock();
        let s = &mut *guard;
        if s.polling || s.abandoned {
            return Next::Pause(NEVER);
        }
        if let Some(crowded) = s.crowded_at.filter(|crowded| now < crowded + 1.5) {
            return Next::Pause(crowded + 1.5);
        }
        let first = at == 0;
        let group = &s.groups[at];
        let quiet: BTreeSet<String> = group
            .lanes
            .iter()
            .filter(|lane| self.quiet(s, **lane, now))
            .map(|lane| s.lanes[*lane].queue.clone())
            .collect();
        if quiet.len() < group.lanes.len() && now < group.not_before {
            return Next::Pause(group.not_before);
        }
        let pending = group
            .lanes
            .iter()
            .map(|lane| s.lanes[*lane].quiet_at)
            .filter(|at| *at > now && *at < NEVER);
        let pending = pending.fold(NEVER, f64::min);
        if pending < now + HOLD {
            return Next::Pause(pending);
        }
        let watched: Vec<u64> = if first { watchable(s, now) } else { Vec::new() };
        let pooled = if s.pooled { POOLED_WAIT } else { NEVER };
        let mut longest = LONGEST_WAIT.min(pooled) * between(0.9, 1.0);
        // Documents that are too young to be watched, or that a call may bring, are watched by the next wait.
        let young = s.runs.values().map(|run| run.sent + WATCH_AFTER);
        let soon = young.filter(|at| *at > now).fold(NEVER, f64::min);
        let calling = s.calls.values().any(|sent| now < sent + 0.5);
        if first && (soon < NEVER || calling) {
            longest = longest.min((soon.min(now + WATCH_AFTER) - now).max(SHORT_WAIT));
        }
        let mut queues = quiet;
        if queues.is_empty() && watched.is_empty() {
            // Nothing to wait for. A worker that is always busy is asked to stop, too.
            let next = if s.stopping { NEVER } else { group.probe_at };
            if !first || now < next {
                return Next::Pause(if first { next.min(soon) } else { NEVER });
            }
            queues = group
                .lanes
                .iter()
                .map(|lane| s.lanes[*lane].queue.clone())
                .collect();
            longest = 0.0;
        }
        let leases: Vec<Value> = watched
            .iter()
            .filter_map(|id| s.runs.get(id))
            .map(|run| json!({"queue": run.leased.queue, "subject": run.leased.subject, "lease": run.leased.lease}))
            .collect();
        let group = &mut s.groups[at];
        group.probe_at = now + PROBE;
        longest = longest.min(group.timeout);
        let names = array(queues.iter().map(String::as_str));
        let list = Value::Array(leases);
        let mut query = q!(
            sql::WAIT,
            names,
            self.settings.name,
            seconds(longest),
            list,
            group.version,
            ""
        );
        query.values[5].clone_from(&group.mark);
        let watched = watched.into_iter().collect();
        group.call = Some(WaitCall {
            queues,
            watched,
            sent: now,
            longest,
            interrupted: false,
        });
        Next::Wait(query)
    }

    /// Whether a lane needs somebody to say that there are documents.
    fn quiet(&self, s: &State, at: usize, now: f64) -> bool {
        let lane = &s.lanes[at];
        !(lane.ready
            || lane.calling
            || !lane.settle.is_empty()
            || s.stopping
            || now < lane.not_before)
            && now >= lane.quiet_at
            && self.room(s, at) > 0
    }

    /// A wait has ended with an event, or without one when its time was over.
    pub(crate) fn waited(&self, at: usize, row: &Row, now: f64) {
        let mut guard = self.lock();
        let s = &mut *guard;
        let group = &mut s.groups[at];
        let call = group.call.take();
        let mark = row.get(3).and_then(Value::as_array);
        group.mark = mark.map(|mark| array(mark.iter().map(Value::to_string)));
        group.failures = 0;
        s.down_since = None;
        let slack = if s.pooled { CROWDED } else { 5.0 };
        if call.is_some_and(|call| now - call.sent > call.longest + slack) {
            self.poll_now(
                s,
                "a wait has taken longer than asked: the pooler has too few connections",
            );
        }
        let queue = text(row.get(1));
        match row.first().and_then(Value::as_str) {
            Some("ready" | "resumed") => {
                s.groups[at].not_before = now + HOLD;
                for lane in s.groups[at].lanes.clone() {
                    if Some(&s.lanes[lane].queue) == queue.as_ref() {
                        s.lanes[lane].ready = true;
                    }
                }
                self.topics.call();
            }
            Some("stop") => self.asked_to_stop(s, queue.as_deref()),
            Some(event @ ("cancelled" | "lost")) => {
                let reason = if event == "cancelled" {
                    Reason::Cancelled
                } else {
                    Reason::Lost
                };
                let queue = queue.unwrap_or_default();
                for subject in row.get(2).and_then(Value::as_array).into_iter().flatten() {
                    let key = (
                        queue.clone(),
                        subject.as_str().unwrap_or_default().to_owned(),
                    );
                    if let Some(id) = s.keys.get(&key).copied() {
                        self.abort(s, id, reason, now);
                    }
                }
                s.groups[at].not_before = now + HOLD;
            }
            _ => {}
        }
    }

    /// A wait has failed. Gives for how long to wait before the next one.
    pub(crate) fn wait_failed(&self, at: usize, error: &Error, now: f64) -> f64 {
        let mut guard = self.lock();
        let s = &mut *guard;
        let group = &mut s.groups[at];
        let call = group.call.take();
        // A request to cancel may come late, and end the next wait.
        let late = error.sqlstate() == Some("57014") && now - group.interrupted_at < 10.0;
        if late || call.as_ref().is_some_and(|call| call.interrupted) {
            return 0.0;
        }
        group.failures += 1;
        let failures = group.failures;
        match (error.kind(), call) {
            (Kind::Conflict, Some(call)) => {
                // A statement_timeout ends each wait.
                group.timeout = ((now - call.sent) * 0.8).max(1.0);
                return between(0.0, 0.1);
            }
            (Kind::Config, _) => self.end(s, error),
            _ => {}
        }
        if matches!(failures, 1 | 5) {
            tracing::warn!(target: "fetchq", worker = self.settings.name, "waiting failed, and is repeated: {error}");
        }
        backoff(failures)
    }

    /// No session waits any more: queues without documents are asked again and again.
    pub(crate) fn poll_from_now_on(&self, why: &str) {
        self.poll_now(&mut self.lock(), why);
    }

    fn poll_now(&self, s: &mut State, why: &str) {
        if s.polling {
            return;
        }
        s.polling = true;
        tracing::warn!(target: "fetchq", worker = self.settings.name, "the worker polls every {} s: {why}", self.settings.poll);
        s.lanes.iter_mut().for_each(|lane| lane.poll_at = 0.0);
        self.topics.all();
    }

    // -------------------------------------------------------------------------------------------------- time

    /// Looks at all deadlines. Gives when to look again, and the waits that are to be interrupted.
    pub(crate) fn tick(&self, now: f64) -> (f64, Vec<usize>) {
        let mut guard = self.lock();
        let s = &mut *guard;
        let ids: Vec<u64> = s.runs.keys().copied().collect();
        for id in ids {
            self.tick_run(s, id, now);
        }
        if s.stopping {
            self.tick_stop(s, now);
        }
        let mut restart: Vec<usize> = (0..s.groups.len())
            .filter(|group| self.outdated(s, *group, now))
            .collect();
        if s.crowded_at.is_none() && !s.polling {
            let slow = s
                .calls
                .values()
                .copied()
                .chain(s.beating)
                .any(|sent| now - sent > CROWDED);
            let waiting: Vec<usize> = (0..s.groups.len())
                .filter(|group| s.groups[*group].call.is_some())
                .collect();
            if slow && !waiting.is_empty() {
                s.crowded_at = Some(now);
                restart = waiting;
            }
        }
        for group in &restart {
            s.groups[*group].interrupted_at = now;
            if let Some(call) = &mut s.groups[*group].call {
                call.interrupted = true;
            }
        }
        let busy = !s.runs.is_empty() || s.stopping || !s.calls.is_empty();
        let mut next = now + if busy { 0.1 } else { 30.0 };
        for lane in &s.lanes {
            if now < lane.quiet_at + HOLD && lane.quiet_at < NEVER {
                next = next.min(lane.quiet_at + HOLD);
            }
        }
        (next, restart)
    }

    fn tick_run(&self, s: &mut State, id: u64, now: f64) {
        let Some(run) = s.runs.get(&id) else { return };
        if !run.settling && run.reason().is_none() {
            if now >= run.deadline {
                self.abort(s, id, Reason::Lost, now);
            } else if now >= run.timeout_at {
                self.abort(s, id, Reason::Timeout, now);
            }
        }
        let Some(run) = s.runs.get_mut(&id) else {
            return;
        };
        let runs = run.has_job && s.jobs.contains_key(&id);
        if !run.stuck && runs && now - run.aborted_at > self.settings.stuck_after {
            run.stuck = true;
            s.metrics.stuck += 1;
            let reason = run
                .reason()
                .map(|reason| reason.to_string())
                .unwrap_or_default();
            self.log(
                Level::Warn,
                &run.leased,
                &format!("the handler is stuck: it does not stop ({reason})"),
            );
            if self.settings.free_stuck {
                self.release(s, id);
            }
        }
    }

    fn tick_stop(&self, s: &mut State, now: f64) {
        if now >= s.abandon_at && !s.abandoned {
            s.abandoned = true;
            self.abandoned.cancel();
        }
        if s.stop_at == NEVER {
            s.stop_at = now + s.grace;
            s.give_up_at = s.stop_at + self.settings.abort_grace;
        }
        let ids: Vec<u64> = s.runs.keys().copied().collect();
        if now >= s.stop_at && !s.aborting {
            s.aborting = true;
            for id in &ids {
                self.abort(s, *id, Reason::Shutdown, now);
            }
        }
        if now >= s.give_up_at && !s.gave_up {
            s.gave_up = true;
            for id in ids {
                let Some(run) = s.runs.get(&id) else { continue };
                if run.is_void() {
                    self.forget(s, id);
                } else if !run.settling {
                    self.log(
                        Level::Error,
                        &run.leased,
                        "the handler does not stop, and its document goes back",
                    );
                    self.finish(s, id, Outcome::snooze_by_policy(), now);
                }
            }
            self.topics.all();
        }
        if s.finished() {
            self.topics.all();
        }
    }

    fn outdated(&self, s: &State, at: usize, now: f64) -> bool {
        let group = &s.groups[at];
        let Some(call) = group.call.as_ref().filter(|call| !call.interrupted) else {
            return false;
        };
        if s.polling
            || (s.finished() && s.runs.is_empty())
            || (s.stopping && !call.queues.is_empty())
        {
            return true;
        }
        let left_out = |lane: &usize| {
            let lane_ = &s.lanes[*lane];
            !call.queues.contains(&lane_.queue)
                && self.quiet(s, *lane, now)
                && now >= lane_.quiet_at + HOLD
        };
        if group.lanes.iter().any(left_out) {
            return true;
        }
        at == 0
            && now - call.sent > 1.0
            && watchable(s, now)
                .iter()
                .any(|id| !call.watched.contains(id))
    }

    /// Leases no more, and ends when all is settled, or when the grace is over.
    pub(crate) fn ask_stop(&self, grace: Option<f64>) {
        let mut s = self.lock();
        if let Some(grace) = grace {
            s.grace = grace;
            s.stop_at = NEVER;
        }
        s.stopping = true;
        self.topics.all();
    }

    /// Ends at once: it asks handlers to stop, and their documents go back without waiting for them. A server that
    /// does not answer is waited for two seconds.
    pub(crate) fn abandon(&self, now: f64) {
        let mut s = self.lock();
        s.stopping = true;
        (s.stop_at, s.give_up_at) = (now, now);
        s.abandon_at = now + 2.0;
        self.tick_stop(&mut s, now);
        self.topics.all();
    }

    /// Whether a stop is complete.
    pub(crate) fn finished(&self) -> bool {
        self.lock().finished()
    }

    /// The error that has ended the worker.
    pub(crate) fn fatal(&self) -> Option<Error> {
        self.lock().fatal.clone()
    }

    pub(crate) fn health(&self, now: f64) -> Health {
        let s = self.lock();
        let late = s
            .runs
            .values()
            .any(|run| run.extends() && run.next_beat < now - run.seconds / 3.0)
            || s.beating.is_some_and(|sent| now - sent > 10.0);
        Health {
            ok: s.down_since.is_none() && s.fatal.is_none() && !late,
            database: s.down_since.is_none(),
            loops: !late,
            heartbeat_age: s.last_beat.map(|at| now - at),
            stopping: s.stopping,
            polling: s.polling,
        }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let s = self.lock();
        Metrics {
            slots_used: s.jobs.len(),
            slots: self.settings.concurrency,
            ..s.metrics.clone()
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

fn watchable(s: &State, now: f64) -> Vec<u64> {
    let old = s.runs.iter().filter(|(_, run)| {
        now - run.sent >= WATCH_AFTER && run.reason().is_none() && !run.settling
    });
    old.map(|(id, _)| *id).collect()
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
