//! The state of fetchq in this database, and the ready floors.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_always, respond_write};
use crate::domain::version::LIBRARY;
use crate::late::memory;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::pg::version;
use crate::ready::floors;
use crate::signals::commit;
use crate::store::queues::rights::{self, Right};
use crate::store::reports::status as store;

/// `ready_stats()`: the counters of the ready floors since the server started, and the slots of late leases.
/// `slots` is 0 without shared memory.
#[pg_extern(sql = false)]
fn ready_stats(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_always(fcinfo, |call| {
        let stats = floors::stats();
        let (late_slots, late_slots_used) = memory::slots();
        Ok(call.record(&[
            Arg::from(stats.slots),
            Arg::from(stats.slots_used),
            Arg::from(stats.advances),
            Arg::from(stats.advances_discarded),
            Arg::from(stats.polls_answered),
            Arg::from(stats.full_scans),
            Arg::from(stats.floor_misses),
            Arg::from(late_slots),
            Arg::from(late_slots_used),
        ]))
    })
}

/// `ready_floors(queue) → floors`: the ready floors of a queue, a row each. Both ends of an
/// index have no time. Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn ready_floors(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let mut out = call.rows();
        rights::with(&name, Right::Any, || store::ready_floors(&name, &mut out))?;
        Ok(out.done())
    })
}

/// `background_worker_wake() → was_woken`: when the transaction commits, the launcher looks for
/// databases that need a background worker, and sessions look whether their library fits the catalog.
/// False when there is no launcher.
#[pg_extern(sql = false)]
fn background_worker_wake(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| {
        version::announce_change();
        Ok(Reply::bool(commit::extension_changed()))
    })
}

/// `status() → (component, state, detail, hint)`: what runs, what is late, what blocks, and
/// what to do, a row for each component. One row where the library does not fit the catalog.
#[pg_extern(sql = false)]
fn fetchq_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_always(fcinfo, |call| {
        let mut out = call.rows();
        match version::require_fit() {
            Err(unfit) => store::report_unfit(&unfit, &mut out),
            Ok(()) => store::report(LIBRARY, &mut out),
        }
        Ok(out.done())
    })
}
