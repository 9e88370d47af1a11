//! The logic of schedules: creating, changing and running them. store/upkeep/schedules.rs has the rows,
//! domain/schedule.rs and domain/rhythm.rs compute the ticks, and background/schedules.rs calls
//! `run_one` on time.
//!
//! The documents of a tick are pushed in the transaction that moves the row of the schedule to the
//! next tick, so that each tick happens once, whatever crashes. Each schedule runs in a
//! subtransaction, so that a failure is reported, the schedule is retried with backoff, and the
//! other schedules run.

use std::collections::BTreeMap;

use pgrx::pg_sys::Oid;
use pgrx::{PgSqlErrorCode, notice};

use crate::domain::jobs::Ran;
use crate::domain::names::{self, QueueName};
use crate::domain::rhythm::Rhythm;
use crate::domain::schedule::{self, CatchUp};
use crate::error::{self, Error, Result, raise};
use crate::pg::json::Jsonb;
use crate::pg::lasting::{Lasting, lasting};
use crate::pg::role;
use crate::pg::zone::ServerZone;
use crate::pg::{lock_wait, memory, subtransaction, time};
use crate::store::documents::doc_push::{self, Expires, NewDoc};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::upkeep::deferred_triggers::DeferredTriggers;
use crate::store::upkeep::schedules as store;
use crate::store::upkeep::schedules::{DueSchedule, NewSchedule, Timing};

/// When a schedule is tried again whose queue is locked: microseconds.
const LOCKED_RETRY_US: i64 = 1_000_000;

/// The result of running several schedules.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Schedules that were due and did not fail.
    pub processed: i32,
    /// Documents that were created.
    pub queued: i32,
}

/// Runs up to `limit` schedules of these queues, which the caller manages, that are due at `now`, in
/// microseconds since 2000. A schedule that fails is reported as a WARNING and retried later. So is one
/// whose queue another session keeps locked for more than a moment, which is reported as a NOTICE.
pub fn run(limit: i32, now: i64, queues: &Scope) -> Outcome {
    let mut outcome = Outcome::default();
    lock_wait::allow(|| {
        for _ in 0..limit {
            let mut name = String::new();
            let note = |schedule: &DueSchedule| name.clone_from(&schedule.name);
            match run_one(now, queues, false, note) {
                Some(Ok(Ran::Done(queued))) => {
                    outcome.processed += 1;
                    outcome.queued = outcome.queued.saturating_add(queued);
                }
                Some(Ok(Ran::Busy)) => notice!(
                    "schedule \"{name}\" was not run, because another session has locked its queue"
                ),
                Some(Err(())) => {}
                None => break,
            }
        }
    });
    outcome
}

/// Runs up to `limit` due schedules for a caller of `mnt_job_run()` or `mnt()`. An error is
/// reported as a WARNING.
pub fn run_beside_jobs(limit: i32) {
    let run = |queues: &Scope| Ok(run(limit, time::now(), queues));
    let run = || raise(rights::over(None, Right::Manage, run));
    if let Err(message) = subtransaction::attempt(run) {
        error::warn(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!("schedules were not run: {message}"),
            "See fetchq.schedule_list(), and run it again.",
        );
    }
}

/// Runs a schedule of these queues, which the caller manages, that is due at `now`, in microseconds
/// since 2000. With `in_parts`, a large run is done in parts, because the caller can begin another transaction. `on_claim` gets the
/// schedule before it runs. Returns how many documents it has created, or that its queue is busy; an
/// error without details when it failed, which is reported as a WARNING; and None when no schedule is
/// due, or all that are due are locked.
pub fn run_one(
    now: i64,
    queues: &Scope,
    in_parts: bool,
    on_claim: impl FnOnce(&DueSchedule),
) -> Option<std::result::Result<Ran<i32>, ()>> {
    let claimed = store::claim(now, queues)?;
    on_claim(&claimed);
    let run = || {
        let queued = raise(push_ticks(&claimed, now, in_parts));
        // The background worker runs each schedule in a transaction of its own.
        if !in_parts {
            DeferredTriggers::find().run(&claimed.queue);
        }
        queued
    };
    match memory::freed_after(|| subtransaction::attempt(run)) {
        Ok(queued) => Some(Ok(queued)),
        Err(message) => {
            store::back_off(&claimed.name, now, &message, 0);
            error::warn(
                PgSqlErrorCode::ERRCODE_WARNING,
                format!("schedule \"{}\" failed: {message}", claimed.name),
                "It is tried again, later after each failure; see fetchq.schedule_list().",
            );
            Some(Err(()))
        }
    }
}

