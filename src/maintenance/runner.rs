//! Runs the jobs of `fetchq.jobs` that are due. Each job runs in a subtransaction, so that a
//! failure is reported, the job is retried with backoff, and the other jobs run.

use std::convert::Infallible;

use pgrx::{PgSqlErrorCode, notice};

use crate::domain::invalid::Invalid;
use crate::domain::jobs::{DEFAULT_DELAY, Ran, Settings, Task};
use crate::domain::names::QueueName;
use crate::error::{self, Error, Result, raise};
use crate::maintenance::snapshot::{self, Shared};
use crate::maintenance::{documents, pack, recount, retention};
use crate::pg::time::{self, Interval};
use crate::pg::{lock_wait, memory, relation, subtransaction};
use crate::signals::progress;
use crate::store::counters::metrics::SnapshotOf;
use crate::store::documents::late_leases;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};
use crate::store::upkeep::deferred_triggers::DeferredTriggers;
use crate::store::upkeep::jobs::{self, Failure, Job, Kind, Maintenance, Note, Part, Wait};
use crate::store::upkeep::maintenance;

/// The result of running several jobs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Jobs that have run without an error.
    pub processed: i32,
    /// Jobs that have failed.
    pub failed: i32,
    /// Rows that were packed by a pack job among them.
    pub packed: i32,
}

/// Claims up to `limit` due jobs for `duration`, and runs them for a caller. A job of a queue acts
/// with the rights of the owner of the documents, if the caller has the right to do what it does. A
/// job that fails is reported as a WARNING and retried later. So is one that needs what another
/// session keeps locked for more than a moment, which is reported as a NOTICE.
pub fn run(duration: Interval, limit: i32) -> Outcome {
    lock_wait::allow(|| run_due(duration, limit, Vec::new()))
}

/// Runs all jobs of all queues that the caller manages, and those of no queue that are due, as [`run`]
/// does.
pub fn run_all(duration: Interval) -> Outcome {
    lock_wait::allow(|| {
        let mut locked = Vec::new();
        let lock = || {
            locked = jobs::lock_all();
            Ok::<_, Infallible>(locked.is_empty().then_some(()))
        };
        // What another session runs now is left to it, after a moment.
        let _ = lock_wait::retry(lock);
        jobs::make_due();
        run_due(duration, i32::MAX, locked)
    })
}

/// As [`run`]. `busy` are jobs that other sessions have locked.
fn run_due(duration: Interval, limit: i32, mut busy: Vec<Job>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut packs = false;
    let deferred = DeferredTriggers::find();
    let claimed = jobs::claim_all(duration, limit);
    let mut snapshots = queues_of(&claimed, Task::Snapshot).into_iter();
    let mut shared = Shared::default();
    for job in claimed {
        packs |= Task::parse(&job.task) == Some(Task::Pack);
        if share(&job, &mut shared, || next_of(&snapshots)) {
            snapshots.next();
        }
        let run = || {
            let ran = raise(run_one(&job, false, &mut shared));
            deferred.run(&job.queue);
            ran
        };
        match memory::freed_after(|| finish(&job, subtransaction::attempt(run))) {
            Some(Ran::Done(packed)) => {
                outcome.processed += 1;
                outcome.packed = outcome.packed.saturating_add(packed);
            }
            Some(Ran::Busy) => busy.push(job),
            None => outcome.failed += 1,
        }
    }
    if packs {
        pack::truncate_packed();
    }
    report_busy(&busy);
    outcome
}

/// The number of queues whose metrics are read together.
const MAX_SHARED: usize = 500;

/// The queues that come next.
fn next_of(queues: &std::vec::IntoIter<String>) -> Vec<String> {
    queues.as_slice().iter().take(MAX_SHARED).cloned().collect()
}

/// The queues of the snapshots of metrics that are due next, for [`run_claimed`].
pub fn next_snapshots() -> Vec<String> {
    jobs::next_snapshots(MAX_SHARED)
}

/// The queues of the jobs with a task, in the order of the jobs.
fn queues_of(jobs: &[Job], task: Task) -> Vec<String> {
    let jobs = jobs.iter();
    let jobs = jobs.filter(|job| Task::parse(&job.task) == Some(task));
    jobs.map(|job| job.queue.clone()).collect()
}

