//! `cmp`: recounts the gauges of a queue and repairs drift, such as plain SQL statements cause that
//! update, delete or truncate documents. It also enables the trigger of the ready floors where a
//! restore has left it disabled.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::ready::floors;
use crate::store::open_queue::Queue;
use crate::store::{limits, metrics, ordering_setup, triggers};

/// Recounts the gauges of a queue and repairs its state. Returns how many gauges were wrong. While
/// another session has locked the table, the state is not repaired.
///
/// Fails with `Error::UnknownQueue`, and with the errors of the recount.
pub fn run(name: &QueueName) -> Result<i32> {
    if let Some(queue) = Queue::try_open(name)? {
        if queue.lacks_trigger() {
            triggers::repair_ready_trigger(name);
        }
        // The floors are built anew, so that not even a defect of theirs can hide a document
        // forever.
        floors::forget(queue.table);
        limits::repair(&queue);
        ordering_setup::repair(&queue);
    }
    metrics::recount(name)
}
