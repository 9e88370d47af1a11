//! `sts`: takes a snapshot of a queue's metrics.

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::role::Privilege;
use crate::store::metrics::{self, SnapshotOf};
use crate::store::owned_queue::{OwnedQueue, Table};

/// Takes a snapshot of the metrics of a queue, and returns how many rows it has written. Busy while
/// another session has locked the queue.
///
/// Fails with `Error::UnknownQueue`, with `Error::OtherOwner` when the table of the snapshots
/// belongs to another role than the documents, and with `Error::NoRight`.
pub fn run(name: &QueueName, which: SnapshotOf) -> Result<Ran<i32>> {
    let Some(queue) = OwnedQueue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    match queue.open_table("metrics", &[Privilege::Insert])? {
        Table::Ready => Ok(Ran::Done(queue.act(|| metrics::snap(name, which)))),
        Table::Busy => Ok(Ran::Busy),
        Table::Missing => Err(queue.missing("metrics")),
    }
}
