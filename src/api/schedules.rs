//! Schedules.

use pgrx::prelude::*;

use crate::api::entry::{payload, queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::domain::schedule::{self, CATCH_UP_MAX, Form};
use crate::domain::wording::shorten_message;
use crate::error::{Error, Result};
use crate::maintenance::schedules as run;
use crate::pg::call::{Call, Reply};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{role, subtransaction};
use crate::signals::commit;
use crate::store::doc_options;
use crate::store::queue;
use crate::store::rights::{self, Right};
use crate::store::schedules as store;
use crate::store::schedules::{NewSchedule, Timing};

/// The name of a schedule, checked.
fn schedule_name(call: &Call, at: usize) -> Result<&str> {
    Ok(schedule::check_name(call.text(at, "name")?)?)
}

/// Locks the schedule of this name, if there is one, and fails with `NoRight` unless the caller
/// manages its queue.
fn require_schedule(name: &str) -> Result<()> {
    // It is asked again under the lock: meanwhile the schedule may have become that of another
    // queue.
    let may_manage = || match store::queue_of(name) {
        Some(queue) => rights::require_existing(&QueueName::parse(&queue)?, Right::Manage),
        None => Ok(()),
    };
    may_manage()?;
    store::lock(name);
    may_manage()
}

/// A point in time in microseconds since 2000, or NULL.
fn opt_time(time: Option<i64>) -> Arg {
    time.map_or_else(Arg::no_timestamp, Arg::timestamp)
}

/// The interval of a schedule whose text, `given`, is not a cron expression.
///
/// Fails with `BadSchedule` when the text is not an interval either, or a negative one.
fn parse_interval(given: &str, text: &str) -> Result<Interval> {
    let bad = |reason: String| Error::BadSchedule {
        given: given.to_owned(),
        reason: shorten_message(&reason),
    };
    // PostgreSQL's own error would not say that a cron expression is possible too.
    let every = subtransaction::attempt(|| Interval::parse(text)).map_err(bad)?;
    every
        .as_duration("schedule")
        .map_err(|e| bad(e.to_string()))
}

/// `schedule_create(name, queue, schedule, payload, timezone, version, priority, catch_up,
/// catch_up_limit, jitter, starts_at, ends_at, replace, headers) → (was_created, next_tick)`:
/// pushes a document with `payload` and `headers` at each tick. `schedule` is a cron expression or an interval, `catch_up`
/// is `skip`, `once` or `all`, `catch_up_limit` a number of ticks from 1 to 10000, `jitter` an
/// interval. With `replace` it changes a schedule that exists.
///
/// Fails with `UnknownQueue`, with `BadSchedule`, `UnknownZone` or `BadValue` for an argument
/// that is not valid, with `NeverTicks` when no tick lies between `starts_at` and `ends_at`,
/// and with `ScheduleExists` without `replace`.
#[pg_extern(sql = false)]
fn schedule_create(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 1)?;
        let given = call.text(2, "schedule")?;
        let (cron, every) = match schedule::form(given) {
            Form::Cron(cron) => (Some(cron), None),
            Form::Every(text) => (None, Some(parse_interval(given, text)?)),
        };
        let catch_up = call.text(7, "catch_up")?;
        run::catch_up(catch_up)?;
        let catch_up_limit = call.int(8, "catch_up_limit")?;
        if !(1..=CATCH_UP_MAX).contains(&catch_up_limit) {
            return Err(Error::BadValue {
                argument: "catch_up_limit",
                value: catch_up_limit.to_string(),
                rule: "1 to 10000",
            });
        }
        let wanted = NewSchedule {
            name: schedule_name(call, 0)?,
            queue: &queue,
            cron,
            every,
            payload: payload(call, 3)?,
            headers: doc_options::headers(call.opt_json(13))?,
            timezone: call.text(4, "timezone")?,
            version: call.int(5, "version")?,
            priority: call.int(6, "priority")?,
            catch_up,
            catch_up_limit,
            jitter: call.interval(9, "jitter")?.as_duration("jitter")?,
            starts_at: call.opt_timestamp(10),
            ends_at: call.opt_timestamp(11),
            made_by: role::current(),
        };
        let replace = call.bool(12, "replace")?;
        // A schedule that is replaced may push into another queue now.
        require_schedule(wanted.name)?;
        let (was_created, next) = rights::with(&queue, Right::Manage, || {
            queue::lock_against_drop(&queue)?;
            run::create(&wanted, given, replace)
        })?;
        commit::schedules_changed();
        Ok(call.record(&[Arg::from(was_created), Arg::timestamp(next)]))
    })
}

