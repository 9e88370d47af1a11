//! The announcements that the background worker of a database has not sent yet, in shared
//! memory. `announce.rs` says why the background worker sends them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Queues of one database that can have announcements at a time. More queues are not lost:
/// their statuses are announced for all queues then. Not measured: 1024 slots take 8 kB of the
/// board for each database.
const SLOTS: usize = 1024;

/// Slots that are tried for a queue before its statuses are announced for all queues. Not measured:
/// 16 slots are two cache lines.
const PROBES: usize = 16;

/// For each table, the statuses that documents have entered. A hash table.
pub struct Announcements {
    /// The table in the upper half, and the bits of the statuses in the lower half.
    slots: [AtomicU64; SLOTS],
    /// Statuses of tables that found no slot.
    pub overflow: AtomicU32,
}

fn entry(table: u32, statuses: u32) -> u64 {
    u64::from(table) << 32 | u64::from(statuses)
}

impl Announcements {
    /// Returns the state in which there is nothing to announce.
    pub const fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            overflow: AtomicU32::new(0),
        }
    }

    /// Adds statuses of a table, a set of `Status::bit`. Returns whether that changed anything,
    /// so that the background worker may have to be woken.
    pub fn add(&self, table: u32, statuses: u32) -> bool {
        // Fibonacci hashing.
        let first = (table.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        for at in (first..first + PROBES).map(|at| at % SLOTS) {
            let slot = &self.slots[at];
            let mut before = slot.load(Ordering::SeqCst);
            while before == 0 || (before >> 32) as u32 == table {
                let after = entry(table, before as u32 | statuses);
                if before == after {
                    return false;
                }
                match slot.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return true,
                    Err(now) => before = now,
                }
            }
        }
        self.overflow.fetch_or(statuses, Ordering::SeqCst) & statuses != statuses
    }

    /// Returns the slots that are used, and the table of each. They stay as they are.
    pub fn read(&self) -> impl Iterator<Item = (usize, u32)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, slot)| {
            let table = (slot.load(Ordering::SeqCst) >> 32) as u32;
            (table != 0).then_some((at, table))
        })
    }

    /// Empties a slot and returns its table and statuses.
    pub fn take(&self, at: usize) -> (u32, u32) {
        let taken = self.slots[at].swap(0, Ordering::SeqCst);
        ((taken >> 32) as u32, taken as u32)
    }
}

impl Announcements {
    /// Forgets all announcements.
    pub fn clear(&self) {
        let slots = self.slots.iter();
        slots.for_each(|slot| slot.store(0, Ordering::SeqCst));
        self.overflow.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_a_table_are_collected() {
        let announced = Announcements::new();
        assert!(announced.add(7, 1));
        assert!(!announced.add(7, 1));
        assert!(announced.add(7, 2));
        assert!(announced.add(8, 4));
        let mut taken: Vec<_> = announced.read().map(|(at, _)| at).collect();
        taken.sort_unstable();
        let mut found: Vec<_> = taken.into_iter().map(|at| announced.take(at)).collect();
        found.sort_unstable();
        assert_eq!(found, [(7, 3), (8, 4)]);
        assert_eq!(announced.read().count(), 0);
        assert!(announced.add(7, 1));
    }

    #[test]
    fn too_many_tables_overflow() {
        let announced = Announcements::new();
        for table in 1..=10 * SLOTS as u32 {
            announced.add(table, 1);
        }
        assert_eq!(announced.overflow.load(Ordering::SeqCst), 1);
        let kept = announced.read().count();
        assert!(kept > SLOTS / 2 && kept <= SLOTS, "{kept}");
    }
}
