//! Queues: their ids, indexes, versions and documents.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond, respond_write};
use crate::error::Result;
use crate::fetchq4::store::queue as store;
use crate::pg::call::{Call, Reply};
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};

/// `queue_get_id(queue) → queue_id`: the id of a queue. A queue that does not exist raises a
/// warning and returns NULL.
#[pg_extern(sql = false)]
fn queue_get_id(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let id = rights::with(&name, Right::Any, || queue::id(&name).map(Some));
        let id = lenient(id, None)?;
        Ok(Reply::bigint(id.map(i64::from)))
    })
}

/// `queue_create_indexes(queue) → was_created`: creates the indexes and the ready trigger of a
/// queue where they are missing. A queue that does not exist raises a warning and returns false.
#[pg_extern(sql = false)]
fn queue_create_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, create_indexes)
}

/// `queue_create_indexes(queue, version, attempts) → was_created`: as above. The indexes serve
/// every version and any number of attempts, so these two arguments are only checked for NULL.
#[pg_extern(sql = false)]
fn queue_create_indexes_for(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        call.int(1, "version")?;
        call.int(2, "attempts")?;
        create_indexes(call)
    })
}

/// Creates the indexes of the queue that is the first argument.
fn create_indexes(call: &Call) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let created = rights::with(&name, Right::Manage, || store::create_indexes(&name));
    lenient(created.map(|()| true), false).map(Reply::bool)
}

/// `queue_drop_indexes(queue) → was_dropped`: drops the indexes of a queue, except those that
/// implement a constraint. A queue that does not exist raises a warning and returns false.
#[pg_extern(sql = false)]
fn queue_drop_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = rights::with(&name, Right::Manage, || store::drop_indexes(&name));
        lenient(dropped.map(|()| true), false).map(Reply::bool)
    })
}

/// `queue_drop_version(queue, version) → was_dropped`: says whether a version may be removed,
/// which is every version except the current one. No version has an index of its own, so
/// nothing is dropped. A queue that does not exist raises a warning and returns false.
#[pg_extern(sql = false)]
fn queue_drop_version(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let current = rights::with(&name, Right::Any, || store::current_version(&name));
        lenient(current.map(|current| current != version), false).map(Reply::bool)
    })
}

/// `queue_status() → (id, name, is_active)`: all queues, one row each.
#[pg_extern(sql = false)]
fn queue_status_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        store::status_of_all(&mut out)?;
        Ok(out.done())
    })
}

/// `queue_status(queue) → (id, name, is_active)`: one queue; no row when it does not exist.
#[pg_extern(sql = false)]
fn queue_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let mut out = call.rows();
        rights::with(&name, Right::Any, || {
            store::status_of(&name, &mut out);
            Ok(())
        })?;
        Ok(out.done())
    })
}

/// `queue_top(queue, version, max_docs, skip) → documents`: a page of the documents of one
/// version, in the order of picking. `max_docs` and `skip` are numbers of documents.
///
/// Fails with `UnknownQueue`, and with `NegativeLimit` when a number is below 0.
#[pg_extern(sql = false)]
fn queue_top(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let (limit, skip) = (call.limit(2, "max_docs")?, call.limit(3, "skip")?);
        let mut out = call.rows();
        rights::with(&name, Right::Read, || {
            store::top(&name, version, limit, skip, &mut out)
        })?;
        Ok(out.done())
    })
}
