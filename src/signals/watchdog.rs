//! Records in shared memory which queue this background worker works on, so that the next process
//! knows which queue ended it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pg::session;
use crate::signals::board::board;

thread_local! {
    /// The entry of this process; None when it is not watched.
    static ENTRY: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// Begins to watch this process, which is the only background worker of its database. Returns the
/// documents table of the queue that an earlier process worked on when it ended.
pub fn watch() -> Option<u32> {
    let (entry, table) = board()?.interrupted.take(session::database())?;
    ENTRY.set(Some(entry));
    (table != 0).then_some(table)
}

fn store(table: u32) {
    if let Some(entry) = ENTRY.get() {
        let database = u64::from(session::database()) << 32;
        entry.store(database | u64::from(table), Ordering::Relaxed);
    }
}

/// Records that this process works on a queue, by its documents table; 0 for none. Returns what was
/// recorded before. Does nothing in a process that is not watched.
pub fn replace(table: u32) -> u32 {
    let before = ENTRY.get().map_or(0, |entry| entry.load(Ordering::Relaxed));
    store(table);
    before as u32
}

/// Records that this process works on no queue.
pub fn end() {
    store(0);
}

/// Frees the entry of this process, which exits.
pub fn leave() {
    if let Some(entry) = ENTRY.take() {
        entry.store(0, Ordering::Relaxed);
    }
}
