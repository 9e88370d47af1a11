//! The worker of one database: a calendar of the documents, the schedules, and the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::background::calendar::Calendar;
use crate::background::jobs;
use crate::background::lifecycle::{Assignment, CHECK_INTERVAL_US, log_failure, reason_to_end};
use crate::background::notifier::Notifier;
use crate::background::schedules::Schedules;
use crate::background::sessions::Sessions;
use crate::pg::{process, session, time, transaction};
use crate::signals::board::{BackgroundWorker, End, board};

/// Before it sleeps so long, it reports all its statistics.
const LONG: i64 = 100_000;

/// The place of this process, so that its exit gives it back, whatever made it exit.
static PLACE: AtomicUsize = AtomicUsize::new(0);

pub fn main(place: &Assignment) {
    let Some(board) = board() else {
        process::end(false);
    };
    let me = board.worker(place.number);
    if !me.is_of(place.launch) {
        // The launcher that wanted it is no more.
        process::end(false);
    }
    PLACE.store(place.number, Ordering::Relaxed);
    transaction::on_exit(leave);
    me.slot.take(session::pid(), time::clock());
    if !me.is_of(place.launch) {
        // A new launcher came in between; it may have given the place away.
        leave();
        process::end(false);
    }
    process::begin(Some(me.database()), c"fetchq worker");
    let mut jobs = jobs::Jobs::default();
    let end = serve(me, place, &mut jobs);
    jobs.end();
    me.ends(end);
    process::end(false);
}

fn leave() {
    if let Some(board) = board() {
        let me = board.worker(PLACE.load(Ordering::Relaxed));
        me.slot.leave_as(session::pid());
    }
}

fn serve(me: &BackgroundWorker, place: &Assignment, jobs: &mut jobs::Jobs) -> End {
    let mut looked = i64::MIN / 2;
    let mut calendar = Calendar::new(me);
    let mut schedules = Schedules::new(me);
    let mut sessions = Sessions::default();
    let mut sender = Notifier::new(&me.announcements);
    loop {
        if process::should_stop() {
            return End::Asked;
        }
        process::reload();
        // From here on nobody has to wake this process: it reads the news below, before
        // it sleeps.
        me.sleeps_until(i64::MIN);
        if looked + CHECK_INTERVAL_US <= time::clock() {
            looked = time::clock();
            match process::transaction(reason_to_end) {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(message) => {
                    log_failure(message);
                    return End::Crash;
                }
            }
        }
        // Notifications between all that may take long.
        sender.run();
        let due = calendar.run().min(schedules.run()).min(sessions.run());
        sender.run();
        let job = jobs.run(place);
        let next = due.min(job).min(sender.run());
        process::show_activity(None);
        process::report_statistics(next > time::clock() + LONG);
        let until = next.min(looked + CHECK_INTERVAL_US);
        me.sleeps_until(until);
        let has_news = calendar.has_news() || schedules.has_news() || sender.has_news();
        if has_news || process::should_stop() {
            continue;
        }
        let micros = (until - time::clock()).max(0);
        if micros > 0 {
            process::sleep(Duration::from_micros(micros.unsigned_abs()));
        }
    }
}
