//! Schedules.

use pgrx::prelude::*;

use crate::api::entry::{payload, queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::domain::schedule::{self, CATCH_UP_MAX, Form};
use crate::domain::wording::shorten_message;
use crate::error::{Error, Result};
use crate::maintenance::schedules as run;
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{role, subtransaction};
use crate::signals::commit;
use crate::store::documents::doc_options;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::upkeep::schedules as store;
use crate::store::upkeep::schedules::{NewSchedule, Timing};

/// The queue to which the schedules of a call have to belong, if the caller names one. The queue
/// exists, and the caller has the right on it.
///
/// Fails with `UnknownQueue` and with `NoRight`.
fn given_queue(call: &Call, at: usize, right: Right) -> Result<Option<QueueName>> {
    if call.is_null(at) {
        return Ok(None);
    }
    let queue = queue_name(call, at)?;
    rights::require(&queue, right)?;
    queue::id(&queue)?;
    Ok(Some(queue))
}

/// Locks the schedule of this name. Returns false when there is none, or when it does not belong to
/// the queue that is given. Fails with `NoRight` unless the caller manages its queue.
fn lock_schedule(name: &str, queue: Option<&QueueName>) -> Result<bool> {
    let is_wanted = || match (store::queue_of(name), queue) {
        (None, _) => Ok(false),
        (Some(found), Some(queue)) if found != queue.as_str() => Ok(false),
        (Some(found), _) => {
            rights::require_existing(&QueueName::parse(&found)?, Right::Manage)?;
            Ok(true)
        }
    };
    if !is_wanted()? {
        return Ok(false);
    }
    store::lock(name);
    // It is asked again under the lock: meanwhile the schedule may have become that of another
    // queue.
    is_wanted()
}

/// Reads the name of a schedule, and of its queue where the caller gives it, and locks the schedule.
///
/// Fails with `UnknownQueue`, with `UnknownSchedule` or `UnknownScheduleOf`, and with `NoRight`.
fn locked_schedule(call: &Call) -> Result<&str> {
    let name = call.text(0, "name")?;
    let queue = given_queue(call, 1, Right::Manage)?;
    if lock_schedule(name, queue.as_ref())? {
        return Ok(name);
    }
    let name = name.to_owned();
    Err(match queue {
        Some(queue) => Error::UnknownScheduleOf {
            name,
            queue: queue.to_string(),
        },
        None => Error::UnknownSchedule(name),
    })
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

/// What a caller says of a schedule.
pub(super) struct Options<'a> {
    pub name: &'a str,
    pub queue: &'a QueueName,
    /// When it ticks.
    pub schedule: &'a str,
    pub payload: Jsonb,
    pub headers: Option<Jsonb>,
    pub timezone: &'a str,
    pub version: i32,
    pub priority: i32,
    pub catch_up: &'a str,
    pub catch_up_limit: i32,
    pub jitter: Interval,
    pub starts_at: Option<i64>,
    pub ends_at: Option<i64>,
}

impl<'a> Options<'a> {
    /// The schedule as it is wanted, by the caller.
    ///
    /// Fails with `Invalid::ScheduleName`, with `BadSchedule` or `BadValue`, and with `BadDuration` or
    /// `LongDuration`.
    pub fn checked(self, owner: Option<&'a str>) -> Result<NewSchedule<'a>> {
        let (cron, every) = match schedule::form(self.schedule) {
            Form::Cron(cron) => (Some(cron), None),
            Form::Every(text) => (None, Some(parse_interval(self.schedule, text)?)),
        };
        run::catch_up(self.catch_up)?;
        if !(1..=CATCH_UP_MAX).contains(&self.catch_up_limit) {
            return Err(Error::BadValue {
                argument: "catch_up_limit",
                value: self.catch_up_limit.to_string(),
                rule: "1 to 10000",
            });
        }
        Ok(NewSchedule {
            name: schedule::check_name(self.name)?,
            queue: self.queue,
            given: self.schedule,
            cron,
            every,
            payload: self.payload,
            headers: doc_options::headers(self.headers)?,
            timezone: self.timezone,
            version: self.version,
            priority: self.priority,
            catch_up: self.catch_up,
            catch_up_limit: self.catch_up_limit,
            jitter: self.jitter.as_duration("jitter")?,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            made_by: role::current(),
            owner,
        })
    }
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
        let options = Options {
            name: call.text(0, "name")?,
            queue: &queue,
            schedule: call.text(2, "schedule")?,
            payload: payload(call, 3)?,
            headers: call.opt_json(13),
            timezone: call.text(4, "timezone")?,
            version: call.int(5, "version")?,
            priority: call.int(6, "priority")?,
            catch_up: call.text(7, "catch_up")?,
            catch_up_limit: call.int(8, "catch_up_limit")?,
            jitter: call.interval(9, "jitter")?,
            starts_at: call.opt_timestamp(10),
            ends_at: call.opt_timestamp(11),
        };
        let wanted = options.checked(None)?;
        let replace = call.bool(12, "replace")?;
        // First the queue, then its schedules: `queue_drop` locks them in this order.
        rights::with(&queue, Right::Manage, || queue::lock_against_drop(&queue))?;
        // A schedule that is replaced may push into another queue now.
        lock_schedule(wanted.name, None)?;
        let (was_created, next) =
            rights::with(&queue, Right::Manage, || run::create(&wanted, replace))?;
        commit::schedules_changed();
        Ok(call.record(&[Arg::from(was_created), Arg::timestamp(next)]))
    })
}

