//! Schedules: pushes what is due. A tick and the row that moves on to the next one are
//! of one transaction, so that a tick happens once, whatever crashes. Each schedule runs
//! in a subtransaction: one that fails is told, backs off, and leaves the others alone.

use crate::store::schedules as store;
use pgrx::PgSqlErrorCode;

use crate::domain::names::{self, QueueName};
use crate::domain::rhythm::Rhythm;
use crate::domain::schedule::{self, CatchUp};
use crate::error::{self, Error, Result, raise};
use crate::maintenance::runner::RunAs;
use crate::pg::json::Jsonb;
use crate::pg::zone::ServerZone;
use crate::pg::{subtransaction, time};
use crate::store::doc_push::{self, NewDoc};
use crate::store::open_queue::Queue;
use crate::store::schedules::{Claimed, Wanted, Written};

/// How long a schedule waits whose queue is locked: microseconds.
const BUSY: i64 = 1_000_000;

/// What a run did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Schedules that were due, failed ones left out.
    pub processed: i32,
    /// Documents that are new.
    pub queued: i32,
}

/// Runs up to `limit` schedules that are due at a time.
pub fn run(limit: i32, now: i64) -> Outcome {
    let mut outcome = Outcome::default();
    for _ in 0..limit {
        match run_one(now, RunAs::Caller) {
            Some(Ok(queued)) => {
                outcome.processed += 1;
                outcome.queued = outcome.queued.saturating_add(queued);
            }
            Some(Err(())) => {}
            None => break,
        }
    }
    outcome
}

/// The same beside the jobs, where a role may have no rights on schedules.
pub fn run_beside_jobs(limit: i32) {
    if let Err(message) = subtransaction::attempt(|| run(limit, time::now())) {
        error::warn(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!("schedules were not run: {message}"),
            "Grant select and update on fetchq.schedules to who runs maintenance.",
        );
    }
}

/// Runs a schedule that is due; None when there is none.
pub fn run_one(now: i64, by: RunAs) -> Option<std::result::Result<i32, ()>> {
    let claimed = store::claim(now)?;
    match subtransaction::attempt(|| raise(tick(&claimed, now, by))) {
        Ok(queued) => Some(Ok(queued)),
        Err(message) => {
            store::back_off(&claimed.name, now, &message);
            error::warn(
                PgSqlErrorCode::ERRCODE_WARNING,
                format!("schedule \"{}\" failed: {message}", claimed.name),
                "It is tried again, later after each failure; see fetchq.schedule_list().",
            );
            Some(Err(()))
        }
    }
}

fn tick(claimed: &Claimed, now: i64, by: RunAs) -> Result<i32> {
    let name = QueueName::parse(&claimed.queue)?;
    let zone = zone(&claimed.timezone)?;
    let rhythm = rhythm(&claimed.written, claimed.anchor)?;
    let catch_up = catch_up(&claimed.catch_up)?;
    let due = schedule::due(
        &rhythm,
        &zone,
        time::to_unix(claimed.next_tick),
        claimed.ends_at.map(time::to_unix),
        time::to_unix(now),
        catch_up,
        claimed.catch_up_limit.max(1).unsigned_abs() as usize,
    );
    let Some(queue) = Queue::try_open(&name)? else {
        store::postpone(&claimed.name, now.saturating_add(BUSY));
        return Ok(0);
    };
    let payload = Jsonb::parse(&claimed.payload);
    let width = micros(claimed.jitter);
    let queued = by.run(&name, || {
        due.push.iter().try_fold(0, |queued, tick| {
            let subject = schedule::subject(&claimed.name, *tick);
            let delay = schedule::jitter(&claimed.name, *tick, width);
            let doc = NewDoc {
                subject: names::check_subject(&subject)?,
                version: claimed.version,
                priority: claimed.priority,
                next_iteration: time::from_unix(*tick).saturating_add(delay),
                payload,
                ordering_key: None,
                max_attempts: None,
            };
            // Nothing new when it is there: then the tick has happened.
            Ok::<i32, Error>(queued + doc_push::push(&queue, &doc))
        })
    })?;
    store::move_on(
        &claimed.name,
        due.next.map(time::from_unix),
        due.push.last().copied().map(time::from_unix),
        due.push.len() as i64,
    );
    Ok(queued)
}

/// As PostgreSQL compares intervals: a month has 30 days, a day 24 hours.
fn micros((months, days, micros): (i32, i32, i64)) -> i64 {
    let days = i64::from(months) * 30 + i64::from(days);
    days.saturating_mul(86_400_000_000).saturating_add(micros)
}

/// A time zone by name.
pub fn zone(name: &str) -> Result<ServerZone> {
    ServerZone::find(name).ok_or_else(|| Error::UnknownZone(name.to_owned()))
}

pub fn catch_up(text: &str) -> Result<CatchUp> {
    CatchUp::parse(text).ok_or_else(|| Error::BadValue {
        argument: "catch_up",
        value: text.to_owned(),
        rule: "'skip', 'once' or 'all'",
    })
}

/// When a schedule ticks whose intervals are counted from an anchor.
pub fn rhythm(written: &Written, anchor: i64) -> Result<Rhythm> {
    let (rhythm, given) = match written {
        Written::Cron(cron) => (Rhythm::cron(cron), cron.clone()),
        Written::Every(months, days, micros) => (
            Rhythm::every(*months, *days, *micros, time::to_unix(anchor)),
            format!("{months} months {days} days {micros} microseconds"),
        ),
    };
    rhythm.map_err(|reason| Error::BadSchedule { given, reason })
}

