//! The settings of queues.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::domain::names::QueueName;
use crate::domain::retention;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::store::queue_settings;
use crate::store::queue_settings::Retention;
use crate::store::retention as store;
use crate::store::rights::{self, Right};
use crate::store::{cap, ordering_setup, rate};

/// Changes a setting of a queue that the caller manages. Fails with `NoRight`, as every function
/// here does for other callers.
fn manage<R>(name: &QueueName, set: impl FnOnce() -> Result<R>) -> Result<R> {
    rights::with(name, Right::Manage, set)
}

/// `queue_set_dead_letter(queue, target) → affected_rows`: sets the dead-letter queue; NULL:
/// there is none, and killed documents stay.
///
/// Fails with `UnknownQueue` for both queues, with `BadValue` when they are the same, and with
/// `MayNotMove` when the owner of the queue may not push into the other one.
#[pg_extern(sql = false)]
fn queue_set_dead_letter(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let target = call.opt_text(1).map(QueueName::parse).transpose()?;
        if let Some(target) = &target {
            rights::require(target, Right::Push)?;
        }
        let affected = manage(&name, || {
            queue_settings::set_dead_letter_queue(&name, target.as_ref())
        });
        affected.map(Reply::int)
    })
}

/// `queue_set_history(queue, completed, killed, dropped) → affected_rows`: sets how long
/// documents of each outcome are kept. NULL leaves completed and killed documents in the table,
/// and removes dropped ones; 0 removes them at once; an interval keeps them that long in the
/// history.
///
/// Fails with `UnknownQueue`, and with `BadDuration` for an interval that is negative or
/// infinite.
#[pg_extern(sql = false)]
fn queue_set_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let kept = [
            kept(call, 1, "completed")?,
            kept(call, 2, "killed")?,
            kept(call, 3, "dropped")?,
        ];
        manage(&name, || queue_settings::set_retention(&name, kept)).map(Reply::int)
    })
}

/// How long documents of one outcome are kept: an interval, or NULL.
fn kept(call: &Call, at: usize, name: &'static str) -> Result<Retention> {
    Ok(match call.opt_interval(at) {
        None => Retention {
            keep: Interval::none(),
            is_history: false,
        },
        Some(age) => {
            let age = age.as_duration(name)?;
            Retention {
                keep: age.arg(),
                is_history: age.parts() != (0, 0, 0),
            }
        }
    })
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

/// `queue_set_retry(queue, base, factor, max_delay, jitter, max_attempts) → affected_rows`:
/// sets the backoff of rejected documents: `base * factor ^ (attempts - 1)`, at most
/// `max_delay`, with a jitter that is a share of it. `base` and `max_delay` are intervals or
/// NULL, `factor` is a number from 1 to 1000, `jitter` from 0 to 1; `max_attempts` NULL leaves
/// that setting as it is.
///
/// Fails with `UnknownQueue`, `BadDuration` or `BadValue`.
#[pg_extern(sql = false)]
fn queue_set_retry(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let duration = |at, argument| match call.opt_interval(at) {
            None => Ok(None),
            Some(interval) => interval.as_duration(argument).map(Some),
        };
        let (base, max) = (duration(1, "base")?, duration(3, "max_delay")?);
        let number = |at, argument, low: f64, high: f64, rule| match call.opt_float(at) {
            None => Err(call.missing(argument)),
            Some(value) if value >= low && value <= high => Ok(value),
            Some(value) => Err(Error::BadValue {
                argument,
                value: value.to_string(),
                rule,
            }),
        };
        let factor = number(2, "factor", 1.0, 1000.0, "a number from 1 to 1000")?;
        let jitter = number(4, "jitter", 0.0, 1.0, "a number from 0 to 1")?;
        let max_attempts = call.opt_int(5);
        if let Some(value) = max_attempts.filter(|value| *value < 1) {
            return Err(Error::BadValue {
                argument: "max_attempts",
                value: value.to_string(),
                rule: "1 or more",
            });
        }
        let policy = [
            base.map_or_else(time::Interval::none, time::Interval::arg),
            Arg::from(factor),
            max.map_or_else(time::Interval::none, time::Interval::arg),
            Arg::from(jitter),
            Arg::from(max_attempts),
        ];
        manage(&name, || queue_settings::set_retry(&name, &policy)).map(Reply::int)
    })
}

/// `queue_pause(queue) → was_paused`: pauses a queue, so that nothing can be picked from it;
/// false when it was paused already. Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn queue_pause(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        manage(&name, || queue_settings::set_active(&name, false)).map(Reply::bool)
    })
}

/// `queue_resume(queue) → was_resumed`: resumes a paused queue; false when it was not paused.
/// Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn queue_resume(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        manage(&name, || queue_settings::set_active(&name, true)).map(Reply::bool)
    })
}

/// The largest limit. One lease slot or rate permit is written for each, so a larger limit would
/// take longer to set than it saves.
const MAX_LIMIT: i32 = 100_000;

/// A limit of 1 or more, or `None` for NULL: no limit.
///
/// Fails with `BadValue` for a number outside of 1 to `MAX_LIMIT`.
fn opt_limit(call: &Call, at: usize, argument: &'static str) -> Result<Option<i32>> {
    if call.is_null(at) {
        return Ok(None);
    }
    let value = call.int(at, argument)?;
    if !(1..=MAX_LIMIT).contains(&value) {
        return Err(Error::BadValue {
            argument,
            value: value.to_string(),
            rule: "1 to 100000, or NULL for no limit",
        });
    }
    Ok(Some(value))
}

/// `queue_set_max_active(queue, max_active) → affected_rows`: sets how many documents of a
/// queue can be active at one time, from 1 to `MAX_LIMIT`; NULL removes the limit.
///
/// Fails with `UnknownQueue`, `BadValue`, and with `KeepsSnapshot` in a transaction of
/// REPEATABLE READ or SERIALIZABLE.
#[pg_extern(sql = false)]
fn queue_set_max_active(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let max = opt_limit(call, 1, "max_active")?;
        manage(&name, || cap::set_max_active(&name, max)).map(Reply::int)
    })
}

/// `queue_set_rate(queue, picks, per) → affected_rows`: sets how many documents of a queue can
/// be picked within any interval of the length `per`, from 1 to `MAX_LIMIT`; NULL removes the
/// limit.
///
/// Fails with `UnknownQueue`, `BadDuration`, with `BadValue` for a number out of range or an
/// interval of zero length, and with `KeepsSnapshot` in a transaction of REPEATABLE READ or
/// SERIALIZABLE.
#[pg_extern(sql = false)]
fn queue_set_rate(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let rate = match opt_limit(call, 1, "picks")? {
            None => None,
            Some(picks) => {
                let per = call.interval(2, "per")?.as_duration("per")?;
                if per.parts() == (0, 0, 0) {
                    return Err(Error::BadValue {
                        argument: "per",
                        value: "0".into(),
                        rule: "an interval longer than zero",
                    });
                }
                Some((picks, per))
            }
        };
        manage(&name, || rate::set_rate(&name, rate)).map(Reply::int)
    })
}

/// `queue_set_ordered(queue, is_ordered) → affected_rows`: switches the order of a queue on or
/// off. In an ordered queue documents of one ordering key run one at a time.
///
/// Fails with `UnknownQueue`, and with `KeepsSnapshot` in a transaction of REPEATABLE READ or
/// SERIALIZABLE.
#[pg_extern(sql = false)]
fn queue_set_ordered(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let is_ordered = call.bool(1, "is_ordered")?;
        manage(&name, || ordering_setup::set_ordered(&name, is_ordered)).map(Reply::int)
    })
}
