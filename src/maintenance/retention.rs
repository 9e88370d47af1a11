//! `drp`: applies the retention of a queue's snapshots and logs.

use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::Result;
use crate::pg::time::Interval;
use crate::store::plans::Queue;
use crate::store::{logs, series};

/// Both; nothing while another session has the queue locked.
pub fn run(name: &QueueName) -> Result<()> {
    if Queue::try_open(name)?.is_none() {
        return Ok(());
    }
    metrics(name)?;
    logs_by_setting(name)?;
    Ok(())
}

/// Trims the snapshots by the queue's own policy; says how many rows went.
pub fn metrics(name: &QueueName) -> Result<i32> {
    let policy = retention::parse(&series::retention(name)?)?;
    metrics_by(name, &policy)
}

/// Trims the snapshots by a given policy.
pub fn metrics_by(name: &QueueName, policy: &[retention::Rule]) -> Result<i32> {
    Queue::open(name)?;
    series::retain(name, policy)
}

/// Trims the logs by the queue's own retention; says how many rows went.
pub fn logs_by_setting(name: &QueueName) -> Result<i32> {
    let queue = Queue::open(name)?;
    let age = Interval::parse(&logs::retention(&queue)).as_duration("logs_retention")?;
    Ok(logs::drop_older_than(&queue, age.arg()))
}