/// The first tick that is later than a time and not before a start.
fn first(
    rhythm: &Rhythm,
    zone: &ServerZone,
    after: i64,
    starts_at: Option<i64>,
    ends_at: Option<i64>,
) -> Option<i64> {
    // Ticks are whole seconds: not before the start is after the second before it.
    let start = starts_at.map_or(i64::MIN, |at| time::to_unix(at.saturating_sub(1)));
    rhythm
        .next(time::to_unix(after).max(start), zone)
        .map(time::from_unix)
        .filter(|tick| ends_at.is_none_or(|end| *tick <= end))
}

/// `-infinity`
const NO_START: i64 = i64::MIN;

/// How often another session may create and drop the schedule in between.
const CREATE_TURNS: usize = 100;

/// Creates a schedule, or changes one: (was created, next tick). `given` is the text
/// that says when it ticks.
pub fn create(wanted: &Wanted, given: &str, replace: bool) -> Result<(bool, i64)> {
    let now = time::now();
    let zone = zone(wanted.timezone)?;
    let written = match (wanted.cron, wanted.every.map(|every| every.parts())) {
        (Some(cron), _) => Written::Cron(cron.to_owned()),
        (None, Some((months, days, micros))) => Written::Every(months, days, micros),
        (None, None) => return Err(never(given)),
    };
    let told = |e| match e {
        Error::BadSchedule { reason, .. } => Error::BadSchedule {
            given: given.to_owned(),
            reason,
        },
        other => other,
    };
    rhythm(&written, now).map_err(told)?;
    for _ in 0..CREATE_TURNS {
        let existing = store::lock(wanted.name);
        if existing.is_some() && !replace {
            return Err(Error::ScheduleExists(wanted.name.to_owned()));
        }
        // What ticks as before goes on where it is, and misses nothing.
        let goes_on = existing.as_ref().filter(|old| {
            old.written == written
                && old.timezone == wanted.timezone
                && old.starts_at == wanted.starts_at
        });
        let anchor = match (goes_on, wanted.starts_at) {
            (Some(old), _) => old.anchor,
            (None, Some(starts_at)) if starts_at > NO_START => whole_second(starts_at),
            (None, _) => time::from_unix(time::to_unix(now)),
        };
        let rhythm = rhythm(&written, anchor)?;
        // A tick that has happened does not happen again.
        let last_tick = existing.as_ref().and_then(|old| old.last_tick);
        let after = now.max(last_tick.unwrap_or(now));
        let expected = goes_on
            .and_then(|old| old.next_tick)
            .filter(|tick| wanted.ends_at.is_none_or(|end| *tick <= end));
        let next = expected
            .or_else(|| first(&rhythm, &zone, after, wanted.starts_at, wanted.ends_at))
            .ok_or_else(|| never(given))?;
        if existing.is_some() {
            store::replace(wanted, anchor, next);
            return Ok((false, next));
        }
        // False: another session has just created it.
        if store::insert(wanted, anchor, next) {
            return Ok((true, next));
        }
    }
    Err(Error::HiddenSchedule(wanted.name.to_owned()))
}

fn never(given: &str) -> Error {
    Error::NeverTicks(given.to_owned())
}

/// The first whole second that is not before a point in time.
fn whole_second(at: i64) -> i64 {
    time::from_unix(time::to_unix(at.saturating_add(999_999)))
}

/// Stops a schedule; false when it was paused already.
pub fn pause(name: &str) -> Result<bool> {
    let existing = lock(name)?;
    if existing.is_active {
        store::pause(name);
    }
    Ok(existing.is_active)
}

fn lock(name: &str) -> Result<store::Existing> {
    store::lock(name).ok_or_else(|| Error::UnknownSchedule(name.to_owned()))
}

/// Goes on with the next tick from now on: (was paused, next tick). A schedule that was
/// not paused keeps its ticks, and no failure makes it wait any more.
pub fn resume(name: &str) -> Result<(bool, Option<i64>)> {
    let old = lock(name)?;
    if old.is_active {
        if old.attempts > 0 {
            store::resume(name, old.next_tick);
        }
        return Ok((false, old.next_tick));
    }
    let now = time::now();
    let next = first(
        &rhythm(&old.written, old.anchor)?,
        &zone(&old.timezone)?,
        now.max(old.last_tick.unwrap_or(now)),
        old.starts_at,
        old.ends_at,
    );
    store::resume(name, next);
    Ok((true, next))
}

/// The next n ticks after a time, from which an interval is counted; `take` gets each
/// with what the clocks of the zone show.
pub fn preview(
    written: &Written,
    timezone: &str,
    from: i64,
    n: i32,
    mut take: impl FnMut(i64, &str),
) -> Result<()> {
    let zone = zone(timezone)?;
    let rhythm = rhythm(written, whole_second(from))?;
    let mut at = time::to_unix(from);
    for _ in 0..n {
        let Some(tick) = rhythm.next(at, &zone) else {
            break;
        };
        take(time::from_unix(tick), &schedule::in_zone(tick, &zone));
        at = tick;
    }
    Ok(())
}
