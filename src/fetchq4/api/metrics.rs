//! Metrics: reading, counting and writing them, and taking snapshots.

use pgrx::prelude::*;

use crate::api::entry::{
    lenient, metric_name, narrow, or_notice, queue_name, respond, respond_write,
};
use crate::api::metrics::{QUEUE_ORDER, gauges};
use crate::domain::counter_events::COMMON;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::maintenance::snapshot::{self, Shared};
use crate::pg::call::{Call, Reply};
use crate::pg::lock_wait;
use crate::pg::value::Arg;
use crate::store::counters::metrics as store;
use crate::store::counters::metrics::SnapshotOf;
use crate::store::documents::late_leases;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};

/// `metric_get(queue) → (metric, current_value, last_update)`: all metrics of a queue, exact at
/// this moment; no rows when the queue does not exist.
#[pg_extern(sql = false)]
fn metric_get_all_of(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let mut out = call.rows();
        rights::with(&name, Right::Any, || {
            store::list(&name, &mut out);
            Ok(())
        })?;
        Ok(out.done())
    })
}

/// `metric_get(queue, metric) → (current_value, last_update, does_exist)`: one metric of a
/// queue, exact at this moment. One that does not exist is `(0, NULL, false)`. A value that
/// does not fit an `int` is cut, with a warning.
#[pg_extern(sql = false)]
fn metric_get(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let metric = metric_name(call, 1)?;
        let found = rights::with(&name, Right::Any, || Ok(store::get(&name, metric)))?;
        let value = found.as_ref().map_or(0, |m| m.value);
        let updated_at = found.as_ref().and_then(|m| m.updated_at);
        Ok(call.record(&[
            Arg::from(narrow(metric, value)),
            updated_at.map_or_else(Arg::no_timestamp, Arg::timestamp),
            Arg::from(found.is_some()),
        ]))
    })
}

/// The common metrics of a queue, in the order of `COMMON`.
fn common_metrics(name: &QueueName) -> Vec<Arg> {
    narrow_all(&COMMON, &store::get_many(name, &COMMON))
}

/// Values as `int`, each checked by `narrow` under the name of its metric.
fn narrow_all(names: &[&str], values: &[i64]) -> Vec<Arg> {
    names
        .iter()
        .zip(values)
        .map(|(metric, value)| Arg::from(narrow(metric, *value)))
        .collect()
}

/// `metric_get_common(queue)`: the common metrics of a queue, a column each; 0 where there is
/// none.
#[pg_extern(sql = false)]
fn metric_get_common(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let values = rights::with(&name, Right::Any, || Ok(common_metrics(&name)))?;
        Ok(call.record(&values))
    })
}

/// `metric_get_all()`: the common metrics of every queue, a row each.
#[pg_extern(sql = false)]
fn metric_get_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let mut out = call.rows();
        for (name, values) in store::get_many_of_all(&COMMON)? {
            out.push(&row(&name, narrow_all(&COMMON, &values)));
        }
        Ok(out.done())
    })
}

/// The row of a queue: its name, then the values.
fn row(name: &QueueName, values: Vec<Arg>) -> Vec<Arg> {
    let mut row = vec![Arg::from(name.as_str())];
    row.extend(values);
    row
}

/// `metric_get_total(metric) → (current_value, does_exist)`: the sum of a metric over all
/// queues.
#[pg_extern(sql = false)]
fn metric_get_total(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let metric = metric_name(call, 0)?;
        let total = rights::over(None, Right::Any, |queues| Ok(store::total(metric, queues)))?;
        Ok(call.record(&[
            Arg::from(narrow(metric, total.unwrap_or(0))),
            Arg::from(total.is_some()),
        ]))
    })
}

/// The order of the columns of `metric_compute`, as positions in `GAUGES`.
const COMPUTE_ORDER: [usize; 6] = [0, 1, 2, 3, 5, 4];

/// `metric_compute(queue)`: counts the documents of a queue by status. Reads the whole table.
/// Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn metric_compute(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let values = rights::with(&name, Right::Read, || store::compute(&name))?;
        Ok(call.record(&gauges(&values, &COMPUTE_ORDER)))
    })
}

/// `metric_compute_all()`: counts the documents of every queue by status. Reads all tables.
#[pg_extern(sql = false)]
fn metric_compute_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    late_leases::before_counters();
    respond(fcinfo, |call| {
        let mut counted = Vec::new();
        queue::read_each(Right::Read, &[], |name| {
            counted.push((name.clone(), store::compute(name)));
        });
        let mut out = call.rows();
        for (name, values) in counted {
            out.push(&row(&name, gauges(&values?, &QUEUE_ORDER)));
        }
        Ok(out.done())
    })
}

