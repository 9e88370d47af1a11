//! Returning active documents: after a failure, or until a time; and the error log.

use pgrx::prelude::*;

use crate::api::doc_settle::settle;
use crate::api::entry::{lenient, message, opt_payload, queue_name, respond_write, subject};
use crate::pg::call::Reply;
use crate::pg::time;
use crate::store::documents::doc_options;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::doc_reject as store;
use crate::store::settle::doc_reject::{Failure, LogEntry};

/// `doc_reject(queue, subject, message, details, ref_id, lease, delay) → affected_rows`:
/// rejects an active document after a failure, and writes a log entry with `message`, `details`
/// and `ref_id`. The document is retried after `delay`, an interval; with NULL, by the backoff
/// of the queue. After its last attempt it is killed.
///
/// Fails with `LeaseLost` when the lease was lost, with `BadDuration`. Without `lease`, a
/// document that is not active raises a warning and returns 0.
#[pg_extern(sql = false)]
fn doc_reject(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let message = message(call, 2)?;
        let details = opt_payload(call, 3);
        let not_before = match call.opt_interval(6) {
            None => None,
            Some(delay) => Some(delay.as_duration("delay")?.after(time::now())),
        };
        settle(call, 5, |queue, doc| {
            let failure = Failure {
                message: &message,
                details,
                ref_id: call.opt_text(4),
            };
            store::reject(queue, doc, &failure, not_before)
        })
    })
}

/// `doc_snooze(queue, subject, next_iteration, lease, delay) → affected_rows`: returns an active
/// document until a time, or for `delay`, an interval, as if it had not been picked: the attempt does
/// not count. With neither of them it is due now.
///
/// Fails as `doc_reject` and `doc_options::due` do.
#[pg_extern(sql = false)]
fn doc_snooze(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = doc_options::due(call.opt_timestamp(2), call.opt_interval(4))?;
        settle(call, 3, |queue, doc| {
            store::snooze(queue, doc, next_iteration)
        })
    })
}

/// `log_error(queue, subject, message, details, ref_id) → queued_logs`: adds an entry to the
/// log of a queue. A queue that does not exist raises a warning and returns false.
#[pg_extern(sql = false)]
fn log_error(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let message = message(call, 2)?;
        let entry = LogEntry {
            subject: subject(call, 1)?,
            message: &message,
            details: opt_payload(call, 3),
            ref_id: call.opt_text(4),
            attempt: None,
        };
        let logged = Queue::with(&name, Right::Work, |queue| {
            store::log_failure(queue, &entry);
            Ok(())
        });
        lenient(logged.map(|()| true), false).map(Reply::bool)
    })
}
