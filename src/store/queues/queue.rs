//! The registry of queues (`fetchq.queues`): creating, dropping, looking up and locking a
//! queue.

use pgrx::{PgSqlErrorCode, notice};

use crate::domain::jobs::QUEUE_JOBS;
use crate::domain::names::QueueName;
use crate::error::{self, Error, Result, raise};
use crate::pg::json::Jsonb;
use crate::pg::notify::notify;
use crate::pg::relation::{self, LockMode, NamedLock};
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{planner, role, subtransaction};
use crate::signals::{commit, wakeups};
use crate::store::queues::queue_places;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::{self, Right};

const REGISTER: &str =
    "insert into fetchq.queues (name) values ($1) on conflict (name) do nothing returning id";

const GET_ID: &str = "select id from fetchq.queues where name {=} $1";

const ADD_JOB: &str = "insert into fetchq.jobs (task, queue, settings) values ($1, $2, $3)
    on conflict (task, queue) do nothing";

// The lock waits for a session that is dropping the queue. If that session commits, there is
// no row.
const LOCK_AGAINST_DROP: &str = "select id from fetchq.queues where name {=} $1 for key share";

/// How often `create` starts again because another session has created or dropped the queue
/// between its statements. Each round needs such a commit, so a few would do.
const MAX_RETRIES: usize = 100;

