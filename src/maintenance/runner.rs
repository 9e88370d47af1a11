//! Runs the jobs of `fetchq.jobs` that are due. Each runs in a subtransaction, so
//! that one that fails is told, backs off, and leaves the others alone.

use std::cell::RefCell;
use std::collections::HashMap;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use crate::domain::invalid::Invalid;
use crate::domain::jobs::{DEFAULT_DELAY, Settings, Task};
use crate::domain::names::QueueName;
use crate::error::{self, Error, Result, raise};
use crate::maintenance::{documents, pack, recount, retention, snapshot};
use crate::pg::process::as_role;
use crate::pg::time::{self, Interval};
use crate::pg::{relation, subtransaction};
use crate::signals::progress;
use crate::store::jobs::{self, Job, Kind, Maintenance};
use crate::store::metrics::SnapshotOf;
use crate::store::open_queue::Queue;
use crate::store::{maintenance, worker_sessions};

/// What a run of several jobs did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub processed: i32,
    pub failed: i32,
    /// Rows that a pack among them packed.
    pub packed: i32,
}

/// Claims up to `limit` due jobs for `duration` and runs them.
pub fn run(duration: Interval, limit: i32) -> Outcome {
    let mut outcome = Outcome::default();
    let mut packs = false;
    for job in jobs::claim_all(duration, limit) {
        packs |= Task::parse(&job.task) == Some(Task::Pack);
        let result = subtransaction::attempt(|| raise(run_one(&job, RunAs::Caller)));
        match finish(&job, result) {
            Some(packed) => {
                outcome.processed += 1;
                outcome.packed = outcome.packed.saturating_add(packed);
            }
            None => outcome.failed += 1,
        }
    }
    if packs {
        pack::tidy();
    }
    outcome
}

/// Whose rights a job runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    Caller,
    /// The role that owns the documents: the worker is a superuser, and there may be
    /// triggers of the owner's.
    Owner,
}

impl RunAs {
    pub fn run<R>(self, queue: &QueueName, work: impl FnOnce() -> R) -> R {
        let table = relation::lookup_data_table(&queue.relation("docs"));
        match table {
            Some(table) if self == Self::Owner => match relation::owner_of_table(table) {
                Some(owner) => as_role(owner, work),
                None => work(),
            },
            _ => work(),
        }
    }
}

