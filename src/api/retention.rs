//! What is installed, traces, and the calls that old clients make.

use crate::domain::retention;
use crate::store::retention as store;
use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::maintenance::retention as retain;
use crate::pg::call::Reply;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::open_queue::Queue;

/// `utils_ts_retain(table, field, unit, from, to)`
#[pg_extern(sql = false)]
fn utils_ts_retain(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let removed = store::retain_any(
            call.text(0, "table_name")?,
            call.text(1, "field")?,
            call.text(2, "unit")?,
            call.timestamp(3, "from_time")?,
            call.timestamp(4, "to_time")?,
        )?;
        Ok(Reply::bigint(Some(removed)))
    })
}

/// `queue_drop_logs(queue)`: by the queue's own retention.
#[pg_extern(sql = false)]
fn queue_drop_logs(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        lenient(retain::logs_by_setting(&name, None), 0).map(Reply::int)
    })
}

/// `queue_drop_logs(queue, older_than text)`
#[pg_extern(sql = false)]
fn queue_drop_logs_older(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let age = Interval::parse(call.text(1, "older_than")?).as_duration("older_than")?;
        let dropped =
            Queue::open(&name).map(|queue| store::drop_logs_older_than(&queue, age.arg(), None));
        lenient(dropped, 0).map(Reply::int)
    })
}

/// `queue_drop_logs(queue, before timestamptz)`
#[pg_extern(sql = false)]
fn queue_drop_logs_before(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let before = Arg::timestamp(call.timestamp(1, "before")?);
        let dropped = Queue::open(&name).map(|queue| store::drop_logs_before(&queue, before));
        lenient(dropped, 0).map(Reply::int)
    })
}

/// `queue_drop_metrics(queue)`: by the queue's own policy.
#[pg_extern(sql = false)]
fn queue_drop_metrics(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        lenient(retain::metrics(&name), 0).map(Reply::int)
    })
}

/// `queue_drop_metrics(queue, policy)`
#[pg_extern(sql = false)]
fn queue_drop_metrics_by(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let policy = retention::parse(&call.json(1, "policy")?.to_text())?;
        lenient(retain::metrics_by(&name, &policy), 0).map(Reply::int)
    })
}
