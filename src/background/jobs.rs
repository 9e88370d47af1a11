//! The jobs of `fetchq.jobs`, except the maintenance of documents, which is the calendar's. They
//! run one at a time, each in a transaction of its own.
//!
//! The background worker packs the counters itself. Snapshots, recounts and retention may take
//! long, and documents that are due must not wait for them. Therefore the background worker
//! starts a jobs process for them, which exits when nothing is left to do.

use crate::background::lifecycle::{CHECK_INTERVAL_US, exit_reason, log_failure};
use crate::background::limits;
use crate::maintenance::runner;
use crate::maintenance::snapshot::Shared;
use crate::pg::process::{self, Started};
use crate::pg::{catalog, session, time, transaction};
use crate::settings::max_jobs_processes;
use crate::signals::board::board;
use crate::signals::databases::Database;
use crate::store::upkeep::jobs as store;
use crate::store::upkeep::jobs::{Job, Kind};

/// When to look again after a failure outside of a job: microseconds.
const RETRY_AFTER_US: i64 = 1_000_000;

/// When to look again while another session has locked the jobs that are due: microseconds.
const LOCKED_RETRY_US: i64 = 100_000;

/// How long a slow job waits while as many jobs processes run as may: microseconds. After that the
/// background worker runs it itself.
const JOBS_PROCESS_WAIT_US: i64 = 10_000_000;

/// When to look whether the jobs process of a database still runs: microseconds.
const RUNNING_LOOK_US: i64 = 2_000_000;

/// The table of jobs is read at least this often, because a session may have changed it:
/// microseconds.
const MAX_PAUSE_US: i64 = 5_000_000;

/// Returns when to look at the jobs of a kind again: `next` is when one is due, if one is known. All
/// times are in microseconds since 2000.
fn look_at(has_run: bool, next: Option<i64>) -> i64 {
    let next = next.unwrap_or(i64::MAX).min(time::clock() + MAX_PAUSE_US);
    // A job that is due and did not run is locked by another session.
    match has_run {
        true => next,
        false => next.max(time::clock() + LOCKED_RETRY_US),
    }
}

/// How the slow jobs run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// One of them, in the process on which documents wait: its time is bounded as theirs is.
    One,
    /// All that are due, until it is time to look whether the process has to exit.
    All,
}

/// Runs slow jobs, if some are due. Returns when the next one is due, in microseconds since 2000.
fn try_slow(pace: Pace) -> i64 {
    process::show_activity(Some("fetchq: jobs"));
    match run_slow(pace) {
        Ok((has_run, next)) => look_at(has_run, next),
        Err(message) => {
            log_failure(message);
            time::clock() + RETRY_AFTER_US
        }
    }
}

/// Packs the counters, if that is due. Documents wait for it, so its time is bounded as theirs is,
/// unless the last attempt has failed: the log may have become long, and a pack of it has to succeed
/// some time. Returns whether it has failed, and when it is due next, in microseconds since 2000.
fn pack(has_failed: bool) -> (bool, i64) {
    process::show_activity(Some("fetchq: jobs"));
    let entry = board().and_then(|board| board.databases.find(session::database()));
    let had_events = entry.is_some_and(Database::has_events);
    if let Some(entry) = entry {
        // Events that are recorded from here on are packed now or noticed later.
        entry.set_events(false);
    }
    let run = || {
        let job = runner::claim(Kind::Pack);
        if let Some(job) = &job {
            runner::run_claimed(job, &mut Shared::default(), Vec::new);
        }
        (job.is_some(), store::next(Kind::Pack))
    };
    let began = time::clock();
    let result = match has_failed {
        true => limits::slow(run),
        false => limits::prompt(run),
    };
    let has_run = matches!(result, Ok((true, _)));
    if had_events
        && !has_run
        && let Some(entry) = entry
    {
        entry.set_events(true);
    }
    match result {
        Ok((has_run, next)) => (false, look_at(has_run, next)),
        Err(message) => {
            log_failure(message);
            let now = time::clock();
            let pause = runner::pause_after(now - began).max(RETRY_AFTER_US);
            (true, now.saturating_add(pause))
        }
    }
}

/// Runs slow jobs, each in a transaction, which also claims the next one. Returns whether one was due, and
/// when the next one is, in microseconds since 2000.
fn run_slow(pace: Pace) -> Result<(bool, Option<i64>), String> {
    let until = time::clock() + CHECK_INTERVAL_US;
    let goes_on = || pace == Pace::All && time::clock() < until && !process::should_stop();
    let mut claimed = process::transaction(|| runner::claim(Kind::Slow))?;
    let has_run = claimed.is_some();
    let mut shared = Shared::default();
    let others = match pace {
        Pace::One => Vec::new,
        Pace::All => runner::next_snapshots,
    };
    while let Some(job) = claimed {
        let run = || {
            runner::run_claimed(&job, &mut shared, others);
            goes_on().then(|| runner::claim_next(Kind::Slow)).flatten()
        };
        let began = time::clock();
        let result = match pace {
            Pace::One => limits::prompt(run),
            Pace::All => limits::slow(run),
        };
        claimed = result.unwrap_or_else(|message| {
            back_off(&job, time::clock() - began, &message);
            None
        });
    }
    process::transaction(|| (has_run, store::next(Kind::Slow)))
}

