//! Waiters: the sessions that wait for documents, in shared memory.
//!
//! A session first arms its waiter and then looks for documents. A transaction first commits
//! and then looks for waiters. Therefore either the session finds the document, or the
//! transaction finds the waiter.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use crate::pg::process::Latch;

/// Sessions that can wait at a time. More of them poll. Not measured: 1024 slots of about 100 bytes
/// take 100 kB of the board.
const WAITERS: usize = 1024;

/// Queues that a session can wait for at a time.
pub const QUEUES: usize = 16;

/// The states of a waiter: the slot is not used.
const FREE: u32 = 0;

/// A session has the slot and does not want to be woken.
const UNARMED: u32 = 1;

/// A commit wakes the session.
const ARMED: u32 = 2;

/// A commit has woken the session.
const WOKEN: u32 = 3;

/// The slot of one session.
struct Waiter {
    state: AtomicU32,
    latch: Latch,
    /// When it began to wait, in microseconds since 2000.
    since: AtomicI64,
    database: AtomicU32,
    version: AtomicI32,
    /// The documents tables of the queues; 0 after the last one.
    tables: [AtomicU32; QUEUES],
}

impl Waiter {
    fn waits_for(&self, database: u32, key: WaitKey) -> bool {
        self.state.load(Ordering::SeqCst) == ARMED
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

    /// Gives this session a slot, to wait for documents of a version in up to `QUEUES` tables.
    /// `now` is in microseconds since 2000. Returns the slot, unarmed; None when all are used.
    pub fn add(&self, database: u32, version: i32, tables: &[u32], now: i64) -> Option<usize> {
        let free = self.slots.iter().position(|waiter| {
            let claimed =
                waiter
                    .state
                    .compare_exchange(FREE, UNARMED, Ordering::SeqCst, Ordering::SeqCst);
            claimed.is_ok()
        })?;
        let waiter = &self.slots[free];
        waiter.latch.take();
        waiter.database.store(database, Ordering::Relaxed);
        waiter.version.store(version, Ordering::Relaxed);
        for (at, table) in waiter.tables.iter().enumerate() {
            table.store(tables.get(at).copied().unwrap_or(0), Ordering::Relaxed);
        }
        waiter.since.store(now, Ordering::Relaxed);
        self.end.fetch_max(free as u32 + 1, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(free)
    }

    /// Has the next commit wake the session of this slot.
    pub fn arm(&self, slot: usize) {
        self.slots[slot].state.store(ARMED, Ordering::SeqCst);
    }

    /// Returns whether a commit has woken the session of this slot since it was armed.
    pub fn is_woken(&self, slot: usize) -> bool {
        self.slots[slot].state.load(Ordering::SeqCst) == WOKEN
    }

    /// Gives the slot of this session back. When the session was woken and did not use that, one
    /// other waiter for each of its queues is woken instead.
    pub fn remove(&self, slot: usize) {
        let waiter = &self.slots[slot];
        waiter.latch.leave();
        let database = waiter.database.load(Ordering::Relaxed);
        let version = waiter.version.load(Ordering::Relaxed);
        let tables = waiter.tables.each_ref().map(|t| t.load(Ordering::Relaxed));
        self.count.fetch_sub(1, Ordering::SeqCst);
        if waiter.state.swap(FREE, Ordering::SeqCst) == WOKEN {
            for table in tables.into_iter().take_while(|table| *table != 0) {
                self.wake(database, WaitKey { table, version }, 1);
            }
        }
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
            if left > 0 && waiter.waits_for(database, WaitKey { table, version }) && waiter.wake() {
                left -= 1;
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
                .filter(|waiter| waiter.waits_for(database, key))
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