/// `schedule_drop(name) → was_dropped`: drops a schedule; false when there is none. Its
/// documents stay.
#[pg_extern(sql = false)]
fn schedule_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = call.text(0, "name")?;
        require_schedule(name)?;
        Ok(Reply::bool(store::drop(name)))
    })
}

/// `schedule_pause(name) → was_paused`: pauses a schedule; false when it was paused already.
/// Fails with `UnknownSchedule`.
#[pg_extern(sql = false)]
fn schedule_pause(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = call.text(0, "name")?;
        require_schedule(name)?;
        run::pause(name).map(Reply::bool)
    })
}

/// `schedule_resume(name) → (was_resumed, next_tick)`: continues a schedule with its next tick,
/// without the ticks of the pause. A schedule that was not paused, and whose last run failed,
/// is retried at once. Fails with `UnknownSchedule`.
#[pg_extern(sql = false)]
fn schedule_resume(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = call.text(0, "name")?;
        require_schedule(name)?;
        let (was_resumed, next) = run::resume(name)?;
        commit::schedules_changed();
        Ok(call.record(&[Arg::from(was_resumed), opt_time(next)]))
    })
}

/// `schedule_tick(name) → (subject, was_created)`: pushes the document of an extra tick now. The
/// schedule itself does not change, and may be paused or ended. Fails with `UnknownSchedule`, and with
/// `MayNotPush` when the role that made it may no longer push into its queue.
#[pg_extern(sql = false)]
fn schedule_tick(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = call.text(0, "name")?;
        require_schedule(name)?;
        let (subject, was_created) = run::tick(name)?;
        Ok(call.record(&[Arg::from(subject.as_str()), Arg::from(was_created)]))
    })
}

/// `schedule_list() → schedules`: all schedules with their state: active, paused, failing or
/// ended.
#[pg_extern(sql = false)]
fn schedule_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        store::list(&mut out);
        Ok(out.done())
    })
}

/// `schedule_preview(schedule, timezone, from_time, n) → (tick, local_time)`: the next `n`
/// ticks after a time. An interval is counted from that time.
///
/// Fails with `BadSchedule` or `UnknownZone` for an argument that is not valid, with
/// `NegativeLimit` when `n` is below 0.
#[pg_extern(sql = false)]
fn schedule_preview(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let given = call.text(0, "schedule")?;
        let timing = match schedule::form(given) {
            Form::Cron(cron) => Timing::Cron(cron.to_owned()),
            Form::Every(text) => {
                let (months, days, micros) = parse_interval(given, text)?.parts();
                Timing::Every(months, days, micros)
            }
        };
        let timezone = call.text(1, "timezone")?;
        let from = call.timestamp(2, "from_time")?;
        let n = call.limit(3, "n")?;
        let mut out = call.rows();
        run::preview(&timing, timezone, from, n, |tick, local| {
            out.push(&[Arg::timestamp(tick), Arg::from(local)]);
        })?;
        Ok(out.done())
    })
}

/// `schedule_run(max_schedules) → (processed, affected)`: runs the schedules that are due now, at
/// most `max_schedules`.
#[pg_extern(sql = false)]
fn schedule_run(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| run_at(call, time::now()))
}

/// `schedule_run_at(max_schedules, as_of) → (processed, affected)`: for tests, runs the schedules
/// that are due at another time.
#[pg_extern(sql = false)]
fn schedule_run_at(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| run_at(call, call.timestamp(1, "as_of")?))
}

/// Runs the schedules that are due at `now` (microseconds since 2000).
fn run_at(call: &Call, now: i64) -> Result<Reply> {
    let limit = call.limit(0, "max_schedules")?;
    let outcome = run::run(limit, now);
    Ok(call.record(&[
        Arg::from(i64::from(outcome.processed)),
        Arg::from(i64::from(outcome.queued)),
    ]))
}