/// Checks that the role that made a schedule may push into its queue, as when it pushed itself.
///
/// Fails with `Error::MayNotPush`.
fn check_maker(maker: Oid, queue: &Queue) -> Result<()> {
    let reason = match role::exists(maker) {
        true if rights::role_has(maker, queue.table, Right::Push) => return Ok(()),
        true => format!("may not push into queue \"{}\"", queue.name),
        false => "no longer exists".to_owned(),
    };
    Err(Error::MayNotPush {
        maker: format!("\"{}\"", role::name(maker)),
        reason,
    })
}

/// The most that one transaction pushes when the caller can begin another one: bytes of payloads and
/// headers. One document is always pushed, and may have 255 MB.
const PART_BYTES: usize = 16 << 20;

/// The first tick that a part has left to the next one, and as of when it was due.
#[derive(Clone, Copy)]
struct Rest {
    tick: i64,
    as_of: i64,
}

thread_local! {
    /// What is left of runs that are done in parts, by the schedule. A tick that was on time when the
    /// run began is not missed because the parts before it took long.
    static RESTS: Lasting<BTreeMap<String, Rest>> = const { lasting(BTreeMap::new()) };
}

/// As of when the ticks of a schedule are judged: when its run began, if the last part has left this
/// tick; else `now`. Both in microseconds since 2000.
fn as_of(claimed: &DueSchedule, now: i64) -> i64 {
    let rest = RESTS.with(|rests| rests.borrow().get(&claimed.name).copied());
    rest.filter(|rest| rest.tick == claimed.next_tick)
        .map_or(now, |rest| rest.as_of)
}

/// Pushes a document for each tick that is due, and moves the schedule to its next tick: with
/// `in_parts`, to the first one that it has left to the next transaction. Returns how many documents
/// it has created. Busy while another session has locked the queue.
fn push_ticks(claimed: &DueSchedule, now: i64, in_parts: bool) -> Result<Ran<i32>> {
    let name = QueueName::parse(&claimed.queue)?;
    let zone = zone(&claimed.timezone)?;
    let rhythm = rhythm(&claimed.timing, claimed.anchor)?;
    let catch_up = catch_up(&claimed.catch_up)?;
    let now = if in_parts { as_of(claimed, now) } else { now };
    let mut due = schedule::due(
        &rhythm,
        &zone,
        time::to_unix(claimed.next_tick),
        claimed.ends_at.map(time::to_unix),
        time::to_unix(now),
        catch_up,
        claimed.catch_up_limit.max(1).unsigned_abs() as usize,
    );
    let Some(queue) = Queue::try_open(&name)? else {
        store::postpone(&claimed.name, now.saturating_add(LOCKED_RETRY_US));
        return Ok(Ran::Busy);
    };
    check_maker(claimed.made_by, &queue)?;
    let template = Template::of(claimed);
    let n = (PART_BYTES / template.bytes.max(1)).max(1);
    let has_rest = in_parts && due.keep_first(n);
    let jitter_us = interval_us(claimed.jitter);
    let queued = due.push.iter().try_fold(0, |queued, tick| {
        let subject = schedule::subject(&claimed.name, *tick);
        let delay = schedule::jitter(&claimed.name, *tick, jitter_us);
        let at = time::from_unix(*tick).saturating_add(delay);
        // A document that exists is not created again. Its tick has happened already.
        let push = || template.push(&queue, &subject, at);
        Ok::<i32, Error>(queued + memory::freed_after(push)?)
    })?;
    store::move_on(
        &claimed.name,
        due.next.map(time::from_unix),
        due.push.last().copied().map(time::from_unix),
        due.push.len() as i64,
    );
    let next = due.next.filter(|_| has_rest).map(time::from_unix);
    note_rest(&claimed.name, next.map(|tick| Rest { tick, as_of: now }));
    Ok(Ran::Done(queued))
}

fn note_rest(name: &str, rest: Option<Rest>) {
    RESTS.with(|rests| match rest {
        Some(rest) => rests.borrow_mut().insert(name.to_owned(), rest),
        None => rests.borrow_mut().remove(name),
    });
}

/// What the documents of all ticks have in common. The JSON is parsed once.
struct Template<'a> {
    of: &'a DueSchedule,
    payload: Jsonb,
    headers: Option<Jsonb>,
    /// The size of payload and headers.
    bytes: usize,
}

impl<'a> Template<'a> {
    fn of(of: &'a DueSchedule) -> Self {
        let payload = Jsonb::parse(&of.payload);
        let headers = of.headers.as_deref().map(Jsonb::parse);
        let bytes = payload.stored_size() + headers.map_or(0, Jsonb::stored_size);
        Self {
            of,
            payload,
            headers,
            bytes,
        }
    }

