//! The registry of queues.

use pgrx::PgSqlErrorCode;

use crate::domain::jobs::QUEUE_JOBS;
use crate::domain::names::QueueName;
use crate::error::{self, Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::notify::notify;
use crate::pg::spi::{self, Arg, Rows, Spi};

use super::{flow, queue_tables, schedules};
use crate::worker;

const REGISTER: &str =
    "insert into fetchq.queues (name) values ($1) on conflict (name) do nothing returning id";
const ID: &str = "select id from fetchq.queues where name = $1";
const ADD_JOB: &str = "insert into fetchq.jobs (task, queue, settings) values ($1, $2, $3)
    on conflict (task, queue) do nothing";

// Waits for a session that is dropping the queue, and finds nothing if it does.
const FIND: &str = "select id from fetchq.queues where name = $1 for key share";

/// How often another session may create and drop the queue in between.
const CREATE_TURNS: usize = 100;

/// Creates a queue, or finds it: (was created, id). Of two sessions that create the
/// same one, the second waits at the unique name for the first to commit.
pub fn create(name: &QueueName) -> Result<(bool, i32)> {
    spi::connect(|spi| {
        let key = Arg::from(name.as_str());
        for _ in 0..CREATE_TURNS {
            // Look first: an insert that meets a conflict uses up an id, and clients
            // create their queues at every start.
            if let Some(id) = first_id(&spi.once(FIND, &[key])) {
                return Ok((false, id));
            }
            // None: another session has just created it.
            if let Some(id) = first_id(&spi.once(REGISTER, &[key])) {
                queue_tables::create(spi, name)?;
                for (task, settings) in QUEUE_JOBS {
                    let settings = Jsonb::arg(Some(Jsonb::parse(settings)));
                    spi.once(ADD_JOB, &[Arg::from(task), key, settings]);
                }
                notify("fetchq_queue_create", name.as_str());
                worker::queue_created(name);
                return Ok((true, id));
            }
        }
        Err(Error::HiddenQueue(name.to_string()))
    })
}

fn first_id(rows: &Rows) -> Option<i32> {
    if rows.is_empty() {
        None
    } else {
        rows.get(0, 1)
    }
}

const LOCK_JOBS: &str = "select from fetchq.jobs where queue = $1 order by id for update";
const UNREGISTER: &str = "delete from fetchq.queues where name = $1
    returning id, max_active is not null, rate_limit is not null, is_ordered";
const DROP_JOBS: &str = "delete from fetchq.jobs where queue = $1";
const DROP_METRICS: &str = "delete from fetchq.metrics where queue = $1";
const DROP_WRITES: &str = "delete from fetchq.metrics_writes where queue = $1";
const DROP_COUNTS: &str = "delete from fetchq.counter_log where queue_id = $1";

// Nothing can be sent to it any more.
const LEAVE_LETTERS: &str = "update fetchq.queues set dead_letter = null
    where dead_letter = $1 returning name::text";

/// A queue that was dropped.
pub struct Dropped {
    pub id: i32,
    /// The names of its schedules, which are dropped too.
    pub schedules: Vec<String>,
    /// The queues whose dead letters it took: they have no such queue now.
    pub letters_of: Vec<String>,
}

/// Drops a queue and all that belongs to it.
///
/// The locks are taken in the order in which maintenance takes them: jobs, registry,
/// schedules, tables. The registry row also keeps a pack of this queue's counters away.
pub fn drop(name: &QueueName) -> Result<Dropped> {
    spi::connect(|spi| {
        let key = Arg::from(name.as_str());
        spi.once(LOCK_JOBS, &[key]);
        let rows = spi.once(UNREGISTER, &[key]);
        let Some(id) = first_id(&rows) else {
            return Err(Error::UnknownQueue(name.to_string()));
        };
        let has = [2, 3, 4].map(|column| rows.get(0, column) == Some(true));
        spi.once(DROP_JOBS, &[key]);
        let rows = spi.once(LEAVE_LETTERS, &[key]);
        let letters_of = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        let schedules = schedules::drop_of(spi, name);
        queue_tables::drop(spi, name);
        spi.once(DROP_METRICS, &[key]);
        spi.once(DROP_WRITES, &[key]);
        spi.once(DROP_COUNTS, &[Arg::from(id)]);
        flow::drop_of(spi, id, has);
        notify("fetchq_queue_drop", name.as_str());
        Ok(Dropped {
            id,
            schedules,
            letters_of,
        })
    })
}

/// The id of a queue, which nobody can drop until the end of the transaction.
pub fn keep(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        first_id(&spi.once(FIND, &[Arg::from(name.as_str())]))
            .ok_or_else(|| Error::UnknownQueue(name.to_string()))
    })
}

/// The id of a queue.
pub fn id(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        first_id(&spi.once(ID, &[Arg::from(name.as_str())]))
            .ok_or_else(|| Error::UnknownQueue(name.to_string()))
    })
}

const NAMES: &str = "select name::text from fetchq.queues order by name";

/// All queues, by name. A row that a client put there with an impossible name is
/// told and left out.
pub fn all() -> Vec<QueueName> {
    spi::connect(|spi| {
        let rows = spi.once(NAMES, &[]);
        (0..rows.len())
            .filter_map(|row| rows.get::<String>(row, 1))
            .filter_map(|name| match QueueName::parse(&name) {
                Ok(parsed) => Some(parsed),
                Err(e) => {
                    error::warn(
                        PgSqlErrorCode::ERRCODE_INVALID_NAME,
                        format!("fetchq.queues holds a row that is no queue: {e}"),
                        "Delete the row; create queues with fetchq.queue_create().",
                    );
                    None
                }
            })
            .collect()
    })
}

