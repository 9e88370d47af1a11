//! `sts`: takes a snapshot of a queue's metrics.

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::counters::metrics::{self, SnapshotOf};
use crate::store::queues::open_queue::{Queue, Table};

/// Takes a snapshot of the metrics of a queue, and returns how many rows it has written. Busy while
/// another session has locked the queue.
///
/// Fails with `Error::UnknownQueue`, with `Error::OtherOwner` when the table of the snapshots
/// belongs to another role than the documents, and with `Error::NoRight`.
pub fn run(name: &QueueName, which: SnapshotOf) -> Result<Ran<i32>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    match queue.lock_table("metrics", false) {
        Table::Ready => Ok(Ran::Done(metrics::snap(name, which))),
        Table::Busy => Ok(Ran::Busy),
        Table::Missing => Err(queue.missing("metrics")),
    }
}
