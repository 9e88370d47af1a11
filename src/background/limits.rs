//! Maintenance waits for nobody: the time that a queue may take from the others is bounded.
//!
//! What another session has locked can be needed by maintenance. A transaction waits for a lock for
//! a moment only, and is cancelled when it takes too long. What does not heed the cancel, such as a
//! trigger of a superuser, ends the process, and another one follows. A queue that has failed waits
//! for its next turn, the longer the more time it has taken.

use std::time::Duration;

use crate::pg::{deadline, process};
use crate::settings;

/// The longest time that maintenance waits for a lock. It is short beside the second after which
/// work counts as late in `fetchq.status()`; not measured.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// The longest time of a transaction on which the documents of other queues wait. Not measured: a
/// run of some hundred documents takes milliseconds.
const MAX_PROMPT: Duration = Duration::from_secs(10);

/// A run that takes longer than this is slow: other work comes before the next queue of a sweep, and a
/// session that is bound to the queue waits. In microseconds; not measured.
pub const SLOW_RUN_US: i64 = 100_000;

fn transaction<R>(total: Duration, work: impl FnOnce() -> R) -> Result<R, String> {
    deadline::run(LOCK_WAIT, total, || process::transaction(work))
}

/// Runs a transaction that touches one queue, and on which other queues wait. Returns the message
/// of an error.
pub fn prompt<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    transaction(settings::maintenance_timeout().min(MAX_PROMPT), work)
}

/// Runs a transaction of a slow job. Returns the message of an error.
pub fn slow<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    transaction(settings::maintenance_timeout(), work)
}
