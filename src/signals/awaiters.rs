//! Awaiters: the sessions that wait until a document is settled, in shared memory.
//!
//! A session first arms its slot and then looks at the document. A transaction first commits and
//! then looks for armed slots. Therefore either the session sees how the document was settled, or
//! the transaction finds the session.
//!
//! A slot is in the bucket of its document, so that a commit looks at one bucket for each document
//! that it settles, however many sessions wait. Where the bucket is full, the slot is anywhere, and
//! commits look everywhere as long as there is such a slot.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::pg::process::Latch;
use crate::pg::shared::{Area, Content, Place};
use crate::settings;

/// The slots of a bucket.
const BUCKET: usize = 16;

/// The states of a slot: it is not used.
const FREE: u32 = 0;

/// A session has the slot and does not want to be woken.
const UNARMED: u32 = 1;

/// A commit wakes the session.
const ARMED: u32 = 2;

/// A commit has woken the session.
const WOKEN: u32 = 3;

/// A document by the hash of its subject. Two documents of a table with the same hash wake each
/// other's awaiters, which look and go on waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentKey {
    pub database: u32,
    pub table: u32,
    pub hash: u64,
}

impl DocumentKey {
    /// The key of a document of a table of a database.
    pub fn new(database: u32, table: u32, subject: &str) -> Self {
        Self {
            database,
            table,
            hash: hash(subject),
        }
    }

    /// The first slot of its bucket, among this number of slots.
    fn first_slot(&self, slots: usize) -> usize {
        let buckets = (slots / BUCKET).max(1) as u64;
        let mixed = self.hash ^ u64::from(self.table).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed % buckets) as usize * BUCKET
    }
}

/// The hash of a subject.
pub fn hash(subject: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    subject.hash(&mut hasher);
    hasher.finish()
}

/// The slot of one session.
pub struct Slot {
    state: AtomicU32,
    database: AtomicU32,
    table: AtomicU32,
    /// It is not in the bucket of its document.
    is_elsewhere: AtomicBool,
    hash: AtomicU64,
    latch: Latch,
}

impl Slot {
    /// Returns a slot that is not used.
    const fn free() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            database: AtomicU32::new(0),
            table: AtomicU32::new(0),
            is_elsewhere: AtomicBool::new(false),
            hash: AtomicU64::new(0),
            latch: Latch::none(),
        }
    }

    fn claim(&self) -> bool {
        let claimed =
            self.state
                .compare_exchange(FREE, UNARMED, Ordering::SeqCst, Ordering::SeqCst);
        claimed.is_ok()
    }

    /// The document that its session waits for; None when the session is not to be woken.
    fn armed_for(&self) -> Option<DocumentKey> {
        (self.state.load(Ordering::SeqCst) == ARMED).then(|| DocumentKey {
            database: self.database.load(Ordering::Relaxed),
            table: self.table.load(Ordering::Relaxed),
            hash: self.hash.load(Ordering::Relaxed),
        })
    }

    fn wake(&self) {
        let woken = self
            .state
            .compare_exchange(ARMED, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if woken.is_ok() {
            self.latch.set();
        }
    }
}

/// What all slots have in common.
pub struct Totals {
    /// Slots that are used.
    used: AtomicU32,
    /// Slots that are not in the bucket of their document.
    elsewhere: AtomicU32,
}

impl Totals {
    const fn new() -> Self {
        Self {
            used: AtomicU32::new(0),
            elsewhere: AtomicU32::new(0),
        }
    }
}

/// The awaiters of the server.
#[derive(Clone, Copy)]
pub struct Awaiters<'a> {
    totals: &'a Totals,
    slots: &'a [Slot],
}

impl Awaiters<'_> {
    /// Returns whether no session waits. A session that began to wait at this moment may be missed:
    /// ask again after the commit, by [`Self::is_empty_now`].
    pub fn is_empty(&self) -> bool {
        self.totals.used.load(Ordering::Relaxed) == 0
    }

    /// Returns whether no session waits that cannot see what this transaction has committed.
    pub fn is_empty_now(&self) -> bool {
        self.totals.used.load(Ordering::SeqCst) == 0
    }

    /// Gives this session a slot, to wait for a document. Returns the slot, unarmed; None when all
    /// are used.
    pub fn add(&self, document: DocumentKey) -> Option<usize> {
        let home = document.first_slot(self.slots.len());
        let bucket = home..(home + BUCKET).min(self.slots.len());
        let at_home = bucket.clone().find(|at| self.slots[*at].claim());
        let at = at_home.or_else(|| self.slots.iter().position(Slot::claim))?;
        let slot = &self.slots[at];
        let is_elsewhere = !bucket.contains(&at);
        slot.latch.take();
        slot.database.store(document.database, Ordering::Relaxed);
        slot.table.store(document.table, Ordering::Relaxed);
        slot.hash.store(document.hash, Ordering::Relaxed);
        slot.is_elsewhere.store(is_elsewhere, Ordering::Relaxed);
        // A commit that finds the session must also look where it is.
        if is_elsewhere {
            self.totals.elsewhere.fetch_add(1, Ordering::SeqCst);
        }
        self.totals.used.fetch_add(1, Ordering::SeqCst);
        Some(at)
    }

    /// Has the next commit that settles the document wake the session of this slot.
    pub fn arm(&self, at: usize) {
        self.slots[at].state.store(ARMED, Ordering::SeqCst);
    }

    /// Returns whether a commit has woken the session of this slot since it was armed.
    pub fn is_woken(&self, at: usize) -> bool {
        self.slots[at].state.load(Ordering::SeqCst) == WOKEN
    }

    /// Gives the slot of this session back.
    pub fn remove(&self, at: usize) {
        let slot = &self.slots[at];
        slot.latch.leave();
        if slot.is_elsewhere.load(Ordering::Relaxed) {
            self.totals.elsewhere.fetch_sub(1, Ordering::SeqCst);
        }
        self.totals.used.fetch_sub(1, Ordering::SeqCst);
        slot.state.store(FREE, Ordering::SeqCst);
    }

    /// Wakes the sessions that wait for a document.
    pub fn wake(&self, document: DocumentKey) {
        let slots = match self.totals.elsewhere.load(Ordering::SeqCst) {
            0 => {
                let home = document.first_slot(self.slots.len());
                &self.slots[home.min(self.slots.len())..(home + BUCKET).min(self.slots.len())]
            }
            _ => self.slots,
        };
        wake_if(slots, |key| key == document);
    }

    /// Wakes the sessions that wait for any document of a table.
    pub fn wake_table(&self, database: u32, table: u32) {
        wake_if(self.slots, |key| {
            (key.database, key.table) == (database, table)
        });
    }

    /// Wakes the sessions that wait for any document of a database.
    pub fn wake_database(&self, database: u32) {
        wake_if(self.slots, |key| key.database == database);
    }
}

