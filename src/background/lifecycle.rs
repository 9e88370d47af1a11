//! The worker of one database: a calendar of the documents, the schedules, and the jobs.

use crate::pg::catalog;
use crate::pg::process;
use crate::signals::board::End;
use crate::store::queue;
use crate::{error, settings};

/// How often it looks whether somebody wants the database for himself. A command that
/// does waits for five seconds.
pub const CHECK_INTERVAL_US: i64 = 1_000_000;

/// Looks whether there is a reason to end.
pub fn reason_to_end() -> Option<End> {
    if process::is_database_wanted() {
        return Some(End::DatabaseWanted);
    }
    let name = catalog::database_name();
    if !name.is_some_and(|name| is_enabled_for(&name)) {
        return Some(End::NotWanted);
    }
    (!catalog::has_extension()).then_some(End::NoExtension)
}

/// Tells of a failure, unless it is what becomes of the work when the extension goes.
pub fn log_failure(message: String) {
    // Whoever drops it has locked the registry: this waits until it is decided, and ends
    // in an error if there is none any more.
    let _ = process::transaction(queue::all);
    if process::transaction(catalog::has_extension) != Ok(false) {
        error::log(format!("fetchq worker: {message}"));
    }
}

/// Whether the settings want a worker in a database.
pub fn is_enabled_for(database: &str) -> bool {
    if !settings::worker() {
        return false;
    }
    let wanted = settings::databases();
    let mut names = wanted
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .peekable();
    names.peek().is_none() || names.any(|name| name == database)
}

/// Which place on the board a worker has, and who has given it: a worker may start when
/// its launcher is no more.
pub struct Assignment {
    pub number: usize,
    pub launch: u32,
}

impl Assignment {
    pub fn new(number: usize, launch: u32) -> Self {
        Self { number, launch }
    }

    pub fn argument(&self) -> usize {
        ((self.launch as usize) << 16) | self.number
    }

    pub fn of(argument: usize) -> Self {
        Self {
            number: argument & 0xffff,
            launch: (argument >> 16) as u32,
        }
    }
}
