//! Queues: creating, dropping, listing and truncating them.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond, respond_write};
use crate::domain::queue_settings::Changes;
use crate::error::{Error, Result, raise};
use crate::pg::call::{Call, Reply};
use crate::pg::passing_error;
use crate::pg::value::Arg;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};
use crate::store::setup::queue_configure;
use crate::store::setup::queue_indexes;
use crate::store::setup::queue_truncate;

/// `queue_create(queue, settings) → (was_created, queue_id)`: creates a queue, or finds the one of
/// that name, which keeps its settings. The name is folded to lower case, with a notice. NULL for
/// `settings`: the defaults.
///
/// Fails with `StrayTable` when a table of the queue exists without the queue, with
/// `HiddenQueue` when the queue can be neither registered nor found, with `Invalid`, `BadValue`,
/// `UnknownQueue` or `NoRight` for settings that are not valid, with `BadDefault` when a row of
/// `fetchq.queue_defaults` cannot be applied, with `TooManyLocks` when the server has no room for the
/// locks of more queues.
#[pg_extern(sql = false)]
fn queue_create(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let settings = match call.opt_json(1) {
            Some(settings) => queue_configure::parse(settings)?,
            None => Changes::default(),
        };
        let explain = |message: &str| {
            raise(Err(Error::TooManyLocks {
                queue: name.to_string(),
                message: message.to_owned(),
            }))
        };
        let create = || queue_configure::create(&name, settings);
        let (was_created, id) = passing_error::replace_out_of_memory(create, explain)?;
        // A client that compares its name with those of the registry would not find the queue.
        if was_created && call.opt_text(0) != Some(name.as_str()) {
            notice!("queue names are folded to lower case: this one is \"{name}\"");
        }
        Ok(call.record(&[Arg::from(was_created), Arg::from(id)]))
    })
}

/// `queue_drop(queue) → (was_dropped, queue_id)`: drops a queue and everything that belongs to
/// it, its schedules included. A notice names the schedules, and the queues that used it as
/// their dead-letter queue.
///
/// A queue that does not exist raises a warning and returns `(false, NULL)`.
#[pg_extern(sql = false)]
fn queue_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = lenient(queue::drop(&name).map(Some), None)?;
        let id = dropped.map(|dropped| {
            if !dropped.schedules.is_empty() {
                let names = dropped.schedules.join(", ");
                notice!("the schedules of queue \"{name}\" are dropped too: {names}");
            }
            if !dropped.dead_letter_sources.is_empty() {
                let names = dropped.dead_letter_sources.join(", ");
                notice!(
                    "queue \"{name}\" was the dead-letter queue of others, which have none now: {names}"
                );
            }
            dropped.id
        });
        Ok(call.record(&[Arg::from(id.is_some()), Arg::from(id)]))
    })
}

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
    let created = rights::with(&name, Right::Manage, || queue_indexes::create(&name));
    lenient(created.map(|()| true), false).map(Reply::bool)
}

/// `queue_drop_indexes(queue) → was_dropped`: drops the indexes of a queue, except those that
/// implement a constraint. A queue that does not exist raises a warning and returns false.
#[pg_extern(sql = false)]
fn queue_drop_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = rights::with(&name, Right::Manage, || queue_indexes::drop(&name));
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
        let current = rights::with(&name, Right::Any, || queue::current_version(&name));
        lenient(current.map(|current| current != version), false).map(Reply::bool)
    })
}

/// `queue_status() → (id, name, is_active)`: all queues, one row each.
#[pg_extern(sql = false)]
fn queue_status_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        queue::status_of_all(&mut out)?;
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
            queue::status_of(&name, &mut out);
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
            queue::top(&name, version, limit, skip, &mut out)
        })?;
        Ok(out.done())
    })
}

/// `queue_truncate(queue, empty) → success`: removes all documents of a queue and recounts its
/// metrics. With `empty` it also removes logs, snapshots and history, and makes the jobs due.
///
/// Fails with `UnknownQueue`, and with `KeepsSnapshot` in a transaction of REPEATABLE READ or
/// SERIALIZABLE.
#[pg_extern(sql = false)]
fn queue_truncate(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let empty = call.bool(1, "empty")?;
        rights::with(&name, Right::Manage, || {
            queue_truncate::truncate(&name, empty)
        })?;
        Ok(Reply::bool(true))
    })
}

/// `queue_truncate_all(empty) → success`: as `queue_truncate`, for every queue.
#[pg_extern(sql = false)]
fn queue_truncate_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        queue_truncate::truncate_all(call.bool(0, "empty")?)?;
        Ok(Reply::bool(true))
    })
}
