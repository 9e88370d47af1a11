//! `sts`: takes a snapshot of a queue's metrics.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::plans::Queue;
use crate::store::series::{self, Which};

/// Rows written; none while another session has the queue locked.
pub fn run(name: &QueueName, which: Which) -> Result<i32> {
    if Queue::try_open(name)?.is_none() {
        return Ok(0);
    }
    Ok(series::snap(name, which))
}
