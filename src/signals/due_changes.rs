//! Due changes: a ring buffer in shared memory with an entry for each table in which something
//! may become due earlier than the background worker expects.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Changes that are kept until the background worker reads them. When there are more of them,
/// it looks at all queues.
const CAPACITY: usize = 512;

/// One change. The mark is written last and differs for each change, so that a reader sees
/// whether the parts that it has read belong together.
struct DueChange {
    /// The number of the change in the upper half and the table in the lower half; 0 while the
    /// change is written.
    mark: AtomicU64,
    /// When something of the table may be due, in microseconds since 2000.
    time: AtomicI64,
}

fn mark(number: u32, table: u32) -> u64 {
    u64::from(number) << 32 | u64::from(table)
}

/// The due changes of a database.
pub struct DueChanges {
    changes: [DueChange; CAPACITY],
    /// The number of changes that were written since the server started.
    written: AtomicU32,
}

impl DueChanges {
    /// Returns an empty buffer.
    pub const fn new() -> Self {
        Self {
            changes: [const {
                DueChange {
                    mark: AtomicU64::new(0),
                    time: AtomicI64::new(0),
                }
            }; CAPACITY],
            written: AtomicU32::new(0),
        }
    }

    /// Adds a change: something of the table may be due at a time, in microseconds since 2000.
    pub fn add(&self, table: u32, time: i64) {
        let number = self.written.fetch_add(1, Ordering::SeqCst);
        let change = &self.changes[number as usize % CAPACITY];
        change.mark.store(0, Ordering::SeqCst);
        change.time.store(time, Ordering::SeqCst);
        change.mark.store(mark(number, table), Ordering::SeqCst);
    }

    /// Returns the number of the next change. A reader that will look at everything starts to
    /// read there.
    pub fn written(&self) -> u32 {
        self.written.load(Ordering::SeqCst)
    }

    /// Returns the tables and times of the changes since number `read`, and advances `read`
    /// past them. None when some of them are missing: they were overwritten, or a writer is
    /// not finished yet.
    pub fn read_since(&self, read: &mut u32) -> Option<Vec<(u32, i64)>> {
        let written = self.written();
        let mut changes = Vec::new();
        let mut is_complete = written.wrapping_sub(*read) as usize <= CAPACITY;
        if is_complete {
            while *read != written {
                let change = &self.changes[*read as usize % CAPACITY];
                let before = change.mark.load(Ordering::SeqCst);
                let time = change.time.load(Ordering::SeqCst);
                let table = before as u32;
                // Otherwise the writer of this change is not finished, or a later change has
                // overwritten it.
                is_complete &= table != 0
                    && before == mark(*read, table)
                    && before == change.mark.load(Ordering::SeqCst);
                changes.push((table, time));
                *read = read.wrapping_add(1);
            }
        }
        *read = written;
        is_complete.then_some(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_once_and_in_order() {
        let changes = DueChanges::new();
        let mut read = changes.written();
        assert_eq!(changes.read_since(&mut read), Some(vec![]));
        changes.add(7, 100);
        changes.add(8, 50);
        assert_ne!(changes.written(), read);
        assert_eq!(changes.read_since(&mut read), Some(vec![(7, 100), (8, 50)]));
        assert_eq!(changes.written(), read);
        assert_eq!(changes.read_since(&mut read), Some(vec![]));
    }

    #[test]
    fn too_many_changes_are_detected() {
        let changes = DueChanges::new();
        let mut read = changes.written();
        for n in 0..CAPACITY {
            changes.add(1, n as i64);
        }
        assert_eq!(
            changes.read_since(&mut read).map(|n| n.len()),
            Some(CAPACITY)
        );
        for n in 0..=CAPACITY {
            changes.add(1, n as i64);
        }
        assert_eq!(changes.read_since(&mut read), None);
        changes.add(9, 9);
        assert_eq!(changes.read_since(&mut read), Some(vec![(9, 9)]));
    }
}
