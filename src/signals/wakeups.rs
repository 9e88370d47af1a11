//! Wake-ups: this session as a waiter, and the waiters that the end of its transaction wakes.
//! `waiters.rs` has the state in shared memory.

use crate::pg::lasting::{Lasting, lasting};
use std::thread::LocalKey;

use crate::signals::board::board;
use crate::signals::waiters::{WaitKey, Waiters};

type Counts = Lasting<Vec<(WaitKey, u32)>>;

thread_local! {
    /// The slots of this session, so that the exit of the session gives them back.
    static SLOTS: Lasting<Option<(&'static Waiters, Vec<usize>)>> = const { lasting(None) };
    /// Documents that this transaction has made ready.
    static READY: Counts = const { lasting(Vec::new()) };
    /// Documents that this transaction has picked. Its rollback makes them ready again.
    static CLAIMED: Counts = const { lasting(Vec::new()) };
    /// Tables of which this transaction lets more documents be picked, and how many more.
    static FREED_CAPACITY: Lasting<Vec<(u32, u32)>> = const { lasting(Vec::new()) };
}

/// This session as a waiter, until this is dropped.
pub struct Registration {
    waiters: &'static Waiters,
    /// Its first slot.
    slot: usize,
}

impl Registration {
    /// Registers this session as a waiter for documents of a version in some tables. `now` is in
    /// microseconds since 2000. Returns None when too few slots are free.
    pub fn new(
        waiters: &'static Waiters,
        database: u32,
        version: i32,
        tables: &[u32],
        now: i64,
    ) -> Option<Self> {
        let slots = waiters.add(database, version, tables, now)?;
        let slot = *slots.first()?;
        SLOTS.with(|own| *own.borrow_mut() = Some((waiters, slots)));
        Some(Self { waiters, slot })
    }

    /// Has the next commit wake this session. To be called before the session looks for
    /// documents.
    pub fn arm(&self) {
        self.waiters.arm(self.slot);
    }

    /// Returns whether a commit has woken this session since it was armed.
    pub fn is_woken(&self) -> bool {
        self.waiters.is_woken(self.slot)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        release_slots();
    }
}

/// Gives the slots of this session back, if it has some. The exit of a session calls it too,
/// because a session may be terminated while it waits.
pub fn release_slots() {
    let own = SLOTS.with(|slots| slots.borrow_mut().take());
    if let Some((waiters, slots)) = own {
        waiters.remove(&slots);
    }
}

fn count(counts: &'static LocalKey<Counts>, key: WaitKey, number: u32) {
    // Without shared memory there are no waiters, and nothing would ever empty the list.
    if number == 0 || board().is_none() {
        return;
    }
    counts.with(|counts| {
        let mut counts = counts.borrow_mut();
        match counts.iter_mut().find(|(other, _)| *other == key) {
            Some((_, n)) => *n = n.saturating_add(number),
            None => counts.push((key, number)),
        }
    });
}

/// Empties a list and wakes the waiters for its documents; with None it wakes no waiter.
fn wake_all(counts: &'static LocalKey<Counts>, waiters: Option<&Waiters>, database: u32) {
    // The list is gone in a process that exits within a transaction.
    let _ = counts.try_with(|counts| {
        for (key, number) in counts.borrow_mut().drain(..) {
            if let Some(waiters) = waiters {
                waiters.wake(database, key, number);
            }
        }
    });
}

/// Counts documents that are ready when this transaction commits.
pub fn documents_ready(documents: WaitKey, number: u32) {
    count(&READY, documents, number);
}

/// Counts documents that are ready again when this transaction rolls back.
pub fn documents_claimed(documents: WaitKey, number: u32) {
    count(&CLAIMED, documents, number);
}

/// Counts how many more documents of a table, of whatever version, can be picked when this
/// transaction commits.
pub fn capacity_freed(table: u32, number: u32) {
    if board().is_none() {
        return;
    }
    FREED_CAPACITY.with(|freed| {
        let mut freed = freed.borrow_mut();
        match freed.iter_mut().find(|(other, _)| *other == table) {
            Some((_, n)) => *n = n.saturating_add(number),
            None => freed.push((table, number)),
        }
    });
}

fn wake_for_capacity(waiters: Option<&Waiters>, database: u32) {
    let _ = FREED_CAPACITY.try_with(|freed| {
        for (table, number) in freed.borrow_mut().drain(..) {
            if let Some(waiters) = waiters {
                waiters.wake_any(database, table, number);
            }
        }
    });
}

/// Wakes the waiters for documents that this transaction made ready. To be called after the
/// commit.
pub fn after_commit(waiters: Option<&Waiters>, database: u32) {
    wake_for_capacity(waiters, database);
    wake_all(&READY, waiters, database);
    wake_all(&CLAIMED, None, database);
}

/// Wakes the waiters for documents that this transaction had picked, because they are ready
/// again. To be called after a rollback.
pub fn after_rollback(waiters: Option<&Waiters>, database: u32) {
    wake_for_capacity(None, database);
    wake_all(&READY, None, database);
    wake_all(&CLAIMED, waiters, database);
}