    /// Pushes the document of a tick. Returns how many documents it has created: 1 or 0.
    fn push(&self, queue: &Queue, subject: &str, next_iteration: i64) -> Result<i32> {
        let doc = NewDoc {
            subject: names::check_subject(subject)?,
            version: self.of.version,
            priority: self.of.priority,
            next_iteration,
            payload: self.payload,
            ordering_key: None,
            max_attempts: None,
            headers: self.headers,
            expires: Expires::AsQueue,
        };
        Ok(doc_push::push(queue, &doc))
    }
}

/// Pushes the document of an extra tick at the start of the transaction, without jitter, whatever the
/// state of the schedule. Returns its subject, and whether it was created: a document of this
/// second may exist. The caller has locked the schedule.
///
/// Fails with `Error::UnknownSchedule`, `Error::UnknownQueue` and `Error::MayNotPush`.
pub fn tick(name: &str) -> Result<(String, bool)> {
    let schedule = store::get(name).ok_or_else(|| Error::UnknownSchedule(name.to_owned()))?;
    let queue = Queue::open_for(&QueueName::parse(&schedule.queue)?, Right::Manage)?;
    check_maker(schedule.made_by, &queue)?;
    let tick = time::to_unix(time::now());
    let subject = schedule::subject(&schedule.name, tick);
    let template = Template::of(&schedule);
    let queued = template.push(&queue, &subject, time::from_unix(tick))?;
    Ok((subject, queued > 0))
}

/// Returns the length of an interval in microseconds. As when PostgreSQL compares intervals, a
/// month has 30 days and a day 24 hours.
fn interval_us((months, days, micros): (i32, i32, i64)) -> i64 {
    let days = i64::from(months) * 30 + i64::from(days);
    days.saturating_mul(86_400_000_000).saturating_add(micros)
}

/// Returns a time zone of the server by its name.
///
/// Fails with `Error::UnknownZone`.
pub fn zone(name: &str) -> Result<ServerZone> {
    ServerZone::find(name).ok_or_else(|| Error::UnknownZone(name.to_owned()))
}

/// Parses the catch-up policy of a schedule.
///
/// Fails with `Error::BadValue` when it is not 'skip', 'once' or 'all'.
pub fn catch_up(text: &str) -> Result<CatchUp> {
    CatchUp::parse(text).ok_or_else(|| Error::BadValue {
        argument: "catch_up",
        value: text.to_owned(),
        rule: "'skip', 'once' or 'all'",
    })
}

/// Returns when a schedule ticks. An interval is counted from `anchor`, in microseconds since 2000.
///
/// Fails with `Error::BadSchedule` when the cron expression or the interval is invalid.
pub fn rhythm(timing: &Timing, anchor: i64) -> Result<Rhythm> {
    let (rhythm, given) = match timing {
        Timing::Cron(cron) => (Rhythm::cron(cron), cron.clone()),
        Timing::Every(months, days, micros) => (
            Rhythm::every(*months, *days, *micros, time::to_unix(anchor)),
            format!("{months} months {days} days {micros} microseconds"),
        ),
    };
    rhythm.map_err(|reason| Error::BadSchedule { given, reason })
}

/// Returns the first tick that is later than `after`, not before `starts_at` and not after
/// `ends_at`, all in microseconds since 2000.
fn first_tick(
    rhythm: &Rhythm,
    zone: &ServerZone,
    after: i64,
    starts_at: Option<i64>,
    ends_at: Option<i64>,
) -> Option<i64> {
    // Ticks are whole seconds, so a tick is not before the start when it is after the second that
    // precedes the start.
    let start = starts_at.map_or(i64::MIN, |at| time::to_unix(at.saturating_sub(1)));
    rhythm
        .next(time::to_unix(after).max(start), zone)
        .map(time::from_unix)
        .filter(|tick| ends_at.is_none_or(|end| *tick <= end))
}

/// `-infinity`, which stands for a schedule without a start.
const NO_START: i64 = i64::MIN;

/// How often the creation of a schedule is retried when other sessions create and drop it at the
/// same time.
const MAX_CREATE_RETRIES: usize = 100;

