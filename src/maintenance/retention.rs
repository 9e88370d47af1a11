//! `drp`: applies the retention of a queue's snapshots, logs and history, and removes settled
//! documents from its table that the queue does not keep there.

use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::Result;
use crate::pg::time::Interval;
use crate::signals::progress;
use crate::store::history;
use crate::store::open_queue::Queue;
use crate::store::retention as store;

/// Rows of the log that one transaction removes at most, when the caller can begin another
/// transaction. It bounds how long the rows stay locked.
pub const LOG_BATCH: i32 = 10_000;

/// Applies the retention of a queue's snapshots and log, and removes up to `limit` rows of the log.
/// Returns whether rows may be left because of the limit. It does nothing while another session has
/// locked the queue.
///
/// Fails with `Error::UnknownQueue`, `Invalid::Retention` for a malformed policy, and
/// `Error::BadDuration` when the retention of the log is negative or infinite.
pub fn run(name: &QueueName, limit: Option<i32>) -> Result<bool> {
    if Queue::try_open(name)?.is_none() {
        return Ok(false);
    }
    progress::add_rows(metrics(name)?);
    let removed = logs_by_setting(name, limit)?;
    progress::add_rows(removed);
    Ok(limit.is_some_and(|limit| removed >= limit))
}

/// Applies the queue's own retention policy to its snapshots. Returns how many rows it has removed.
///
/// Fails with `Error::UnknownQueue`, and with `Invalid::Retention` for a malformed policy.
pub fn metrics(name: &QueueName) -> Result<i32> {
    let policy = retention::parse(&store::metrics_retention(name)?)?;
    metrics_by(name, &policy)
}

/// Applies a retention policy to the snapshots of a queue. Returns how many rows it has removed.
///
/// Fails with `Error::UnknownQueue`.
pub fn metrics_by(name: &QueueName, policy: &[retention::Rule]) -> Result<i32> {
    Queue::open(name)?;
    store::retain(name, policy)
}

/// Applies the queue's own retention to its log, and removes up to `limit` rows. Returns how many
/// it has removed.
///
/// Fails with `Error::UnknownQueue`, and with `Error::BadDuration` when the setting is negative or
/// infinite.
pub fn logs_by_setting(name: &QueueName, limit: Option<i32>) -> Result<i32> {
    let queue = Queue::open(name)?;
    let age = Interval::parse(&store::logs_retention(&queue)).as_duration("logs_retention")?;
    Ok(store::drop_logs_older_than(
        &queue,
        age.arg(),
        limit.map(i64::from),
    ))
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
/// another transaction. It does nothing while another session has locked the queue.
///
/// Fails with `Error::UnknownQueue`.
pub fn run_history(
    name: &QueueName,
    after: Option<String>,
    in_parts: bool,
) -> Result<HistoryOutcome> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(HistoryOutcome::default());
    };
    let mut outcome = HistoryOutcome::default();
    loop {
        let trimmed = history::trim(&queue, history::BATCH);
        progress::add_rows(trimmed);
        outcome.has_more = trimmed >= history::BATCH;
        if in_parts || !outcome.has_more {
            break;
        }
    }
    if !history::needs_sweep(&queue) {
        return Ok(outcome);
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
    Ok(outcome)
}
