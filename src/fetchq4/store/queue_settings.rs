//! Setting columns of a queue's row in the registry, and its notifications.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::queues::queue;
use crate::store::queues::queue_places;
use crate::store::queues::triggers;

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
            0 => Err(queue_places::unknown(name)),
            n => Ok(n),
        },
    )
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
