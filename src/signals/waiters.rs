//! Waiters: the sessions that wait for documents, until a document is settled, or until a lease of
//! theirs ends, in shared memory.
//!
//! A session first arms its waiter and then looks. A transaction first commits and then looks for
//! waiters. Therefore either the session sees what the transaction has done, or the transaction
//! finds the waiter.
//!
//! A session has a slot for each key that it waits for. The slots of a key are close to its home, so
//! that a commit reads few slots for each key, however many sessions wait for others.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::pg::lasting::{Lasting, lasting};
use crate::pg::process::Latch;
use crate::pg::shared::{Area, Content, Place};
use crate::pg::{session, time};

/// Slots of the server. Sessions that find too few poll. Not measured: all of them take 1 MB.
const SLOTS: usize = 20_480;

/// The states of a slot: it is not used.
const FREE: u32 = 0;

/// A session has the slot and does not want to be woken.
const UNARMED: u32 = 1;

/// A commit wakes the session. A slot that is not the first one of its session is in this state; a commit
/// that has read who had it before can also leave it woken.
const ARMED: u32 = 2;

/// A commit has woken the session.
const WOKEN: u32 = 3;

/// To wake all waiters for a key.
pub const ALL: u32 = u32::MAX;

/// What a session waits for: something of a documents table, or of a worker. Whoever wakes can also name
/// all such keys of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    table: u32,
    /// A version, or a hash with the bit `SUBJECT_KIND` or the bit `LEASE`.
    what: u64,
}

/// Documents of whatever version: more than 32 bits.
const ANY_VERSION: u64 = 1 << 32;

/// The same for sessions that can take no documents.
const ANY_VERSION_LOOKING: u64 = ANY_VERSION | LOOKING;

/// The bit beside a version that tells a session that can take no documents.
const LOOKING: u64 = 1 << 33;

/// The bit that tells the hash of a subject from a version.
const SUBJECT_KIND: u64 = 1 << 63;

/// The document with whatever subject.
const ANY_SUBJECT: u64 = u64::MAX;

/// The bit that tells the hash of a worker session, or of the name of a worker, from a version. The bit
/// `SUBJECT_KIND` is not set beside it.
const LEASE: u64 = 1 << 62;

/// The leases of whatever worker session.
const ANY_LEASE: u64 = SUBJECT_KIND - 1;

