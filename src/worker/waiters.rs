//! Sessions that wait for documents, and the commits that wake them.
//!
//! A session first says that it waits and then looks; a transaction first commits and
//! then reads who waits. So one of them sees the other.

use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};
use std::thread::LocalKey;

use crate::pg::worker::Latch;

/// How many sessions can wait at a time; more of them look again every now and then.
const WAITERS: usize = 1024;
/// How many queues a session can wait for at a time.
pub const QUEUES: usize = 16;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WAITING: u32 = 2;
const WOKEN: u32 = 3;

struct Waiter {
    state: AtomicU32,
    latch: Latch,
    since: AtomicI64,
    database: AtomicU32,
    version: AtomicI32,
    tables: [AtomicU32; QUEUES],
}

impl Waiter {
    fn waits_for(&self, database: u32, came: Documents) -> bool {
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
    waiters: [Waiter; WAITERS],
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
    fn take(&self, database: u32, version: i32, tables: &[u32], now: i64) -> Option<usize> {
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
    fn leave(&self, place: usize) {
        let waiter = &self.waiters[place];
        waiter.latch.leave();
        let database = waiter.database.load(Ordering::Relaxed);
        let version = waiter.version.load(Ordering::Relaxed);
        let tables = waiter.tables.each_ref().map(|t| t.load(Ordering::Relaxed));
        self.number.fetch_sub(1, Ordering::SeqCst);
        if waiter.state.swap(FREE, Ordering::SeqCst) == WOKEN {
            for table in tables.into_iter().take_while(|table| *table != 0) {
                self.wake(database, Documents { table, version }, 1);
            }
        }
    }

    /// Wakes up to a number of those that wait for documents of a table, of whatever
    /// version.
    fn wake_any(&self, database: u32, table: u32, number: u32) {
        if self.number() == 0 {
            return;
        }
        let end = (self.end.load(Ordering::SeqCst) as usize).min(WAITERS);
        let mut left = number;
        for waiter in &self.waiters[..end] {
            let version = waiter.version.load(Ordering::Relaxed);
            if left > 0 && waiter.waits_for(database, Documents { table, version }) && waiter.wake()
            {
                left -= 1;
            }
        }
    }

    /// Wakes as many of those that wait for such documents as came, the one that has
    /// waited longest first.
    pub fn wake(&self, database: u32, came: Documents, number: u32) {
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
pub struct Documents {
    pub table: u32,
    pub version: i32,
}

thread_local! {
    /// The place of this session, so that its exit gives it back.
    static PLACE: RefCell<Option<(&'static Waiters, usize)>> = const { RefCell::new(None) };
    /// Documents that this transaction has made ready: where, how many.
    static CAME: Counts = const { RefCell::new(Vec::new()) };
    /// Documents that this transaction has picked, which its rollback gives back.
    static TOOK: Counts = const { RefCell::new(Vec::new()) };
    /// Tables of whose documents this transaction lets some more be picked: how many.
    static ROOM: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// A session that waits, until this is dropped.
pub struct Waiting {
    waiters: &'static Waiters,
    place: usize,
}

impl Waiting {
    pub fn begin(
        waiters: &'static Waiters,
        database: u32,
        version: i32,
        tables: &[u32],
        now: i64,
    ) -> Option<Self> {
        let place = waiters.take(database, version, tables, now)?;
        PLACE.with(|p| *p.borrow_mut() = Some((waiters, place)));
        Some(Self { waiters, place })
    }

    /// From now on a commit wakes this session; called before it looks.
    pub fn listens(&self) {
        self.waiters.waiters[self.place]
            .state
            .store(WAITING, Ordering::SeqCst);
    }

    /// Whether a commit has woken it since.
    pub fn was_woken(&self) -> bool {
        self.waiters.waiters[self.place]
            .state
            .load(Ordering::SeqCst)
            == WOKEN
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the place of this session back, if it has one: also at the exit of a session
/// that was told to end while it waited.
pub fn give_back() {
    let place = PLACE.with(|place| place.borrow_mut().take());
    if let Some((waiters, place)) = place {
        waiters.leave(place);
    }
}

type Counts = RefCell<Vec<(Documents, u32)>>;

fn count(counts: &'static LocalKey<Counts>, documents: Documents, number: u32) {
    // (without shared memory nobody would ever read them)
    if number == 0 || super::board().is_none() {
        return;
    }
    counts.with(|counts| {
        let mut counts = counts.borrow_mut();
        match counts.iter_mut().find(|(other, _)| *other == documents) {
            Some((_, n)) => *n = n.saturating_add(number),
            None => counts.push((documents, number)),
        }
    });
}

fn wake_all(counts: &'static LocalKey<Counts>, waiters: Option<&Waiters>, database: u32) {
    // (they are gone in a process that ends in the middle of something)
    let _ = counts.try_with(|counts| {
        for (documents, number) in counts.borrow_mut().drain(..) {
            if let Some(waiters) = waiters {
                waiters.wake(database, documents, number);
            }
        }
    });
}

/// Documents are ready when this transaction commits.
pub fn came(documents: Documents, number: u32) {
    count(&CAME, documents, number);
}

/// Documents are ready again when this transaction rolls back.
pub fn took(documents: Documents, number: u32) {
    count(&TOOK, documents, number);
}

/// More documents of a table, of whatever version, can be picked when this transaction
/// commits: that many.
pub fn has_room(table: u32, number: u32) {
    if super::board().is_none() {
        return;
    }
    ROOM.with(|room| {
        let mut room = room.borrow_mut();
        match room.iter_mut().find(|(other, _)| *other == table) {
            Some((_, n)) => *n = n.saturating_add(number),
            None => room.push((table, number)),
        }
    });
}

fn wake_for_room(waiters: Option<&Waiters>, database: u32) {
    let _ = ROOM.try_with(|room| {
        for (table, number) in room.borrow_mut().drain(..) {
            if let Some(waiters) = waiters {
                waiters.wake_any(database, table, number);
            }
        }
    });
}

/// After the commit: wakes who waits for what came.
pub fn committed(waiters: Option<&Waiters>, database: u32) {
    wake_for_room(waiters, database);
    wake_all(&CAME, waiters, database);
    wake_all(&TOOK, None, database);
}

/// After a rollback: nothing came, and what was picked is there again.
pub fn rolled_back(waiters: Option<&Waiters>, database: u32) {
    wake_for_room(None, database);
    wake_all(&CAME, None, database);
    wake_all(&TOOK, waiters, database);
}
