//! The calls of the SQL API that pages show, and their rows. Nothing here names a table.
use crate::db::row;

/// The state of all queues, for the poller.
pub const QUEUE_STATS: &str = "\
select queue, ready, retrying, blocked, planned, active, completed, killed,
       extract(epoch from oldest_ready)::float8 as oldest_ready,
       extract(epoch from next_due)::float8 as next_due,
       pushed, picked, succeeded, failed, lost,
       extract(epoch from wait_p50)::float8 as wait_p50,
       extract(epoch from wait_p95)::float8 as wait_p95,
       extract(epoch from wait_p99)::float8 as wait_p99,
       extract(epoch from run_p50)::float8 as run_p50,
       extract(epoch from run_p95)::float8 as run_p95,
       extract(epoch from run_p99)::float8 as run_p99,
       is_paused, is_dead_letter_queue
from fetchq.queue_stats()";

row! {
    /// A row of `fetchq.queue_stats()`. Times are seconds.
    #[derive(Debug, Clone)]
    pub struct QueueStat {
        pub queue: String,
        pub ready: Option<i64>,
        pub retrying: Option<i64>,
        pub blocked: Option<i64>,
        pub planned: Option<i64>,
        pub active: Option<i64>,
        pub completed: Option<i64>,
        pub killed: Option<i64>,
        pub oldest_ready: Option<f64>,
        pub next_due: Option<f64>,
        pub pushed: Option<i64>,
        pub picked: Option<i64>,
        pub succeeded: Option<i64>,
        pub failed: Option<i64>,
        pub lost: Option<i64>,
        pub wait_p50: Option<f64>,
        pub wait_p95: Option<f64>,
        pub wait_p99: Option<f64>,
        pub run_p50: Option<f64>,
        pub run_p95: Option<f64>,
        pub run_p99: Option<f64>,
        pub is_paused: Option<bool>,
        pub is_dead_letter_queue: Option<bool>,
    }
}

impl QueueStat {
    /// Whether its documents are dead letters, which wait for no worker.
    pub fn has_dead_letters(&self) -> bool {
        self.is_dead_letter_queue == Some(true)
    }

    /// For how long the oldest document has waited for a worker: seconds.
    pub fn oldest_waiting(&self) -> Option<f64> {
        self.oldest_ready.filter(|_| !self.has_dead_letters())
    }
}

#[cfg(test)]
impl QueueStat {
    /// A queue of which nothing else is known, for tests.
    pub fn named(name: &str) -> Self {
        Self {
            queue: name.to_owned(),
            ready: None,
            retrying: None,
            blocked: None,
            planned: None,
            active: None,
            completed: None,
            killed: None,
            oldest_ready: None,
            next_due: None,
            pushed: None,
            picked: None,
            succeeded: None,
            failed: None,
            lost: None,
            wait_p50: None,
            wait_p95: None,
            wait_p99: None,
            run_p50: None,
            run_p95: None,
            run_p99: None,
            is_paused: None,
            is_dead_letter_queue: None,
        }
    }
}

pub const STATUS: &str = "select component, state, detail, hint from fetchq.status()";

row! {
    /// A row of `fetchq.status()`.
    #[derive(Debug, Clone)]
    pub struct Component {
        pub component: String,
        pub state: Option<String>,
        pub detail: Option<String>,
        pub hint: Option<String>,
    }
}

pub const INFO: &str = "\
select extension_version, library_version, is_preloaded, has_background_worker, has_shared_memory,
       pg_catalog.pg_is_in_recovery() as is_standby, current_user::text as role
from fetchq.info()";

row! {
    /// The row of `fetchq.info()`, and who asks.
    #[derive(Debug, Clone)]
    pub struct Info {
        pub extension_version: Option<String>,
        pub library_version: Option<String>,
        pub is_preloaded: Option<bool>,
        pub has_background_worker: Option<bool>,
        pub has_shared_memory: Option<bool>,
        pub is_standby: bool,
        pub role: String,
    }
}

