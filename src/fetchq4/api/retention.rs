//! Removing old log entries, snapshots of metrics, and rows of any table.

use pgrx::prelude::*;

use crate::api::entry::{interval_text, lenient, queue_name, respond_write};
use crate::domain::jobs::Ran;
use crate::domain::retention;
use crate::fetchq4::store::retention::{drop_logs_before, retain_any};
use crate::maintenance::retention as retain;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::upkeep::retention as store;

/// `utils_ts_retain(table_name, field, unit, from_time, to_time) → removed_rows`: keeps the
/// newest row of a table for each unit of time between two times, and removes the others.
/// `field` is the column with the time, `unit` one that `date_trunc` knows.
///
/// Fails with `BadUnit`, and with `BadValue` when there is no such table.
#[pg_extern(sql = false)]
fn utils_ts_retain(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let removed = retain_any(
            call.text(0, "table_name")?,
            call.text(1, "field")?,
            call.text(2, "unit")?,
            call.timestamp(3, "from_time")?,
            call.timestamp(4, "to_time")?,
        )?;
        Ok(Reply::bigint(Some(removed)))
    })
}

/// The rows that were removed from a queue that was opened for the caller. It is never busy, because a
/// caller waits for the locks of other sessions.
fn removed_rows(removed: Ran<i32>) -> i32 {
    removed.done().unwrap_or(0)
}

/// `queue_drop_logs(queue) → affected_rows`: removes log entries that are older than the
/// retention of the queue. A queue that does not exist raises a warning and returns 0.
#[pg_extern(sql = false)]
fn queue_drop_logs(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let removed = Queue::open_for(&name, Right::Manage)
            .and_then(|queue| retain::logs_by_setting(&queue, None, true));
        lenient(removed.map(removed_rows), 0).map(Reply::int)
    })
}

/// `queue_drop_logs(queue, older_than text) → affected_rows`: removes log entries that are
/// older than an interval. Fails with `BadDuration`. A queue that does not exist raises a
/// warning and returns 0.
#[pg_extern(sql = false)]
fn queue_drop_logs_older(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let age = interval_text(call, 1, "older_than")?.as_duration("older_than")?;
        let dropped = Queue::open_for(&name, Right::Manage).and_then(|queue| {
            retain::logs(&queue, true, || {
                store::drop_logs_older_than(&queue, age.arg(), None)
            })
        });
        lenient(dropped.map(removed_rows), 0).map(Reply::int)
    })
}

/// `queue_drop_logs(queue, before timestamptz) → affected_rows`: removes log entries that were
/// written before a time. A queue that does not exist raises a warning and returns 0.
#[pg_extern(sql = false)]
fn queue_drop_logs_before(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let before = Arg::timestamp(call.timestamp(1, "before")?);
        let dropped = Queue::open_for(&name, Right::Manage)
            .and_then(|queue| retain::logs(&queue, true, || drop_logs_before(&queue, before)));
        lenient(dropped.map(removed_rows), 0).map(Reply::int)
    })
}

/// `queue_drop_metrics(queue) → removed_rows`: removes snapshots by the retention policy of the
/// queue. A queue that does not exist raises a warning and returns 0.
#[pg_extern(sql = false)]
fn queue_drop_metrics(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let removed =
            Queue::open_for(&name, Right::Manage).and_then(|queue| retain::metrics(&queue, true));
        lenient(removed.map(removed_rows), 0).map(Reply::int)
    })
}

/// `queue_drop_metrics(queue, policy) → removed_rows`: removes snapshots by a policy, a JSON
/// array. Fails with `Invalid`, `BadUnit` or `BadDuration` when it is not valid. A queue that
/// does not exist raises a warning and returns 0.
#[pg_extern(sql = false)]
fn queue_drop_metrics_by(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let policy = retention::parse(&call.json(1, "policy")?.to_short_text("policy")?)?;
        let removed = Queue::open_for(&name, Right::Manage)
            .and_then(|queue| retain::metrics_by(&queue, &policy, true));
        lenient(removed.map(removed_rows), 0).map(Reply::int)
    })
}
