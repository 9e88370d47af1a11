//! Runs the jobs of `fetchq.jobs` that are due. Each runs in a subtransaction, so
//! that one that fails is told, backs off, and leaves the others alone.

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;

use crate::domain::Invalid;
use crate::domain::jobs::{DEFAULT_DELAY, Settings, Task};
use crate::domain::names::QueueName;
use crate::error::{self, Error, Result};
use crate::pg::subtransaction;
use crate::pg::time::Interval;
use crate::store::jobs::{self, Job};
use crate::store::series::Which;

use super::{documents, pack, recount, retention, snapshot};

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
        // An ERROR of the server and an Error of ours end the same way: as a panic
        // that undoes this job only.
        let result = subtransaction::attempt(|| {
            run_one(&job).unwrap_or_else(|e| {
                ErrorReport::from(e).report(pgrx::PgLogLevel::ERROR);
                unreachable!("an ERROR does not return")
            })
        });
        match result {
            Ok(packed) => {
                outcome.processed += 1;
                outcome.packed = outcome.packed.saturating_add(packed);
            }
            Err(message) => {
                outcome.failed += 1;
                jobs::back_off(job.id, delay_of(&job));
                error::warn(
                    PgSqlErrorCode::ERRCODE_WARNING,
                    format!(
                        "maintenance job {} ({} of queue \"{}\") failed: {message}",
                        job.id, job.task, job.queue
                    ),
                    "It is tried again, later after each failure; see fetchq.jobs.",
                );
            }
        }
    }
    if packs {
        pack::tidy();
    }
    outcome
}

/// The delay of a job that failed, perhaps because of its settings.
fn delay_of(job: &Job) -> Interval {
    let text = Settings::parse(job.settings.as_deref())
        .map_or_else(|_| DEFAULT_DELAY.to_owned(), |settings| settings.delay);
    subtransaction::attempt(|| Interval::parse(&text).as_duration("delay").ok())
        .ok()
        .flatten()
        .unwrap_or_else(default_duration)
}

/// Runs a job; says how many rows it packed.
fn run_one(job: &Job) -> Result<i32> {
    let settings = Settings::parse(job.settings.as_deref()).map_err(|reason| {
        Error::from(Invalid::JobSettings {
            id: job.id,
            task: job.task.clone(),
            queue: job.queue.clone(),
            reason,
        })
    })?;
    if let Some(duration) = &settings.duration {
        jobs::extend(job.id, Interval::parse(duration).as_duration("duration")?);
    }
    let task = Task::parse(&job.task).ok_or_else(|| Error::UnknownTask {
        task: job.task.clone(),
        queue: job.queue.clone(),
    })?;
    let mut packed = 0;
    match task {
        Task::Pack => packed = pack::run(),
        Task::Maintain => {
            documents::run(&QueueName::parse(&job.queue)?, settings.limit.max(0))?;
        }
        Task::Snapshot => {
            snapshot::run(&QueueName::parse(&job.queue)?, Which::All)?;
        }
        Task::Recount => {
            recount::run(&QueueName::parse(&job.queue)?)?;
        }
        Task::Retain => retention::run(&QueueName::parse(&job.queue)?)?,
    }
    let delay = Interval::parse(&settings.delay).as_duration("delay")?;
    jobs::reschedule(job.id, delay);
    Ok(packed)
}

/// The default time a claim lasts (fetchq 4).
pub fn default_duration() -> Interval {
    Interval::parse(DEFAULT_DELAY)
}