/// Creates a queue with its tables and jobs, or finds it. Returns whether it was created, and
/// its id. Of two sessions that create the same queue, the second one waits at the unique
/// name for the first to commit.
///
/// Fails with `Error::QueueElsewhere` when the queue lives on another server, with
/// `Error::StrayTable` when one of the tables exists already, and with `Error::HiddenQueue` when
/// the row can neither be added nor found.
pub fn create(name: &QueueName) -> Result<(bool, i32)> {
    spi::connect(|spi| {
        let key = Arg::from(name.as_str());
        for _ in 0..MAX_RETRIES {
            // The look-ups come first: an insert that ends in an error or a conflict uses up an id,
            // and clients create their queues at every start.
            if relation::lookup_data_table(&name.relation("docs")).is_none() {
                queue_places::require_here(name)?;
            }
            // A role without rights on the queue must not lock its row.
            let find = match rights::has(name, Right::Any) {
                true => LOCK_AGAINST_DROP,
                false => GET_ID,
            };
            if let Some(id) = first_id(&spi.once(find, &[key])) {
                return Ok((false, id));
            }
            // No row: another session has just created the queue.
            if let Some(id) = first_id(&spi.once(REGISTER, &[key])) {
                // The place may have been recorded meanwhile. From here on the other session waits.
                queue_places::serialize(name);
                queue_places::require_here(name)?;
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

const LOCK_JOBS: &str = "select from fetchq.jobs where queue {=} $1 order by id for update";

const UNREGISTER: &str = "delete from fetchq.queues where name {=} $1
    returning id, max_active is not null, rate_limit is not null,
        is_ordered or max_active_per_key is not null";

/// A row that `UNREGISTER` has deleted.
struct Unregistered {
    id: i32,
    has_cap: bool,
    has_rate: bool,
    has_key_order: bool,
}

fn unregister(spi: &Spi, key: Arg) -> Option<Unregistered> {
    let rows = spi.once(UNREGISTER, &[key]);
    Some(Unregistered {
        id: first_id(&rows)?,
        has_cap: rows.get(0, 2) == Some(true),
        has_rate: rows.get(0, 3) == Some(true),
        has_key_order: rows.get(0, 4) == Some(true),
    })
}

const DROP_JOBS: &str = "delete from fetchq.jobs where queue {=} $1";

const DROP_METRICS: &str = "delete from fetchq.metrics where queue {=} $1";

const DROP_METRICS_WRITES: &str = "delete from fetchq.metrics_writes where queue {=} $1";

/// Deletes the histograms of a queue. $1: its id.
pub(in crate::store) const DELETE_TIMINGS: &str =
    "delete from fetchq.timings where queue_id {=} $1";

const DROP_COUNTER_EVENTS: &str = "delete from fetchq.counter_log where queue_id {=} $1";

// The queue can no longer be a dead-letter queue of others.
const CLEAR_DEAD_LETTER: &str = "update fetchq.queues set dead_letter = null
    where dead_letter {=} $1 returning name::pg_catalog.text";

/// A queue that was dropped.
pub struct Dropped {
    /// The id that it had.
    pub id: i32,
    /// The names of its schedules, which are dropped too.
    pub schedules: Vec<String>,
    /// The queues whose dead-letter queue it was. They have none now.
    pub dead_letter_sources: Vec<String>,
}

/// How often `lock_jobs` starts again because the queue was created anew.
const MAX_JOB_LOCKS: usize = 10;

/// Locks the jobs of a queue. Another session may drop the queue while this one waits for its
/// jobs, and a third one may create it anew. The jobs of the new queue are to be locked then,
/// before its row in the registry: two sessions that drop it would otherwise take these locks
/// in different orders, and wait for each other. A queue without jobs is looked at a few times
/// in vain.
fn lock_jobs(spi: &Spi, key: Arg) {
    for _ in 0..MAX_JOB_LOCKS {
        let is_locked = spi.once(LOCK_JOBS, &[key]).affected() > 0;
        if is_locked || spi.once(GET_ID, &[key]).is_empty() {
            return;
        }
    }
}

const DROP_SCHEDULES: &str =
    "with dropped as (delete from fetchq.schedules where queue {=} $1 returning name)
    select name from dropped order by name collate pg_catalog.\"C\"";

/// Drops the schedules of a queue. Returns their names, in order.
fn drop_schedules(spi: &Spi, queue: &QueueName) -> Vec<String> {
    let rows = spi.once(DROP_SCHEDULES, &[Arg::from(queue.as_str())]);
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Drops a queue and all that belongs to it, for a caller who owns it.
///
/// Fails with `Error::UnknownQueue`, and with `Error::NoRight`.
///
/// The locks are taken in the order in which maintenance takes them: jobs, registry,
/// schedules, tables. The lock of the registry row also keeps a pack of this queue's counters
/// away.
pub fn drop(name: &QueueName) -> Result<Dropped> {
    rights::require(name, Right::Own)?;
    spi::connect(|spi| {
        let key = Arg::from(name.as_str());
        lock_jobs(spi, key);
        let Some(queue) = unregister(spi, key) else {
            return Err(queue_places::unknown(name));
        };
        // It may be the queue of another role by now. From here on no other queue can get the name.
        relation::accept_invalidations();
        if !rights::has(name, Right::Own) {
            return Err(rights::no_right(name, role::current(), Right::Own));
        }
        spi.once(DROP_JOBS, &[key]);
        let rows = spi.once(CLEAR_DEAD_LETTER, &[key]);
        let dead_letter_sources = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        let schedules = drop_schedules(spi, name);
        if let Some(table) = relation::lookup_data_table(&name.relation("docs")) {
            wakeups::table_emptied(table.to_u32());
        }
        queue_tables::drop(spi, name);
        spi.once(DROP_METRICS, &[key]);
        spi.once(DROP_METRICS_WRITES, &[key]);
        spi.once(DROP_COUNTER_EVENTS, &[Arg::from(queue.id)]);
        spi.once(DELETE_TIMINGS, &[Arg::from(queue.id)]);
        delete_limits(spi, &queue);
        notify("fetchq_queue_drop", name.as_str());
        Ok(Dropped {
            id: queue.id,
            schedules,
            dead_letter_sources,
        })
    })
}

/// The id of a queue, which no other session can drop until the transaction ends. Fails with
/// `Error::UnknownQueue`.
pub fn lock_against_drop(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        first_id(&spi.once(LOCK_AGAINST_DROP, &[Arg::from(name.as_str())]))
            .ok_or_else(|| queue_places::unknown(name))
    })
}

const HAS_KEY_ORDER: &str = "select is_ordered or max_active_per_key is not null
    from fetchq.queues where name {=} $1";

/// Returns whether documents of a queue wait for others of their ordering key.
pub fn has_key_order(name: &QueueName) -> bool {
    let key = [Arg::from(name.as_str())];
    spi::connect(|spi| spi.once(HAS_KEY_ORDER, &key).get(0, 1)).unwrap_or(false)
}

/// The id of a queue. Fails with `Error::UnknownQueue`.
pub fn id(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| {
        first_id(&spi.once(GET_ID, &[Arg::from(name.as_str())]))
            .ok_or_else(|| queue_places::unknown(name))
    })
}

/// The names of all queues on which the caller has a right, in order, for a process of the server.
/// A caller may lose the right before the queue is opened.
pub fn all() -> Vec<QueueName> {
    rights::list(Right::Any)
}

/// The names of the queues that the caller manages, in order. A caller may lose the right before the
/// queue is opened, so that it is to be asked for again.
pub fn managed() -> Vec<QueueName> {
    rights::list(Right::Manage)
}

/// Runs `work` for each queue on which the caller has a right, in the order of their names, as
/// [`read_alone`] does.
pub fn read_each(right: Right, tables: &[&str], mut work: impl FnMut(&QueueName)) {
    for name in rights::list(right) {
        read_alone(&name, right, tables, || work(&name));
    }
}

/// Runs `work` for each queue on which the caller has a right, in the order of their names, as
/// [`alone`] does. Returns what it returned.
pub fn change_each<R>(
    right: Right,
    work: impl Fn(&QueueName) -> Result<R>,
) -> impl Iterator<Item = (QueueName, R)> {
    let change = move |name| {
        let changed = alone(&name, right, || work(&name))?;
        Some((name, changed))
    };
    rights::list(right).into_iter().filter_map(change)
}

/// Runs `work`, which reads a queue that the caller has not named. `tables` are those that it reads
/// beside the documents. The caller may read all of them: who has lost the right on the queue, or on
/// its name, since it was looked up, gets neither the lock nor an answer. The history may be missing.
///
/// Waits for nobody, and keeps no lock, so that a caller can read all queues of a database one by one:
/// the locks of a subtransaction that is rolled back are released. So the result must not be in the
/// memory of a statement that ran in `work`, and a tuplestore must have been created before.
///
/// Returns None where a table is missing; and, with a notice, where another session has locked one.
pub(in crate::store) fn read_alone<R>(
    name: &QueueName,
    right: Right,
    tables: &[&str],
    work: impl FnOnce() -> R,
) -> Option<R> {
    let run = || {
        for table in std::iter::once(&"docs").chain(tables) {
            let relation = name.relation(table);
            let check = |found| match *table {
                "docs" => rights::require_on(name, found, right),
                _ => Ok(()),
            };
            // Once the documents are locked, nobody can drop the queue, nor give its name to another.
            let locked = relation::lock_data_table_if(&relation, LockMode::Readers, false, check);
            match locked.ok()? {
                NamedLock::Held(..) => {}
                NamedLock::Busy => {
                    notice!(
                        "queue \"{name}\" is left out, because another session has locked fetchq_data.\"{relation}\""
                    );
                    return None;
                }
                NamedLock::Missing if *table == "history" => {}
                NamedLock::Missing => return None,
            }
        }
        Some(work())
    };
    subtransaction::roll_back_unless_kept(|| (run(), false))
}

/// Runs `work`, which changes a queue that the caller has not named, so that it keeps the caller from
/// no other queue: in a subtransaction, in which it waits for a lock for a second at most. Returns
/// None, with a warning, where it fails, and where the queue of this name is no longer the caller's.
fn alone<R>(name: &QueueName, right: Right, work: impl FnOnce() -> Result<R>) -> Option<R> {
    let run = || planner::with_short_lock_waits(|| raise(rights::with(name, right, work)));
    subtransaction::attempt(run)
        .inspect_err(|message| {
            error::warn(
                PgSqlErrorCode::ERRCODE_WARNING,
                format!("queue \"{name}\" is left out: {message}"),
                "Call the function for this queue alone.",
            );
        })
        .ok()
}

const LOCK: &str = "select id from fetchq.queues where name {=} $1 for no key update";

/// Locks the registry row of a queue until the transaction ends, and returns its id. Every
/// change of the packed counters of a queue takes this lock. Workers never lock the row.
/// Fails with `Error::UnknownQueue`.
pub fn lock(spi: &Spi, name: &QueueName) -> Result<i32> {
    first_id(&spi.once(LOCK, &[Arg::from(name.as_str())]))
        .ok_or_else(|| queue_places::unknown(name))
}

const TRY_LOCK: &str =
    "select id from fetchq.queues where name {=} $1 for no key update skip locked";

/// Locks the registry row of a queue as `lock` does, without waiting. None when another session
/// has locked it. Fails with `Error::UnknownQueue`.
pub fn try_lock(spi: &Spi, name: &QueueName) -> Result<Option<i32>> {
    match first_id(&spi.once(TRY_LOCK, &[Arg::from(name.as_str())])) {
        Some(id) => Ok(Some(id)),
        None => id(name).map(|_| None),
    }
}

/// Locks the registry row of a queue as `lock` does, in an SPI connection of its own. Returns its
/// id. Fails with `Error::UnknownQueue`.
pub fn lock_now(name: &QueueName) -> Result<i32> {
    spi::connect(|spi| lock(spi, name))
}

/// Locks the documents of a queue against writers. The caller has locked its registry row before,
/// so that no other transaction that does the same has locked a row that this one would wait for.
/// Fails with `Error::UnknownQueue` when the table is missing.
pub(in crate::store) fn keep_writers_away(name: &QueueName) -> Result<()> {
    match relation::lock_data_table(&name.relation("docs"), LockMode::Writers, true) {
        NamedLock::Held(..) => Ok(()),
        NamedLock::Missing | NamedLock::Busy => Err(queue_places::unknown(name)),
    }
}

/// Deletes the lease slots of a queue. $1: its id.
pub(in crate::store) const DELETE_SLOTS: &str =
    "delete from fetchq.lease_slots where queue_id {=} $1";

/// Deletes the rate permits of a queue. $1: its id.
pub(in crate::store) const DELETE_PERMITS: &str =
    "delete from fetchq.rate_permits where queue_id {=} $1";

/// Deletes the ordering keys of a queue. $1: its id.
pub(in crate::store) const DELETE_KEYS: &str =
    "delete from fetchq.ordering_keys where queue_id {=} $1";

/// Deletes the lease slots, rate permits and ordering keys of a queue that is dropped. A role
/// that has never limited or ordered the queue needs no rights on these tables.
fn delete_limits(spi: &Spi, queue: &Unregistered) {
    for (is_used, sql) in [
        (queue.has_cap, DELETE_SLOTS),
        (queue.has_rate, DELETE_PERMITS),
        (queue.has_key_order, DELETE_KEYS),
    ] {
        if is_used {
            spi.once(sql, &[Arg::from(queue.id)]);
        }
    }
}
