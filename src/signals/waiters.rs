//! Waiters: the sessions that wait for documents, in shared memory.
//!
//! A session first arms its waiter and then looks for documents. A transaction first commits
//! and then looks for waiters. Therefore either the session finds the document, or the
//! transaction finds the waiter.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use crate::pg::process::Latch;

/// Slots of waiters. Sessions that find none poll. Not measured: 1024 slots of about 100 bytes take
/// 100 kB of the board.
const WAITERS: usize = 1024;

/// Queues of one slot. A session that waits for more of them has several slots: the first one is
/// armed and woken, and the others only have tables.
const QUEUES: usize = 16;

/// The states of a waiter: the slot is not used.
const FREE: u32 = 0;

/// A session has the slot and does not want to be woken.
const UNARMED: u32 = 1;

/// A commit wakes the session.
const ARMED: u32 = 2;

/// A commit has woken the session.
const WOKEN: u32 = 3;

/// A further slot of a session: the first one says whether it wants to be woken.
const FURTHER: u32 = 4;

/// The slot of one session.
struct Waiter {
    state: AtomicU32,
    latch: Latch,
    /// The position of the first slot of its session.
    first: AtomicU32,
    /// When it began to wait, in microseconds since 2000.
    since: AtomicI64,
    database: AtomicU32,
    version: AtomicI32,
    /// The documents tables of the queues; 0 after the last one.
    tables: [AtomicU32; QUEUES],
}

impl Waiter {
    /// Returns whether the slot is of a session that waits for these documents. Whether the session
    /// wants to be woken is for its first slot to say.
    fn is_for(&self, database: u32, key: WaitKey) -> bool {
        matches!(self.state.load(Ordering::SeqCst), ARMED | FURTHER)
            && self.database.load(Ordering::Relaxed) == database
            && self.version.load(Ordering::Relaxed) == key.version
            && self
                .tables
                .iter()
                .map(|t| t.load(Ordering::Relaxed))
                .take_while(|t| *t != 0)
                .any(|t| t == key.table)
    }

    /// Returns false when another commit has woken it first.
    fn wake(&self) -> bool {
        let woken = self
            .state
            .compare_exchange(ARMED, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if woken.is_ok() {
            self.latch.set();
        }
        woken.is_ok()
    }
}

/// All waiters of the server.
pub struct Waiters {
    /// Slots that are used.
    count: AtomicU32,
    /// Every slot that was ever used is before this position.
    end: AtomicU32,
    slots: [Waiter; WAITERS],
}

impl Waiters {
    /// Returns the state in which no session waits.
    pub const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            end: AtomicU32::new(0),
            slots: [const {
                Waiter {
                    state: AtomicU32::new(FREE),
                    latch: Latch::none(),
                    first: AtomicU32::new(0),
                    since: AtomicI64::new(0),
                    database: AtomicU32::new(0),
                    version: AtomicI32::new(0),
                    tables: [const { AtomicU32::new(0) }; QUEUES],
                }
            }; WAITERS],
        }
    }

    /// Returns the number of waiters.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn claim(&self) -> Option<usize> {
        self.slots.iter().position(|waiter| {
            let claimed =
                waiter
                    .state
                    .compare_exchange(FREE, UNARMED, Ordering::SeqCst, Ordering::SeqCst);
            claimed.is_ok()
        })
    }

    /// Gives this session as many slots as it needs, to wait for documents of a version in some
    /// tables. `now` is in microseconds since 2000. Returns the slots, unarmed; None when too few
    /// are free.
    pub fn add(&self, database: u32, version: i32, tables: &[u32], now: i64) -> Option<Vec<usize>> {
        let mut slots = Vec::with_capacity(tables.len().div_ceil(QUEUES));
        for _ in tables.chunks(QUEUES) {
            let Some(slot) = self.claim() else {
                for slot in slots {
                    let waiter: &Waiter = &self.slots[slot];
                    waiter.state.store(FREE, Ordering::SeqCst);
                }
                return None;
            };
            slots.push(slot);
        }
        let first = *slots.first()?;
        for (slot, tables) in slots.iter().zip(tables.chunks(QUEUES)) {
            let waiter = &self.slots[*slot];
            waiter.first.store(first as u32, Ordering::Relaxed);
            waiter.database.store(database, Ordering::Relaxed);
            waiter.version.store(version, Ordering::Relaxed);
            for (at, table) in waiter.tables.iter().enumerate() {
                table.store(tables.get(at).copied().unwrap_or(0), Ordering::Relaxed);
            }
            waiter.since.store(now, Ordering::Relaxed);
            self.end.fetch_max(*slot as u32 + 1, Ordering::SeqCst);
            self.count.fetch_add(1, Ordering::SeqCst);
            if *slot == first {
                waiter.latch.take();
            } else {
                waiter.state.store(FURTHER, Ordering::SeqCst);
            }
        }
        Some(slots)
    }

    /// Has the next commit wake the session with this first slot.
    pub fn arm(&self, slot: usize) {
        self.slots[slot].state.store(ARMED, Ordering::SeqCst);
    }

    /// Returns whether a commit has woken the session with this first slot since it was armed.
    pub fn is_woken(&self, slot: usize) -> bool {
        self.slots[slot].state.load(Ordering::SeqCst) == WOKEN
    }

    /// Gives the slots of this session back. When the session was woken and did not use that, one
    /// other waiter for each of its queues is woken instead.
    pub fn remove(&self, slots: &[usize]) {
        let mut was_woken = false;
        let mut unused: Vec<WaitKey> = Vec::new();
        let mut database = 0;
        for slot in slots {
            let waiter = &self.slots[*slot];
            waiter.latch.leave();
            database = waiter.database.load(Ordering::Relaxed);
            let version = waiter.version.load(Ordering::Relaxed);
            let tables = waiter.tables.iter().map(|t| t.load(Ordering::Relaxed));
            let tables = tables.take_while(|table| *table != 0);
            unused.extend(tables.map(|table| WaitKey { table, version }));
            self.count.fetch_sub(1, Ordering::SeqCst);
            was_woken |= waiter.state.swap(FREE, Ordering::SeqCst) == WOKEN;
        }
        if was_woken {
            for key in unused {
                self.wake(database, key, 1);
            }
        }
    }

    /// The first slot of the session of a slot, if that session waits for these documents and wants
    /// to be woken.
    fn armed_first(&self, slot: &Waiter, database: u32, key: WaitKey) -> Option<&Waiter> {
        if !slot.is_for(database, key) {
            return None;
        }
        let first = self
            .slots
            .get(slot.first.load(Ordering::Relaxed) as usize)?;
        (first.state.load(Ordering::SeqCst) == ARMED).then_some(first)
    }

    /// Wakes up to `number` of the waiters for documents of a table, of whatever version.
    pub fn wake_any(&self, database: u32, table: u32, number: u32) {
        if self.count() == 0 {
            return;
        }
        let end = (self.end.load(Ordering::SeqCst) as usize).min(WAITERS);
        let mut left = number;
        for waiter in &self.slots[..end] {
            let version = waiter.version.load(Ordering::Relaxed);
            let key = WaitKey { table, version };
            let first = self.armed_first(waiter, database, key);
            if left > 0 && first.is_some_and(Waiter::wake) {
                left -= 1;
            }
        }
    }

    /// Wakes all waiters of a database.
    pub fn wake_database(&self, database: u32) {
        if self.count() == 0 {
            return;
        }
        let end = (self.end.load(Ordering::SeqCst) as usize).min(WAITERS);
        for waiter in &self.slots[..end] {
            if waiter.database.load(Ordering::Relaxed) == database {
                waiter.wake();
            }
        }
    }

    /// Wakes up to `number` of the waiters for these documents, those that have waited longest
    /// first.
    pub fn wake(&self, database: u32, key: WaitKey, number: u32) {
        if self.count() == 0 {
            return;
        }
        let end = (self.end.load(Ordering::SeqCst) as usize).min(WAITERS);
        let mut left = number;
        while left > 0 {
            let longest = self.slots[..end]
                .iter()
                .filter_map(|waiter| self.armed_first(waiter, database, key))
                .min_by_key(|waiter| waiter.since.load(Ordering::Relaxed));
            match longest {
                // When it returns false, another commit has woken the waiter for its own
                // document.
                Some(waiter) if waiter.wake() => left -= 1,
                Some(_) => {}
                None => break,
            }
        }
    }
}