/// Reads what a snapshot of metrics needs, together with what those of `others` need. Returns whether the job
/// takes one.
fn share(job: &Job, shared: &mut Shared, others: impl FnOnce() -> Vec<String>) -> bool {
    let is_snapshot = Task::parse(&job.task) == Some(Task::Snapshot);
    if is_snapshot && let Ok(name) = QueueName::parse(&job.queue) {
        shared.provide(&name, others);
    }
    is_snapshot
}

/// Runs the maintenance of the documents of all queues that the caller manages, as `documents::run`
/// does, each in a subtransaction. A queue that fails is reported as a WARNING, and is missing in the result. So is one
/// that was dropped meanwhile.
pub fn run_documents(limit: i32) -> impl Iterator<Item = (QueueName, Ran<documents::Outcome>)> {
    let deferred = DeferredTriggers::find();
    let run = move |name: &QueueName| match rights::with(name, Right::Manage, || {
        documents::run(name, limit)
    }) {
        Err(e) if e.is_missing_queue() => None,
        other => {
            let ran = raise(other);
            deferred.run(name.as_str());
            Some(ran)
        }
    };
    queue::managed().into_iter().filter_map(move |name| {
        let outcome = memory::freed_after(|| subtransaction::attempt(|| run(&name)));
        let warn = |message: &String| {
            error::warn(
                PgSqlErrorCode::ERRCODE_WARNING,
                format!("queue \"{name}\" is left out: {message}"),
                "Call fetchq.mnt_run() for this queue alone.",
            );
        };
        let outcome = outcome.inspect_err(warn).ok()??;
        Some((name, outcome))
    })
}

/// The number of jobs that a NOTICE names. The others are counted.
const MAX_NAMED: usize = 10;

/// Reports the jobs that were not run because of the locks of other sessions.
fn report_busy(jobs: &[Job]) {
    if jobs.is_empty() {
        return;
    }
    let named = jobs.iter().take(MAX_NAMED);
    let mut list: Vec<String> = named
        .map(|job| match job.queue.as_str() {
            "*" => job.task.clone(),
            queue => format!("{} of queue \"{queue}\"", job.task),
        })
        .collect();
    if let more @ 1.. = jobs.len().saturating_sub(MAX_NAMED) {
        list.push(format!("{more} more"));
    }
    notice!(
        "maintenance was not run, because other sessions have locked what it needs: {}",
        list.join(", ")
    );
}

/// Plans the next run of a job that has succeeded, and returns its packed rows. Of one that was busy,
/// plans the next attempt. Plans that of one that has failed, too, reports it as a WARNING, and returns
/// None.
///
/// The row of the job is locked by this transaction. It is written here and not in the subtransaction of
/// the job: a row that a subtransaction changes and its parent has locked gets a multixact, and while a
/// snapshot is held, everybody who passes by such a version asks for the state of its transactions again,
/// because no hint bit can hold it. An error here, such as that of a trigger on fetchq.jobs, is
/// that of the transaction.
fn finish(job: &Job, result: std::result::Result<Ran<Finished>, String>) -> Option<Ran<i32>> {
    let message = match result {
        Ok(Ran::Done(Finished { packed, delay })) => {
            jobs::reschedule(job.id, delay);
            return Some(Ran::Done(packed));
        }
        Ok(Ran::Busy) => {
            jobs::retry(job.id, delay_of(job), None);
            return Some(Ran::Busy);
        }
        Err(message) => message,
    };
    back_off(job, true, 0, &message);
    error::warn(
        PgSqlErrorCode::ERRCODE_WARNING,
        format!(
            "maintenance job {} ({} of queue \"{}\") failed: {message}",
            job.id, job.task, job.queue
        ),
        "It is tried again, later after each failure; see fetchq.jobs.",
    );
    None
}

/// Claims one due job of a kind, for the background worker. None when no job was due.
///
/// The claim is to be committed before the job of a queue runs. A job that ends the process is then
/// hidden for as long as it was claimed, and other jobs come first.
pub fn claim(kind: Kind) -> Option<Job> {
    jobs::follow_clock();
    claim_next(kind)
}

