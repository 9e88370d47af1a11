//! `drp`: applies the retention of a queue's snapshots, logs and history, and takes settled
//! documents that are not to stay out of its table.

use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::Result;
use crate::pg::time::Interval;
use crate::signals::progress;
use crate::store::history;
use crate::store::open_queue::Queue;
use crate::store::retention as store;

/// How many lines of the log one transaction removes at most, where the caller can
/// begin another one.
pub const BATCH: i32 = 10_000;

/// Both; nothing while another session has the queue locked. With a limit it may not
/// have finished: true.
pub fn run(name: &QueueName, limit: Option<i32>) -> Result<bool> {
    if Queue::try_open(name)?.is_none() {
        return Ok(false);
    }
    progress::add(metrics(name)?);
    let removed = logs_by_setting(name, limit)?;
    progress::add(removed);
    Ok(limit.is_some_and(|limit| removed >= limit))
}

/// Trims the snapshots by the queue's own policy; says how many rows went.
pub fn metrics(name: &QueueName) -> Result<i32> {
    let policy = retention::parse(&store::metrics_retention(name)?)?;
    metrics_by(name, &policy)
}

/// Trims the snapshots by a given policy.
pub fn metrics_by(name: &QueueName, policy: &[retention::Rule]) -> Result<i32> {
    Queue::open(name)?;
    store::retain(name, policy)
}

/// Trims the logs by the queue's own retention; says how many rows went.
pub fn logs_by_setting(name: &QueueName, limit: Option<i32>) -> Result<i32> {
    let queue = Queue::open(name)?;
    let age = Interval::parse(&store::logs_retention(&queue)).as_duration("logs_retention")?;
    Ok(store::drop_logs_older_than(
        &queue,
        age.arg(),
        limit.map(i64::from),
    ))
}

/// What became of the history.
#[derive(Default)]
pub struct Swept {
    pub has_more: bool,
    /// Where the sweep goes on.
    pub after: Option<String>,
}

/// Trims the history, and goes on with a sweep of the documents behind a subject: only
/// one part of each where the caller can begin another transaction. Nothing while another
/// session has the queue locked.
pub fn history(name: &QueueName, after: Option<String>, in_parts: bool) -> Result<Swept> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Swept::default());
    };
    let mut swept = Swept::default();
    loop {
        let trimmed = history::trim(&queue, history::BATCH);
        progress::add(trimmed);
        swept.has_more = trimmed >= history::BATCH;
        if in_parts || !swept.has_more {
            break;
        }
    }
    if !history::needs_sweep(&queue) {
        return Ok(swept);
    }
    swept.after = after;
    loop {
        let from = swept.after.as_deref().unwrap_or("");
        let part = history::sweep(&queue, from, history::BATCH);
        progress::add(part.removed);
        swept.after = part.next;
        if in_parts || swept.after.is_none() {
            break;
        }
    }
    swept.has_more |= swept.after.is_some();
    Ok(swept)
}