/// A document, with its JSON as people read it.
pub const DOC_GET: &str = "\
select subject, status, jsonb_pretty(payload) as payload, jsonb_pretty(headers) as headers,
       version, priority, attempts, max_attempts, iterations,
       extract(epoch from created_at)::float8 as created_at,
       extract(epoch from due_at)::float8 as due_at,
       extract(epoch from picked_at)::float8 as picked_at,
       extract(epoch from settled_at)::float8 as settled_at,
       extract(epoch from lease_ends)::float8 as lease_ends,
       extract(epoch from expires_at)::float8 as expires_at,
       worker, jsonb_pretty(result) as result, jsonb_pretty(progress) as progress, last_error,
       ordering_key, jsonb_pretty(origin) as origin, jsonb_pretty(queued) as queued, is_from_history
from fetchq.doc_get($1, $2)";

/// A page of documents, without what only the page of one of them shows.
pub const DOCS_LIST: &str = "\
select subject, status, priority, attempts, max_attempts,
       extract(epoch from created_at)::float8 as created_at,
       extract(epoch from due_at)::float8 as due_at, worker, last_error
from fetchq.docs_list($1, filter => $2, max_docs => $3, after => $4)";

row! {
    /// A row of `fetchq.docs_list()`. Times are seconds since 1970.
    #[derive(Debug, Clone)]
    pub struct Listed {
        pub subject: String,
        pub status: Option<String>,
        pub priority: Option<i32>,
        pub attempts: Option<i32>,
        pub max_attempts: Option<i32>,
        pub created_at: Option<f64>,
        pub due_at: Option<f64>,
        pub worker: Option<String>,
        pub last_error: Option<String>,
    }
}

row! {
    /// The row of `fetchq.doc_get()`. Times are seconds since 1970.
    #[derive(Debug, Clone)]
    pub struct Document {
        pub subject: String,
        pub status: Option<String>,
        pub payload: Option<String>,
        pub headers: Option<String>,
        pub version: Option<i32>,
        pub priority: Option<i32>,
        pub attempts: Option<i32>,
        pub max_attempts: Option<i32>,
        pub iterations: Option<i64>,
        pub created_at: Option<f64>,
        pub due_at: Option<f64>,
        pub picked_at: Option<f64>,
        pub settled_at: Option<f64>,
        pub lease_ends: Option<f64>,
        pub expires_at: Option<f64>,
        pub worker: Option<String>,
        pub result: Option<String>,
        pub progress: Option<String>,
        pub last_error: Option<String>,
        pub ordering_key: Option<String>,
        pub origin: Option<String>,
        pub queued: Option<String>,
        pub is_from_history: Option<bool>,
    }
}

pub const DOC_ERRORS: &str = "\
select extract(epoch from at)::float8 as at, attempt, message, jsonb_pretty(details) as details, ref_id
from fetchq.doc_errors($1, $2)";

row! {
    /// A row of `fetchq.doc_errors()`.
    #[derive(Debug, Clone)]
    pub struct DocError {
        pub at: Option<f64>,
        pub attempt: Option<i32>,
        pub message: Option<String>,
        pub details: Option<String>,
        pub ref_id: Option<String>,
    }
}

pub const DOC_EXPLAIN: &str = "\
select reason, extract(epoch from since)::float8 as since, extract(epoch from until)::float8 as until, detail, hint
from fetchq.doc_explain($1, $2)";

row! {
    /// A row of `fetchq.doc_explain()`. Times are seconds since 1970.
    #[derive(Debug, Clone)]
    pub struct DocReason {
        pub reason: String,
        pub since: Option<f64>,
        pub until: Option<f64>,
        pub detail: Option<String>,
        pub hint: Option<String>,
    }
}

/// The story of a subject in all queues; `trace` gives the oldest first.
pub const TRACE: &str = "\
select extract(epoch from created_at)::float8 as created_at, queue::text as queue, type::text as type, info::text as info
from fetchq.trace($1, 'ASC') order by step limit 200";

/// A row of `fetchq.trace()`.
#[derive(Debug, Clone)]
pub struct TraceStep {
    pub at: Option<f64>,
    pub queue: Option<String>,
    pub what: Option<String>,
    pub info: Option<String>,
}

impl TryFrom<&tokio_postgres::Row> for TraceStep {
    type Error = tokio_postgres::Error;

    fn try_from(row: &tokio_postgres::Row) -> Result<Self, Self::Error> {
        Ok(Self {
            at: row.try_get("created_at")?,
            queue: row.try_get("queue")?,
            what: row.try_get("type")?,
            info: row.try_get("info")?,
        })
    }
}

