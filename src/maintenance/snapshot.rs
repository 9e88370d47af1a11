//! `sts`: takes a snapshot of a queue's metrics.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::metrics::{self, SnapshotOf};
use crate::store::open_queue::Queue;

/// Takes a snapshot of the metrics of a queue, and returns how many rows it has written. It writes
/// none while another session has locked the queue.
///
/// Fails with `Error::UnknownQueue`.
pub fn run(name: &QueueName, which: SnapshotOf) -> Result<i32> {
    if Queue::try_open(name)?.is_none() {
        return Ok(0);
    }
    Ok(metrics::snap(name, which))
}
