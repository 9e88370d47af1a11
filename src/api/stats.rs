//! The statistics of queues.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond};
use crate::pg::call::Reply;
use crate::store::documents::late_leases;
use crate::store::reports::stats;

/// `queue_stats(queue)`: the state, the totals and the percentiles of one queue, or of all queues on
/// which the caller has a right.
///
/// Fails with `UnknownQueue` and `NoRight` for a queue that is named, and with `RegistryBusy`.
#[pg_extern(sql = false)]
fn queue_stats(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let name = match call.is_null(0) {
            true => None,
            false => Some(queue_name(call, 0)?),
        };
        let mut out = call.rows();
        stats::list(name.as_ref(), &mut out)?;
        Ok(out.done())
    })
}
