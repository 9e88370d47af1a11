//! `sts`: takes a snapshot of a queue's metrics.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::plans::Queue;
use crate::store::series::{self, Which};

/// Rows written.
pub fn run(name: &QueueName, which: Which) -> Result<i32> {
    Queue::open(name)?;
    Ok(series::snap(name, which))
}
