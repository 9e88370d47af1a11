//! The launcher. It starts the background workers of the databases that have the extension. When
//! there are more databases than background workers may run, the databases take turns.

use std::collections::HashMap;
use std::time::Duration;

use crate::background::lifecycle::{Assignment, is_enabled_for};
use crate::background::pool::{NEW, Resident, choose_leaving};
use crate::background::served_database::{Database, make_room};
use crate::domain::status::Status;
use crate::late::memory;
use crate::pg::process;
use crate::pg::{catalog, session, time, transaction};
use crate::signals::background_worker::ExitReason;
use crate::signals::board::{Board, board};
use crate::signals::databases::{self, DATABASES};
use crate::{error, settings};

/// How often the list of databases is read: microseconds. A database that was copied from a
/// template has the extension without a signal.
const LIST_INTERVAL_US: i64 = 1_000_000;

/// The shortest time between two rounds: microseconds.
const MIN_PAUSE_US: i64 = 1_000;

/// When to look again whether the background workers of an earlier launcher have exited:
/// microseconds.
const ORPHAN_RETRY_US: i64 = 20_000;

/// When a background worker is started again that exited because a command needed its database:
/// microseconds.
const DATABASE_NEEDED_RETRY_US: i64 = 2_000_000;

/// When to try again to start a background worker while max_worker_processes are running:
/// microseconds.
const FULL_RETRY_US: i64 = 500_000;

/// How long no background worker could be started before the log says so: microseconds. The server
/// frees the slot of a process somewhat after the process has ended, so a slot that is missing for
/// a moment is no reason to change a setting.
const FULL_LOG_AFTER_US: i64 = 2_000_000;

/// How often the log says so at most: microseconds.
const FULL_LOG_INTERVAL_US: i64 = 60_000_000;

/// When a background worker is started again that crashed, and when one is that was terminated:
/// microseconds. The time doubles with each crash.
const MIN_RETRY_US: i64 = 1_000_000;

/// The longest time after which a background worker that crashed is started again: microseconds.
const MAX_RETRY_US: i64 = 60_000_000;

/// When to look again at a database whose extension has another version than the library:
/// microseconds.
const UNFIT_RETRY_US: i64 = 300_000_000;

/// The crashes of a background worker are forgotten when it has run for this time: microseconds.
const STABLE_AFTER_US: i64 = 60_000_000;

/// What became of the start of a background worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Started,
    /// A command needs the database without other sessions.
    Postponed,
    /// max_worker_processes are running.
    Full,
}

struct Launcher<'a> {
    board: &'a Board,
    number: u32,
    databases: HashMap<u32, Database>,
    /// When the list of databases is read next.
    list_at: i64,
    /// The generation of the board when the list was read.
    generation: u32,
    /// Since when no background worker could be started, because max_worker_processes are running.
    full_since: Option<i64>,
    /// When the log said so.
    full_logged_at: i64,
    /// There are more databases than entries on the board.
    is_board_full: bool,
}

/// The main function of the process.
pub fn main() {
    process::begin(None, c"fetchq launcher");
    let Some(board) = board() else {
        process::end(false);
    };
    transaction::on_exit(release_slot);
    board.launcher.occupy(session::pid(), time::clock());
    let mut launcher = Launcher {
        board,
        number: board.next_launcher_number(),
        databases: HashMap::new(),
        list_at: i64::MIN,
        generation: board.generation(),
        full_since: None,
        full_logged_at: i64::MIN,
        is_board_full: false,
    };
    let mut seen = time::clock();
    while !process::should_stop() {
        if clock_was_set_back(&mut seen) {
            error::log(
                "fetchq launcher: the clock was set back, so all background workers start anew"
                    .to_owned(),
            );
            break;
        }
        if process::reload() {
            launcher.list_at = i64::MIN;
        }
        // Nobody has to wake this process from here on, because it counts the requests below.
        board.set_launcher_wake_time(i64::MIN);
        let requests = board.requests();
        let next = launcher.round();
        board.set_launcher_wake_time(next);
        if process::should_stop() {
            break;
        }
        let pause = match board.requests() == requests {
            true => next.saturating_sub(time::clock()),
            false => MIN_PAUSE_US,
        };
        let micros = pause.clamp(MIN_PAUSE_US, LIST_INTERVAL_US);
        process::sleep(Duration::from_micros(micros.unsigned_abs()));
    }
    // The postmaster starts the launcher again after a second, unless it shuts down itself.
    process::end(true);
}