/// Creates a schedule, or changes an existing one with `replace`. Returns whether it was created, and
/// its next tick in microseconds since 2000.
///
/// Fails with `Error::UnknownZone`, `Error::BadSchedule` when the cron expression or the interval
/// is invalid, `Error::NeverTicks`, `Error::ScheduleExists` without `replace`, and
/// `Error::HiddenSchedule` when the caller cannot see an existing schedule of this name.
pub fn create(wanted: &NewSchedule, replace: bool) -> Result<(bool, i64)> {
    let given = wanted.given;
    let now = time::now();
    let zone = zone(wanted.timezone)?;
    let timing = match (wanted.cron, wanted.every.map(|every| every.parts())) {
        (Some(cron), _) => Timing::Cron(cron.to_owned()),
        (None, Some((months, days, micros))) => Timing::Every(months, days, micros),
        (None, None) => return Err(never_ticks(given)),
    };
    let with_given_text = |e| match e {
        Error::BadSchedule { reason, .. } => Error::BadSchedule {
            given: given.to_owned(),
            reason,
        },
        other => other,
    };
    rhythm(&timing, now).map_err(with_given_text)?;
    for _ in 0..MAX_CREATE_RETRIES {
        let existing = store::lock(wanted.name);
        if existing.is_some() && !replace {
            return Err(Error::ScheduleExists(wanted.name.to_owned()));
        }
        // It may have been created meanwhile, for a queue that the caller does not manage.
        if existing.is_some()
            && let Some(queue) = store::queue_of(wanted.name)
        {
            rights::require_existing(&QueueName::parse(&queue)?, Right::Manage)?;
        }
        // A schedule that ticks as before keeps its next tick, so it misses none.
        let unchanged = existing.as_ref().filter(|old| {
            old.timing == timing
                && old.timezone == wanted.timezone
                && old.starts_at == wanted.starts_at
        });
        let anchor = match (unchanged, wanted.starts_at) {
            (Some(old), _) => old.anchor,
            (None, Some(starts_at)) if starts_at > NO_START => whole_second(starts_at),
            (None, _) => time::from_unix(time::to_unix(now)),
        };
        let rhythm = rhythm(&timing, anchor)?;
        // A tick that has happened must not happen again.
        let last_tick = existing.as_ref().and_then(|old| old.last_tick);
        let after = now.max(last_tick.unwrap_or(now));
        let expected = unchanged
            .and_then(|old| old.next_tick)
            .filter(|tick| wanted.ends_at.is_none_or(|end| *tick <= end));
        let next = expected
            .or_else(|| first_tick(&rhythm, &zone, after, wanted.starts_at, wanted.ends_at))
            .ok_or_else(|| never_ticks(given))?;
        if existing.is_some() {
            store::replace(wanted, anchor, next);
            return Ok((false, next));
        }
        // The insertion fails when another session has just created the schedule.
        if store::insert(wanted, anchor, next) {
            return Ok((true, next));
        }
    }
    Err(Error::HiddenSchedule(wanted.name.to_owned()))
}

fn never_ticks(given: &str) -> Error {
    Error::NeverTicks(given.to_owned())
}

/// Returns the first whole second that is not before a time. Both are in microseconds since 2000.
fn whole_second(at: i64) -> i64 {
    time::from_unix(time::to_unix(at.saturating_add(999_999)))
}

/// Pauses a schedule. Returns false when it was paused already.
///
/// Fails with `Error::UnknownSchedule`.
pub fn pause(name: &str) -> Result<bool> {
    let existing = lock(name)?;
    if existing.is_active {
        store::pause(name);
    }
    Ok(existing.is_active)
}

fn lock(name: &str) -> Result<store::LockedSchedule> {
    store::lock(name).ok_or_else(|| Error::UnknownSchedule(name.to_owned()))
}

/// Resumes a schedule with its next tick from now on. A schedule that was not paused keeps its next
/// tick, and a backoff after failures ends. Returns whether it was paused, and its next tick in
/// microseconds since 2000.
///
/// Fails with `Error::UnknownSchedule`, `Error::UnknownZone` or `Error::BadSchedule`.
pub fn resume(name: &str) -> Result<(bool, Option<i64>)> {
    let old = lock(name)?;
    if old.is_active {
        if old.attempts > 0 {
            store::resume(name, old.next_tick);
        }
        return Ok((false, old.next_tick));
    }
    let now = time::now();
    let next = first_tick(
        &rhythm(&old.timing, old.anchor)?,
        &zone(&old.timezone)?,
        now.max(old.last_tick.unwrap_or(now)),
        old.starts_at,
        old.ends_at,
    );
    store::resume(name, next);
    Ok((true, next))
}

/// Calls `emit` with each of the next `n` ticks after `from`, and with the local time of each in
/// the time zone. An interval is counted from `from`. Times are in microseconds since 2000.
///
/// Fails with `Error::UnknownZone` or `Error::BadSchedule`.
pub fn preview(
    timing: &Timing,
    timezone: &str,
    from: i64,
    n: i32,
    mut emit: impl FnMut(i64, &str),
) -> Result<()> {
    let zone = zone(timezone)?;
    let rhythm = rhythm(timing, whole_second(from))?;
    let mut at = time::to_unix(from);
    for _ in 0..n {
        let Some(tick) = rhythm.next(at, &zone) else {
            break;
        };
        emit(time::from_unix(tick), &schedule::in_zone(tick, &zone));
        at = tick;
    }
    Ok(())
}
