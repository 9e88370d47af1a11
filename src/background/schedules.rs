//! Schedules: pushes what is due, each schedule in a transaction of its own.

use crate::background::lifecycle::log_failure;
use crate::maintenance::runner::RunAs;
use crate::maintenance::schedules;
use crate::pg::planner::with_plain_search_path;
use crate::pg::{process, time};
use crate::signals::board::BackgroundWorker;
use crate::store::schedules as store;

/// How many run before the others have their turn again.
const TURN: usize = 16;

/// When to look again after a failure that was not a schedule's, and when all that is
/// due is locked by another session.
const RETRY: i64 = 1_000_000;

const LOCKED: i64 = 100_000;

/// How often the table is read at least: it may be written by plain SQL, or by a
/// transaction that was prepared, which tells nobody.
const LOOK: i64 = 5_000_000;

pub struct Schedules<'a> {
    me: &'a BackgroundWorker,
    /// Which changes were seen.
    seen: u32,
    next: i64,
}

impl<'a> Schedules<'a> {
    pub fn new(me: &'a BackgroundWorker) -> Self {
        Self {
            me,
            seen: me.schedule_changes(),
            next: i64::MIN,
        }
    }

    pub fn has_news(&self) -> bool {
        self.me.schedule_changes() != self.seen
    }

    /// Pushes some of what is due; says when the next is.
    pub fn run(&mut self) -> i64 {
        if self.has_news() {
            self.seen = self.me.schedule_changes();
            self.next = i64::MIN;
        }
        for _ in 0..TURN {
            if self.next > time::clock() || process::should_stop() {
                break;
            }
            process::show_activity(Some("fetchq: schedules"));
            let done = process::transaction(|| {
                // The worker is a superuser: nobody's operators in its statements.
                with_plain_search_path(|| {
                    let run = schedules::run_one(time::now(), RunAs::Owner);
                    (run.is_some(), store::next_due())
                })
            });
            let now = time::clock();
            self.next = match done {
                Ok((has_run, next)) => {
                    let next = next.unwrap_or(i64::MAX).min(now + LOOK);
                    if has_run {
                        next
                    } else {
                        next.max(now + LOCKED)
                    }
                }
                Err(message) => {
                    log_failure(format!("schedules: {message}"));
                    now + RETRY
                }
            };
        }
        self.next
    }
}
