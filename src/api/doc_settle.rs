//! Settling leased documents, and the error log.

use crate::store::doc_settle;
use pgrx::prelude::*;

use crate::api::entry::{lenient, opt_payload, queue_name, respond_write, subject};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::store::lease_check::LeasedDoc;
use crate::store::open_queue::Queue;

/// Opens the queue, settles the document that `lease` (the number of that argument)
/// holds, and answers with the number of documents: 1 or 0.
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
    let settled = Queue::open(&name).and_then(|queue| settle(&queue, doc));
    lenient(settled.map(|()| 1), 0).map(Reply::int)
}

/// `doc_complete(queue, subject, payload, lease)`
#[pg_extern(sql = false)]
fn doc_complete(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, 3, |queue, doc| {
            doc_settle::complete(queue, doc, payload)
        })
    })
}

/// `doc_kill(queue, subject, payload, lease)`
#[pg_extern(sql = false)]
fn doc_kill(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = opt_payload(call, 2);
        settle(call, 3, |queue, doc| doc_settle::kill(queue, doc, payload))
    })
}

/// `doc_reschedule(queue, subject, next_iteration, payload, lease)`
#[pg_extern(sql = false)]
fn doc_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = call.timestamp(2, "next_iteration")?;
        let payload = opt_payload(call, 3);
        settle(call, 4, |queue, doc| {
            doc_settle::reschedule(queue, doc, next_iteration, payload)
        })
    })
}

/// `doc_drop(queue, subject, lease)`
#[pg_extern(sql = false)]
fn doc_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| settle(call, 2, doc_settle::drop))
}
