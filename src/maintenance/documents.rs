//! `mnt`: makes planned documents pending at their time, and returns or kills documents whose lease
//! has expired.

use pgrx::PgSqlErrorCode;

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::{self, Result, raise};
use crate::pg::subtransaction;
use crate::signals::progress;
use crate::store::queues::open_queue::Queue;
use crate::store::upkeep::maintenance;
use crate::store::upkeep::worker_sessions;

/// The number of documents that one run has changed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Planned documents that are pending now.
    pub activated: i32,
    /// Documents whose lease has expired and that are pending again.
    pub rescheduled: i32,
    /// Documents whose lease has expired at their last attempt.
    pub killed: i32,
    /// Documents that did not begin in time.
    pub expired: i32,
    /// Why documents could not be killed: they could not be moved to the dead-letter queue or to
    /// the history.
    pub kill_failure: Option<String>,
}

/// Makes planned documents pending at their time, and returns or kills documents whose lease has
/// expired: up to `limit` documents each. Busy while another session has locked the table.
///
/// Fails with `Error::UnknownQueue`, with `Error::NoRight`, and with the errors of killing a
/// document.
pub fn run(name: &QueueName, limit: i32) -> Result<Ran<Outcome>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    // The background worker does this for all queues at once, so `run_open` does not do it.
    for bound in worker_sessions::bound_sessions(Some(queue.id)).values() {
        worker_sessions::apply_bindings(&queue, bound);
    }
    run_open(&queue, limit, true).map(Ran::Done)
}

/// Does what `run` does, for a queue that is open and without its bound sessions, with the rights
/// of its owner. Without `kills`, documents at their last attempt are left as they are.
///
/// When killed documents cannot be moved to the dead-letter queue or to the history, that is
/// reported as a WARNING, and the rest is done.
///
/// Fails with the errors of killing a document that stays in the table.
pub fn run_open(queue: &Queue, limit: i32, kills: bool) -> Result<Outcome> {
    run_as_owner(queue, limit, kills)
}

fn run_as_owner(queue: &Queue, limit: i32, kills: bool) -> Result<Outcome> {
    let mut waiting = Ok(0);
    let mut expired = if kills {
        waiting = attempt_expiry(queue, limit);
        maintenance::expire(queue, limit)?
    } else {
        maintenance::Expired {
            returned: maintenance::reschedule_orphans(queue, limit),
            ..Default::default()
        }
    };
    if let Some(message) = &expired.failure {
        warn_of_failure(queue, "failed too often", "active", message);
    }
    let waiting = waiting.unwrap_or_else(|message| {
        warn_of_failure(queue, "have expired", "waiting", &message);
        expired.failure.get_or_insert(message);
        0
    });
    progress::add_rows(expired.killed + expired.returned + waiting);
    let activated = maintenance::make_pending(queue, limit);
    progress::add_rows(activated);
    Ok(Outcome {
        killed: expired.killed,
        rescheduled: expired.returned,
        activated,
        expired: waiting,
        kill_failure: expired.failure,
    })
}

fn warn_of_failure(queue: &Queue, what: &str, stay: &str, message: &str) {
    error::warn(
        PgSqlErrorCode::ERRCODE_WARNING,
        format!(
            "documents of queue \"{}\" that {what} cannot leave it: {message}",
            queue.name
        ),
        &format!(
            "They stay {stay}, and it is tried again. See dead_letter and history in fetchq.queue_settings()."
        ),
    );
}

/// Kills documents that did not begin in time. An error of that, which is one of the history, does not
/// keep the other documents from being maintained.
fn attempt_expiry(queue: &Queue, limit: i32) -> std::result::Result<i32, String> {
    if !maintenance::has_expired(queue) {
        return Ok(0);
    }
    subtransaction::attempt(|| raise(maintenance::expire_waiting(queue, limit)))
}
