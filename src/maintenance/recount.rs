//! `cmp`: recounts the gauges of a queue and repairs drift, such as plain SQL statements cause that
//! update, delete or truncate documents. It also enables the trigger of the ready floors where a
//! restore has left it disabled, and makes documents due that were ready before the clock was set back.

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::bounds::keys_setup;
use crate::store::bounds::limits;
use crate::store::counters::recount;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::triggers;
use crate::store::upkeep::floor_check;
use crate::store::upkeep::maintenance;
use crate::store::upkeep::worker_sessions;

/// Recounts the gauges of a queue and repairs its state. Returns how many gauges were wrong. Busy
/// while another session has locked the table or the counters.
///
/// Fails with `Error::UnknownQueue`, with `Error::NoRight`, and with the errors of the recount.
pub fn run(name: &QueueName) -> Result<Ran<i32>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    if queue.lacks_trigger() {
        triggers::repair_ready_trigger(name);
    }
    floor_check::check_all(&queue);
    maintenance::clamp_ready(&queue);
    limits::repair(&queue);
    keys_setup::repair(&queue);
    let repaired = recount::recount(name)?;
    worker_sessions::delete_stale(&queue);
    Ok(repaired)
}