/// Columns of the registry that a function sets, and the statement for each.
const SET_MAX_ATTEMPTS: &str = "update fetchq.queues set max_attempts = $2 where name = $1";
const SET_CURRENT_VERSION: &str = "update fetchq.queues set current_version = $2 where name = $1";
const SET_LOGS_RETENTION: &str = "update fetchq.queues set logs_retention = $2 where name = $1";
const SET_METRICS_RETENTION: &str =
    "update fetchq.queues set metrics_retention = $2 where name = $1";

fn set(name: &QueueName, sql: &str, value: Arg) -> Result<i32> {
    spi::connect(
        |spi| match spi.once(sql, &[Arg::from(name.as_str()), value]).affected() {
            0 => Err(Error::UnknownQueue(name.to_string())),
            n => Ok(n),
        },
    )
}

const SET_RETRY: &str = "update fetchq.queues set
        retry_base = $2, retry_factor = $3, retry_max_delay = $4, retry_jitter = $5,
        max_attempts = coalesce($6, max_attempts)
    where name = $1";

/// Base, factor, longest delay, jitter, and how many attempts.
pub fn set_retry(name: &QueueName, policy: &[Arg; 5]) -> Result<i32> {
    let mut args = vec![Arg::from(name.as_str())];
    args.extend(policy);
    spi::connect(|spi| match spi.once(SET_RETRY, &args).affected() {
        0 => Err(Error::UnknownQueue(name.to_string())),
        n => Ok(n),
    })
}

pub fn set_max_attempts(name: &QueueName, value: i32) -> Result<i32> {
    set(name, SET_MAX_ATTEMPTS, Arg::from(value))
}

pub fn set_current_version(name: &QueueName, value: i32) -> Result<i32> {
    set(name, SET_CURRENT_VERSION, Arg::from(value))
}

pub fn set_logs_retention(name: &QueueName, value: &str) -> Result<i32> {
    set(name, SET_LOGS_RETENTION, Arg::from(value))
}

pub fn set_metrics_retention(name: &QueueName, value: Jsonb) -> Result<i32> {
    set(name, SET_METRICS_RETENTION, Jsonb::arg(Some(value)))
}

const SET_DEAD_LETTER: &str = "update fetchq.queues set dead_letter = $2 where name = $1";

pub fn set_dead_letter(name: &QueueName, target: Option<&QueueName>) -> Result<i32> {
    set(
        name,
        SET_DEAD_LETTER,
        Arg::from(target.map(QueueName::as_str)),
    )
}

const SET_HISTORY: &str = "update fetchq.queues
    set keep_completed = $2, keep_killed = $3, keep_dropped = $4 where name = $1";

/// Says what becomes of documents that are settled.
pub fn set_history(name: &QueueName, kept: [Arg; 3]) -> Result<i32> {
    let args = [Arg::from(name.as_str()), kept[0], kept[1], kept[2]];
    spi::connect(|spi| match spi.once(SET_HISTORY, &args).affected() {
        0 => Err(Error::UnknownQueue(name.to_string())),
        n => Ok(n),
    })
}

const CURRENT_VERSION: &str = "select current_version from fetchq.queues where name = $1";

pub fn current_version(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        first_id(&spi.once(CURRENT_VERSION, &[Arg::from(name.as_str())]))
            .ok_or_else(|| Error::UnknownQueue(name.to_string()))
    })
}

pub const STATUS_ALL: &str = "select id, name, is_active from fetchq.queues order by id";
pub const STATUS_ONE: &str = "select id, name, is_active from fetchq.queues where name = $1";

const LOCK: &str = "select id from fetchq.queues where name = $1 for no key update";

/// Locks a queue's registry row until the end of the transaction: what changes its
/// packed counters does so alone. Workers never touch this row.
pub fn lock(spi: &Spi, name: &QueueName) -> Result<i32> {
    first_id(&spi.once(LOCK, &[Arg::from(name.as_str())]))
        .ok_or_else(|| Error::UnknownQueue(name.to_string()))
}

const TRY_LOCK: &str = "select id from fetchq.queues where name = $1 for no key update skip locked";

/// The same, but gives None when another session holds the row.
pub fn try_lock(spi: &Spi, name: &QueueName) -> Result<Option<i32>> {
    match first_id(&spi.once(TRY_LOCK, &[Arg::from(name.as_str())])) {
        Some(id) => Ok(Some(id)),
        None => id(name).map(|_| None),
    }
}

/// As `lock`, for callers without a connection.
pub fn lock_now(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| lock(spi, name))
}

const OWNS_EXTENSION: &str = "select from pg_extension e
    where e.extname = 'fetchq' and pg_has_role(e.extowner, 'usage')";

/// Whether the user is, or is a member of, the owner of the extension.
pub fn owns_extension() -> bool {
    spi::connect(|spi| spi.once(OWNS_EXTENSION, &[]).affected() > 0)
}

const DESTROY: &str = "drop extension fetchq cascade";

/// Drops the extension with every queue.
pub fn destroy() {
    spi::connect(|spi| {
        spi.once(DESTROY, &[]);
    });
}

const EXTENSION_VERSION: &str =
    "select extversion::text from pg_extension where extname = 'fetchq'";

/// The version of the installed catalog, which may differ from that of the library.
pub fn extension_version() -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(EXTENSION_VERSION, &[]);
        if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        }
    })
}

const TRACE: &str = "select created_at, 'document'::varchar,
        format('status: %s; attempts: %s; iterations: %s', status, attempts, iterations)::varchar,
        to_jsonb(d)
    from {docs} d where subject = $1
    union all
    (select created_at, 'error'::varchar, message, to_jsonb(l)
     from {logs} l where subject = $1 order by id)";

/// The statement behind `trace`, for each queue.
pub fn trace_sql(name: &QueueName) -> String {
    super::plans::render(TRACE, name)
}
