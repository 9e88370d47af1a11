//! Settling leased documents, and the error log.

use pgrx::prelude::*;

use super::{lenient, message, opt_payload, queue_name, respond_write, subject};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::pg::time;
use crate::store::logs::{self, Entry};
use crate::store::plans::Queue;
use crate::store::returns;
use crate::store::settle::{self, Held};

/// Opens the queue, settles the document that `lease` (the number of that argument)
/// holds, and answers with the number of documents: 1 or 0.
fn settle(
    call: &Call,
    lease: usize,
    settle: impl FnOnce(&Queue, Held) -> Result<()>,
) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let doc = Held {
        subject: subject(call, 1)?,
        lease: call.opt_bigint(lease),
    };
    let settled = Queue::open(&name).and_then(|queue| settle(&queue, doc));
    lenient(settled.map(|()| 1), 0).map(Reply::int)
}

/// `doc_complete(queue, subject, payload, lease)`
#[pg_extern(sql = false)]
fn doc_complete(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, 3, |queue, doc| settle::complete(queue, doc, payload))
    })
}

/// `doc_kill(queue, subject, payload, lease)`
#[pg_extern(sql = false)]
fn doc_kill(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, 3, |queue, doc| settle::kill(queue, doc, payload))
    })
}

/// `doc_reschedule(queue, subject, next_iteration, payload, lease)`
#[pg_extern(sql = false)]
fn doc_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = call.timestamp(2, "next_iteration")?;
        let payload = opt_payload(call, 3);
        settle(call, 4, |queue, doc| {
            settle::reschedule(queue, doc, next_iteration, payload)
        })
    })
}

/// `doc_drop(queue, subject, lease)`
#[pg_extern(sql = false)]
fn doc_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| settle(call, 2, settle::drop))
}

/// `doc_reject(queue, subject, message, details, ref_id, lease, delay)`
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
            let rejected = returns::reject(queue, doc, &message, not_before)?;
            let entry = Entry {
                subject: doc.subject,
                message: &message,
                details,
                ref_id: call.opt_text(4),
                attempt: Some(rejected.attempts),
            };
            logs::append(queue, &entry);
            Ok(())
        })
    })
}

/// `doc_snooze(queue, subject, next_iteration, lease)`
#[pg_extern(sql = false)]
fn doc_snooze(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = call.timestamp(2, "next_iteration")?;
        settle(call, 3, |queue, doc| {
            returns::snooze(queue, doc, next_iteration)
        })
    })
}

/// `log_error(queue, subject, message, details, ref_id)`
#[pg_extern(sql = false)]
fn log_error(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let message = message(call, 2)?;
        let entry = Entry {
            subject: subject(call, 1)?,
            message: &message,
            details: opt_payload(call, 3),
            ref_id: call.opt_text(4),
            attempt: None,
        };
        let logged = Queue::open(&name).map(|queue| logs::append(&queue, &entry));
        lenient(logged.map(|()| true), false).map(Reply::bool)
    })
}
