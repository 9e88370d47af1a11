//! Settling leased documents, and the error log.

use pgrx::prelude::*;

use super::{lenient, message, opt_payload, queue_name, respond_write, subject};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::store::docs;
use crate::store::logs::{self, Entry};
use crate::store::plans::Queue;

/// Opens the queue, settles, and answers with the number of documents: 1 or 0.
fn settle(call: &Call, settle: impl FnOnce(&Queue, &str) -> Result<()>) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let subject = subject(call, 1)?;
    let settled = Queue::open(&name).and_then(|queue| settle(&queue, subject));
    lenient(settled.map(|()| 1), 0).map(Reply::int)
}

/// `doc_complete(queue, subject, payload)`
#[pg_extern(sql = false)]
fn doc_complete(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, |queue, subject| {
            docs::complete(queue, subject, payload)
        })
    })
}

/// `doc_kill(queue, subject, payload)`
#[pg_extern(sql = false)]
fn doc_kill(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, |queue, subject| docs::kill(queue, subject, payload))
    })
}

/// `doc_reschedule(queue, subject, next_iteration, payload)`
#[pg_extern(sql = false)]
fn doc_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = call.timestamp(2, "next_iteration")?;
        let payload = opt_payload(call, 3);
        settle(call, |queue, subject| {
            docs::reschedule(queue, subject, next_iteration, payload)
        })
    })
}

/// `doc_drop(queue, subject)`
#[pg_extern(sql = false)]
fn doc_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| settle(call, docs::drop))
}

/// `doc_reject(queue, subject, message, details, ref_id)`
#[pg_extern(sql = false)]
fn doc_reject(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let message = message(call, 2)?;
        let details = opt_payload(call, 3);
        settle(call, |queue, subject| {
            docs::reject(queue, subject)?;
            let entry = Entry {
                subject,
                message: &message,
                details,
                ref_id: call.opt_text(4),
            };
            logs::append(queue, &entry);
            Ok(())
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
        };
        let logged = Queue::open(&name).map(|queue| logs::append(&queue, &entry));
        lenient(logged.map(|()| true), false).map(Reply::bool)
    })
}
