//! What the background worker of a database and its jobs process have in common: when they exit, and how they log a failure.

use crate::domain::version::is_newer_than;
use crate::pg::{catalog, process, version};
use crate::signals::background_worker::ExitReason;
use crate::store::queues::queue;
use crate::{error, settings};

/// How often a process checks whether it has to exit: microseconds. A command that needs the
/// database without other sessions waits five seconds for them to exit.
pub const CHECK_INTERVAL_US: i64 = 1_000_000;

/// Returns why this process has to exit; None when it does not.
pub fn exit_reason() -> Result<Option<ExitReason>, String> {
    process::transaction_with_any_catalog(find_exit_reason)
}

fn find_exit_reason() -> Option<ExitReason> {
    if process::is_database_wanted() {
        return Some(ExitReason::DatabaseNeeded);
    }
    let name = catalog::database_name();
    if !name.is_some_and(|name| is_enabled_for(&name)) {
        return Some(ExitReason::Disabled);
    }
    if !catalog::has_extension() {
        return Some(ExitReason::NoExtension);
    }
    version::unfit_catalog().map(|catalog| match is_newer_than(&catalog) {
        true => ExitReason::OlderCatalog,
        false => ExitReason::NewerCatalog,
    })
}

/// Writes a failure to the server's log, unless it happened because the extension was dropped or
/// upgraded.
pub fn log_failure(message: String) {
    if process::should_stop() {
        // It was cancelled.
        return;
    }
    // DROP EXTENSION locks the registry of queues. Reading it waits until that transaction ends,
    // and fails when the registry no longer exists.
    let _ = process::transaction(queue::all);
    let reason = exit_reason();
    if !matches!(
        reason,
        Ok(Some(
            ExitReason::NoExtension | ExitReason::OlderCatalog | ExitReason::NewerCatalog
        ))
    ) {
        error::log(format!("fetchq background worker: {message}"));
    }
}

/// Returns whether the settings want a background worker in a database.
pub fn is_enabled_for(database: &str) -> bool {
    if !settings::background_worker() {
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

/// The entry of the board that a background worker is to hold, and the generation of its
/// assignment. A process may start after that has ended; the generation shows it.
pub struct Assignment {
    /// The position of the entry on the board, below 2^16.
    pub position: usize,
    pub generation: u32,
}

impl Assignment {
    /// Returns the assignment of an entry of the board. `position` must be below 2^16.
    pub fn new(position: usize, generation: u32) -> Self {
        Self {
            position,
            generation,
        }
    }

    /// Encodes the assignment as the argument that a process starts with: the position is in the
    /// lower 16 bits.
    pub fn to_argument(&self) -> usize {
        ((self.generation as usize) << 16) | self.position
    }

    /// Decodes the argument that a process was started with.
    pub fn from_argument(argument: usize) -> Self {
        Self {
            position: argument & 0xffff,
            generation: (argument >> 16) as u32,
        }
    }
}