/// What keys stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ready,
    Settled,
    Lease,
    /// As `Ready`, of a session that can take no documents.
    Looking,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Key {
    /// Documents of a version that can be picked.
    pub fn ready(table: u32, version: i32) -> Self {
        let what = u64::from(version.cast_unsigned());
        Self { table, what }
    }

    /// Documents of whatever version that can be picked.
    pub fn ready_in(table: u32) -> Self {
        let what = ANY_VERSION;
        Self { table, what }
    }

    /// The same for a session that can take no documents, but wants to know. A commit wakes all of those, and
    /// beside them as many others as there are documents.
    pub fn only_looking(self) -> Self {
        let what = self.what | LOOKING;
        Self { what, ..self }
    }

    /// A document that is settled. Two documents of a table whose subjects have the same hash wake
    /// each other's waiters, which look and go on waiting.
    pub fn settled(table: u32, subject: &str) -> Self {
        let what = hash(subject) | SUBJECT_KIND;
        Self { table, what }
    }

    /// Any document that is settled.
    pub fn settled_in(table: u32) -> Self {
        let what = ANY_SUBJECT;
        Self { table, what }
    }

    /// Any document that is settled, of any table of the database.
    pub fn settled_anywhere() -> Self {
        Self::settled_in(0)
    }

    /// A lease of a worker session that somebody else ends.
    pub fn lease(table: u32, worker_session: i64) -> Self {
        let what = hash(worker_session) & ANY_LEASE | LEASE;
        Self { table, what }
    }

    /// Any lease that somebody else than its worker ends.
    pub fn lease_in(table: u32) -> Self {
        let what = ANY_LEASE;
        Self { table, what }
    }

    /// What somebody asks the workers of a name to do.
    pub fn worker(name: &str) -> Self {
        let what = hash(name) & ANY_LEASE | LEASE;
        Self { table: 0, what }
    }

    fn kind(self) -> Kind {
        if self.what & SUBJECT_KIND != 0 {
            Kind::Settled
        } else if self.what & LEASE != 0 {
            Kind::Lease
        } else if self.what & LOOKING != 0 {
            Kind::Looking
        } else {
            Kind::Ready
        }
    }

    /// Returns whether this is the other key, or stands for all such keys of its table.
    pub fn includes(self, other: Self) -> bool {
        (self.table == other.table || self == Self::settled_anywhere())
            && match self.what {
                ANY_VERSION => other.kind() == Kind::Ready,
                ANY_VERSION_LOOKING => other.kind() == Kind::Looking,
                ANY_SUBJECT => other.kind() == Kind::Settled,
                ANY_LEASE => other.kind() == Kind::Lease,
                what => what == other.what,
            }
    }

    /// The position among this number of slots from which on its slots are. All versions of a table
    /// have the same one.
    fn home(self, database: u32, slots: usize) -> usize {
        let hashed = match self.kind() {
            Kind::Ready | Kind::Looking => 0,
            Kind::Settled | Kind::Lease => self.what,
        };
        let table = u64::from(database) << 32 | u64::from(self.table);
        // Fibonacci hashing.
        let mixed = (table ^ hashed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % slots.max(1)
    }
}

/// A slot: one key of one session.
pub struct Slot {
    state: AtomicU32,
    /// The position of the first slot of its session, whose state is that of the session.
    first: AtomicU32,
    database: AtomicU32,
    table: AtomicU32,
    what: AtomicU64,
    /// When the session began to wait, in microseconds since 2000.
    since: AtomicI64,
    latch: Latch,
    /// Of the keys whose home this is: how many slots they have, in the upper half, and among how
    /// many from here on these are.
    reach: AtomicU64,
}

impl Slot {
    /// Returns a slot that is not used.
    const fn free() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            first: AtomicU32::new(0),
            database: AtomicU32::new(0),
            table: AtomicU32::new(0),
            what: AtomicU64::new(0),
            since: AtomicI64::new(0),
            latch: Latch::none(),
            reach: AtomicU64::new(0),
        }
    }

    fn claim(&self) -> bool {
        let claim = || {
            self.state
                .compare_exchange(FREE, UNARMED, Ordering::SeqCst, Ordering::SeqCst)
        };
        self.state.load(Ordering::Relaxed) == FREE && claim().is_ok()
    }

    fn key(&self) -> Key {
        Key {
            table: self.table.load(Ordering::Relaxed),
            what: self.what.load(Ordering::Relaxed),
        }
    }

    /// Returns whether a session waits with this slot for what is meant. Whether it wants to be
    /// woken is for its first slot to say.
    fn is_for(&self, is_meant: &impl Fn(u32, Key) -> bool) -> bool {
        self.state.load(Ordering::SeqCst) >= ARMED && self.has_key_for(is_meant)
    }

    /// Returns whether what is meant is the key of this slot, or was the last one of a free slot.
    fn has_key_for(&self, is_meant: &impl Fn(u32, Key) -> bool) -> bool {
        is_meant(self.database.load(Ordering::Relaxed), self.key())
    }

    /// Records that one more key of this home has a slot, at a distance from here.
    fn extend_reach(&self, distance: usize) {
        self.update_reach(|number, reach| (number + 1, reach.max(distance as u64 + 1)));
    }

    /// Records that a key of this home has given its slot back.
    fn reduce_reach(&self) {
        self.update_reach(|number, reach| match number {
            0 | 1 => (0, 0),
            _ => (number - 1, reach),
        });
    }

    fn update_reach(&self, update: impl Fn(u64, u64) -> (u64, u64)) {
        let _ = self
            .reach
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| {
                let (number, reach) = update(before >> 32, before & u64::from(u32::MAX));
                Some(number << 32 | reach)
            });
    }
}

/// How many slots are used, by [`Kind`]: of keys for documents to pick, of keys for settled documents, of
/// keys for leases and workers, and of keys for documents to look at.
type Totals = [AtomicU32; 4];

