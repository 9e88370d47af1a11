//! The notifications of queues that have them enabled, sent by the worker: a transaction
//! that notifies holds a lock of the whole server while it commits, so that all those
//! that do commit one after the other. The worker does it for them, once for all that
//! entered a state in a moment.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many queues can have something to announce at a time.
const SLOTS: usize = 1024;

/// How many places a queue may have among them.
const PROBES: usize = 16;

/// What the worker has to announce: for each table the states that documents entered.
pub struct Announcements {
    /// The table, and below it a bit for each state.
    slots: [AtomicU64; SLOTS],
    /// States of tables for which there was no room.
    pub overflow: AtomicU32,
}

fn slot(table: u32, states: u32) -> u64 {
    u64::from(table) << 32 | u64::from(states)
}

impl Announcements {
    pub const fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            overflow: AtomicU32::new(0),
        }
    }

    /// Adds states of a table; true when the worker may not know of them.
    pub fn add(&self, table: u32, states: u32) -> bool {
        let first = (table.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        for at in (first..first + PROBES).map(|at| at % SLOTS) {
            let place = &self.slots[at];
            let mut before = place.load(Ordering::SeqCst);
            while before == 0 || (before >> 32) as u32 == table {
                let after = slot(table, before as u32 | states);
                if before == after {
                    return false;
                }
                match place.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return true,
                    Err(now) => before = now,
                }
            }
        }
        self.overflow.fetch_or(states, Ordering::SeqCst) & states != states
    }

    /// What there is; it stays.
    pub fn read(&self) -> impl Iterator<Item = (usize, u32)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, place)| {
            let table = (place.load(Ordering::SeqCst) >> 32) as u32;
            (table != 0).then_some((at, table))
        })
    }

    pub fn take(&self, at: usize) -> (u32, u32) {
        let taken = self.slots[at].swap(0, Ordering::SeqCst);
        ((taken >> 32) as u32, taken as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_a_table_are_gathered() {
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
    fn too_many_tables_are_told_as_such() {
        let announced = Announcements::new();
        for table in 1..=10 * SLOTS as u32 {
            announced.add(table, 1);
        }
        assert_eq!(announced.overflow.load(Ordering::SeqCst), 1);
        let kept = announced.read().count();
        assert!(kept > SLOTS / 2 && kept <= SLOTS, "{kept}");
    }
}