/// As [`claim`], in the transaction that has run the job before: the clock was looked at a moment ago.
pub fn claim_next(kind: Kind) -> Option<Job> {
    jobs::claim_one(kind, default_duration())
}

/// Runs a job that was claimed, for the background worker. A failure is reported as a WARNING. Does
/// nothing when another session has run the job or has deleted it, or keeps it locked for more than a
/// moment. It waits for no other lock: a job that needs what is locked comes again a second later. `shared`:
/// what is read for the jobs that come next, too; `others`: the queues of these, if they are snapshots of metrics.
pub fn run_claimed(job: &Job, shared: &mut Shared, others: fn() -> Vec<String>) {
    // The job is locked before its queue, in the order of dropping a queue. It was claimed for minutes,
    // so a session that has locked it for a moment must not put it off.
    let lock = || Ok::<_, Infallible>(jobs::try_lock(job.id, true).then_some(()));
    if let Ok(None) = lock_wait::allow(|| lock_wait::retry(lock)) {
        return;
    }
    share(job, shared, others);
    let run = || raise(run_one(job, true, shared));
    finish(job, subtransaction::attempt(run));
    if Task::parse(&job.task) == Some(Task::Pack) {
        pack::truncate_packed();
    }
}

/// Plans the next attempt of a job that has failed. Its attempt took `took` microseconds of a process of
/// the server, and is counted if the job was claimed.
pub fn back_off(job: &Job, is_counted: bool, took: i64, message: &str) {
    let failure = Failure {
        message,
        pause: pause_after(took),
        is_counted,
    };
    jobs::retry(job.id, delay_of(job), Some(&failure));
}

/// How many times as long as an attempt that failed, or a pack, took the next one waits, so that a slow
/// queue, or a log of thousands of busy queues, takes a tenth of the time of a process at most. A pack costs
/// as much as it changes metrics, and readers pay for what is not packed.
const PAUSES_PER_ATTEMPT: i64 = 9;

/// The longest pause after a pack: microseconds.
const MAX_PACK_PAUSE_US: i64 = 60_000_000;

/// Returns how long after the beginning of the transaction the next pack is due at least, when one has
/// ended that took `took`: microseconds.
fn next_pack_after(took: i64) -> i64 {
    let pause = pause_after(took).min(MAX_PACK_PAUSE_US);
    pause + (time::clock() - time::now()).clamp(0, MAX_PACK_PAUSE_US)
}

/// Returns how long to wait at least after an attempt that took `took`: microseconds.
pub fn pause_after(took: i64) -> i64 {
    took.saturating_mul(PAUSES_PER_ATTEMPT)
}

/// By how many bits the number of documents in a run is reduced after each failure. A queue that is
/// too slow for its limit goes on in smaller steps.
const SHRINK_BITS: u32 = 2;

/// The result of one run of the maintenance of a queue's documents.
pub struct DocumentRun {
    /// Documents that have changed their status.
    pub changed: i32,
    /// When the next document is due, as far as is known, in microseconds since 2000.
    pub next: i64,
}