/// Plans the next attempt of a job that failed.
fn finish(job: &Job, result: std::result::Result<i32, String>) -> Option<i32> {
    let message = match result {
        Ok(packed) => return Some(packed),
        Err(message) => message,
    };
    jobs::back_off(job.id, delay_of(job));
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

/// Claims and runs one due job of a kind; false when there was none. For the worker:
/// what belongs to a queue runs as the role that owns it.
pub fn run_next(kind: Kind) -> bool {
    let Some(job) = jobs::claim_one(kind, default_duration()) else {
        return false;
    };
    finish(
        &job,
        subtransaction::attempt(|| raise(run_one(&job, RunAs::Owner))),
    );
    if Task::parse(&job.task) == Some(Task::Pack) {
        pack::tidy();
    }
    true
}

/// What one run of the maintenance of a queue's documents did.
pub struct OnTime {
    pub moved: i32,
    /// When the next document is due, as far as is known.
    pub next: i64,
}

/// The maintenance of a queue's documents whenever something is due, with the limit of
/// its job, unless the job is put off. None: there is no such queue.
pub fn run_document_maintenance(name: &QueueName, write_down: bool) -> Option<OnTime> {
    let now = time::now();
    let Some(Maintenance {
        job,
        not_before,
        failures,
    }) = jobs::maintenance_of(name.as_str())
    else {
        // Somebody does not want it.
        return Some(OnTime {
            moved: 0,
            next: now.saturating_add(WITHOUT_JOB),
        });
    };
    let settings = raise(settings_of(&job));
    let delay = raise(Interval::parse(&settings.delay).as_duration("delay"));
    // (after failures the delay is not the job's own)
    let is_put_off = not_before > delay.after(now) || failures > 0 && not_before > now;
    if is_put_off {
        return Some(OnTime {
            moved: 0,
            next: not_before,
        });
    }
    // Who runs the job now writes it down himself.
    let writes_down = (write_down || failures > 0) && jobs::try_lock(job.id);
    let queue = match Queue::try_open(name) {
        Ok(Some(queue)) => queue,
        // Locked by DDL: again soon.
        Ok(None) => {
            return Some(OnTime {
                moved: 0,
                next: now,
            });
        }
        Err(Error::UnknownQueue(_)) => return None,
        Err(e) => raise(Err(e)),
    };
    let limit = settings.limit.max(0);
    let running = progress::begin(Task::Maintain, queue.table.to_u32());
    let buries = buries(queue.table, now);
    let outcome = raise(RunAs::Owner.run(name, || documents::run_open(&queue, limit, buries)));
    if buries {
        note_burial(queue.table, now, outcome.is_stuck);
    }
    let moved = outcome.activated + outcome.rescheduled + outcome.killed;
    drop(running);
    if writes_down && (moved > 0 || failures > 0) {
        jobs::reschedule(job.id, delay);
    }
    // What this transaction has moved is in the way of finding the next one.
    let next = match moved {
        0 => maintenance::next_due(&queue).unwrap_or_else(|| delay.after(now)),
        _ => now,
    };
    Some(OnTime { moved, next })
}

/// A queue whose dead documents can not be removed: how often that failed, and until when
/// it is not tried again.
struct Stuck {
    times: u32,
    until: i64,
}

thread_local! {
    // RunAs the tables of the queues.
    static STUCK: RefCell<HashMap<Oid, Stuck>> = RefCell::default();
}

/// What failed is tried again after a second, then after twice as long each time, up to
/// a minute: microseconds. All else of the queue goes on.
const FIRST_BURIAL: i64 = 1_000_000;

const LAST_BURIAL: i64 = 60_000_000;

fn buries(table: Oid, now: i64) -> bool {
    STUCK.with_borrow(|stuck| stuck.get(&table).is_none_or(|stuck| stuck.until <= now))
}

fn note_burial(table: Oid, now: i64, is_stuck: bool) {
    STUCK.with_borrow_mut(|all| {
        if !is_stuck {
            all.remove(&table);
            return;
        }
        let stuck = all.entry(table).or_insert(Stuck { times: 0, until: 0 });
        stuck.until = now.saturating_add((FIRST_BURIAL << stuck.times.min(10)).min(LAST_BURIAL));
        stuck.times = stuck.times.saturating_add(1);
    });
}

/// How long a queue without its job is left alone: microseconds.
const WITHOUT_JOB: i64 = 60_000_000;

/// The delay of a job that failed, perhaps because of its settings.
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

/// Puts the maintenance of a queue off after a failure; says until when.
pub fn back_off_maintenance(name: &QueueName) -> Option<i64> {
    let job = jobs::maintenance_of(name.as_str())?.job;
    if jobs::try_lock(job.id) {
        jobs::count_failure(job.id);
        jobs::back_off(job.id, delay_of(&job));
    }
    jobs::maintenance_of(name.as_str()).map(|after| after.not_before)
}

/// Runs a job; says how many rows it packed.
fn run_one(job: &Job, by: RunAs) -> Result<i32> {
    let settings = settings_of(job)?;
    if let Some(duration) = &settings.duration {
        jobs::extend(job.id, Interval::parse(duration).as_duration("duration")?);
    }
    let task = Task::parse(&job.task).ok_or_else(|| Error::UnknownTask {
        task: job.task.clone(),
        queue: job.queue.clone(),
    })?;
    let table = match task {
        Task::Pack => None,
        _ => relation::lookup_data_table(&QueueName::parse(&job.queue)?.relation("docs")),
    };
    let _running = progress::begin(task, table.map_or(0, |table| table.to_u32()));
    let mut packed = 0;
    let mut has_more = false;
    if task == Task::Pack {
        packed = pack::run();
    } else {
        let queue = QueueName::parse(&job.queue)?;
        let from = match task {
            Task::Retain => jobs::swept(job.id),
            _ => None,
        };
        let mut swept = None;
        by.run(&queue, || match task {
            Task::Pack => Ok(()),
            Task::Maintain => documents::run(&queue, settings.limit.max(0)).map(|_| ()),
            Task::Snapshot => snapshot::run(&queue, SnapshotOf::All).map(|_| ()),
            Task::Recount => recount::run(&queue).map(|_| ()),
            Task::Retain => {
                // The worker commits, and goes on with the rest when it is its turn.
                let limit = (by == RunAs::Owner).then_some(retention::BATCH);
                has_more = retention::run(&queue, limit)?;
                let history = retention::history(&queue, from.clone(), limit.is_some())?;
                has_more |= history.has_more;
                swept = history.after;
                Ok(())
            }
        })?;
        if swept != from {
            jobs::set_swept(job.id, swept.as_deref());
        }
    }
    if task == Task::Recount
        && let Some(queue) = Queue::try_open(&QueueName::parse(&job.queue)?)?
    {
        worker_sessions::delete_stale(&queue);
    }
    let delay = Interval::parse(&settings.delay).as_duration("delay")?;
    let delay = if has_more {
        Interval::parse("0s")
    } else {
        delay
    };
    jobs::reschedule(job.id, delay);
    Ok(packed)
}

/// The default time a claim lasts (fetchq 4).
pub fn default_duration() -> Interval {
    Interval::parse(DEFAULT_DELAY)
}