/// The waiters of the server.
#[derive(Clone, Copy)]
pub struct Waiters<'a> {
    totals: &'a Totals,
    slots: &'a [Slot],
}

impl<'a> Waiters<'a> {
    fn total(&self, key: Key) -> &'a AtomicU32 {
        &self.totals[key.kind() as usize]
    }

    /// Returns whether a session waits until a document is settled. One that begins at this moment
    /// may be missed; [`Self::wake`] does not miss it after the commit.
    pub fn is_settlement_awaited(&self) -> bool {
        self.totals[Kind::Settled as usize].load(Ordering::Relaxed) > 0
    }

    /// As [`Self::is_settlement_awaited`], whether a worker waits until a lease of his ends.
    pub fn is_lease_watched(&self) -> bool {
        self.totals[Kind::Lease as usize].load(Ordering::Relaxed) > 0
    }

    /// All slots, those from a position on first.
    fn from(&self, home: usize) -> impl Iterator<Item = &'a Slot> + Clone + use<'a> {
        let (before, after) = self.slots.split_at(home.min(self.slots.len()));
        after.iter().chain(before)
    }

    /// Gives this session a slot for each key. `now` is in microseconds since 2000. Returns the keys
    /// with their slots, of which the first one is unarmed; None when too few are free.
    fn add(&self, database: u32, keys: &[Key], now: i64) -> Option<Vec<(Key, usize)>> {
        let mut own: Vec<(Key, usize)> = Vec::with_capacity(keys.len());
        for key in keys {
            let home = key.home(database, self.slots.len());
            let Some(distance) = self.from(home).position(Slot::claim) else {
                self.remove(database, &own);
                return None;
            };
            let at = (home + distance) % self.slots.len();
            own.push((*key, at));
            let (slot, first) = (&self.slots[at], own[0].1);
            slot.first.store(first as u32, Ordering::Relaxed);
            slot.database.store(database, Ordering::Relaxed);
            slot.table.store(key.table, Ordering::Relaxed);
            slot.what.store(key.what, Ordering::Relaxed);
            slot.since.store(now, Ordering::Relaxed);
            if at == first {
                slot.latch.take();
            } else {
                slot.state.store(ARMED, Ordering::SeqCst);
            }
            // A commit that finds the session must also look where it is.
            self.slots[home].extend_reach(distance);
            self.total(*key).fetch_add(1, Ordering::SeqCst);
        }
        Some(own)
    }

    /// Gives the slots of this session back. When the session was woken and did not use that, one
    /// other waiter for each of its keys is woken instead.
    fn remove(&self, database: u32, own: &[(Key, usize)]) {
        let mut was_woken = false;
        // The first slot comes last: as long as another one names it, it is of this session.
        for (key, at) in own.iter().rev() {
            let slot = &self.slots[*at];
            slot.latch.leave();
            self.total(*key).fetch_sub(1, Ordering::SeqCst);
            self.slots[key.home(database, self.slots.len())].reduce_reach();
            was_woken |= slot.state.swap(FREE, Ordering::SeqCst) == WOKEN;
        }
        if was_woken {
            // Those that only look were not woken in place of others.
            for (key, _) in own.iter().filter(|(key, _)| key.kind() != Kind::Looking) {
                self.wake(database, *key, 1);
            }
        }
    }

    /// The first slot of the session of a slot, if that session waits for what is meant and wants to
    /// be woken.
    fn armed_first(&self, slot: &Slot, is_meant: &impl Fn(u32, Key) -> bool) -> Option<&'a Slot> {
        if !slot.is_for(is_meant) {
            return None;
        }
        let first = slot.first.load(Ordering::Relaxed) as usize;
        let first = self.slots.get(first)?;
        (first.state.load(Ordering::SeqCst) == ARMED).then_some(first)
    }

    /// Wakes the session of a slot. Returns false when it does not wait for what is meant, or when
    /// another commit has woken it first.
    fn wake_slot(&self, slot: &Slot, is_meant: &impl Fn(u32, Key) -> bool) -> bool {
        let session = slot.first.load(Ordering::Relaxed);
        let Some(first) = self.armed_first(slot, is_meant) else {
            return false;
        };
        let woken = first
            .state
            .compare_exchange(ARMED, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if woken.is_ok() {
            first.latch.set();
        }
        // Another session may have got the slot meanwhile. The one that was woken may also have returned,
        // and has given the slot back: it was woken all the same.
        let is_same = slot.first.load(Ordering::Relaxed) == session;
        woken.is_ok() && is_same && slot.has_key_for(is_meant)
    }

    /// Wakes up to `number` of the waiters for a key, those that have waited longest first, and all that
    /// only look for it. To be called after the commit.
    pub fn wake(&self, database: u32, key: Key, number: u32) {
        if key.kind() == Kind::Ready {
            self.wake_some(database, key.only_looking(), ALL);
        }
        self.wake_some(database, key, number);
    }

    fn wake_some(&self, database: u32, key: Key, number: u32) {
        if self.total(key).load(Ordering::SeqCst) == 0 {
            return;
        }
        let home = key.home(database, self.slots.len());
        let reach = match (key.what, self.slots.get(home)) {
            (ANY_SUBJECT | ANY_LEASE, _) => self.slots.len(),
            (_, Some(home)) => home.reach.load(Ordering::SeqCst) as u32 as usize,
            (_, None) => 0,
        };
        let near = self.from(home).take(reach);
        let is_meant = |of, other| of == database && key.includes(other);
        if number == ALL {
            near.for_each(|slot| _ = self.wake_slot(slot, &is_meant));
            return;
        }
        let mut left = number;
        while left > 0 {
            let armed = near.clone();
            let longest = armed
                .filter(|slot| self.armed_first(slot, &is_meant).is_some())
                .min_by_key(|slot| slot.since.load(Ordering::Relaxed));
            match longest {
                Some(slot) => left -= u32::from(self.wake_slot(slot, &is_meant)),
                None => break,
            }
        }
    }

    /// The versions of a table for whose documents sessions wait. It reads without a lock: a session
    /// that begins or ends at this moment may be missed.
    pub fn awaited_versions(&self, database: u32, table: u32) -> Vec<i32> {
        let any = Key::ready_in(table);
        let is_meant = |of, key: Key| of == database && any.includes(key);
        let home = any.home(database, self.slots.len());
        let reach = self
            .slots
            .get(home)
            .map_or(0, |home| home.reach.load(Ordering::SeqCst) as u32 as usize);
        let near = self.from(home).take(reach);
        let mut versions: Vec<i32> = near
            .filter(|slot| slot.state.load(Ordering::SeqCst) != FREE && slot.has_key_for(&is_meant))
            .filter_map(|slot| u32::try_from(slot.key().what).ok())
            .map(u32::cast_signed)
            .collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }

    /// Wakes all waiters of a database.
    pub fn wake_database(&self, database: u32) {
        if self.totals.iter().any(|n| n.load(Ordering::SeqCst) > 0) {
            for slot in self.slots {
                self.wake_slot(slot, &|of, _| of == database);
            }
        }
    }
}