/// A page of the history of a queue, the newest first.
pub const HISTORY: &str = "\
select subject::text as subject, outcome, attempts, worker, last_error, position,
       extract(epoch from settled_at)::float8 as settled_at,
       extract(epoch from ran)::float8 as ran
from fetchq.queue_history($1, filter => $2, max_docs => $3, after => $4)";

row! {
    /// A row of `fetchq.queue_history()`. Times are seconds.
    #[derive(Debug, Clone)]
    pub struct Settled {
        pub subject: String,
        pub outcome: Option<String>,
        pub attempts: Option<i32>,
        pub worker: Option<String>,
        pub last_error: Option<String>,
        pub position: Option<String>,
        pub settled_at: Option<f64>,
        pub ran: Option<f64>,
    }
}

pub const QUEUE_SETTINGS: &str = "select fetchq.queue_settings($1) as settings";

row! {
    /// The answer of `fetchq.queue_settings()` and `fetchq.queue_configure()`.
    #[derive(Debug, Clone)]
    pub struct Settings {
        pub settings: serde_json::Value,
    }
}

pub const QUEUE_GRANTS: &str = "select role::text as role, kind, is_direct from fetchq.queue_grants($1) order by kind, role limit 200";

row! {
    /// A row of `fetchq.queue_grants()`.
    #[derive(Debug, Clone)]
    pub struct Grant {
        pub role: String,
        pub kind: Option<String>,
        pub is_direct: Option<bool>,
    }
}

/// The oldest leases of all queues; one more than a page shows, to know whether there are more.
pub const LEASES: &str = "\
select queue::text as queue, subject::text as subject, attempts, worker, pid,
       extract(epoch from picked_at)::float8 as picked_at, extract(epoch from lease_ends)::float8 as lease_ends, binding
from fetchq.lease_list() order by picked_at limit 201";

/// A page of the leases of a queue.
pub const QUEUE_LEASES: &str = "\
select queue::text as queue, subject::text as subject, attempts, worker, pid,
       extract(epoch from picked_at)::float8 as picked_at, extract(epoch from lease_ends)::float8 as lease_ends, binding
from fetchq.lease_list($1, max_docs => 201, after => $2)";

row! {
    /// A row of `fetchq.lease_list()`.
    #[derive(Debug, Clone)]
    pub struct Lease {
        pub queue: String,
        pub subject: String,
        pub attempts: Option<i32>,
        pub worker: Option<String>,
        pub pid: Option<i32>,
        pub picked_at: Option<f64>,
        pub lease_ends: Option<f64>,
        pub binding: Option<String>,
    }
}

pub const WORKERS: &str = "\
select name, sessions, documents, queues::text[] as queues,
       extract(epoch from since)::float8 as since,
       extract(epoch from oldest_picked_at)::float8 as oldest_picked_at,
       extract(epoch from first_lease_ends)::float8 as first_lease_ends, is_asked_to_stop
from fetchq.workers where $1::text is null or $1 = any(queues)
order by documents desc nulls last, name limit 501";

row! {
    /// A row of the view `fetchq.workers`.
    #[derive(Debug, Clone)]
    pub struct Worker {
        pub name: String,
        pub sessions: Option<i32>,
        pub documents: Option<i32>,
        pub queues: Option<Vec<String>>,
        pub since: Option<f64>,
        pub oldest_picked_at: Option<f64>,
        pub first_lease_ends: Option<f64>,
        pub is_asked_to_stop: Option<bool>,
    }
}

/// The places of relays. They keep them in documents of this queue, unless they are started with another one.
pub const RELAYS: &str = "\
select d.subject, d.payload ->> 'relay' as relay, d.payload -> 'about' ->> 'source' as source,
       (d.payload ->> 'carried')::bigint as carried, (d.payload -> 'about' ->> 'waiting')::bigint as waiting,
       (d.payload -> 'about' ->> 'lag')::float8 as lag, (d.payload -> 'about' ->> 'refused')::bigint as refused,
       array(select jsonb_object_keys(d.payload -> 'about' -> 'blocked') order by 1) as blocked,
       extract(epoch from (d.payload ->> 'at')::timestamptz)::float8 as at
from fetchq.docs_list('fetchq_relay', '{\"status\": \"planned\"}') as d order by source, d.subject";

