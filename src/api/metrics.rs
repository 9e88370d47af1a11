//! Metrics: recounting and packing them, and their snapshots.

use pgrx::prelude::*;

use crate::api::entry::{narrow, queue_name, respond, respond_write};
use crate::domain::counter_events::GAUGES;
use crate::domain::names;
use crate::error::{Error, Result};
use crate::maintenance::pack;
use crate::pg::call::{Call, Reply};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::store::counters::metrics as store;
use crate::store::documents::late_leases;
use crate::store::queues::rights::{self, Right};

/// The order of the columns of `metric_reset` and of the functions that end in `_all`.
pub const QUEUE_ORDER: [usize; 6] = [0, 1, 2, 3, 4, 5];

/// The gauges as `int`, in the order of the columns.
pub fn gauges(values: &[i64], order: &[usize; 6]) -> Vec<Arg> {
    order
        .iter()
        .map(|at| Arg::from(narrow(GAUGES[*at], values[*at])))
        .collect()
}

/// `metric_reset(queue)`: deletes the metrics of a queue, counts its documents, and stores and
/// returns the result. Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn metric_reset(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let values = rights::with(&name, Right::Manage, || store::reset(&name))?;
        Ok(call.record(&gauges(&values, &QUEUE_ORDER)))
    })
}

/// `metric_log_pack() → affected_rows`: packs the counter events and the pending writes of all
/// queues. Rows that other sessions have locked wait for the next pack.
#[pg_extern(sql = false)]
fn metric_log_pack(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| Ok(Reply::int(pack::run_for_caller())))
}

/// How far `metric_history` goes back without `since`: microseconds. A day.
const DEFAULT_HISTORY_US: i64 = 86_400_000_000;

/// `metric_history(queue, since, until, step, metrics) → (at, metric, value)`: the snapshots of the
/// metrics of a queue by time; with a step, the last value of each step.
///
/// Fails with `UnknownQueue` and `NoRight`, with `BadValue` for a step that is not a finite interval
/// above 0, with `NullElement` for a NULL in the list, and with `Invalid` for what is no name of a
/// metric.
#[pg_extern(sql = false)]
fn metric_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let until = call.opt_timestamp(2);
        let since = call.opt_timestamp(1).unwrap_or_else(|| {
            let end = until.unwrap_or_else(time::clock);
            // An infinite end is later than every snapshot, as now is.
            end.min(time::clock()).saturating_sub(DEFAULT_HISTORY_US)
        });
        let step = call.opt_interval(3).map(step).transpose()?;
        let metrics = match call.is_null(4) {
            true => None,
            false => Some(metric_names(call, 4)?),
        };
        let mut out = call.rows();
        let wanted = store::Snapshots {
            metrics,
            since,
            until,
            step,
        };
        rights::with_existing(&name, Right::Read, || {
            store::snapshots(&name, wanted, &mut out)
        })?;
        Ok(out.done())
    })
}

/// The length of a step in microseconds. Fails with `BadValue`.
fn step(interval: Interval) -> Result<i64> {
    let length = interval.length().filter(|micros| *micros > 0);
    length
        .and_then(|micros| i64::try_from(micros).ok())
        .ok_or_else(|| Error::BadValue {
            argument: "step",
            value: format!("{} microseconds", interval.length().unwrap_or(0)),
            rule: "a finite interval above 0, such as '5m'",
        })
}

/// A list of the names of metrics. Fails with `NullElement` and `Invalid`.
fn metric_names(call: &Call, at: usize) -> Result<Vec<String>> {
    let null = || Error::NullElement {
        function: call.function_name(),
        argument: "metrics",
    };
    let list = call.texts(at, "metrics")?;
    list.into_iter()
        .map(|name| {
            let name = name.ok_or_else(null)?;
            names::check_metric(&name)?;
            Ok(name)
        })
        .collect()
}
