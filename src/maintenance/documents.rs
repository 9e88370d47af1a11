//! `mnt`: documents whose time has come, and leases that ran out.

use pgrx::PgSqlErrorCode;

use crate::domain::names::QueueName;
use crate::error::{self, Result};
use crate::signals::progress;
use crate::store::open_queue::Queue;
use crate::store::{maintenance, worker_sessions};

/// Documents moved by one run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub activated: i32,
    pub rescheduled: i32,
    pub killed: i32,
    /// Documents that are to leave the table could not.
    pub is_stuck: bool,
}

/// Returns or kills documents whose lease ran out, and makes due documents pending: up
/// to `limit` of each.
/// Nothing while another session has the table locked: the next time.
pub fn run(name: &QueueName, limit: i32) -> Result<Outcome> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Outcome::default());
    };
    // (the worker does that for all queues at once)
    if worker_sessions::may_read() {
        for bound in worker_sessions::bound_sessions(Some(queue.id)).values() {
            worker_sessions::apply_bindings(&queue, bound);
        }
    }
    run_open(&queue, limit, true)
}

/// The same for a queue that is open. `buries`: it also tries to kill those at their last
/// attempt, where dead ones leave the table. What fails there is told, and all else done.
pub fn run_open(queue: &Queue, limit: i32, buries: bool) -> Result<Outcome> {
    let expired = if buries {
        maintenance::expire(queue, limit)?
    } else {
        maintenance::Expired {
            returned: maintenance::reschedule_orphans(queue, limit),
            ..Default::default()
        }
    };
    if let Some(message) = &expired.failure {
        error::warn(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!(
                "documents of queue \"{}\" that failed too often can not leave it: {message}",
                queue.name
            ),
            "They stay active, and it is tried again. See fetchq.queue_set_dead_letter() and fetchq.queue_set_history().",
        );
    }
    progress::add(expired.killed + expired.returned);
    let activated = maintenance::make_pending(queue, limit);
    progress::add(activated);
    Ok(Outcome {
        killed: expired.killed,
        rescheduled: expired.returned,
        activated,
        is_stuck: expired.failure.is_some(),
    })
}