/// `schedule_drop(name, queue) → was_dropped`: drops a schedule; false when there is none, or none of
/// the queue that is given. Its documents stay. Fails with `UnknownQueue`.
#[pg_extern(sql = false)]
fn schedule_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = call.text(0, "name")?;
        let queue = given_queue(call, 1, Right::Manage)?;
        let is_locked = lock_schedule(name, queue.as_ref())?;
        Ok(Reply::bool(is_locked && store::drop(name)))
    })
}

/// `schedule_pause(name, queue) → was_paused`: pauses a schedule; false when it was paused already.
/// Fails as `locked_schedule` does.
#[pg_extern(sql = false)]
fn schedule_pause(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = locked_schedule(call)?;
        run::pause(name).map(Reply::bool)
    })
}

/// `schedule_resume(name, queue) → (was_resumed, next_tick)`: continues a schedule with its next
/// tick, without the ticks of the pause. A schedule that was not paused, and whose last run failed,
/// is retried at once. Fails as `locked_schedule` does.
#[pg_extern(sql = false)]
fn schedule_resume(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = locked_schedule(call)?;
        let (was_resumed, next) = run::resume(name)?;
        commit::schedules_changed();
        Ok(call.record(&[Arg::from(was_resumed), opt_time(next)]))
    })
}

/// `schedule_tick(name, queue) → (subject, was_created)`: pushes the document of an extra tick now.
/// The schedule itself does not change, and may be paused or ended. Fails as `locked_schedule` does,
/// and with `MayNotPush` when the role that made it may no longer push into its queue.
#[pg_extern(sql = false)]
fn schedule_tick(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = locked_schedule(call)?;
        let (subject, was_created) = run::tick(name)?;
        Ok(call.record(&[Arg::from(subject.as_str()), Arg::from(was_created)]))
    })
}

/// `schedule_list(queue) → schedules`: all schedules, or those of a queue, with their state: active,
/// paused, failing or ended. Fails with `UnknownQueue` and `NoRight` for a queue that is named.
#[pg_extern(sql = false)]
fn schedule_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        let queue = given_queue(call, 0, Right::Read)?;
        rights::over(queue.as_ref(), Right::Read, |queues| {
            store::list(queues, &mut out);
            Ok(())
        })?;
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

/// `schedule_run(max_schedules, queue) → (processed, affected)`: runs the schedules that are due now,
/// of all queues or of one, at most `max_schedules`. Fails with `UnknownQueue` and `NoRight` for a
/// queue that is named.
#[pg_extern(sql = false)]
fn schedule_run(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = given_queue(call, 1, Right::Manage)?;
        run_at(call, time::now(), queue.as_ref())
    })
}

/// `schedule_run_at(max_schedules, as_of) → (processed, affected)`: for tests, runs the schedules
/// that are due at another time.
#[pg_extern(sql = false)]
fn schedule_run_at(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        run_at(call, call.timestamp(1, "as_of")?, None)
    })
}

/// Runs the schedules of a queue, or of all that the caller manages, that are due at `now`
/// (microseconds since 2000).
fn run_at(call: &Call, now: i64, queue: Option<&QueueName>) -> Result<Reply> {
    let limit = call.limit(0, "max_schedules")?;
    let run = |queues: &Scope| Ok(run::run(limit, now, queues));
    let outcome = rights::over(queue, Right::Manage, run)?;
    Ok(call.record(&[
        Arg::from(i64::from(outcome.processed)),
        Arg::from(i64::from(outcome.queued)),
    ]))
}
