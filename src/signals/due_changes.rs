//! Due changes: a ring buffer in shared memory with an entry for each table in which something
//! may become due earlier than the background worker expects.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Changes that are kept until the background worker reads them. When there are more of them,
/// it looks at all queues.
const CAPACITY: usize = 512;

/// The place of a change.
struct DueChange {
    /// The number of the change that was written here last, plus 1, times 2; plus 1 while it is
    /// being written. 0 before the first one.
    state: AtomicU64,
    table: AtomicU32,
    /// When something of the table may be due, in microseconds since 2000.
    time: AtomicI64,
    /// The session relies on a look at that time, and says nothing of what is due later.
    is_kept: AtomicBool,
}

/// A change, as it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The documents table.
    pub table: u32,
    /// When something of it may be due, in microseconds since 2000.
    pub time: i64,
    /// The table is examined at that time, whatever an earlier look has found.
    pub is_kept: bool,
}

fn complete(number: u64) -> u64 {
    (number + 1) * 2
}

fn incomplete(number: u64) -> u64 {
    complete(number) + 1
}

/// The due changes of a database.
pub struct DueChanges {
    changes: [DueChange; CAPACITY],
    /// The number of changes that were added since the server started.
    written: AtomicU64,
    /// How often kept changes were lost, so that sessions rely on none from before.
    losses: AtomicU32,
}

impl DueChanges {
    /// Returns an empty buffer.
    pub const fn new() -> Self {
        Self {
            changes: [const {
                DueChange {
                    state: AtomicU64::new(0),
                    table: AtomicU32::new(0),
                    time: AtomicI64::new(0),
                    is_kept: AtomicBool::new(false),
                }
            }; CAPACITY],
            written: AtomicU64::new(0),
            losses: AtomicU32::new(0),
        }
    }

    /// Returns how often kept changes were lost.
    pub fn losses(&self) -> u32 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Has sessions rely on no kept change from before. What they have committed until now is to be
    /// examined afterwards.
    pub fn lose(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    fn place(&self, number: u64) -> &DueChange {
        &self.changes[(number % CAPACITY as u64) as usize]
    }

    /// Adds a change: something of the table may be due at a time, in microseconds since 2000.
    pub fn add(&self, change: Change) {
        let number = self.written.fetch_add(1, Ordering::SeqCst);
        if self.begin(number) {
            self.finish(number, change);
        }
    }

    /// Claims the place of a change. A process may be stopped for so long that its place is needed
    /// for a later change. While it writes, no other process does, and it does not begin after
    /// one that has a later number. Returns false then: the change is missing, which the reader
    /// detects.
    fn begin(&self, number: u64) -> bool {
        let state = &self.place(number).state;
        let before = state.load(Ordering::SeqCst);
        let is_free = before.is_multiple_of(2) && before < complete(number);
        is_free
            && state
                .compare_exchange(
                    before,
                    incomplete(number),
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                )
                .is_ok()
    }

    /// Writes a change whose place was claimed.
    fn finish(&self, number: u64, change: Change) {
        let place = self.place(number);
        place.table.store(change.table, Ordering::SeqCst);
        place.time.store(change.time, Ordering::SeqCst);
        place.is_kept.store(change.is_kept, Ordering::SeqCst);
        place.state.store(complete(number), Ordering::SeqCst);
    }

    /// Returns the number of the next change. A reader that will look at everything starts to
    /// read there.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Returns the changes since number `read`, and advances `read`
    /// past them. None when some of them are missing: they were overwritten, their place was
    /// in use, or a writer is not finished yet.
    pub fn read_since(&self, read: &mut u64) -> Option<Vec<Change>> {
        let written = self.written();
        let first = std::mem::replace(read, written);
        if written - first > CAPACITY as u64 {
            return None;
        }
        (first..written).map(|number| self.read(number)).collect()
    }

    /// Returns a change. None when it is missing.
    fn read(&self, number: u64) -> Option<Change> {
        let place = self.place(number);
        let is_complete = || place.state.load(Ordering::SeqCst) == complete(number);
        let was_complete = is_complete();
        let change = Change {
            table: place.table.load(Ordering::SeqCst),
            time: place.time.load(Ordering::SeqCst),
            is_kept: place.is_kept.load(Ordering::SeqCst),
        };
        // Otherwise a later change may have overwritten it meanwhile.
        (was_complete && is_complete()).then_some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(table: u32, time: i64) -> Change {
        Change {
            table,
            time,
            is_kept: time == 9,
        }
    }

    #[test]
    fn changes_are_read_once_and_in_order() {
        let changes = DueChanges::new();
        let mut read = changes.written();
        assert_eq!(changes.read_since(&mut read), Some(vec![]));
        changes.add(at(7, 100));
        changes.add(at(8, 50));
        assert_ne!(changes.written(), read);
        assert_eq!(
            changes.read_since(&mut read),
            Some(vec![at(7, 100), at(8, 50)])
        );
        assert_eq!(changes.written(), read);
        assert_eq!(changes.read_since(&mut read), Some(vec![]));
    }

    #[test]
    fn too_many_changes_are_detected() {
        let changes = DueChanges::new();
        let mut read = changes.written();
        for n in 0..CAPACITY {
            changes.add(at(1, n as i64));
        }
        assert_eq!(
            changes.read_since(&mut read).map(|n| n.len()),
            Some(CAPACITY)
        );
        for n in 0..=CAPACITY {
            changes.add(at(1, n as i64));
        }
        assert_eq!(changes.read_since(&mut read), None);
        changes.add(at(9, 9));
        assert_eq!(changes.read_since(&mut read), Some(vec![at(9, 9)]));
    }

    /// A writer is stopped while it writes, and 512 later changes are added meanwhile.
    #[test]
    fn a_writer_that_was_stopped_mixes_no_changes() {
        let changes = DueChanges::new();
        let mut read = changes.written();
        let stopped = changes.written.fetch_add(1, Ordering::SeqCst);
        assert!(changes.begin(stopped));
        for n in 1..=CAPACITY {
            changes.add(at(8, n as i64));
        }
        // The last one had no place, so the reader looks at all queues.
        let mut late = read + 1;
        assert_eq!(changes.read_since(&mut late), None);
        changes.finish(stopped, at(7, 1000));
        assert_eq!(changes.read_since(&mut read), None);
        changes.add(at(9, 9));
        assert_eq!(changes.read_since(&mut read), Some(vec![at(9, 9)]));
    }

    /// A writer is stopped before it writes, and its place has a later change when it goes on.
    #[test]
    fn a_writer_that_was_overtaken_writes_nothing() {
        let changes = DueChanges::new();
        let stopped = changes.written.fetch_add(1, Ordering::SeqCst);
        let mut read = changes.written();
        for n in 1..=CAPACITY {
            changes.add(at(8, n as i64));
        }
        assert!(!changes.begin(stopped));
        let expected = (1..=CAPACITY).map(|n| at(8, n as i64)).collect();
        assert_eq!(changes.read_since(&mut read), Some(expected));
    }
}
