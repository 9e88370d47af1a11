//! Maintenance waits for nobody: the time that a queue may take from the others is bounded.
//!
//! What an owner attaches to its tables runs within maintenance, and what another session has
//! locked can be needed by it. A transaction waits for a lock for a moment only, and is cancelled
//! when it takes too long. A queue that does not heed the cancel ends the process. In each case
//! that queue alone has to wait for its next turn, the longer the more time it has taken.

use std::time::Duration;

use pgrx::pg_sys::Oid;

use crate::background::lifecycle::log_failure;
use crate::domain::names::QueueName;
use crate::maintenance::runner;
use crate::pg::{deadline, process, relation};
use crate::settings;
use crate::signals::watchdog;
use crate::store::schedules;

/// The longest time that maintenance waits for a lock. It is short beside the second after which
/// work counts as late in `fetchq.status()`; not measured.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// The longest time of a transaction on which the documents of other queues wait. Not measured: a
/// run of some hundred documents takes milliseconds.
const MAX_PROMPT: Duration = Duration::from_secs(10);

/// A run that takes longer than this is slow: after it, a queue of another owner comes next, so that
/// an owner with many slow queues does not keep the others waiting. In microseconds; not measured.
pub const SLOW_RUN_US: i64 = 100_000;

/// Returns the owner of a queue, to decide which queue comes next. None when there is no such
/// queue. To be called in a transaction.
pub fn owner_of(queue: &str) -> Option<Oid> {
    let name = QueueName::parse(queue).ok()?;
    let table = relation::lookup_data_table(&name.relation("docs"))?;
    Some(Oid::from(relation::owner_in_catalog(table.to_u32())))
}

/// The error of a queue whose work did not end when it was cancelled.
const NOT_ENDED: &str = "it was cancelled, and did not end";

fn transaction<R>(total: Duration, work: impl FnOnce() -> R) -> Result<R, String> {
    let result = deadline::run(LOCK_WAIT, total, || process::transaction(work));
    watchdog::end();
    result
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

/// Begins to watch this process. A queue on which an earlier process has ended is postponed, and
/// so are its schedules.
pub fn begin() {
    let Some(table) = watchdog::watch() else {
        return;
    };
    let took = i64::try_from(MAX_PROMPT.as_micros()).unwrap_or(i64::MAX);
    let result = prompt(|| {
        let name = relation::queue_of_table(table)?;
        let name = QueueName::parse(&name).ok()?;
        runner::back_off_maintenance(&name, took, NOT_ENDED);
        schedules::back_off_queue(&name, runner::pause_after(took), NOT_ENDED);
        Some(name)
    });
    match result {
        Ok(Some(name)) => log_failure(format!(
            "the maintenance of queue \"{name}\" did not end when it was cancelled, so the process was ended"
        )),
        Ok(None) => {}
        Err(message) => log_failure(message),
    }
}
