//! The history of queues: reading it, and trimming it.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::maintenance::retention;
use crate::pg::call::Reply;
use crate::store::history;
use crate::store::owned_queue::OwnedQueue;
use crate::store::rights::{self, Right};

/// `queue_trim_history(queue, max_docs) → affected`: removes documents that have been in
/// the history of a queue for longer than it keeps them, the oldest first, at most `max_docs`.
///
/// Fails with `UnknownQueue`, and with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn queue_trim_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let limit = call.limit(1, "max_docs")?;
        let trimmed = rights::with(&name, Right::Manage, || {
            retention::trim(&OwnedQueue::open(&name)?, limit)
        });
        trimmed.map(Reply::count)
    })
}

/// `queue_history(queue) → documents`: the history of a queue; with NULL, of all queues whose
/// history the caller may read. Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn queue_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = call.opt_text(0).map(QueueName::parse).transpose()?;
        if let Some(name) = &name {
            rights::require(name, Right::Any)?;
        }
        let mut out = call.rows();
        history::list(name.as_ref(), &mut out)?;
        Ok(out.done())
    })
}
