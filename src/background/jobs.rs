//! The jobs of `fetchq.jobs` that are not the calendar's, one at a time, each in a
//! transaction of its own. The pack of the counters is the worker's; for snapshots,
//! recounts and retention, which may take long, it starts a process of their own, that
//! ends when there is nothing to do: what is due must not wait for them.

use crate::background::lifecycle::{Assignment, CHECK_INTERVAL_US, log_failure, reason_to_end};
use crate::maintenance::runner;
use crate::pg::process::{self, Started};
use crate::pg::{catalog, time};
use crate::signals::board::{BackgroundWorker, board};
use crate::store::jobs as store;
use crate::store::jobs::Kind;

/// When to look again after a failure that was not a job's.
const RETRY: i64 = 1_000_000;

/// When to look again where another session has what is due.
const LOCKED: i64 = 100_000;

/// How often the plan of the jobs is read at least.
const LOOK: i64 = 5_000_000;

/// Runs one job of a kind, if there is one; says when the next is due.
fn run_one(kind: Kind) -> i64 {
    process::show_activity(Some("fetchq: jobs"));
    let next = process::transaction(|| {
        let has_run = runner::run_next(kind);
        (has_run, store::next(kind))
    });
    match next {
        Ok((has_run, next)) => {
            // Somebody may plan one earlier.
            let next = next.unwrap_or(i64::MAX).min(time::clock() + LOOK);
            // What is due and was not run is in another session's hands.
            if has_run {
                next
            } else {
                next.max(time::clock() + LOCKED)
            }
        }
        Err(message) => {
            log_failure(message);
            time::clock() + RETRY
        }
    }
}

#[derive(Default)]
pub struct Jobs {
    pack_at: i64,
    slow_at: i64,
    started: i64,
    helper: Option<Started>,
}

impl Jobs {
    /// Runs what is due; says when the next is.
    pub fn run(&mut self, place: &Assignment) -> i64 {
        if self.pack_at <= time::clock() && !process::should_stop() {
            self.pack_at = run_one(Kind::Pack);
        }
        if self.helper.as_ref().is_some_and(Started::is_gone) {
            self.helper = None;
            self.slow_at = self.started + RETRY;
        }
        if self.helper.is_none() && self.slow_at <= time::clock() && !process::should_stop() {
            self.slow_at = self.start_helper(place);
        }
        match self.helper {
            // Its end wakes this process.
            Some(_) => self.pack_at,
            None => self.pack_at.min(self.slow_at),
        }
    }

    /// Ends the other process, when this one ends.
    pub fn end(self) {
        if let Some(helper) = self.helper {
            helper.terminate();
        }
    }

    /// Says when to look again.
    fn start_helper(&mut self, place: &Assignment) -> i64 {
        let found = process::transaction(|| (store::next(Kind::Slow), catalog::database_name()));
        let now = time::clock();
        let (next, database) = match found {
            Ok((next, database)) => (next.unwrap_or(i64::MAX), database.unwrap_or_default()),
            Err(message) => {
                log_failure(message);
                return now + RETRY;
            }
        };
        if next > now {
            return next.min(now + LOOK);
        }
        self.started = now;
        self.helper = process::start_jobs(place.argument(), &database);
        match self.helper {
            Some(_) => next,
            // No room for one: then here.
            None => run_one(Kind::Slow),
        }
    }
}

/// The process for the slow jobs of a database: until there are none to do.
pub fn main(place: &Assignment) {
    let Some(board) = board() else {
        process::end(false);
    };
    let worker: &BackgroundWorker = board.worker(place.number);
    if !worker.is_of(place.launch) {
        process::end(false);
    }
    process::begin(Some(worker.database()), c"fetchq jobs");
    let mut looked = i64::MIN / 2;
    while !process::should_stop() {
        process::reload();
        if looked + CHECK_INTERVAL_US <= time::clock() {
            looked = time::clock();
            if process::transaction(reason_to_end) != Ok(None) {
                break;
            }
        }
        let next = run_one(Kind::Slow);
        process::report_statistics(false);
        if next > time::clock() {
            break;
        }
    }
    process::end(false);
}
