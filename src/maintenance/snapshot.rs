//! `sts`: takes a snapshot of a queue's metrics.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::metrics::{self, SnapshotOf};
use crate::store::open_queue::Queue;

/// Rows written; none while another session has the queue locked.
pub fn run(name: &QueueName, which: SnapshotOf) -> Result<i32> {
    if Queue::try_open(name)?.is_none() {
        return Ok(0);
    }
    Ok(metrics::snap(name, which))
}