/// The waiters as an area of shared memory.
struct Memory;

impl Content for Memory {
    const NAME: &std::ffi::CStr = c"fetchq waiters";
    type Header = Totals;
    type Item = Slot;
    const HAS_LOCKS: bool = false;

    fn header() -> Totals {
        Totals::default()
    }

    fn item() -> Slot {
        Slot::free()
    }

    fn items() -> usize {
        SLOTS
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

/// Returns the waiters; None without shared memory.
pub fn waiters() -> Option<Waiters<'static>> {
    let totals = Area::<Memory>::header()?;
    let slots = Area::<Memory>::slots();
    Some(Waiters { totals, slots })
}

thread_local! {
    /// The keys and slots of this session, so that the exit of the session gives them back.
    static OWN: Lasting<Vec<(Key, usize)>> = const { lasting(Vec::new()) };
}

/// This session as a waiter, until this is dropped.
pub struct Registration {
    waiters: Waiters<'static>,
    /// Its first slot.
    at: usize,
}

impl Registration {
    /// Registers this session as a waiter for some keys. Returns None when there are none, without
    /// shared memory, when too few slots are free, and on a standby, where nothing commits.
    pub fn new(keys: &[Key]) -> Option<Self> {
        let waiters = waiters().filter(|_| !session::is_standby())?;
        let own = waiters.add(session::database(), keys, time::clock())?;
        let (_, at) = *own.first()?;
        OWN.with(|slots| *slots.borrow_mut() = own);
        Some(Self { waiters, at })
    }

