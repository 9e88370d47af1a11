//! `cmp`: recounts the gauges of a queue and repairs drift, such as plain SQL statements cause that
//! update, delete or truncate documents. It also enables the trigger of the ready floors where a
//! restore has left it disabled, and makes documents due that were ready before the clock was set back.
//!
//! The documents are read only where somebody else than fetchq has written some since they were counted, or
//! the server has crashed; otherwise once a day, in case fetchq itself is wrong. Under a held snapshot they
//! are read past everything that has gone since.

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::time;
use crate::store::bounds::keys_setup;
use crate::store::bounds::limits;
use crate::store::counters::recount;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::triggers;
use crate::store::upkeep::floor_check;
use crate::store::upkeep::jobs::{self, Note};
use crate::store::upkeep::maintenance;
use crate::store::upkeep::worker_sessions;

/// After this time documents are counted in any case: microseconds. A day.
const COUNT_US: i64 = 86_400_000_000;

/// Returns whether the documents were counted when there was the same to count, and not long ago. `noted`:
/// what the last count has noted.
fn is_counted(noted: Option<&str>, state: &str) -> bool {
    let noted = noted.and_then(|noted| noted.split_once('@'));
    let time = noted
        .filter(|(counted, _)| *counted == state)
        .and_then(|(_, time)| time.parse::<i64>().ok());
    time.is_some_and(|time| (0..COUNT_US).contains(&(time::clock() - time)))
}

/// Recounts the gauges of a queue and repairs its state, as its job does. Returns how many gauges were wrong.
/// Busy while another session has locked the table or the counters.
///
/// Fails with `Error::UnknownQueue`, with `Error::NoRight`, and with the errors of the recount.
pub fn run(job: i32, name: &QueueName) -> Result<Ran<i32>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    if queue.lacks_trigger() {
        triggers::repair_ready_trigger(name);
    }
    // This precedes the snapshot of what is counted.
    let state = queue.foreign_writes();
    let noted = jobs::noted(job, Note::Counted);
    let is_same = (state.as_deref()).is_some_and(|state| is_counted(noted.as_deref(), state));
    let is_counted = is_same && recount::has_gauges(name);
    if !is_counted {
        floor_check::check_all(&queue);
    }
    maintenance::clamp_ready(&queue);
    limits::repair(&queue);
    keys_setup::repair(&queue);
    let repaired = match is_counted {
        true => Ran::Done(0),
        false => recount::recount(name)?,
    };
    if !is_counted && repaired != Ran::Busy {
        let counted = state.map(|state| format!("{state}@{}", time::clock()));
        jobs::note(job, Note::Counted, counted.as_deref());
    }
    worker_sessions::delete_stale(&queue);
    Ok(repaired)
}
