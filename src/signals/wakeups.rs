//! Sessions that wait for documents, and the commits that wake them.
//!
//! A session first says that it waits and then looks; a transaction first commits and
//! then reads who waits. So one of them sees the other.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::thread::LocalKey;

use crate::signals::board::board;
use crate::signals::waiters::{WAITING, WOKEN, WaitKey, Waiters};

thread_local! {
    /// The place of this session, so that its exit gives it back.
    static PLACE: RefCell<Option<(&'static Waiters, usize)>> = const { RefCell::new(None) };
    /// WaitKey that this transaction has made ready: where, how many.
    static CAME: Counts = const { RefCell::new(Vec::new()) };
    /// WaitKey that this transaction has picked, which its rollback gives back.
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
        release_slot();
    }
}

/// Gives the place of this session back, if it has one: also at the exit of a session
/// that was told to end while it waited.
pub fn release_slot() {
    let place = PLACE.with(|place| place.borrow_mut().take());
    if let Some((waiters, place)) = place {
        waiters.leave(place);
    }
}

type Counts = RefCell<Vec<(WaitKey, u32)>>;

fn count(counts: &'static LocalKey<Counts>, documents: WaitKey, number: u32) {
    // (without shared memory nobody would ever read them)
    if number == 0 || board().is_none() {
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

/// WaitKey are ready when this transaction commits.
pub fn documents_ready(documents: WaitKey, number: u32) {
    count(&CAME, documents, number);
}

/// WaitKey are ready again when this transaction rolls back.
pub fn documents_claimed(documents: WaitKey, number: u32) {
    count(&TOOK, documents, number);
}

/// More documents of a table, of whatever version, can be picked when this transaction
/// commits: that many.
pub fn capacity_freed(table: u32, number: u32) {
    if board().is_none() {
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