row! {
    /// Where a relay is.
    #[derive(Debug, Clone)]
    pub struct Relay {
        pub subject: String,
        pub relay: Option<String>,
        pub source: Option<String>,
        pub carried: Option<i64>,
        pub waiting: Option<i64>,
        pub lag: Option<f64>,
        pub refused: Option<i64>,
        pub blocked: Option<Vec<String>>,
        pub at: Option<f64>,
    }
}

pub const SCHEDULES: &str = "\
select name, queue::text as queue, schedule, timezone, state,
       extract(epoch from next_tick)::float8 as next_tick,
       extract(epoch from last_tick)::float8 as last_tick, ticks, catch_up,
       jsonb_pretty(payload) as payload, last_error
from fetchq.schedule_list() order by name limit 501";

row! {
    /// A row of `fetchq.schedule_list()`.
    #[derive(Debug, Clone)]
    pub struct Schedule {
        pub name: String,
        pub queue: String,
        pub schedule: Option<String>,
        pub timezone: Option<String>,
        pub state: Option<String>,
        pub next_tick: Option<f64>,
        pub last_tick: Option<f64>,
        pub ticks: Option<i64>,
        pub catch_up: Option<String>,
        pub payload: Option<String>,
        pub last_error: Option<String>,
    }
}

pub const PREVIEW: &str = "\
select extract(epoch from tick)::float8 as tick, local_time from fetchq.schedule_preview($1, $2, n => 10)";

row! {
    /// A row of `fetchq.schedule_preview()`.
    #[derive(Debug, Clone)]
    pub struct Tick {
        pub tick: Option<f64>,
        pub local_time: Option<String>,
    }
}

pub const PROGRESS: &str = "\
select pid, service, queue, extract(epoch from since)::float8 as since, done from fetchq.maintenance_progress()
order by since limit 200";

row! {
    /// A row of `fetchq.maintenance_progress()`.
    #[derive(Debug, Clone)]
    pub struct Step {
        pub pid: Option<i32>,
        pub service: Option<String>,
        pub queue: Option<String>,
        pub since: Option<f64>,
        pub done: Option<i64>,
    }
}

pub const READY_STATS: &str = "\
select slots, slots_used, advances, advances_discarded, polls_answered, full_scans, floor_misses
from fetchq.ready_stats()";

row! {
    /// The row of `fetchq.ready_stats()`.
    #[derive(Debug, Clone)]
    pub struct ReadyStats {
        pub slots: Option<i32>,
        pub slots_used: Option<i32>,
        pub advances: Option<i64>,
        pub advances_discarded: Option<i64>,
        pub polls_answered: Option<i64>,
        pub full_scans: Option<i64>,
        pub floor_misses: Option<i64>,
    }
}

pub const DEAD_LETTERS: &str = "\
select queue::text as queue, dead_letter_queue::text as dead_letter_queue, does_exist, documents, moved
from fetchq.dead_letters";

row! {
    /// A row of the view `fetchq.dead_letters`.
    #[derive(Debug, Clone)]
    pub struct DeadLetters {
        pub queue: String,
        pub dead_letter_queue: Option<String>,
        pub does_exist: Option<bool>,
        pub documents: Option<i64>,
        pub moved: Option<i64>,
    }
}

/// The stored snapshots of the metrics of a queue: for how long back, and the length of a step.
pub const METRIC_HISTORY: &str = "\
select extract(epoch from at)::float8 as at,
       max(value) filter (where metric = 'pnd') as pending,
       max(value) filter (where metric = 'act') as active,
       max(value) filter (where metric = 'pln') as planned,
       max(value) filter (where metric = 'ent') as pushed,
       max(value) filter (where metric = 'pkd') as picked,
       max(value) filter (where metric = 'suc') as succeeded,
       max(value) filter (where metric = 'fai') as failed
from fetchq.metric_history($1, since => pg_catalog.now() - $2::text::interval, step => $3::text::interval,
                           metrics => '{pnd,act,pln,ent,pkd,suc,fai}')
group by at order by at";

row! {
    /// A row of `METRIC_HISTORY`.
    #[derive(Debug, Clone)]
    pub struct Stored {
        pub at: f64,
        pub pending: Option<i64>,
        pub active: Option<i64>,
        pub planned: Option<i64>,
        pub pushed: Option<i64>,
        pub picked: Option<i64>,
        pub succeeded: Option<i64>,
        pub failed: Option<i64>,
    }
}
