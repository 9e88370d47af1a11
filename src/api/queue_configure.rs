//! All settings of a queue as one JSON object, and pausing it.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::store::queues::rights::{self, Right};
use crate::store::setup::queue_configure as store;

/// `queue_configure(queue, settings) → all_settings`: changes the settings of a queue that are
/// named; null resets one. An error changes nothing.
///
/// Fails with `UnknownQueue`; with `NoRight` unless the caller manages the queue; with `Invalid`
/// for an unknown key or a value that its key does not accept; with `BadValue` when the queue is
/// to be its own dead-letter queue; with `KeepsSnapshot` when a limit or the order is changed in a
/// transaction of REPEATABLE READ or SERIALIZABLE; with `AlteredTable`.
#[pg_extern(sql = false)]
fn queue_configure(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let settings = call.json(1, "settings")?;
        rights::require(&name, Right::Manage)?;
        let changes = store::parse(settings)?;
        rights::with(&name, Right::Manage, || store::configure(&name, &changes))?;
        Ok(Reply::json(store::settings(&name)?))
    })
}

/// `queue_settings(queue) → all_settings`: all settings of a queue, as `queue_configure` takes
/// them. Fails with `UnknownQueue`, and with `NoRight` for a role without rights on the queue.
#[pg_extern(sql = false)]
fn queue_settings(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        rights::require(&name, Right::Any)?;
        Ok(Reply::json(store::settings(&name)?))
    })
}

/// `queue_pause(queue) → was_paused`: pauses a queue, so that nothing can be picked from it;
/// false when it was paused already. Fails with `UnknownQueue` and `NoRight`.
#[pg_extern(sql = false)]
fn queue_pause(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| set_active(call, false))
}

/// `queue_resume(queue) → was_resumed`: resumes a paused queue; false when it was not paused.
/// Fails with `UnknownQueue` and `NoRight`.
#[pg_extern(sql = false)]
fn queue_resume(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| set_active(call, true))
}

/// Pauses or resumes the queue that is the first argument.
fn set_active(call: &Call, is_active: bool) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    rights::with(&name, Right::Manage, || store::set_active(&name, is_active)).map(Reply::bool)
}
