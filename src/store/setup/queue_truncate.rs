//! Removing all documents of a queue: `queue_truncate` and `queue_truncate_all`.

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::{relation, session};
use crate::signals::wakeups;
use crate::store::counters::metrics;
use crate::store::documents::late_leases;
use crate::store::queues::queue;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::Right;
use crate::store::upkeep::jobs;

/// Removes all documents of a queue and recounts its metrics. `empty`: also removes its
/// logs, snapshots and history, and makes its jobs due. Fails with `Error::KeepsSnapshot` in
/// a transaction that keeps one snapshot, and with `Error::UnknownQueue`.
pub fn truncate(name: &QueueName, empty: bool) -> Result<()> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_truncate"));
    }
    // Jobs are locked before the registry, in the order of maintenance.
    if empty {
        jobs::restart(name.as_str());
    }
    queue::lock_now(name)?;
    if empty {
        queue_tables::truncate_history(name);
    }
    queue_tables::truncate_docs(name);
    // Leases that were not written yet end with their documents.
    late_leases::before_changing(name);
    if let Some(table) = relation::lookup_data_table(&name.relation("docs")) {
        wakeups::table_emptied(table.to_u32());
    }
    metrics::reset(name)?;
    Ok(())
}

/// Truncates every queue that the caller manages as `truncate` does, in the order of their names.
/// A queue where that fails is left out, with a warning. Fails
/// with `Error::KeepsSnapshot`.
pub fn truncate_all(empty: bool) -> Result<()> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_truncate"));
    }
    queue::change_each(Right::Manage, |name| truncate(name, empty)).for_each(drop);
    Ok(())
}