/// `metric_reset_all()`: as `metric_reset`, for every queue.
#[pg_extern(sql = false)]
fn metric_reset_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let mut out = call.rows();
        for (name, values) in queue::change_each(Right::Manage, store::reset) {
            out.push(&row(&name, gauges(&values, &QUEUE_ORDER)));
        }
        Ok(out.done())
    })
}

/// The functions that change a metric at once: reads queue, metric and value, and returns the new
/// value and whether the metric is new.
fn write_metric(
    call: &Call,
    right: Right,
    write: impl FnOnce(&QueueName, &str, i32) -> (i64, bool),
) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let metric = metric_name(call, 1)?;
    let value = call.int(2, "value")?;
    let write = || Ok(write(&name, metric, value));
    let (value, is_new) = rights::with_existing(&name, right, write)?;
    Ok(call.record(&[Arg::from(narrow(metric, value)), Arg::from(is_new)]))
}

/// `metric_set(queue, metric, value) → (current_value, was_created)`: sets a metric at once.
#[pg_extern(sql = false)]
fn metric_set(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| write_metric(call, Right::Manage, store::set))
}

/// `metric_increment(queue, metric, value) → (current_value, was_created)`: adds to a metric at
/// once.
#[pg_extern(sql = false)]
fn metric_increment(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        write_metric(call, Right::Work, store::increment)
    })
}

/// The functions that change a metric at the next pack: reads queue, metric and value, and
/// returns the number of rows written.
fn log_metric(
    call: &Call,
    right: Right,
    log: impl FnOnce(&QueueName, &str, i64) -> i32,
) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let metric = metric_name(call, 1)?;
    let value = i64::from(call.int(2, "value")?);
    let logged = rights::with_existing(&name, right, || Ok(log(&name, metric, value)))?;
    Ok(Reply::int(logged))
}

/// `metric_log_increment(queue, metric, value) → affected_rows`: adds to a metric at the next
/// pack.
#[pg_extern(sql = false)]
fn metric_log_increment(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        log_metric(call, Right::Work, store::log_increment)
    })
}

/// `metric_log_decrement(queue, metric, value) → affected_rows`: subtracts from a metric at the
/// next pack.
#[pg_extern(sql = false)]
fn metric_log_decrement(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        log_metric(call, Right::Work, |queue, metric, value| {
            store::log_increment(queue, metric, -value)
        })
    })
}

/// `metric_log_set(queue, metric, value) → affected_rows`: sets a metric at the next pack.
#[pg_extern(sql = false)]
fn metric_log_set(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        log_metric(call, Right::Manage, store::log_set)
    })
}

/// Takes a snapshot of some metrics of a queue, and returns whether the queue exists, and the
/// number of rows written.
fn take_snapshot(call: &Call, name: &QueueName, which: SnapshotOf) -> Result<Reply> {
    let run = || snapshot::run(name, which, &mut Shared::default()).map(|ran| or_notice(ran, name));
    let taken = rights::with(name, Right::Manage, || lock_wait::allow(run));
    let inserts = lenient(taken, None)?;
    Ok(call.record(&[
        Arg::from(inserts.is_some()),
        Arg::from(inserts.unwrap_or(0)),
    ]))
}

/// `metric_snap(queue) → (success, inserts)`: takes a snapshot of all metrics of a queue. A
/// queue that does not exist raises a warning and returns `(false, 0)`.
#[pg_extern(sql = false)]
fn metric_snap(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        take_snapshot(call, &queue_name(call, 0)?, SnapshotOf::All)
    })
}

/// `metric_snap(queue, metric text) → (success, inserts)`: takes a snapshot of one metric.
#[pg_extern(sql = false)]
fn metric_snap_one(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        take_snapshot(
            call,
            &queue_name(call, 0)?,
            SnapshotOf::One(metric_name(call, 1)?),
        )
    })
}

/// `metric_snap(queue, metrics jsonb) → (success, inserts)`: takes a snapshot of the metrics in
/// a JSON array. Fails with `BadValue` when `metrics` is not an array of texts.
#[pg_extern(sql = false)]
fn metric_snap_some(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let text = call.json(1, "metrics")?.to_short_text("metrics")?;
        let names: Vec<String> = serde_json::from_str(&text).map_err(|_| Error::BadValue {
            argument: "metrics",
            value: text.clone(),
            rule: "a JSON array of metric names",
        })?;
        take_snapshot(call, &queue_name(call, 0)?, SnapshotOf::Some(names))
    })
}
