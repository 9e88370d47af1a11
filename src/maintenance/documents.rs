//! `mnt`: documents whose time has come, and leases that ran out.

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::store::plans::Queue;
use crate::store::{holders, maintenance};
use crate::worker::progress;

/// Documents moved by one run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub activated: i32,
    pub rescheduled: i32,
    pub killed: i32,
}

/// Returns or kills documents whose lease ran out, and makes due documents pending: up
/// to `limit` of each.
/// Nothing while another session has the table locked: the next time.
pub fn run(name: &QueueName, limit: i32) -> Result<Outcome> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Outcome::default());
    };
    // (the worker does that for all queues at once)
    if holders::may_read() {
        for bound in holders::bound(Some(queue.id)).values() {
            holders::follow_sessions(&queue, bound);
        }
    }
    run_open(&queue, limit)
}

/// The same for a queue that is open.
pub fn run_open(queue: &Queue, limit: i32) -> Result<Outcome> {
    let expired = maintenance::expire(queue, limit)?;
    progress::add(expired.killed + expired.returned);
    let activated = maintenance::make_pending(queue, limit);
    progress::add(activated);
    Ok(Outcome {
        killed: expired.killed,
        rescheduled: expired.returned,
        activated,
    })
}
