//! `cmp`: recounts the gauges of a queue and repairs drift, such as a console leaves
//! that updates, deletes or truncates documents by plain SQL.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::metrics;

/// Gauges that were wrong.
pub fn run(name: &QueueName) -> Result<i32> {
    metrics::recount(name)
}
