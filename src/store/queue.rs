//! The tables of a queue: DDL.

use pgrx::PgSqlErrorCode;

use crate::domain::jobs::QUEUE_JOBS;
use crate::domain::names::QueueName;
use crate::error::{self, Error, Result};
use crate::pg::call::RowSink;
use crate::pg::json::Jsonb;
use crate::pg::notify::notify;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{relation, session};
use crate::signals::commit;
use crate::store::statement::render;
use crate::store::{queue_tables, schedules};

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
                commit::queue_created(name);
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
        delete_limits(spi, id, has);
        notify("fetchq_queue_drop", name.as_str());
        Ok(Dropped {
            id,
            schedules,
            letters_of,
        })
    })
}

/// The id of a queue, which nobody can drop until the end of the transaction.
pub fn lock_against_drop(name: &QueueName) -> Result<i32> {
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

const CURRENT_VERSION: &str = "select current_version from fetchq.queues where name = $1";

pub fn current_version(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        first_id(&spi.once(CURRENT_VERSION, &[Arg::from(name.as_str())]))
            .ok_or_else(|| Error::UnknownQueue(name.to_string()))
    })
}

const STATUS_ALL: &str = "select id, name, is_active from fetchq.queues order by id";
const STATUS_ONE: &str = "select id, name, is_active from fetchq.queues where name = $1";

/// Adds id, name and activity of each queue to a result.
pub fn status_of_all(out: &mut RowSink) {
    spi::connect(|spi| out.extend(&spi.once(STATUS_ALL, &[])));
}

/// Adds id, name and activity of a queue to a result; nothing when it does not exist.
pub fn status_of(name: &QueueName, out: &mut RowSink) {
    let args = [Arg::from(name.as_str())];
    spi::connect(|spi| out.extend(&spi.once(STATUS_ONE, &args)));
}

const TOP: &str = "select subject, payload, version, priority, attempts, iterations, created_at,
        last_iteration, next_iteration, lock_upgrade
    from {docs}
    where version = $1
    order by priority desc, next_iteration, attempts, seq
    limit $2 offset $3";

/// Adds a page of the documents of one version to a result, of any status, in the order of
/// picking.
pub fn top(name: &QueueName, version: i32, limit: i32, skip: i32, out: &mut RowSink) -> Result<()> {
    id(name)?;
    let args = [
        Arg::from(version),
        Arg::from(i64::from(limit)),
        Arg::from(i64::from(skip)),
    ];
    spi::connect(|spi| out.extend(&spi.once(&render(TOP, name), &args)));
    Ok(())
}

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

/// Keeps the writers of a queue's documents away; its id. They hold nothing then that
/// the caller would wait for.
pub(super) fn lock_documents(name: &QueueName, function: &'static str) -> Result<i32> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot(function));
    }
    let id = lock_now(name)?;
    let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
        return Err(Error::UnknownQueue(name.to_string()));
    };
    relation::lock_writers(table);
    Ok(id)
}

const DELETE_LIMITS: [&str; 3] = [
    "delete from fetchq.lease_slots where queue_id = $1",
    "delete from fetchq.rate_permits where queue_id = $1",
    "delete from fetchq.ordering_keys where queue_id = $1",
];

/// Forgets what belongs to a queue that is dropped: it has places, turns, lines. (Who
/// has never used them needs no rights on their tables.)
pub fn delete_limits(spi: &Spi, id: i32, has: [bool; 3]) {
    for (sql, _) in DELETE_LIMITS.iter().zip(has).filter(|(_, has)| *has) {
        spi.once(sql, &[Arg::from(id)]);
    }
}