/// Runs the maintenance of a queue's documents, for the background worker, which calls it whenever
/// something is due. It observes the limit of the queue's job `mnt`, and does nothing while that
/// job is postponed. With `record_run`, a run that changes documents is recorded in
/// `fetchq.jobs`. `kills` is the wait of documents that failed too often, as far as this process knows it.
/// It is recorded in the job too, unless another session has locked that.
/// Returns None when there is no such queue.
///
/// Errors are raised, so that the transaction is rolled back: `Invalid::JobSettings` when the
/// settings of the job are invalid, and those of opening the queue and of its maintenance.
pub fn run_document_maintenance(
    name: &QueueName,
    record_run: bool,
    kills: &mut Option<Wait>,
) -> Option<DocumentRun> {
    let now = time::now();
    let nothing = |next| Some(DocumentRun { changed: 0, next });
    let Some(Maintenance {
        job,
        not_before,
        failures,
        kills: recorded,
    }) = jobs::maintenance_of(name.as_str())
    else {
        // The job was deleted, so no maintenance is wanted.
        return nothing(now.saturating_add(WITHOUT_JOB_RETRY_US));
    };
    let settings = raise(settings_of(&job));
    let delay = raise(Interval::parse(&settings.delay).as_duration("delay"));
    // A time within the delay is that of an ordinary run, unless it is that of a backoff.
    let is_postponed = not_before > delay.after(now) || failures > 0 && not_before > now;
    if is_postponed {
        return nothing(not_before);
    }
    // Another session that has locked the job runs it now and records that itself.
    let record_run = (record_run || failures > 0) && jobs::try_lock(job.id, false);
    let queue = match Queue::try_open(name) {
        Ok(Some(queue)) => queue,
        // DDL has locked the queue. The caller retries soon.
        Ok(None) => return nothing(now),
        Err(e) if e.is_missing_queue() => return None,
        Err(e) => raise(Err(e)),
    };
    late_leases::write_unserved(&queue);
    let shrink = SHRINK_BITS.saturating_mul(failures.unsigned_abs()).min(31);
    let limit = match settings.limit.max(0) {
        0 => 0,
        limit => (limit >> shrink).max(1),
    };
    let batch = progress::begin_batch(Task::Maintain, queue.table.to_u32());
    *kills = kills.or(recorded);
    let may_kill = may_kill(*kills, now);
    let outcome = raise(documents::run_open(&queue, limit, may_kill));
    if may_kill {
        note_kills(&job, now, outcome.kill_failure.as_deref(), kills);
    }
    let changed = outcome.activated + outcome.rescheduled + outcome.killed + outcome.expired;
    drop(batch);
    if record_run && (changed > 0 || failures > 0) {
        jobs::reschedule(job.id, delay);
    }
    // The floors cannot pass documents that this transaction has changed, so they do not say when
    // the next one is due.
    let next = match changed {
        0 => {
            let next = maintenance::next_due(&queue).unwrap_or_else(|| delay.after(now));
            let expiry = maintenance::next_look_at_expiry(&queue).unwrap_or(i64::MAX);
            // What could not be killed waits.
            next.min(kills.map_or(expiry, |wait| expiry.max(wait.until)))
        }
        _ => now,
    };
    Some(DocumentRun { changed, next })
}

/// When the move of failed documents to the dead-letter queue or to the history is retried after its
/// first failure: microseconds. The time doubles with each failure. The rest of the queue's maintenance
/// runs meanwhile.
const MIN_KILL_RETRY_US: i64 = 1_000_000;

/// The longest time after which the move is retried: microseconds.
const MAX_KILL_RETRY_US: i64 = 60_000_000;

/// Returns whether failed documents may be moved now.
fn may_kill(wait: Option<Wait>, now: i64) -> bool {
    // A later time was written before the clock was set back.
    let latest = now.saturating_add(MAX_KILL_RETRY_US);
    wait.is_none_or(|wait| wait.until <= now || wait.until > latest)
}

/// Notes in `kills` and in the job `mnt` of a queue whether failed documents could leave the queue.
fn note_kills(job: &Job, now: i64, failure: Option<&str>, kills: &mut Option<Wait>) {
    let before = kills.take();
    *kills = failure.map(|_| {
        let failures = before.map_or(0, |wait| wait.failures);
        let delay = (MIN_KILL_RETRY_US << failures.clamp(0, 10)).min(MAX_KILL_RETRY_US);
        Wait {
            failures: failures.saturating_add(1),
            until: now.saturating_add(delay),
        }
    });
    // A wait that is recorded and no longer holds is read by the next run, which clears it.
    if (before.is_some() || kills.is_some()) && jobs::try_lock(job.id, false) {
        let until = kills.map(|wait| wait.until);
        let failures = kills.map_or(0, |wait| wait.failures);
        jobs::set_wait(&job.queue, Part::Kills, until, Some(failures), failure);
    }
}

/// When a queue without the job `mnt` is looked at again: microseconds.
const WITHOUT_JOB_RETRY_US: i64 = 60_000_000;

/// Returns the delay of a job that has failed; the default when its settings are invalid, which may
/// be why it failed.
fn delay_of(job: &Job) -> Interval {
    let text = Settings::parse(job.settings.as_deref())
        .map_or_else(|_| DEFAULT_DELAY.to_owned(), |settings| settings.delay);
    subtransaction::attempt(|| Interval::parse(&text).as_duration("delay").ok())
        .ok()
        .flatten()
        .unwrap_or_else(default_duration)
}

