//! The settings of queues that fetchq 4 had, a function each.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::{Error, Result};
use crate::fetchq4::store::queue_settings;
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::queues::rights::{self, Right};
use crate::store::upkeep::retention as store;

/// Changes a setting of a queue that the caller manages. Fails with `NoRight`, as every function
/// here does for other callers.
fn manage<R>(name: &QueueName, set: impl FnOnce() -> Result<R>) -> Result<R> {
    rights::with(name, Right::Manage, set)
}

/// `queue_set_max_attempts(queue, max_attempts) → (affected_rows, was_reindexed)`: sets after
/// how many attempts a document is killed. A queue that does not exist raises a warning and returns
/// `(0, false)`.
///
/// Fails with `BadValue` when the number is below 1.
#[pg_extern(sql = false)]
fn queue_set_max_attempts(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let value = call.int(1, "max_attempts")?;
        if value < 1 {
            return Err(Error::BadValue {
                argument: "max_attempts",
                value: value.to_string(),
                rule: "1 or more",
            });
        }
        reindexed(
            call,
            manage(&name, || queue_settings::set_max_attempts(&name, value)),
        )
    })
}

/// `queue_set_current_version(queue, version) → (affected_rows, was_reindexed)`: sets the current
/// version of a queue. A queue that does not exist raises a warning and returns `(0, false)`.
#[pg_extern(sql = false)]
fn queue_set_current_version(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let value = call.int(1, "version")?;
        reindexed(
            call,
            manage(&name, || queue_settings::set_current_version(&name, value)),
        )
    })
}

/// Shapes the result of a setting after which fetchq 4 rebuilt indexes. The indexes of fetchq 5
/// serve any value, so there is nothing to rebuild: the second column says whether the queue
/// exists.
fn reindexed(call: &Call, affected: Result<i32>) -> Result<Reply> {
    let affected = lenient(affected, 0)?;
    Ok(call.record(&[Arg::from(affected), Arg::from(affected > 0)]))
}

/// `queue_set_logs_retention(queue, retention) → affected_rows`: sets how long log entries are
/// kept, as the text of an interval. A queue that does not exist raises a warning and returns 0.
///
/// Fails with `BadDuration` for an interval that is negative or infinite.
#[pg_extern(sql = false)]
fn queue_set_logs_retention(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let text = call.text(1, "retention")?;
        Interval::parse(text).as_duration("retention")?;
        lenient(
            manage(&name, || queue_settings::set_logs_retention(&name, text)),
            0,
        )
        .map(Reply::int)
    })
}

/// `queue_set_metrics_retention(queue, retention) → affected_rows`: sets which snapshots of
/// metrics are kept, as the text of a JSON policy. A queue that does not exist raises a warning
/// and returns 0.
///
/// Fails with `Invalid`, `BadUnit` or `BadDuration` when the policy is not valid.
#[pg_extern(sql = false)]
fn queue_set_metrics_retention(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let text = call.text(1, "retention")?;
        check_policy(&retention::parse(text)?)?;
        lenient(
            manage(&name, || {
                queue_settings::set_metrics_retention(&name, Jsonb::parse(text))
            }),
            0,
        )
        .map(Reply::int)
    })
}

/// Rejects a policy that would fail when it is applied.
///
/// Fails with `BadUnit` for an unknown unit of time, with `BadDuration` for an interval that is
/// negative or infinite.
fn check_policy(policy: &[retention::Rule]) -> Result<()> {
    for rule in policy {
        store::check_unit(&rule.retain)?;
        Interval::parse(&rule.from).as_duration("from")?;
        Interval::parse(&rule.to).as_duration("to")?;
    }
    Ok(())
}

/// `queue_enable_notify(queue) → success`: has the queue send a notification for each document
/// that changes its status. Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn queue_enable_notify(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| set_notify(call, true))
}

/// `queue_disable_notify(queue) → success`: stops these notifications. Fails with
/// `UnknownQueue`.
#[pg_extern(sql = false)]
fn queue_disable_notify(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| set_notify(call, false))
}

/// Switches the notifications of a queue on or off.
fn set_notify(call: &Call, on: bool) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    manage(&name, || queue_settings::set_notify(&name, on))?;
    Ok(Reply::bool(true))
}
