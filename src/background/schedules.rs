//! Runs schedules on time in the background worker, each in a transaction of its own.
//! maintenance/schedules.rs does the work.

use crate::background::lifecycle::log_failure;
use crate::background::limits;
use crate::maintenance::{runner, schedules};
use crate::pg::{process, time};
use crate::signals::background_worker::BackgroundWorker;
use crate::store::queues::rights::Scope;
use crate::store::upkeep::schedules as store;

/// Schedules that run before the background worker looks at its other work again.
const ROUND_SCHEDULES: usize = 16;

/// When to look again after a failure outside of a schedule: microseconds.
const RETRY_AFTER_US: i64 = 1_000_000;

/// When to look again while another session has locked the schedules that are due: microseconds.
const LOCKED_RETRY_US: i64 = 100_000;

/// The table of schedules is read at least this often: microseconds. A plain SQL statement
/// may have changed it without a signal.
const MAX_PAUSE_US: i64 = 5_000_000;

/// The schedules of a database, as its background worker runs them.
pub struct Schedules<'a> {
    worker: &'a BackgroundWorker,
    /// The changes of schedules that were seen.
    seen_changes: u32,
    /// When to look at the schedules again, in microseconds since 2000.
    next: i64,
    /// When the next schedule is due, in microseconds since 2000.
    due_at: i64,
}

impl<'a> Schedules<'a> {
    /// Returns the schedules of a database. Nothing is known of them yet, so the first run reads
    /// the table.
    pub fn new(worker: &'a BackgroundWorker) -> Self {
        Self {
            worker,
            seen_changes: worker.schedule_changes(),
            next: i64::MIN,
            due_at: i64::MIN,
        }
    }

    /// Returns when the next schedule is due, in microseconds since 2000.
    pub fn due_at(&self) -> i64 {
        self.due_at
    }

    /// Returns whether schedules have changed since the last run.
    pub fn has_changes(&self) -> bool {
        self.worker.schedule_changes() != self.seen_changes
    }

    /// Runs some of the schedules that are due. Returns when the next one is due, in microseconds
    /// since 2000.
    pub fn run(&mut self) -> i64 {
        if self.has_changes() {
            self.seen_changes = self.worker.schedule_changes();
            self.next = i64::MIN;
        }
        for _ in 0..ROUND_SCHEDULES {
            if self.next > time::clock() || process::should_stop() {
                break;
            }
            process::show_activity(Some("fetchq: schedules"));
            let began = time::clock();
            let mut claimed: Option<String> = None;
            let result = limits::prompt(|| {
                let run = schedules::run_one(time::now(), &Scope::everything(), true, |schedule| {
                    claimed = Some(schedule.name.clone());
                });
                (run.is_some(), store::next_due())
            });
            let now = time::clock();
            let is_slow = now - began > limits::SLOW_RUN_US;
            self.next = match result {
                Ok((has_run, next)) => {
                    self.due_at = next.unwrap_or(i64::MAX);
                    let next = self.due_at.min(now + MAX_PAUSE_US);
                    if has_run {
                        next
                    } else {
                        next.max(now + LOCKED_RETRY_US)
                    }
                }
                Err(message) => {
                    if let Some(name) = claimed {
                        let pause = runner::pause_after(now - began);
                        // Another session may have locked the row. It is skipped until then.
                        let backed_off = limits::prompt(|| {
                            store::back_off(&name, time::now(), &message, pause);
                        });
                        if let Err(message) = backed_off {
                            log_failure(message);
                        }
                        log_failure(format!("schedule \"{name}\" failed: {message}"));
                        now
                    } else {
                        log_failure(format!("running schedules failed: {message}"));
                        now + RETRY_AFTER_US
                    }
                }
            };
            // The documents of other queues come before another slow schedule.
            if is_slow {
                break;
            }
        }
        self.next
    }
}
