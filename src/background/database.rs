//! The background worker of one database. It runs the calendar of the documents, the schedules,
//! the bound sessions, the notifications and the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::background::calendar::Calendar;
use crate::background::jobs::Jobs;
use crate::background::lifecycle::{Assignment, CHECK_INTERVAL_US, exit_reason, log_failure};
use crate::background::limits;
use crate::background::notifier::Notifier;
use crate::background::schedules::Schedules;
use crate::background::sessions::Sessions;
use crate::pg::{process, session, time, transaction};
use crate::signals::board::{BackgroundWorker, ExitReason, board};
use crate::signals::watchdog;

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
    let worker = board.background_worker(assignment.position);
    if !worker.is_assigned_by(assignment.launcher_number) {
        // The launcher that started this process has exited.
        process::end(false);
    }
    POSITION.store(assignment.position, Ordering::Relaxed);
    transaction::on_exit(release_slot);
    worker.slot.occupy(session::pid(), time::clock());
    if !worker.is_assigned_by(assignment.launcher_number) {
        // A new launcher has started meanwhile. It may have assigned the entry to another
        // database.
        release_slot();
        process::end(false);
    }
    process::begin(Some(worker.database()), c"fetchq background worker");
    limits::begin();
    let mut jobs = Jobs::default();
    let reason = run(worker, assignment, &mut jobs);
    jobs.terminate();
    watchdog::leave();
    worker.set_exit_reason(reason);
    process::end(false);
}

fn release_slot() {
    if let Some(board) = board() {
        let worker = board.background_worker(POSITION.load(Ordering::Relaxed));
        worker.slot.release_if_occupied_by(session::pid());
    }
}

fn run(worker: &BackgroundWorker, assignment: &Assignment, jobs: &mut Jobs) -> ExitReason {
    let mut checked_at = i64::MIN / 2;
    let mut calendar = Calendar::new(worker);
    let mut schedules = Schedules::new(worker);
    let mut sessions = Sessions::default();
    let mut notifier = Notifier::new(&worker.announcements);
    loop {
        if process::should_stop() {
            return ExitReason::Terminated;
        }
        process::reload();
        // No process has to wake this one from here on, because it reads all changes below before
        // it sleeps.
        worker.set_wake_time(i64::MIN);
        if checked_at + CHECK_INTERVAL_US <= time::clock() {
            checked_at = time::clock();
            match process::transaction(exit_reason) {
                Ok(None) => {}
                Ok(Some(reason)) => return reason,
                Err(message) => {
                    log_failure(message);
                    return ExitReason::Crash;
                }
            }
        }
        // Notifications are sent between all steps that may take long.
        notifier.run();
        let due = calendar.run().min(schedules.run()).min(sessions.run());
        notifier.run();
        let job_due = jobs.run(assignment);
        let next = due.min(job_due).min(notifier.run());
        process::show_activity(None);
        process::report_statistics(next > time::clock() + LONG_SLEEP_US);
        let until = next.min(checked_at + CHECK_INTERVAL_US);
        worker.set_wake_time(until);
        let has_changes =
            calendar.has_changes() || schedules.has_changes() || notifier.has_changes();
        if has_changes || process::should_stop() {
            continue;
        }
        // A queue that is due since forever can be left for the next round.
        let micros = until.saturating_sub(time::clock()).max(0);
        if micros > 0 {
            process::sleep(Duration::from_micros(micros.unsigned_abs()));
        }
    }
}
