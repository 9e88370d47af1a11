//! Queues whose maintenance ended its process. The next process of the database lets them wait,
//! and serves the others.
//!
//! Shared memory outlives a process that ended in the middle of its work. A crash of a process
//! restarts the server, which empties this.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of processes that can be watched. A process without an entry is not watched.
const ENTRIES: usize = 64;

/// An entry for each process: its database in the upper 32 bits, and below the documents table of
/// the queue that it works on; 0 while it works on none. 0 stands for a free entry.
pub struct Interrupted {
    entries: [AtomicU64; ENTRIES],
}

impl Interrupted {
    /// Returns the state without processes.
    pub const fn new() -> Self {
        Self {
            entries: [const { AtomicU64::new(0) }; ENTRIES],
        }
    }

    /// Takes the entry of a database, or a free one. Returns it, and the table that an earlier
    /// process worked on when it ended.
    pub fn take(&self, database: u32) -> Option<(&AtomicU64, u32)> {
        let idle = u64::from(database) << 32;
        for entry in &self.entries {
            let found = entry.load(Ordering::Relaxed);
            if found >> 32 == u64::from(database) {
                entry.store(idle, Ordering::Relaxed);
                return Some((entry, found as u32));
            }
        }
        let free = self.entries.iter().find(|entry| {
            let taken = entry.compare_exchange(0, idle, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        })?;
        Some((free, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_of_a_database_learns_of_the_table() {
        let state = Interrupted::new();
        let (entry, table) = state.take(7).unwrap();
        assert_eq!(table, 0);
        entry.store(7 << 32 | 42, Ordering::Relaxed);
        assert_eq!(state.take(8).unwrap().1, 0);
        assert_eq!(state.take(7).unwrap().1, 42);
        assert_eq!(state.take(7).unwrap().1, 0);
        for database in 9..100 {
            state.take(database);
        }
        assert!(state.take(1000).is_none());
    }
}