    /// Has the next commit wake this session. To be called before the session looks. Returns whether a
    /// commit has woken it before.
    pub fn arm(&self) -> bool {
        let state = &self.waiters.slots[self.at].state;
        state.swap(ARMED, Ordering::SeqCst) == WOKEN
    }

    /// Leaves it to others that a commit has woken this session: when it ends its wait, one other waiter
    /// for each of its keys is woken.
    pub fn pass_on(&self) {
        let state = &self.waiters.slots[self.at].state;
        state.store(WOKEN, Ordering::SeqCst);
    }

    /// Returns whether a commit has woken this session since it was armed.
    pub fn is_woken(&self) -> bool {
        self.waiters.slots[self.at].state.load(Ordering::SeqCst) == WOKEN
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        release();
    }
}

/// Gives the slots of this session back, if it has some. The exit of a session calls it too, because
/// a session may be terminated while it waits.
pub fn release() {
    let own = OWN.with(|own| std::mem::take(&mut *own.borrow_mut()));
    if let Some(waiters) = waiters() {
        waiters.remove(session::database(), &own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiters without their processes.
    struct Server(Totals, Vec<Slot>);

    impl Server {
        fn new(slots: usize) -> Self {
            let slots = std::iter::repeat_with(Slot::free).take(slots);
            Self(Totals::default(), slots.collect())
        }

        fn waiters(&self) -> Waiters<'_> {
            Waiters {
                totals: &self.0,
                slots: &self.1,
            }
        }

        fn wait(&self, keys: &[Key], now: i64) -> Vec<(Key, usize)> {
            let own = self.waiters().add(1, keys, now).unwrap();
            self.arm(&own);
            own
        }

        fn arm(&self, own: &[(Key, usize)]) {
            self.1[own[0].1].state.store(ARMED, Ordering::SeqCst);
        }

        fn is_woken(&self, own: &[(Key, usize)]) -> bool {
            self.1[own[0].1].state.load(Ordering::SeqCst) == WOKEN
        }

        fn is_empty(&self) -> bool {
            let is_zero = |n: &AtomicU32| n.load(Ordering::SeqCst) == 0;
            let is_unused = |slot: &Slot| {
                slot.state.load(Ordering::SeqCst) == FREE && slot.reach.load(Ordering::SeqCst) == 0
            };
            self.0.iter().all(is_zero) && self.1.iter().all(is_unused)
        }
    }

    fn queues(tables: impl IntoIterator<Item = u32>) -> Vec<Key> {
        let keys = tables.into_iter().map(|table| Key::ready(table, 0));
        keys.collect()
    }

    #[test]
    fn a_session_that_waits_for_many_queues_is_woken_once() {
        let server = Server::new(512);
        let waiters = server.waiters();
        let many = server.wait(&queues(1..=300), 1);
        let one = server.wait(&queues([250]), 2);
        waiters.wake(1, Key::ready(301, 0), 5);
        waiters.wake(1, Key::ready(250, 1), 5);
        waiters.wake(2, Key::ready(250, 0), 5);
        assert!(!server.is_woken(&many) && !server.is_woken(&one));
        // It has waited longest.
        waiters.wake(1, Key::ready(250, 0), 1);
        assert!(server.is_woken(&many) && !server.is_woken(&one));
        // It is awake, so another document of its queues is for the other session.
        waiters.wake(1, Key::ready(250, 0), 1);
        assert!(server.is_woken(&one));
        server.arm(&one);
        // The session has not used that it was woken.
        waiters.remove(1, &many);
        assert!(server.is_woken(&one));
        waiters.remove(1, &one);
        assert!(server.is_empty());
    }

    #[test]
    fn who_only_looks_is_not_woken_in_place_of_another() {
        let server = Server::new(64);
        let waiters = server.waiters();
        let looks = server.wait(&[Key::ready(7, 1).only_looking()], 1);
        let works = [2, 3].map(|since| server.wait(&[Key::ready(7, 1)], since));
        for key in [Key::ready(7, 0), Key::ready(8, 1), Key::settled_in(7)] {
            waiters.wake(1, key, 1);
            assert!(!server.is_woken(&looks));
        }
        for key in [Key::ready(7, 1), Key::ready_in(7)] {
            waiters.wake(1, key, 1);
            assert!(server.is_woken(&looks));
            assert!(server.is_woken(&works[0]) && !server.is_woken(&works[1]));
            server.arm(&looks);
            server.arm(&works[0]);
        }
        assert_eq!(waiters.awaited_versions(1, 7), [1]);
        // It was woken, and leaves: nobody else is woken for that.
        waiters.wake(1, Key::ready(7, 1), 1);
        server.arm(&works[0]);
        waiters.remove(1, &looks);
        assert!(works.iter().all(|own| !server.is_woken(own)));
        // Of a session that can take documents of one queue only.
        let keys = [Key::ready(8, 0).only_looking(), Key::ready(7, 1)];
        let both = server.wait(&keys, 0);
        waiters.wake(1, Key::ready(8, 0), 1);
        assert!(server.is_woken(&both));
        server.arm(&both);
        waiters.wake(1, Key::ready(7, 1), 1);
        assert!(server.is_woken(&both) && !server.is_woken(&works[0]));
        waiters.remove(1, &both);
        assert!(server.is_woken(&works[0]));
        works.iter().for_each(|own| waiters.remove(1, own));
        assert!(server.is_empty());
    }

    #[test]
    fn too_few_slots_are_given_back() {
        let server = Server::new(2048);
        let waiters = server.waiters();
        let tables = queues(1..=1000);
        let all = [1, 2].map(|now| server.wait(&tables, now));
        assert!(waiters.add(1, &tables, 99).is_none());
        let single = (1..=48).map(|table| server.wait(&queues([table]), 99));
        let single: Vec<_> = single.collect();
        assert!(waiters.add(1, &tables[..1], 99).is_none());
        waiters.wake(1, Key::ready_in(500), ALL);
        assert!(all.iter().all(|own| server.is_woken(own)));
        let all = all.iter().chain(&single);
        all.for_each(|own| waiters.remove(1, own));
        assert!(server.is_empty());
    }

    #[test]
    fn those_who_have_waited_longest_are_woken_first() {
        let server = Server::new(64);
        let waiters = server.waiters();
        let all = [4, 1, 3, 2].map(|since| (since, server.wait(&queues([7]), since)));
        let woken = || all.iter().filter(|(_, own)| server.is_woken(own));
        waiters.wake(1, Key::ready(7, 0), 2);
        assert!(woken().map(|(since, _)| *since).eq([1, 2]));
        // Another version waits too, and more can be picked of whatever version.
        let other = server.wait(&[Key::ready(7, -1)], 0);
        waiters.wake(1, Key::ready_in(7), 2);
        assert!(server.is_woken(&other));
        assert!(woken().map(|(since, _)| *since).eq([1, 3, 2]));
    }

    #[test]
    fn a_commit_wakes_those_who_wait_for_its_document() {
        let server = Server::new(64);
        let waiters = server.waiters();
        assert!(!waiters.is_settlement_awaited());
        let picks = server.wait(&[Key::ready(2, 0)], 0);
        assert!(!waiters.is_settlement_awaited());
        let key = |n: usize| Key::settled(2, &format!("s{n}"));
        let all: Vec<_> = (0..20).map(|n| server.wait(&[key(n)], 0)).collect();
        assert!(waiters.is_settlement_awaited());
        waiters.wake(1, key(7), ALL);
        for (n, own) in all.iter().enumerate() {
            assert_eq!(server.is_woken(own), n == 7);
        }
        waiters.wake(1, Key::settled(3, "s8"), ALL);
        waiters.wake(2, key(8), ALL);
        waiters.wake(1, Key::settled_in(3), ALL);
        waiters.wake(1, Key::ready_in(2), 1);
        waiters.wake_database(2);
        assert!(server.is_woken(&picks) && !server.is_woken(&all[8]));
        server.arm(&picks);
        waiters.wake(1, Key::settled_in(2), ALL);
        assert!(all.iter().all(|own| server.is_woken(own)));
        assert!(!server.is_woken(&picks));
        all.iter().for_each(|own| server.arm(own));
        waiters.wake(2, Key::settled_anywhere(), ALL);
        assert!(!server.is_woken(&all[0]));
        waiters.wake(1, Key::settled_anywhere(), ALL);
        assert!(all.iter().all(|own| server.is_woken(own)));
        assert!(!server.is_woken(&picks));
        server.arm(&all[3]);
        waiters.wake_database(1);
        assert!(server.is_woken(&picks) && server.is_woken(&all[3]));
        all.iter().for_each(|own| waiters.remove(1, own));
        waiters.remove(1, &picks);
        assert!(server.is_empty());
    }

    #[test]
    fn a_session_can_wait_for_a_queue_and_for_a_document() {
        let server = Server::new(64);
        let waiters = server.waiters();
        let keys = [Key::ready(7, 0), Key::settled(8, "a")];
        let own = server.wait(&keys, 0);
        for key in keys {
            waiters.wake(1, key, 1);
            assert!(server.is_woken(&own));
            server.arm(&own);
        }
        waiters.remove(1, &own);
        assert!(server.is_empty());
    }

    #[test]
    fn a_worker_is_woken_for_its_own_leases_and_by_its_name() {
        let server = Server::new(64);
        let waiters = server.waiters();
        assert!(!waiters.is_lease_watched());
        let keys = [Key::ready(7, 0), Key::worker("a"), Key::lease(7, 1 << 62)];
        let own = server.wait(&keys, 0);
        let other = server.wait(&[Key::ready(7, 0), Key::worker("b"), Key::lease(7, 2)], 0);
        assert!(waiters.is_lease_watched() && !waiters.is_settlement_awaited());
        for key in [Key::worker("a"), Key::lease(7, 1 << 62)] {
            waiters.wake(1, key, ALL);
            assert!(server.is_woken(&own) && !server.is_woken(&other));
            server.arm(&own);
        }
        for key in [
            Key::lease(8, 2),
            Key::lease_in(8),
            Key::settled_in(7),
            Key::settled_anywhere(),
        ] {
            waiters.wake(1, key, ALL);
            assert!(!server.is_woken(&own) && !server.is_woken(&other));
        }
        waiters.wake(1, Key::lease_in(7), ALL);
        assert!(server.is_woken(&own) && server.is_woken(&other));
        waiters.remove(1, &own);
        waiters.remove(1, &other);
        assert!(server.is_empty());
    }

    /// More sessions than there are slots wait for the same document, beside one of another.
    #[test]
    fn a_full_registry_loses_no_waiter() {
        let server = Server::new(40);
        let waiters = server.waiters();
        let other = server.wait(&[Key::settled(2, "other")], 0);
        let key = Key::settled(2, "same");
        let all: Vec<_> = (0..39).map(|_| server.wait(&[key], 0)).collect();
        assert!(waiters.add(1, &[key], 0).is_none());
        waiters.wake(1, key, ALL);
        assert!(all.iter().all(|own| server.is_woken(own)));
        assert!(!server.is_woken(&other));
        all.iter().for_each(|own| waiters.remove(1, own));
        waiters.wake(1, Key::settled(2, "other"), ALL);
        assert!(server.is_woken(&other));
        waiters.remove(1, &other);
        assert!(server.is_empty());
    }

    #[test]
    fn without_slots_nobody_waits() {
        let server = Server::new(0);
        let waiters = server.waiters();
        let key = Key::settled(2, "s");
        assert!(waiters.add(1, &[key], 0).is_none());
        // As if one waited.
        server.0[1].store(1, Ordering::SeqCst);
        waiters.wake(1, key, ALL);
        waiters.wake(1, Key::settled_in(2), ALL);
        waiters.wake_database(1);
    }
}
