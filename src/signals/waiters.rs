//! Sessions that wait for documents, and the commits that wake them.
//!
//! A session first says that it waits and then looks; a transaction first commits and
//! then reads who waits. So one of them sees the other.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use crate::pg::process::Latch;

/// How many sessions can wait at a time; more of them look again every now and then.
const WAITERS: usize = 1024;

/// How many queues a session can wait for at a time.
pub const QUEUES: usize = 16;

const FREE: u32 = 0;

const TAKEN: u32 = 1;

pub const WAITING: u32 = 2;

pub const WOKEN: u32 = 3;

pub struct Waiter {
    pub state: AtomicU32,
    latch: Latch,
    since: AtomicI64,
    database: AtomicU32,
    version: AtomicI32,
    tables: [AtomicU32; QUEUES],
}

impl Waiter {
    fn waits_for(&self, database: u32, came: WaitKey) -> bool {
        self.state.load(Ordering::SeqCst) == WAITING
            && self.database.load(Ordering::Relaxed) == database
            && self.version.load(Ordering::Relaxed) == came.version
            && self
                .tables
                .iter()
                .map(|t| t.load(Ordering::Relaxed))
                .take_while(|t| *t != 0)
                .any(|t| t == came.table)
    }

    fn wake(&self) -> bool {
        let woken = self
            .state
            .compare_exchange(WAITING, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if woken.is_ok() {
            self.latch.set();
        }
        woken.is_ok()
    }
}

/// The sessions that wait.
pub struct Waiters {
    /// How many there are.
    number: AtomicU32,
    /// All of them are before this one.
    end: AtomicU32,
    pub waiters: [Waiter; WAITERS],
}

impl Waiters {
    pub const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            end: AtomicU32::new(0),
            waiters: [const {
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

    pub fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// A place for this session; None when all are taken.
    pub fn take(&self, database: u32, version: i32, tables: &[u32], now: i64) -> Option<usize> {
        let free = self.waiters.iter().position(|waiter| {
            let taken =
                waiter
                    .state
                    .compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst);
            taken.is_ok()
        })?;
        let waiter = &self.waiters[free];
        waiter.latch.take();
        waiter.database.store(database, Ordering::Relaxed);
        waiter.version.store(version, Ordering::Relaxed);
        for (at, place) in waiter.tables.iter().enumerate() {
            place.store(tables.get(at).copied().unwrap_or(0), Ordering::Relaxed);
        }
        waiter.since.store(now, Ordering::Relaxed);
        self.end.fetch_max(free as u32 + 1, Ordering::SeqCst);
        self.number.fetch_add(1, Ordering::SeqCst);
        Some(free)
    }

    /// A wake-up that this one has not used wakes somebody else in its place.
    pub fn leave(&self, place: usize) {
        let waiter = &self.waiters[place];
        waiter.latch.leave();
        let database = waiter.database.load(Ordering::Relaxed);
        let version = waiter.version.load(Ordering::Relaxed);
        let tables = waiter.tables.each_ref().map(|t| t.load(Ordering::Relaxed));
        self.number.fetch_sub(1, Ordering::SeqCst);
        if waiter.state.swap(FREE, Ordering::SeqCst) == WOKEN {
            for table in tables.into_iter().take_while(|table| *table != 0) {
                self.wake(database, WaitKey { table, version }, 1);
            }
        }
    }

    /// Wakes up to a number of those that wait for documents of a table, of whatever
    /// version.
    pub fn wake_any(&self, database: u32, table: u32, number: u32) {
        if self.number() == 0 {
            return;
        }
        let end = (self.end.load(Ordering::SeqCst) as usize).min(WAITERS);
        let mut left = number;
        for waiter in &self.waiters[..end] {
            let version = waiter.version.load(Ordering::Relaxed);
            if left > 0 && waiter.waits_for(database, WaitKey { table, version }) && waiter.wake() {
                left -= 1;
            }
        }
    }

    /// Wakes as many of those that wait for such documents as came, the one that has
    /// waited longest first.
    pub fn wake(&self, database: u32, came: WaitKey, number: u32) {
        if self.number() == 0 {
            return;
        }
        let end = (self.end.load(Ordering::SeqCst) as usize).min(WAITERS);
        let mut left = number;
        while left > 0 {
            let longest = self.waiters[..end]
                .iter()
                .filter(|waiter| waiter.waits_for(database, came))
                .min_by_key(|waiter| waiter.since.load(Ordering::Relaxed));
            match longest {
                // False: another commit has woken it just now, for its own document.
                Some(waiter) if waiter.wake() => left -= 1,
                Some(_) => {}
                None => break,
            }
        }
    }
}

/// Where documents are ready: those of a version, in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitKey {
    pub table: u32,
    pub version: i32,
}
