//! The announcements that the background worker of a database has not sent yet, in shared
//! memory. `announce.rs` says why the background worker sends them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Queues of one database that can have announcements at a time. More queues are not lost:
/// their statuses are announced for all queues then. Not measured: 1024 slots take 8 kB of the
/// board for each database.
const SLOTS: usize = 1024;

/// Slots that are tried for a queue before its statuses are announced for all queues. Not measured:
/// 16 slots are two cache lines.
const PROBES: usize = 16;

/// For each table, the statuses that documents have entered. A hash table.
///
/// The memory serves one database after the other, and tables of two databases can have the same
/// OID. So each announcement has the number of the assignment for which it was made, and counts for
/// that one only.
///
/// An announcement has room for the last 24 bits of that number. They are only ever compared with
/// those of the current one, and an assignment empties all slots. So they could be mistaken only
/// for an announcement that a session writes after exactly a multiple of 2^24 assignments, having
/// been stopped between two instructions for that long. One NOTIFY too many would come of it.
pub struct Announcements {
    /// The number of assignments so far. It never wraps.
    assignment: AtomicU64,
    slots: [AtomicU64; SLOTS],
    /// Statuses of tables that found no slot. The table of this entry is 0.
    overflow: AtomicU64,
}

/// The bits of an assignment in an entry.
const ASSIGNMENT: u64 = 0xff_ffff;

/// The bits of the statuses in an entry.
const STATUSES: u64 = 0xff;

/// Packs the table in the upper half, and assignment and statuses in the lower half.
fn entry(table: u32, assignment: u64, statuses: u32) -> u64 {
    u64::from(table) << 32 | (assignment & ASSIGNMENT) << 8 | (u64::from(statuses) & STATUSES)
}

fn table_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn statuses_of(entry: u64) -> u32 {
    (entry & STATUSES) as u32
}

/// Returns whether an entry was made for an assignment.
fn is_of(entry: u64, assignment: u64) -> bool {
    (entry >> 8) & ASSIGNMENT == assignment & ASSIGNMENT
}

impl Announcements {
    /// Returns the state in which there is nothing to announce.
    pub const fn new() -> Self {
        Self {
            assignment: AtomicU64::new(0),
            slots: [const { AtomicU64::new(0) }; SLOTS],
            overflow: AtomicU64::new(0),
        }
    }

    /// Assigns the memory to a database. What was announced before counts no longer. To be called
    /// before sessions of that database can find the memory.
    pub fn assign(&self) {
        // A session that has the old number adds nothing from here on, or finds that it is late.
        self.assignment.fetch_add(1, Ordering::SeqCst);
        for slot in self.slots.iter().chain([&self.overflow]) {
            slot.store(0, Ordering::SeqCst);
        }
    }

    /// Returns the number of the assignment. A session reads it first, and then checks that the
    /// memory is assigned to its database.
    pub fn assignment(&self) -> u64 {
        self.assignment.load(Ordering::SeqCst)
    }

