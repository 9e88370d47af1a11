//! The background worker of one database. It runs the calendar of the documents, the schedules,
//! the bound sessions, the notifications and the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::background::calendar::Calendar;
use crate::background::jobs::Jobs;
use crate::background::late_leases::LateLeases;
use crate::background::lifecycle::{Assignment, CHECK_INTERVAL_US, exit_reason, log_failure};
use crate::background::notifier::Notifier;
use crate::background::schedules::Schedules;
use crate::background::sessions::Sessions;
use crate::domain::status::Status;
use crate::late::memory;
use crate::pg::{process, session, time, transaction};
use crate::signals::background_worker::{ExitReason, Held};
use crate::signals::board::board;
use crate::signals::databases::Database;

/// Before it sleeps for longer than this, the process reports all its statistics: microseconds.
const LONG_SLEEP_US: i64 = 100_000;

/// The position of this process on the board. The exit callback releases the slot there, whatever
/// the cause of the exit.
static POSITION: AtomicUsize = AtomicUsize::new(0);

/// The main function of the process.
pub fn main(assignment: &Assignment) {
    let Some(board) = board() else {
        process::end(false);
    };
    POSITION.store(assignment.position, Ordering::Relaxed);
    transaction::on_exit(release_slot);
    let worker = board.background_worker(assignment.position);
    let Some(held) = worker.hold(assignment.generation, session::pid()) else {
        // The launcher that started this process has exited, and another one has freed the entry.
        process::end(false);
    };
    held.serve(session::pid(), time::clock());
    // Sessions signal to this process from here on, and everything is examined below.
    let entry = board.databases.find(worker.database());
    if let Some(entry) = entry {
        entry.begin_visit();
    }
    process::begin(Some(worker.database()), c"fetchq background worker");
    let mut services = Services::new(held, entry);
    if memory::exists() {
        process::expect_last_work();
    }
    let reason = services.run();
    if reason == ExitReason::Replaced {
        services.leave();
    } else {
        services.jobs.terminate();
        held.stop_serving();
        match reason {
            ExitReason::NoExtension => memory::forget_all(session::database()),
            _ => {
                services.late_leases.flush();
            }
        }
    }
    held.set_exit_reason(reason);
    process::end(false);
}

fn release_slot() {
    if let Some(board) = board() {
        let worker = board.background_worker(POSITION.load(Ordering::Relaxed));
        worker.let_go(session::pid());
    }
}

/// What the process does in its database.
struct Services<'a> {
    held: Held<'a>,
    /// What the board says about the database; None when there are too many databases.
    entry: Option<&'a Database>,
    calendar: Calendar<'a>,
    schedules: Schedules<'a>,
    sessions: Sessions,
    late_leases: LateLeases<'a>,
    notifier: Notifier<'a>,
    jobs: Jobs,
}

impl<'a> Services<'a> {
    fn new(held: Held<'a>, entry: Option<&'a Database>) -> Self {
        let worker = held.worker();
        let swept_at = entry.map_or(i64::MIN, Database::swept_at);
        // Where nobody has recorded what was not announced, clients look at all queues.
        let unannounced = entry.map_or(Status::Pending.bit(), Database::take_unannounced);
        let mut calendar = Calendar::new(worker, swept_at);
        calendar.begin_sweep_at(entry.map_or(0, Database::sweep_from));
        Self {
            held,
            entry,
            calendar,
            schedules: Schedules::new(worker),
            sessions: Sessions::default(),
            late_leases: LateLeases::new(worker),
            notifier: Notifier::new(&worker.announcements, unannounced),
            jobs: Jobs::default(),
        }
    }

    /// Returns whether there are signals that the last round did not see.
    fn has_changes(&self) -> bool {
        self.calendar.has_changes()
            || self.schedules.has_changes()
            || self.notifier.has_changes()
            || self.late_leases.has_changes()
    }

    /// Returns when the database needs a background worker, if this one leaves it: microseconds
    /// since 2000.
    fn needed_at(&self) -> i64 {
        self.calendar
            .due_at()
            .min(self.schedules.due_at())
            .min(self.sessions.due_at())
            .min(self.held.worker().bound_leases_at())
            .min(self.jobs.due_at())
    }

    /// Works until the process has to exit. Returns why.
    fn run(&mut self) -> ExitReason {
        let mut checked_at = i64::MIN / 2;
        loop {
            if process::should_stop() {
                return ExitReason::Terminated;
            }
            process::reload();
            // No process has to wake this one from here on, because it reads all changes below
            // before it sleeps.
            self.held.set_wake_time(i64::MIN);
            if checked_at + CHECK_INTERVAL_US <= time::clock() {
                checked_at = time::clock();
                match exit_reason() {
                    Ok(None) => {}
                    Ok(Some(reason)) => return reason,
                    Err(_) if process::should_stop() => return ExitReason::Terminated,
                    Err(message) => {
                        log_failure(message);
                        return ExitReason::Crash;
                    }
                }
            }
            // Notifications are sent between all steps that may take long.
            self.notifier.run();
            // Leases that last as long as their sessions are extended before those that have
            // expired are taken back.
            let due = self
                .late_leases
                .run()
                .min(self.sessions.run())
                .min(self.calendar.run())
                .min(self.schedules.run());
            if process::should_stop() {
                continue;
            }
            self.notifier.run();
            let job_due = self.jobs.run();
            let next = due.min(job_due).min(self.notifier.run());
            if let Some(entry) = self.entry {
                entry.set_swept_at(self.calendar.swept_at());
            }
            process::show_activity(None);
            process::report_statistics(next > time::clock() + LONG_SLEEP_US);
            if self.held.worker().is_asked_to_leave() && !process::should_stop() {
                return ExitReason::Replaced;
            }
            let until = next.min(checked_at + CHECK_INTERVAL_US);
            let needed_at = self.needed_at().min(self.late_leases.due_at());
            self.held.set_needed_at(needed_at.max(i64::MIN + 1));
            self.held.set_wake_time(until);
            if self.has_changes() || process::should_stop() {
                continue;
            }
            // A queue that is due since forever can be left for the next round.
            let micros = until.saturating_sub(time::clock()).max(0);
            if micros > 0 {
                process::sleep(Duration::from_micros(micros.unsigned_abs()));
            }
        }
    }

    /// Leaves the database to a later background worker. Its jobs process goes on.
    fn leave(&mut self) {
        let needed_at = self.needed_at();
        if let Some(entry) = self.entry {
            entry.set_sweep_from(self.calendar.next_of_sweep().unwrap_or(0));
        }
        // From here on sessions request a new background worker. One that has found this process
        // before is found below, or finds that it has left.
        self.held.stop_serving();
        let has_leases = self.late_leases.flush();
        self.notifier.flush();
        let needed_at = match has_leases || self.has_changes() {
            true => time::clock(),
            false => needed_at.min(self.held.worker().bound_leases_at()),
        };
        self.held.set_needed_at(needed_at);
    }
}