fn settings_of(job: &Job) -> Result<Settings> {
    Settings::parse(job.settings.as_deref()).map_err(|reason| {
        Error::from(Invalid::JobSettings {
            id: job.id,
            task: job.task.clone(),
            queue: job.queue.clone(),
            reason,
        })
    })
}

/// Postpones the maintenance of a queue's documents after a failure that took `took` microseconds.
/// Returns until when, in microseconds since 2000; None when the queue has no job `mnt`.
pub fn back_off_maintenance(name: &QueueName, took: i64, message: &str) -> Option<i64> {
    let job = jobs::maintenance_of(name.as_str())?.job;
    if jobs::try_lock(job.id, false) {
        back_off(&job, false, took, message);
    }
    jobs::maintenance_of(name.as_str()).map(|after| after.not_before)
}

/// A run of a job that has succeeded.
struct Finished {
    /// How many rows it has packed.
    packed: i32,
    /// Until its next run.
    delay: Interval,
}

/// Runs a job, unless it is busy. With `in_parts` a long job is done in parts, because the caller can
/// begin another transaction. `shared`: what was read for snapshots of metrics.
///
/// Fails with `Invalid::JobSettings` when its settings are invalid, `Error::UnknownTask` when its
/// task is unknown, and with the errors of its service.
fn run_one(job: &Job, in_parts: bool, shared: &mut Shared) -> Result<Ran<Finished>> {
    let settings = settings_of(job)?;
    // The row of the job is locked while it runs, so for how long it would be claimed has no effect.
    if let Some(duration) = &settings.duration {
        Interval::parse(duration).as_duration("duration")?;
    }
    let task = Task::parse(&job.task).ok_or_else(|| Error::UnknownTask {
        task: job.task.clone(),
        queue: job.queue.clone(),
    })?;
    let table = match task {
        Task::Pack => None,
        _ => relation::lookup_data_table(&QueueName::parse(&job.queue)?.relation("docs")),
    };
    let _batch = progress::begin_batch(task, table.map_or(0, |table| table.to_u32()));
    let began = time::clock();
    let queue = || QueueName::parse(&job.queue);
    let mut packed = 0;
    let mut has_more = false;
    let mut pause = 0;
    let ran = match task {
        Task::Pack => {
            let (rows, ran) = pack::run();
            packed = rows;
            pause = next_pack_after(time::clock() - began);
            ran
        }
        Task::Maintain => documents::run(&queue()?, settings.limit.max(0))?.map(|_| ()),
        Task::Snapshot => snapshot::run(&queue()?, SnapshotOf::All, shared)?.map(|_| ()),
        Task::Recount => recount::run(job.id, &queue()?)?.map(|_| ()),
        Task::Retain => retain(job, &queue()?, in_parts)?.map(|more| has_more = more),
    };
    if ran == Ran::Busy {
        return Ok(Ran::Busy);
    }
    let delay = Interval::parse(&settings.delay).as_duration("delay")?;
    let delay = match has_more {
        true => Interval::parse("0s"),
        false => delay.at_least(pause),
    };
    Ok(Ran::Done(Finished { packed, delay }))
}

/// Runs the job `drp`, and notes how far its sweep came. Returns whether something is left to do.
fn retain(job: &Job, queue: &QueueName, in_parts: bool) -> Result<Ran<bool>> {
    let from = jobs::noted(job.id, Note::Swept);
    let limit = in_parts.then_some(retention::LOG_BATCH);
    let tables = retention::run(queue, limit)?;
    let history = retention::run_history(queue, from.clone(), in_parts)?;
    let history = history.map(|history| {
        if history.after != from {
            jobs::note(job.id, Note::Swept, history.after.as_deref());
        }
        history.has_more
    });
    Ok(tables.and(history).map(|(more, also)| more || also))
}

/// Returns for how long a job is claimed when nothing else is given: 5 minutes, as in fetchq 4.
pub fn default_duration() -> Interval {
    Interval::parse(DEFAULT_DELAY)
}
