//! The launcher. It starts a background worker for each database that has the extension.

use std::collections::HashMap;
use std::time::Duration;

use crate::background::lifecycle::{Assignment, is_enabled_for};
use crate::error;
use crate::pg::process::{self, Started};
use crate::pg::{catalog, session, time, transaction};
use crate::signals::board::{Board, ExitReason, board};

/// How often the list of databases is read, besides when a session signals a change:
/// microseconds.
const ROUND_INTERVAL_US: i64 = 5_000_000;

/// The shortest time between two rounds: microseconds.
const MIN_PAUSE_US: i64 = 10_000;

/// When to look again whether the background workers of an earlier launcher have exited:
/// microseconds.
const ORPHAN_RETRY_US: i64 = 20_000;

/// When a background worker is started again that exited because a command needed its database:
/// microseconds.
const DATABASE_NEEDED_RETRY_US: i64 = 2_000_000;

/// When a background worker is started again that crashed, and when one is that was terminated:
/// microseconds. The time doubles with each crash.
const MIN_RETRY_US: i64 = 1_000_000;

/// The longest time after which a background worker that crashed is started again: microseconds.
const MAX_RETRY_US: i64 = 60_000_000;

/// The crashes of a background worker are forgotten when it has run for this time: microseconds.
const STABLE_AFTER_US: i64 = 60_000_000;

/// What the launcher knows about a database. Times are in microseconds since 2000.
#[derive(Default)]
struct Database {
    /// The position of its background worker on the board, and the process.
    running: Option<(usize, Started)>,
    started_at: i64,
    /// The background worker must not be started before this time.
    not_before: i64,
    /// Crashes since it last ran for a long time.
    crashes: u32,
    /// The generation of the board when the background worker was started.
    generation: u32,
    /// A generation of the board in which the database does not have the extension.
    without_extension: Option<u32>,
}

struct Launcher<'a> {
    board: &'a Board,
    number: u32,
    databases: HashMap<u32, Database>,
    was_full: bool,
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
        was_full: false,
    };
    while !process::should_stop() {
        process::reload();
        let next = launcher.round();
        if process::should_stop() {
            break;
        }
        let micros = (next - time::clock()).clamp(MIN_PAUSE_US, ROUND_INTERVAL_US);
        process::sleep(Duration::from_micros(micros.unsigned_abs()));
    }
    // The postmaster starts the launcher again, unless it shuts down itself.
    process::end(true);
}

fn release_slot() {
    if let Some(board) = board() {
        board.launcher.release_if_occupied_by(session::pid());
    }
}

impl Launcher<'_> {
    /// Starts the background workers that are missing. Returns when the next round is due, in
    /// microseconds since 2000.
    fn round(&mut self) -> i64 {
        let now = time::clock();
        let mut next = now + ROUND_INTERVAL_US;
        if !self.terminate_orphans() {
            return now + ORPHAN_RETRY_US;
        }
        let databases = match process::transaction(catalog::databases) {
            Ok(databases) => databases,
            Err(message) => {
                error::log(format!(
                    "fetchq launcher: reading the list of databases failed: {message}"
                ));
                return next;
            }
        };
        for database in self.databases.values_mut() {
            Self::release_exited(self.board, database, now);
        }
        self.databases.retain(|oid, database| {
            database.running.is_some() || databases.iter().any(|(other, _)| other == oid)
        });
        for (oid, name) in databases {
            let database = self.databases.entry(oid).or_default();
            let generation = self.board.generation();
            let has_no_extension = database.without_extension == Some(generation);
            if database.running.is_some() || has_no_extension || !is_enabled_for(&name) {
                continue;
            }
            if database.not_before > now {
                next = next.min(database.not_before);
                continue;
            }
            database.running = self.board.free_position().and_then(|position| {
                let worker = self.board.background_worker(position);
                worker.assign(oid, self.number);
                let assignment = Assignment::new(position, self.number);
                let started = process::start_background_worker(assignment.to_argument(), &name);
                if started.is_none() {
                    worker.release();
                }
                Some((position, started?))
            });
            database.started_at = now;
            database.generation = generation;
            let is_full = database.running.is_none();
            if is_full && !self.was_full {
                error::log(format!(
                    "fetchq launcher: no slot is free for the background worker of database \"{name}\": raise max_worker_processes"
                ));
            }
            self.was_full = is_full;
            if is_full {
                break;
            }
        }
        next
    }

    /// Terminates the background workers of earlier launchers, because this launcher cannot notice
    /// when they exit. Returns whether all of them are gone.
    fn terminate_orphans(&self) -> bool {
        let mut are_gone = true;
        for worker in self.board.orphans(self.number) {
            match worker.slot.process() {
                Some((pid, _)) if process::terminate(pid) => are_gone = false,
                _ => {
                    worker.release();
                }
            }
        }
        are_gone
    }

    /// Frees the entry of a background worker that has exited, and decides when to start it again.
    fn release_exited(board: &Board, database: &mut Database, now: i64) {
        let Some((position, started)) = &database.running else {
            return;
        };
        if !started.is_gone() {
            return;
        }
        let reason = board.background_worker(*position).release();
        database.running = None;
        database.without_extension = None;
        if now - database.started_at > STABLE_AFTER_US || reason != ExitReason::Crash {
            database.crashes = 0;
        }
        match reason {
            ExitReason::Crash => {
                let delay = (MIN_RETRY_US << database.crashes.min(6)).min(MAX_RETRY_US);
                database.not_before = now + delay;
                database.crashes += 1;
            }
            // The generation is the one of its start, because the extension may have been created
            // after it looked.
            ExitReason::NoExtension => database.without_extension = Some(database.generation),
            ExitReason::DatabaseNeeded => database.not_before = now + DATABASE_NEEDED_RETRY_US,
            ExitReason::Terminated | ExitReason::Disabled => {
                database.not_before = now + MIN_RETRY_US;
            }
        }
    }
}