/// Plans the next attempt of a job whose transaction was rolled back after `took` microseconds.
fn back_off(job: &Job, took: i64, message: &str) {
    // Another session may have locked the row of the job. Its claim lasts until then.
    if let Err(other) = limits::prompt(|| runner::back_off(job, true, took, message)) {
        log_failure(other);
    }
    log_failure(format!(
        "maintenance job {} ({} of queue \"{}\") failed: {message}",
        job.id, job.task, job.queue
    ));
}

/// The jobs of a database, as its background worker runs them. Times are in microseconds since
/// 2000.
#[derive(Default)]
pub struct Jobs {
    pack_at: i64,
    /// The last pack has failed, or took too long.
    pack_has_failed: bool,
    slow_at: i64,
    /// When the next slow job is due.
    slow_due_at: i64,
    /// When the jobs process was started.
    started_at: i64,
    jobs_process: Option<Started>,
}

impl Jobs {
    /// Packs the counters and starts the jobs process, when they are due. Returns when to call it
    /// again, in microseconds since 2000.
    pub fn run(&mut self) -> i64 {
        if self.pack_at <= time::clock() && !process::should_stop() {
            (self.pack_has_failed, self.pack_at) = pack(self.pack_has_failed);
        }
        if self.jobs_process.as_ref().is_some_and(Started::is_gone) {
            self.jobs_process = None;
            self.slow_at = self.started_at + RETRY_AFTER_US;
        }
        let is_idle = self.jobs_process.is_none();
        if is_idle && self.slow_at <= time::clock() && !process::should_stop() {
            self.slow_at = self.start_jobs_process();
        }
        match self.jobs_process {
            // The exit of the jobs process wakes this one.
            Some(_) => self.pack_at,
            None => self.pack_at.min(self.slow_at),
        }
    }

    /// Returns when a background worker has to look at the jobs, if none serves the database
    /// meanwhile: microseconds since 2000. The counters are packed when there is something to pack.
    pub fn due_at(&self) -> i64 {
        match self.jobs_process {
            // A session may need the database, and a background worker then ends the process.
            Some(_) => time::clock() + RUNNING_LOOK_US,
            None => self
                .slow_due_at
                .max(self.slow_at.min(time::clock() + RUNNING_LOOK_US)),
        }
    }

    /// Terminates the jobs process, because this process exits. It may have been started by another
    /// background worker, which has left the database meanwhile.
    pub fn terminate(self) {
        if let Some(jobs_process) = self.jobs_process {
            jobs_process.terminate();
        } else if let Some(pid) = board().and_then(|b| b.jobs_processes.of(session::database())) {
            process::terminate(pid);
        }
    }

    /// Starts the jobs process if a slow job is due. Returns when to look again, in microseconds
    /// since 2000.
    fn start_jobs_process(&mut self) -> i64 {
        let found = process::transaction(|| (store::next(Kind::Slow), catalog::database_name()));
        let now = time::clock();
        let (next, database) = match found {
            Ok((next, database)) => (next.unwrap_or(i64::MAX), database.unwrap_or_default()),
            Err(message) => {
                log_failure(message);
                return now + RETRY_AFTER_US;
            }
        };
        self.slow_due_at = next;
        if next > now {
            return next.min(now + MAX_PAUSE_US);
        }
        if let Some(board) = board() {
            let is_running = board.jobs_processes.of(session::database()).is_some();
            let has_room = board.jobs_processes.has_room(max_jobs_processes());
            if is_running || !has_room && next + JOBS_PROCESS_WAIT_US > now {
                self.slow_due_at = now + RUNNING_LOOK_US;
                return now + RETRY_AFTER_US;
            }
            if !has_room {
                return try_slow(Pace::One);
            }
        }
        self.started_at = now;
        self.jobs_process = process::start_jobs(session::database() as usize, &database);
        match self.jobs_process {
            Some(_) => next,
            // max_worker_processes are running, so this process does the work itself.
            None => try_slow(Pace::One),
        }
    }
}

/// The main function of the jobs process. It runs the slow jobs of a database, which is given by its
/// OID, until none is due.
pub fn main(database: u32) {
    let has_slot = board().is_some_and(|board| {
        board
            .jobs_processes
            .claim(session::pid(), database, max_jobs_processes())
    });
    if !has_slot {
        process::end(false);
    }
    transaction::on_exit(release_slot);
    process::begin(Some(database), c"fetchq jobs");
    while !process::should_stop() {
        process::reload();
        if exit_reason() != Ok(None) {
            break;
        }
        let next = try_slow(Pace::All);
        process::report_statistics(false);
        if next > time::clock() {
            break;
        }
    }
    process::end(false);
}

fn release_slot() {
    if let Some(board) = board() {
        board.jobs_processes.release(session::pid());
    }
}
