//! Emptying a queue.

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::session;
use crate::store::{jobs, metrics, queue, queue_tables};

/// Removes all documents of a queue and recounts its metrics. `empty`: also removes its
/// logs, snapshots and history, and makes its jobs due.
pub fn truncate(name: &QueueName, empty: bool) -> Result<()> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_truncate"));
    }
    // Jobs are locked before the registry, as maintenance locks them.
    if empty {
        jobs::restart(name.as_str());
    }
    queue::lock_now(name)?;
    if empty {
        queue_tables::truncate_history(name);
    }
    queue_tables::truncate_docs(name);
    metrics::reset(name)?;
    Ok(())
}

/// Truncates every queue.
pub fn truncate_all(empty: bool) -> Result<()> {
    queue::all()
        .iter()
        .try_for_each(|name| truncate(name, empty))
}
