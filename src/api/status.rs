//! The ready floors: the trigger that notes rows, and what can be seen of them.

use crate::store::status as store;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::ready::floors;
use crate::signals::commit;

/// `ready_stats()`
#[pg_extern(sql = false)]
fn ready_stats(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let stats = floors::stats();
        Ok(call.record(&[
            Arg::from(stats.slots),
            Arg::from(stats.slots_used),
            Arg::from(stats.advances),
            Arg::from(stats.advances_discarded),
            Arg::from(stats.polls_answered),
            Arg::from(stats.full_scans),
            Arg::from(stats.floor_misses),
        ]))
    })
}

/// `ready_floors(queue)`
#[pg_extern(sql = false)]
fn ready_floors(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let mut out = call.rows();
        store::ready_floors(&name, &mut out)?;
        Ok(out.done())
    })
}

/// `background_worker_wake()`
#[pg_extern(sql = false)]
fn background_worker_wake(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| Ok(Reply::bool(commit::extension_changed())))
}

/// `status()`
#[pg_extern(sql = false)]
fn fetchq_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        store::report(env!("CARGO_PKG_VERSION"), &mut out);
        Ok(out.done())
    })
}
