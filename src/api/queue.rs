//! Queues: creating, dropping and truncating them.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::domain::queue_settings::Changes;
use crate::error::{Error, raise};
use crate::pg::call::Reply;
use crate::pg::passing_error;
use crate::pg::value::Arg;
use crate::store::documents::late_leases;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};
use crate::store::setup::queue_configure;
use crate::store::setup::queue_truncate;

/// `queue_create(queue, settings) → (was_created, queue_id)`: creates a queue, or finds the one of
/// that name, which keeps its settings. The name is folded to lower case, with a notice. NULL for
/// `settings`: the defaults.
///
/// Fails with `StrayTable` when a table of the queue exists without the queue, with
/// `HiddenQueue` when the queue can be neither registered nor found, with `Invalid`, `BadValue`,
/// `UnknownQueue` or `NoRight` for settings that are not valid, with `BadDefaults` when
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

/// `leases_write(queue) → written`: has the leases of a queue that are only in shared memory written into the
/// rows and committed, and lets no lease be late until this transaction ends.
///
/// Fails with `UnknownQueue`, and with `LeasesNotWritten` when the background worker cannot write them.
#[pg_extern(sql = false)]
fn leases_write(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let written = rights::with(&name, Right::Manage, || late_leases::write_all(&name))?;
        Ok(Reply::bigint(Some(written)))
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
