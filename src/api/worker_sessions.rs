//! Workers and their leases.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write, worker_name};
use crate::error::{self, Error};
use crate::pg::call::Reply;
use crate::store::documents::stop_requests;
use crate::store::queues::rights::{self, Right};
use crate::store::upkeep::worker_sessions;

/// `worker_release(name) → affected`: returns all documents that a worker has leased, as
/// if they had not been picked. A worker that has picked nothing raises a warning and returns 0.
#[pg_extern(sql = false)]
fn worker_release(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let worker = worker_name(call, 0, "name")?;
        let released = worker_sessions::release_all(worker)?;
        if released.is_none() {
            error::warn(
                PgSqlErrorCode::ERRCODE_NO_DATA,
                format!("no worker \"{worker}\" has picked documents"),
                "See fetchq.workers for the names.",
            );
        }
        Ok(Reply::count(released.unwrap_or(0)))
    })
}

/// `worker_stop(name) → was_asked`: asks all sessions of a worker that run now to stop, as far as
/// they work on queues of which the caller is a worker too. `worker_wait`, `docs_extend`, `doc_extend` and `fetchq.work` deliver the request. Always true.
#[pg_extern(sql = false)]
fn worker_stop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        stop_requests::request_stop(worker_name(call, 0, "name")?)?;
        Ok(Reply::bool(true))
    })
}

/// `worker_stop_requested(queue, name, since) → is_requested`: whether a worker of a queue was asked
/// to stop at or after a time. `fetchq.work` asks this between two documents, and passes NULL: since it
/// began.
#[pg_extern(sql = false)]
fn worker_stop_requested(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let worker = worker_name(call, 1, "name")?;
        let (since, known) = match stop_requests::known_to_work() {
            Some(known) if call.is_null(2) => (i64::MIN, known),
            _ => (call.timestamp(2, "since")?, Vec::new()),
        };
        let is_requested = || {
            let is_requested = stop_requests::is_stop_requested(&queue, worker, since, known);
            Ok(Reply::bool(is_requested))
        };
        rights::with(&queue, Right::Any, is_requested)
    })
}

/// `lease_list(queue, max_docs, after) → leases`: the leased documents of a queue, or of all queues
/// that the caller may read, with their workers. The view `fetchq.leases` shows all of them.
///
/// Fails with `UnknownQueue` and `NoRight` for a queue that is named, with `NegativeLimit` when
/// `max_docs` is below 0, and with `AlsoNeeded` for `after` without a queue.
#[pg_extern(sql = false)]
fn lease_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = match call.is_null(0) {
            true => None,
            false => Some(queue_name(call, 0)?),
        };
        let limit = match call.is_null(1) {
            true => None,
            false => Some(call.limit(1, "max_docs")?),
        };
        let after = call.opt_text(2);
        if after.is_some() && name.is_none() {
            return Err(Error::AlsoNeeded {
                given: "after",
                needed: "queue",
            });
        }
        let mut out = call.rows();
        worker_sessions::list_leases(name.as_ref(), limit, after, &mut out)?;
        Ok(out.done())
    })
}