    /// Adds statuses of a table, a set of `Status::bit`, for an assignment. Returns whether that
    /// changed anything, so that the background worker may have to be woken.
    pub fn add(&self, assignment: u64, table: u32, statuses: u32) -> bool {
        // Fibonacci hashing.
        let first = (table.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        for at in (first..first + PROBES).map(|at| at % SLOTS) {
            let slot = &self.slots[at];
            if let Some(is_new) = self.add_to(slot, assignment, table, statuses) {
                return is_new;
            }
        }
        self.add_to_all(assignment, statuses)
    }

    /// Adds statuses of all tables, as `add` does for one.
    pub fn add_to_all(&self, assignment: u64, statuses: u32) -> bool {
        self.add_to(&self.overflow, assignment, 0, statuses)
            .unwrap_or(false)
    }

    /// Returns the slots that are used, and the table of each. They stay as they are.
    pub fn read(&self) -> impl Iterator<Item = (usize, u32)> {
        let assignment = self.assignment();
        let slots = self.slots.iter().enumerate();
        slots.filter_map(move |(at, slot)| {
            let entry = slot.load(Ordering::SeqCst);
            (entry != 0 && is_of(entry, assignment)).then_some((at, table_of(entry)))
        })
    }

    /// Empties a slot and returns its table and statuses.
    pub fn take(&self, at: usize) -> (u32, u32) {
        let taken = self.slots[at].swap(0, Ordering::SeqCst);
        let statuses = if is_of(taken, self.assignment()) {
            statuses_of(taken)
        } else {
            0
        };
        (table_of(taken), statuses)
    }

    /// Returns the statuses that were added to all tables. They stay as they are.
    pub fn of_all(&self) -> u32 {
        let entry = self.overflow.load(Ordering::SeqCst);
        if is_of(entry, self.assignment()) {
            statuses_of(entry)
        } else {
            0
        }
    }

    /// Returns the statuses that were added to all tables, and removes them.
    pub fn take_all(&self) -> u32 {
        let taken = self.overflow.swap(0, Ordering::SeqCst);
        if is_of(taken, self.assignment()) {
            statuses_of(taken)
        } else {
            0
        }
    }

    /// Adds statuses to an entry, and returns whether it changed. None: another table has it.
    fn add_to(&self, slot: &AtomicU64, assignment: u64, table: u32, statuses: u32) -> Option<bool> {
        let mut before = slot.load(Ordering::SeqCst);
        loop {
            if self.assignment() != assignment {
                // This session is late, and its announcement is void.
                return Some(false);
            }
            let known = if before == 0 || !is_of(before, assignment) {
                // What a late session has left is void.
                0
            } else if table_of(before) == table {
                statuses_of(before)
            } else {
                return None;
            };
            let after = entry(table, assignment, known | statuses);
            if before == after {
                return Some(false);
            }
            // A later assignment may have begun since the number was compared. Then its announcement
            // is in the slot, and nothing is written, or what is written counts for nobody.
            match slot.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(true),
                Err(now) => before = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_a_table_are_collected() {
        let announced = Announcements::new();
        assert!(announced.add(0, 7, 1));
        assert!(!announced.add(0, 7, 1));
        assert!(announced.add(0, 7, 2));
        assert!(announced.add(0, 8, 4));
        let mut taken: Vec<_> = announced.read().map(|(at, _)| at).collect();
        taken.sort_unstable();
        let mut found: Vec<_> = taken.into_iter().map(|at| announced.take(at)).collect();
        found.sort_unstable();
        assert_eq!(found, [(7, 3), (8, 4)]);
        assert_eq!(announced.read().count(), 0);
        assert!(announced.add(0, 7, 1));
    }

    #[test]
    fn too_many_tables_overflow() {
        let announced = Announcements::new();
        for table in 1..=10 * SLOTS as u32 {
            announced.add(0, table, 1);
        }
        assert_eq!(announced.of_all(), 1);
        let kept = announced.read().count();
        assert!(kept > SLOTS / 2 && kept <= SLOTS, "{kept}");
    }

    /// A table of the next database has the OID of one of the database before.
    #[test]
    fn announcements_of_another_database_do_not_count() {
        let announced = Announcements::new();
        announced.assign();
        let first = announced.assignment();
        assert!(announced.add(first, 7, 1));
        assert!(announced.add_to_all(first, 1));
        announced.assign();
        assert_eq!(announced.read().count(), 0);
        assert_eq!((announced.of_all(), announced.take_all()), (0, 0));
        let second = announced.assignment();
        assert!(announced.add(second, 7, 2));
        // A session of the first database is late.
        assert!(!announced.add(first, 7, 4));
        let at = announced.read().next().map(|(at, _)| at);
        assert_eq!(at.map(|at| announced.take(at)), Some((7, 2)));
        assert!(!announced.add(first, 7, 4));
        assert_eq!(announced.read().count(), 0);
    }

    /// Where the number of assignments no longer fits into an announcement, and where half of that
    /// is reached.
    #[test]
    fn numbers_of_assignments_do_not_wrap() {
        for last in [
            ASSIGNMENT / 2,
            ASSIGNMENT,
            5 * ASSIGNMENT + 4,
            u64::from(u32::MAX),
        ] {
            let announced = Announcements::new();
            let old = announced.assignment();
            assert!(announced.add(old, 7, 1) && announced.add_to_all(old, 1));
            announced.assignment.store(last - 1, Ordering::SeqCst);
            for number in last..last + 3 {
                announced.assign();
                assert_eq!(announced.assignment(), number);
                assert_eq!((announced.read().count(), announced.of_all()), (0, 0));
                assert!(announced.add(number, 7, 2) && announced.add_to_all(number, 2));
                assert!(!announced.add(old, 7, 4) && !announced.add_to_all(number - 1, 4));
                let at = announced.read().next().map(|(at, _)| at);
                assert_eq!(at.map(|at| announced.take(at)), Some((7, 2)));
                assert_eq!(announced.of_all(), 2);
            }
        }
    }

    /// A session compares its number, and the memory is assigned to another database before it
    /// writes.
    #[test]
    fn what_a_late_session_has_written_is_replaced() {
        let announced = Announcements::new();
        announced.assign();
        for slot in announced.slots.iter().chain([&announced.overflow]) {
            slot.store(entry(9, 0, 1), Ordering::SeqCst);
        }
        assert_eq!((announced.read().count(), announced.of_all()), (0, 0));
        assert!(announced.add(1, 7, 2) && announced.add_to_all(1, 2));
        assert_eq!(announced.read().count(), 1);
        assert_eq!(announced.of_all(), 2);
    }
}
