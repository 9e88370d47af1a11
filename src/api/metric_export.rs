//! The metrics for monitoring systems.

use pgrx::prelude::*;

use crate::api::entry::respond;
use crate::domain::metric_family::Family;
use crate::error::Error;
use crate::pg::call::Reply;
use crate::store::documents::late_leases;
use crate::store::reports::metric_export as store;

/// `metric_families()`: the metric families that `metric_export` returns, with their types and help texts.
#[pg_extern(sql = false)]
fn metric_families(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        store::families(&mut out);
        Ok(out.done())
    })
}

/// `metric_export(family)`: the samples of a metric family, or of all of them, of the queues on which the
/// caller has a right.
///
/// Fails with `BadValue` for an unknown family, and with `RegistryBusy`.
#[pg_extern(sql = false)]
fn metric_export(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let only = match call.is_null(0) {
            true => None,
            false => Some(family(call.text(0, "family")?)?),
        };
        let mut out = call.rows();
        store::export(only, &mut out)?;
        Ok(out.done())
    })
}

fn family(name: &str) -> Result<Family, Error> {
    Family::parse(name).ok_or_else(|| Error::BadValue {
        argument: "family",
        value: name.to_owned(),
        rule: "a metric family of fetchq.metric_families(), or NULL for all",
    })
}
