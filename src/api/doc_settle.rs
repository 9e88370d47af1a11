//! Settling one leased document: complete, kill, reschedule and drop.

use pgrx::prelude::*;

use crate::api::entry::{
    lenient, message, opt_message, opt_payload, queue_name, respond_write, subject,
};
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::store::documents::doc_options;
use crate::store::documents::lease_check::LeasedDoc;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::doc_reject::{self, Failure};
use crate::store::settle::doc_settle;

/// Opens the queue, settles a document, and returns the number of settled documents: 1 or 0.
/// `lease` is the position of the argument with the lease number, counted from 0.
pub fn settle(
    call: &Call,
    lease: usize,
    settle: impl FnOnce(&Queue, LeasedDoc) -> Result<()>,
) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let doc = LeasedDoc {
        subject: subject(call, 1)?,
        lease: call.opt_bigint(lease),
    };
    let settled = Queue::with(&name, Right::Work, |queue| settle(queue, doc));
    lenient(settled.map(|()| 1), 0).map(Reply::int)
}

/// `doc_complete(queue, subject, payload, lease, result) → affected_rows`: settles an active
/// document as completed. `payload` NULL leaves the payload as it is; with `lease` the document is
/// settled only while that lease lasts; `result` is kept with the document.
///
/// Fails with `LeaseLost` when the lease was lost. Without `lease`, a document that is not
/// active raises a warning and returns 0.
#[pg_extern(sql = false)]
fn doc_complete(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, 3, |queue, doc| {
            doc_settle::complete(queue, doc, payload, call.opt_json(4))
        })
    })
}

/// `doc_kill(queue, subject, payload, lease, message, details) → affected_rows`: settles an active
/// document as killed. `message` says why: it is its last error, and goes into the log with
/// `details`. The other arguments and errors are those of `doc_complete`; fails with `NullArgument`
/// for details without a message, and with `Invalid` for a message that is too long.
#[pg_extern(sql = false)]
fn doc_kill(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        let details = opt_payload(call, 5);
        let why = match details {
            None => opt_message(call, 4)?,
            Some(_) => Some(message(call, 4)?),
        };
        settle(call, 3, |queue, doc| {
            let failure = why.as_deref().map(|message| Failure {
                message,
                details,
                ref_id: None,
            });
            doc_reject::kill(queue, doc, payload, failure.as_ref())
        })
    })
}

/// `doc_reschedule(queue, subject, next_iteration, payload, lease, delay) → affected_rows`: plans
/// the next iteration of an active document, for a time or for `delay`, an interval, after the start
/// of the transaction. The other arguments are those of `doc_complete`.
///
/// Fails as `doc_complete` and `doc_options::due` do, and with `NeitherGiven` without a time and a
/// delay.
#[pg_extern(sql = false)]
fn doc_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let (at, delay) = (call.opt_timestamp(2), call.opt_interval(5));
        if at.is_none() && delay.is_none() {
            return Err(Error::NeitherGiven {
                one: "next_iteration",
                other: "delay",
            });
        }
        let next_iteration = doc_options::due(at, delay)?;
        let payload = opt_payload(call, 3);
        settle(call, 4, |queue, doc| {
            doc_settle::reschedule(queue, doc, next_iteration, payload)
        })
    })
}

/// `doc_drop(queue, subject, lease) → affected_rows`: settles an active document by removing
/// it. Arguments and errors are those of `doc_complete`.
#[pg_extern(sql = false)]
fn doc_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| settle(call, 2, doc_settle::drop))
}
