//! The launcher: sees to it that each database that has the extension has a worker.

use std::collections::HashMap;
use std::time::Duration;

use crate::background::lifecycle::{Assignment, is_enabled_for};
use crate::error;
use crate::pg::process::{self, Started};
use crate::pg::{catalog, session, time, transaction};
use crate::signals::board::{Board, End, board};

/// How often the list of databases is read, besides when something tells of a change.
const ROUND: i64 = 5_000_000;

/// When to look again whether the workers of an earlier launcher are gone.
const MAKE_ROOM: i64 = 20_000;

/// When a worker that made way for a command on its database is started again.
const MAKE_WAY: i64 = 2_000_000;

/// A worker that crashes is started again after a second, and twice as late each time.
const FIRST_RETRY: i64 = 1_000_000;

const LAST_RETRY: i64 = 60_000_000;

/// A worker that has lived so long starts over with its retries.
const LONG_LIFE: i64 = 60_000_000;

#[derive(Default)]
struct Known {
    running: Option<(usize, Started)>,
    started: i64,
    /// Not before this time.
    retry: i64,
    failures: u32,
    /// The generation of the board when it was started.
    generation: u32,
    /// There was no extension when the board had this generation.
    without: Option<u32>,
}

struct Launcher<'a> {
    board: &'a Board,
    number: u32,
    databases: HashMap<u32, Known>,
    was_full: bool,
}

pub fn main() {
    process::begin(None, c"fetchq launcher");
    let Some(board) = board() else {
        process::end(false);
    };
    transaction::on_exit(leave);
    board.launcher.take(session::pid(), time::clock());
    let mut launcher = Launcher {
        board,
        number: board.launch(),
        databases: HashMap::new(),
        was_full: false,
    };
    while !process::should_stop() {
        process::reload();
        let next = launcher.round();
        if process::should_stop() {
            break;
        }
        let micros = (next - time::clock()).clamp(10_000, ROUND);
        process::sleep(Duration::from_micros(micros.unsigned_abs()));
    }
    // The postmaster starts it again, unless it ends itself.
    process::end(true);
}

fn leave() {
    if let Some(board) = board() {
        board.launcher.leave_as(session::pid());
    }
}

impl Launcher<'_> {
    /// Starts what is missing; says when to look again.
    fn round(&mut self) -> i64 {
        let now = time::clock();
        let mut next = now + ROUND;
        if !self.ends_orphans() {
            return now + MAKE_ROOM;
        }
        let databases = match process::transaction(catalog::databases) {
            Ok(databases) => databases,
            Err(message) => {
                error::log(format!(
                    "fetchq could not read the list of databases: {message}"
                ));
                return next;
            }
        };
        for known in self.databases.values_mut() {
            Self::reap(self.board, known, now);
        }
        self.databases.retain(|oid, known| {
            known.running.is_some() || databases.iter().any(|(other, _)| other == oid)
        });
        for (oid, name) in databases {
            let known = self.databases.entry(oid).or_default();
            let generation = self.board.generation();
            let is_without = known.without == Some(generation);
            if known.running.is_some() || is_without || !is_enabled_for(&name) {
                continue;
            }
            if known.retry > now {
                next = next.min(known.retry);
                continue;
            }
            known.running = self.board.free().and_then(|place| {
                let worker = self.board.worker(place);
                worker.assign(oid, self.number);
                let started =
                    process::start_worker(Assignment::new(place, self.number).argument(), &name);
                if started.is_none() {
                    worker.release();
                }
                Some((place, started?))
            });
            known.started = now;
            known.generation = generation;
            let is_full = known.running.is_none();
            if is_full && !self.was_full {
                error::log(format!(
                    "fetchq has no place for a worker of database \"{name}\": raise max_worker_processes"
                ));
            }
            self.was_full = is_full;
            if is_full {
                break;
            }
        }
        next
    }

    /// Ends the workers of a launcher that is no more: nobody would notice their end.
    /// False while there are some.
    fn ends_orphans(&self) -> bool {
        let mut is_clear = true;
        for worker in self.board.orphans(self.number) {
            match worker.slot.process() {
                Some((pid, _)) if process::terminate(pid) => is_clear = false,
                _ => {
                    worker.release();
                }
            }
        }
        is_clear
    }

    /// Notes how a worker ended that is gone.
    fn reap(board: &Board, known: &mut Known, now: i64) {
        let Some((place, started)) = &known.running else {
            return;
        };
        if !started.is_gone() {
            return;
        }
        let end = board.worker(*place).release();
        known.running = None;
        known.without = None;
        if now - known.started > LONG_LIFE || end != End::Crash {
            known.failures = 0;
        }
        match end {
            End::Crash => {
                known.retry = now + (FIRST_RETRY << known.failures.min(6)).min(LAST_RETRY);
                known.failures += 1;
            }
            // (it may have been created since it looked)
            End::NoExtension => known.without = Some(known.generation),
            End::DatabaseWanted => known.retry = now + MAKE_WAY,
            End::Asked | End::NotWanted => known.retry = now + FIRST_RETRY,
        }
    }
}
