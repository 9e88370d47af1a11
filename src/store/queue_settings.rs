//! Setting the columns of a queue's row in the registry.

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::{grants, queue, queue_tables, triggers};

const SET_MAX_ATTEMPTS: &str = "update fetchq.queues set max_attempts = $2 where name {=} $1";

const SET_CURRENT_VERSION: &str = "update fetchq.queues set current_version = $2 where name {=} $1";

const SET_LOGS_RETENTION: &str = "update fetchq.queues set logs_retention = $2 where name {=} $1";

const SET_METRICS_RETENTION: &str =
    "update fetchq.queues set metrics_retention = $2 where name {=} $1";

/// Runs a statement that sets one column. Returns how many rows it changed. Fails with
/// `Error::UnknownQueue`.
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
    where name {=} $1";

/// Sets the backoff of a queue. `policy`: the first delay (an interval), the factor, the
/// longest delay (an interval), the jitter (0 to 1), and how many attempts, where NULL keeps
/// what is set. Returns how many rows it changed. Fails with `Error::UnknownQueue`.
pub fn set_retry(name: &QueueName, policy: &[Arg; 5]) -> Result<i32> {
    let mut args = vec![Arg::from(name.as_str())];
    args.extend(policy);
    spi::connect(|spi| match spi.once(SET_RETRY, &args).affected() {
        0 => Err(Error::UnknownQueue(name.to_string())),
        n => Ok(n),
    })
}

/// Sets how many attempts a document has. Returns how many rows it changed. Fails
/// with `Error::UnknownQueue`.
pub fn set_max_attempts(name: &QueueName, value: i32) -> Result<i32> {
    set(name, SET_MAX_ATTEMPTS, Arg::from(value))
}

/// Sets the version of documents that a queue works on. Returns how many rows it changed.
/// Fails with `Error::UnknownQueue`.
pub fn set_current_version(name: &QueueName, value: i32) -> Result<i32> {
    set(name, SET_CURRENT_VERSION, Arg::from(value))
}

/// Sets how long the log of errors is kept: the text of an interval. Returns how many rows it
/// changed. Fails with `Error::UnknownQueue`.
pub fn set_logs_retention(name: &QueueName, value: &str) -> Result<i32> {
    set(name, SET_LOGS_RETENTION, Arg::from(value))
}

/// Sets the retention of the snapshots of metrics: a list of rules. Returns how many rows it
/// changed. Fails with `Error::UnknownQueue`.
pub fn set_metrics_retention(name: &QueueName, value: Jsonb) -> Result<i32> {
    set(name, SET_METRICS_RETENTION, Jsonb::arg(Some(value)))
}

const SET_DEAD_LETTER: &str = "update fetchq.queues set dead_letter = $2 where name {=} $1";

fn set_dead_letter(name: &QueueName, target: Option<&QueueName>) -> Result<i32> {
    set(
        name,
        SET_DEAD_LETTER,
        Arg::from(target.map(QueueName::as_str)),
    )
}

const SET_HISTORY: &str = "update fetchq.queues
    set keep_completed = $2, keep_killed = $3, keep_dropped = $4 where name {=} $1";

/// Sets what becomes of settled documents. `keep`: an interval for completed, killed and
/// dropped ones each. NULL leaves completed and killed ones in the table and removes dropped
/// ones, zero removes them at once, and any other interval keeps them in the history for as
/// long. Returns how many rows it changed. Fails with `Error::UnknownQueue`.
pub fn set_history(name: &QueueName, keep: [Arg; 3]) -> Result<i32> {
    let args = [Arg::from(name.as_str()), keep[0], keep[1], keep[2]];
    spi::connect(|spi| match spi.once(SET_HISTORY, &args).affected() {
        0 => Err(Error::UnknownQueue(name.to_string())),
        n => Ok(n),
    })
}

/// Sets the dead-letter queue of a queue: documents that fail too often are moved there.
/// None: they stay. Returns how many rows it changed. Fails with `Error::BadValue` when the
/// target is the queue itself, with `Error::UnknownQueue` when one of them is missing, and with
/// `Error::MayNotMove` when the owner of the queue may not push there.
pub fn set_dead_letter_queue(name: &QueueName, target: Option<&QueueName>) -> Result<i32> {
    if let Some(target) = target {
        if target == name {
            return Err(Error::BadValue {
                argument: "target",
                value: target.to_string(),
                rule: "another queue",
            });
        }
        queue::lock_against_drop(target)?;
    }
    let affected = set_dead_letter(name, target)?;
    if let Some(target) = target {
        grants::extend_to_dead_letters(name, target)?;
    }
    Ok(affected)
}

const SET_ACTIVE: &str =
    "update fetchq.queues set is_active = $2 where name {=} $1 and is_active {<>} $2";

/// Pauses or resumes a queue. Returns whether that changed anything. Fails with
/// `Error::UnknownQueue`.
pub fn set_active(name: &QueueName, is_active: bool) -> Result<bool> {
    queue::lock_now(name)?;
    let args = [Arg::from(name.as_str()), Arg::from(is_active)];
    Ok(spi::connect(|spi| {
        spi.once(SET_ACTIVE, &args).affected() > 0
    }))
}

/// How long documents of one outcome are kept.
pub struct Retention {
    /// An interval; NULL leaves completed and killed documents in their table.
    pub keep: Arg,
    /// Whether they are kept in the history: the interval is neither NULL nor zero.
    pub is_history: bool,
}

/// Sets how long settled documents are kept: completed, killed and dropped ones. Creates the
/// table of the history when one of them needs it.
///
/// Returns how many rows of the registry were changed: 1. Fails with `UnknownQueue` when there is
/// no such queue.
pub fn set_retention(name: &QueueName, kept: [Retention; 3]) -> Result<i32> {
    // The registry row comes first: of two sessions that create the table, the second waits.
    queue::lock_now(name)?;
    if kept.iter().any(|outcome| outcome.is_history) {
        queue_tables::create_history(name)?;
    }
    set_history(name, kept.map(|outcome| outcome.keep))
}

/// Switches the notifications about a queue's documents on or off.
///
/// Fails with `UnknownQueue` when there is no such queue.
pub fn set_notify(name: &QueueName, on: bool) -> Result<()> {
    // The registry row comes first: without that lock two clients that start at the same time
    // could both miss the trigger and create it.
    queue::lock_now(name)?;
    triggers::set_notify(name, on);
    Ok(())
}
