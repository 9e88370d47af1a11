//! `cmp`: recounts the gauges of a queue and repairs drift, such as a console leaves
//! that updates, deletes or truncates documents by plain SQL. Also switches the trigger
//! of the ready floors on where a restore has left it off.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::ready::floors;
use crate::store::open_queue::Queue;
use crate::store::{limits, metrics, ordering_setup, triggers};

/// Gauges that were wrong.
pub fn run(name: &QueueName) -> Result<i32> {
    if let Some(queue) = Queue::try_open(name)? {
        if queue.lacks_trigger() {
            triggers::repair_ready_trigger(name);
        }
        // So that not even a defect of the floors could hide a document for good.
        floors::forget(queue.table);
        limits::repair(&queue);
        ordering_setup::repair(&queue);
    }
    metrics::recount(name)
}