/// The documents that a session waits for: those of a version in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitKey {
    pub table: u32,
    pub version: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is too large for the stack of a test.
    fn waiters() -> Box<Waiters> {
        Box::new(Waiters::new())
    }

    fn wait(waiters: &Waiters, tables: &[u32], now: i64) -> Vec<usize> {
        let slots = waiters.add(1, 0, tables, now).unwrap();
        waiters.slots[slots[0]].latch.leave();
        waiters.arm(slots[0]);
        slots
    }

    #[test]
    fn a_session_that_waits_for_many_queues_is_woken_once() {
        let waiters = waiters();
        let tables: Vec<u32> = (1..=300).collect();
        let many = wait(&waiters, &tables, 1);
        let one = wait(&waiters, &[250], 2);
        assert_eq!((many.len(), one.len()), (19, 1));
        let key = |table| WaitKey { table, version: 0 };
        waiters.wake(1, key(301), 5);
        waiters.wake(2, key(250), 5);
        assert!(!waiters.is_woken(many[0]) && !waiters.is_woken(one[0]));
        // It has waited longest.
        waiters.wake(1, key(250), 1);
        assert!(waiters.is_woken(many[0]) && !waiters.is_woken(one[0]));
        // It is awake, so another document of its queues is for the other session.
        waiters.wake(1, key(250), 1);
        assert!(waiters.is_woken(one[0]));
        waiters.arm(one[0]);
        // The session has not used that it was woken.
        waiters.remove(&many);
        assert!(waiters.is_woken(one[0]));
        waiters.remove(&one);
        assert_eq!(waiters.count(), 0);
    }

    #[test]
    fn too_few_slots_are_given_back() {
        let waiters = waiters();
        let tables: Vec<u32> = (1..=1000).collect();
        let all: Vec<_> = (0..16).map(|now| wait(&waiters, &tables, now)).collect();
        assert!(waiters.add(1, 0, &tables, 99).is_none());
        let rest = WAITERS as u32 - waiters.count();
        assert_eq!(rest, 16);
        let single: Vec<_> = (0..rest).map(|n| wait(&waiters, &[n], 99)).collect();
        assert!(waiters.add(1, 0, &[1], 99).is_none());
        waiters.wake_any(1, 500, u32::MAX);
        assert!(all.iter().all(|slots| waiters.is_woken(slots[0])));
        all.iter()
            .chain(&single)
            .for_each(|slots| waiters.remove(slots));
        assert_eq!(waiters.count(), 0);
    }
}
