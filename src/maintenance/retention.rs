//! `drp`: applies the retention of a queue's snapshots, logs and history, and removes settled
//! documents from its table that the queue does not keep there.

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::Result;
use crate::pg::time::Interval;
use crate::signals::progress;
use crate::store::documents::history;
use crate::store::queues::open_queue::{Queue, Table};
use crate::store::upkeep::retention as store;

/// Rows of the log that one transaction removes at most, when the caller can begin another
/// transaction. It bounds how long the rows stay locked.
pub const LOG_BATCH: i32 = 10_000;

/// Applies the retention of a queue's snapshots and log, and removes up to `limit` rows of the log.
/// Returns whether rows may be left because of the limit. Busy when it has left out a table that
/// another session has locked.
///
/// Fails with `Error::UnknownQueue`, `Invalid::Retention` for a malformed policy,
/// `Error::BadDuration` when the retention of the log is negative or infinite, and as
/// `Queue::open_table` does.
pub fn run(name: &QueueName, limit: Option<i32>) -> Result<Ran<bool>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    let snapshots = metrics(&queue, false)?;
    let logs = logs_by_setting(&queue, limit, false)?;
    for removed in [snapshots, logs].map(Ran::done).into_iter().flatten() {
        progress::add_rows(removed);
    }
    let ran = snapshots.and(logs);
    Ok(ran.map(|(_, removed)| limit.is_some_and(|limit| removed >= limit)))
}

/// Removes rows of a table beside the documents. Returns how many; none
/// where there is no such table. Busy while another session has locked it, unless it `waits`.
///
/// Fails as `Queue::open_table` and as `remove` do.
fn remove_from(
    queue: &Queue,
    table: &str,
    waits: bool,
    remove: impl FnOnce() -> Result<i32>,
) -> Result<Ran<i32>> {
    match queue.lock_table(table, waits) {
        Table::Ready => remove().map(Ran::Done),
        Table::Missing => Ok(Ran::Done(0)),
        Table::Busy => Ok(Ran::Busy),
    }
}

/// Applies the queue's own retention policy to its snapshots. Returns how many rows it has removed.
///
/// Fails with `Error::UnknownQueue`, with `Invalid::Retention` for a malformed policy, and as
/// `remove_from` does.
pub fn metrics(queue: &Queue, waits: bool) -> Result<Ran<i32>> {
    let policy = retention::parse(&store::metrics_retention(&queue.name)?)?;
    metrics_by(queue, &policy, waits)
}

/// Applies a retention policy to the snapshots of a queue. Returns how many rows it has removed.
///
/// Fails as `remove_from` does.
pub fn metrics_by(queue: &Queue, policy: &[retention::Rule], waits: bool) -> Result<Ran<i32>> {
    remove_from(queue, "metrics", waits, || {
        store::retain(&queue.name, policy)
    })
}

/// Applies the queue's own retention to its log, and removes up to `limit` rows. Returns how many
/// it has removed.
///
/// Fails with `Error::BadDuration` when the setting is negative or infinite, and as
/// `remove_from` does.
pub fn logs_by_setting(queue: &Queue, limit: Option<i32>, waits: bool) -> Result<Ran<i32>> {
    let age = Interval::parse(&store::logs_retention(queue)).as_duration("logs_retention")?;
    logs(queue, waits, || {
        store::drop_logs_older_than(queue, age.arg(), limit.map(i64::from))
    })
}

/// Removes rows of a queue's log of errors as `remove` does. Returns
/// how many.
///
/// Fails as `remove_from` does.
pub fn logs(queue: &Queue, waits: bool, remove: impl FnOnce() -> i32) -> Result<Ran<i32>> {
    remove_from(queue, "logs", waits, || Ok(remove()))
}

/// Removes documents that have been in the history of a queue for longer than it keeps them, the
/// oldest first, at most `limit`. Returns how many.
///
/// Fails as `remove_from` does.
pub fn trim(queue: &Queue, limit: i32, waits: bool) -> Result<Ran<i32>> {
    remove_from(queue, "history", waits, || Ok(history::trim(queue, limit)))
}

/// How far `run_history` came.
#[derive(Default)]
pub struct HistoryOutcome {
    /// Whether something is left to do.
    pub has_more: bool,
    /// The subject after which the sweep continues; None when it has reached the end.
    pub after: Option<String>,
}

/// Trims the history of a queue, and removes settled documents from its table that the queue does
/// not keep there. This sweep goes over the documents after the subject `after`, all of them
/// without a subject. With `in_parts` one batch of each is done, because the caller can begin
/// another transaction. Busy while another session has locked the queue or its history: the sweep
/// has then kept its place.
///
/// Fails with `Error::UnknownQueue`, and as `Queue::open_table` does.
pub fn run_history(
    name: &QueueName,
    after: Option<String>,
    in_parts: bool,
) -> Result<Ran<HistoryOutcome>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    let mut outcome = HistoryOutcome::default();
    loop {
        let Ran::Done(trimmed) = trim(&queue, history::BATCH, false)? else {
            return Ok(Ran::Busy);
        };
        progress::add_rows(trimmed);
        outcome.has_more = trimmed >= history::BATCH;
        if in_parts || !outcome.has_more {
            break;
        }
    }
    if !history::needs_sweep(&queue) {
        return Ok(Ran::Done(outcome));
    }
    if history::archives_settled(&queue) && !is_ready(&queue)? {
        return Ok(Ran::Busy);
    }
    outcome.after = after;
    loop {
        let from = outcome.after.as_deref().unwrap_or("");
        let part = history::sweep(&queue, from, history::BATCH);
        progress::add_rows(part.removed);
        outcome.after = part.next;
        if in_parts || outcome.after.is_none() {
            break;
        }
    }
    outcome.has_more |= outcome.after.is_some();
    Ok(Ran::Done(outcome))
}

/// Returns whether the history of a queue can be written: false while another session has locked
/// it.
fn is_ready(queue: &Queue) -> Result<bool> {
    match queue.lock_table("history", false) {
        Table::Ready => Ok(true),
        Table::Busy => Ok(false),
        Table::Missing => Err(queue.missing("history")),
    }
}