fn wake_if(slots: &[Slot], is_meant: impl Fn(DocumentKey) -> bool) {
    for slot in slots {
        if slot.armed_for().is_some_and(&is_meant) {
            slot.wake();
        }
    }
}

/// The awaiters as an area of shared memory.
struct Memory;

impl Content for Memory {
    const NAME: &std::ffi::CStr = c"fetchq awaiters";
    type Header = Totals;
    type Item = Slot;
    const HAS_LOCKS: bool = false;

    fn header() -> Totals {
        Totals::new()
    }

    fn item() -> Slot {
        Slot::free()
    }

    fn items() -> usize {
        settings::await_slots()
    }

    fn place() -> &'static Place {
        static PLACE: Place = Place::unknown();
        &PLACE
    }
}

/// Requests the shared memory. Called from `_PG_init` while libraries are preloaded.
pub fn install() {
    Area::<Memory>::install();
}

/// Returns the awaiters; None without shared memory.
pub fn awaiters() -> Option<Awaiters<'static>> {
    let totals = Area::<Memory>::header()?;
    Some(Awaiters {
        totals,
        slots: Area::<Memory>::slots(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(subject: &str) -> DocumentKey {
        DocumentKey::new(1, 2, subject)
    }

    /// A slot without its process.
    fn wait(awaiters: Awaiters, subject: &str) -> usize {
        let at = awaiters.add(key(subject)).unwrap();
        awaiters.slots[at].latch.leave();
        awaiters.arm(at);
        at
    }

    #[test]
    fn a_commit_wakes_those_who_wait_for_its_document() {
        let (totals, slots) = (Totals::new(), [const { Slot::free() }; 64]);
        let awaiters = Awaiters {
            totals: &totals,
            slots: &slots,
        };
        assert!(awaiters.is_empty_now());
        let subjects: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
        let all: Vec<usize> = subjects.iter().map(|s| wait(awaiters, s)).collect();
        awaiters.wake(key("s7"));
        for (n, at) in all.iter().enumerate() {
            assert_eq!(awaiters.is_woken(*at), n == 7);
        }
        awaiters.wake(DocumentKey::new(1, 3, "s8"));
        awaiters.wake(DocumentKey::new(2, 2, "s8"));
        awaiters.wake_table(1, 3);
        awaiters.wake_database(2);
        assert!(!awaiters.is_woken(all[8]));
        awaiters.wake_table(1, 2);
        assert!(all.iter().all(|at| awaiters.is_woken(*at)));
        all.iter().for_each(|at| awaiters.remove(*at));
        assert!(awaiters.is_empty());
    }

    /// More sessions than a bucket has slots wait for the same document.
    #[test]
    fn a_full_bucket_loses_no_awaiter() {
        let (totals, slots) = (Totals::new(), [const { Slot::free() }; 40]);
        let awaiters = Awaiters {
            totals: &totals,
            slots: &slots,
        };
        let all: Vec<usize> = (0..40).map(|_| wait(awaiters, "same")).collect();
        assert!(awaiters.add(key("same")).is_none());
        assert_eq!(totals.elsewhere.load(Ordering::SeqCst), 24);
        awaiters.wake(key("same"));
        assert!(all.iter().all(|at| awaiters.is_woken(*at)));
        all.iter().for_each(|at| awaiters.remove(*at));
        assert_eq!(totals.elsewhere.load(Ordering::SeqCst), 0);
        assert!(awaiters.is_empty());
    }

    #[test]
    fn without_slots_nobody_waits() {
        let totals = Totals::new();
        let awaiters = Awaiters {
            totals: &totals,
            slots: &[],
        };
        assert!(awaiters.add(key("s")).is_none());
        awaiters.wake(key("s"));
        awaiters.wake_table(1, 2);
    }
}