/// How far the clock must be set back for all processes to start anew: microseconds. They remember
/// many times, and would wait until the clock has caught up; the next launcher ends those of this one.
/// A clock that is adjusted in smaller steps delays nothing for long.
const CLOCK_STEP_US: i64 = 1_000_000;

/// Returns whether the clock was set back since it said `seen`, and remembers what it says now.
fn clock_was_set_back(seen: &mut i64) -> bool {
    let now = time::clock();
    now.saturating_add(CLOCK_STEP_US) < std::mem::replace(seen, now)
}

fn release_slot() {
    if let Some(board) = board() {
        board.launcher.release_if_occupied_by(session::pid());
    }
}

impl Launcher<'_> {
    /// Gives the background workers to the databases that need them. Returns when the next round is
    /// due, in microseconds since 2000.
    fn round(&mut self) -> i64 {
        let now = time::clock();
        if !self.terminate_orphans() {
            return now + ORPHAN_RETRY_US;
        }
        if self.list_at <= now || self.generation != self.board.generation() {
            self.read_databases(now);
        }
        for (oid, database) in &mut self.databases {
            Self::release_exited(self.board, *oid, database, now);
        }
        let board = self.board;
        self.databases.retain(|oid, database| {
            let is_kept = database.running.is_some() || database.exists;
            if !is_kept {
                board.databases.remove(*oid);
                memory::forget_all(*oid);
            }
            is_kept
        });
        self.serve(now).min(self.list_at)
    }

    /// Reads the list of databases.
    fn read_databases(&mut self, now: i64) {
        self.list_at = now + LIST_INTERVAL_US;
        let found = match process::transaction(catalog::databases) {
            Ok(found) => found,
            Err(message) => {
                error::log(format!(
                    "fetchq launcher: reading the list of databases failed: {message}"
                ));
                return;
            }
        };
        let generation = self.board.generation();
        if self.generation != generation {
            self.generation = generation;
            // One of those that have no entry has got the extension.
            let unlisted = self.databases.values_mut().filter(|d| !d.is_listed);
            // A background worker that runs there may have looked before.
            for database in
                unlisted.filter(|d| d.has_extension != Some(true) || d.running.is_some())
            {
                database.wakes_at = i64::MIN;
            }
        }
        self.databases.values_mut().for_each(|d| d.exists = false);
        for (oid, name) in found {
            let is_enabled = is_enabled_for(&name);
            let database = self.databases.entry(oid).or_insert_with(|| {
                // An earlier launcher may have known it.
                let entry = self.board.databases.find(oid);
                let is_served = entry.is_some_and(databases::Database::is_served);
                Database::new(is_served.then_some(true), now)
            });
            database.name = name;
            database.exists = true;
            database.is_enabled = is_enabled;
            database.is_listed = self.board.databases.add(oid);
        }
        for oid in self.board.databases.oids() {
            if !self.databases.contains_key(&oid) {
                self.board.databases.remove(oid);
            }
        }
        self.make_room();
    }

    /// Gives entries of databases without the extension to those with it that have none.
    fn make_room(&mut self) {
        let Some(unlisted) = make_room(&mut self.databases, &self.board.databases) else {
            return;
        };
        if unlisted > 0 && !self.is_board_full {
            error::log(format!(
                "fetchq launcher: more than {DATABASES} databases have the extension: {unlisted} of them are served in rotation, not when something is due"
            ));
        }
        self.is_board_full = unlisted > 0;
    }

    /// Starts background workers for the databases that need one, as far as the pool allows, and
    /// asks others to leave for the rest. Returns when to decide again, in microseconds since 2000.
    fn serve(&mut self, now: i64) -> i64 {
        let (mut next, mut waiting, mut residents) = (i64::MAX, Vec::new(), Vec::new());
        let databases = self.databases.len();
        for (oid, database) in &mut self.databases {
            if let Some((position, _)) = &database.running {
                let needed_at = self.board.background_worker(*position).needed_at();
                if needed_at > i64::MIN {
                    database.has_extension = Some(true);
                    database.is_unfit_logged = false;
                }
                residents.push(Resident {
                    database: *oid,
                    since: database.started_at,
                    needed_at,
                    asked_at: database.asked_at,
                });
            }
            let entry = self.board.databases.find(*oid);
            let is_wanted = database.exists && database.is_enabled;
            if let Some(entry) = entry {
                entry.set_served(is_wanted && database.has_extension == Some(true));
            }
            if database.running.is_some() || !is_wanted {
                continue;
            }
            let need = database.need(entry);
            let due_at = need.due_at(databases);
            let start_at = due_at.max(database.not_before);
            if start_at > now {
                next = next.min(start_at);
            } else {
                waiting.push((need.waits_since(due_at), *oid));
            }
        }
        waiting.sort_unstable();
        let limit = settings::max_workers();
        let mut free = limit.saturating_sub(residents.len());
        let has_spare = waiting.len() < free;
        let mut unserved = waiting.into_iter().peekable();
        while free > 0
            && let Some((_, oid)) = unserved.peek()
        {
            match self.start(*oid, now) {
                Start::Started => free -= 1,
                Start::Postponed => {}
                Start::Full => {
                    next = next.min(now + FULL_RETRY_US);
                    break;
                }
            }
            unserved.next();
        }
        if has_spare {
            for oid in self.not_due(limit, now).into_iter().take(free) {
                if self.start(oid, now) == Start::Full {
                    next = next.min(now + FULL_RETRY_US);
                    break;
                }
            }
        }
        let has_new = unserved.peek().is_some_and(|(since, _)| *since == NEW);
        let excess = residents.len().saturating_sub(limit);
        let (leaving, decide_at) =
            choose_leaving(&residents, unserved.count() + excess, has_new, now);
        for oid in leaving {
            if let Some(database) = self.databases.get_mut(&oid)
                && let Some((position, _)) = &database.running
            {
                database.asked_at = Some(now);
                self.board.background_worker(*position).ask_to_leave();
            }
        }
        next.min(decide_at)
    }

    /// Returns the databases that get a background worker although nothing is due, because there
    /// are enough of them for all databases with the extension.
    fn not_due(&self, limit: usize, now: i64) -> Vec<u32> {
        let wanted = self.databases.iter().filter(|(_, database)| {
            database.exists && database.is_enabled && database.has_extension == Some(true)
        });
        let wanted: Vec<_> = wanted.collect();
        if wanted.len() > limit {
            return Vec::new();
        }
        let absent = wanted
            .into_iter()
            .filter(|(_, database)| database.running.is_none() && database.not_before <= now);
        absent.map(|(oid, _)| *oid).collect()
    }

    /// Starts the background worker of a database.
    fn start(&mut self, oid: u32, now: i64) -> Start {
        let Some(database) = self.databases.get_mut(&oid) else {
            return Start::Postponed;
        };
        let found = process::transaction(|| {
            let exists = catalog::databases().iter().any(|(other, _)| *other == oid);
            (exists, process::is_database_locked(oid))
        });
        match found {
            Ok((true, false)) => {}
            Ok((exists, _)) => {
                // It was dropped, or a process that connects now would wait, and take the place of
                // others meanwhile. The command that has locked it waits for its jobs process.
                if exists && let Some(pid) = self.board.jobs_processes.of(oid) {
                    process::terminate(pid);
                }
                database.exists = exists;
                database.not_before = now + DATABASE_NEEDED_RETRY_US;
                return Start::Postponed;
            }
            Err(message) => {
                error::log(format!(
                    "fetchq launcher: looking at database \"{}\" failed: {message}",
                    database.name
                ));
                database.not_before = now + MIN_RETRY_US;
                return Start::Postponed;
            }
        }
        database.running = self.board.free_position().and_then(|position| {
            let worker = self.board.background_worker(position);
            let generation = worker.assign(oid, self.number);
            if let Some(entry) = self.board.databases.find(oid) {
                entry.set_position(position);
            }
            let assignment = Assignment::new(position, generation);
            let started =
                process::start_background_worker(assignment.to_argument(), &database.name);
            if started.is_none() {
                worker.release();
            }
            Some((position, started?))
        });
        database.started_at = now;
        database.asked_at = None;
        if database.running.is_some() {
            self.full_since = None;
            // What it needs from here on is noticed since, see `end_visit`.
            database.wakes_at = i64::MAX;
            return Start::Started;
        }
        let full_since = *self.full_since.get_or_insert(now);
        if full_since + FULL_LOG_AFTER_US <= now
            && self.full_logged_at.saturating_add(FULL_LOG_INTERVAL_US) <= now
        {
            self.full_logged_at = now;
            error::log(format!(
                "fetchq launcher: no slot is free for the background worker of database \"{}\": raise max_worker_processes",
                database.name
            ));
        }
        Start::Full
    }

    /// Terminates the background workers of earlier launchers, because this launcher cannot notice
    /// when they exit. Returns whether all of them are gone.
    fn terminate_orphans(&self) -> bool {
        let mut are_gone = true;
        for worker in self.board.orphans(self.number) {
            let database = worker.database();
            if worker.release().is_some() {
                self.board.request_worker(database, i64::MIN);
                continue;
            }
            // A process that has left its slot may still record something.
            are_gone = false;
            if let Some(pid) = worker.held_by() {
                process::terminate(pid);
            }
        }
        are_gone
    }

    /// Frees the entry of a background worker that has exited, and decides when to start it again.
    fn release_exited(board: &Board, oid: u32, database: &mut Database, now: i64) {
        let Some((position, started)) = &database.running else {
            return;
        };
        if !started.is_gone() {
            return;
        }
        let worker = board.background_worker(*position);
        let needed_at = worker.needed_at();
        let Some(reason) = worker.release() else {
            return;
        };
        database.running = None;
        database.asked_at = None;
        if now.saturating_sub(database.started_at) > STABLE_AFTER_US || reason != ExitReason::Crash
        {
            database.crashes = 0;
        }
        let mut wakes_at = now;
        match reason {
            ExitReason::Replaced => {
                database.has_extension = Some(true);
                database.left_at = now;
                wakes_at = needed_at;
            }
            ExitReason::Crash => {
                let delay = (MIN_RETRY_US << database.crashes.min(6)).min(MAX_RETRY_US);
                database.not_before = now + delay;
                database.crashes += 1;
            }
            // The extension may have been created after it looked. The board says so then.
            ExitReason::NoExtension => {
                database.has_extension = Some(false);
                database.left_at = i64::MIN;
                wakes_at = i64::MAX;
            }
            // As without the extension. The end of an upgrade tells the board, too.
            ExitReason::OlderCatalog | ExitReason::NewerCatalog => {
                database.log_unfit(reason == ExitReason::OlderCatalog);
                database.has_extension = Some(false);
                database.left_at = i64::MIN;
                wakes_at = now + UNFIT_RETRY_US;
            }
            ExitReason::DatabaseNeeded => database.not_before = now + DATABASE_NEEDED_RETRY_US,
            ExitReason::Terminated | ExitReason::Disabled => {
                database.not_before = now + MIN_RETRY_US;
            }
        }
        database.end_visit(wakes_at);
        if let Some(entry) = board.databases.find(oid) {
            entry.wake_at(wakes_at);
            if reason != ExitReason::Replaced {
                // Nobody knows what it has not announced.
                entry.add_unannounced(Status::Pending.bit());
            }
        }
    }
}
