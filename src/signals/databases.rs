//! The databases of the server, in shared memory: what is known about each of them while no
//! background worker serves it.
//!
//! There may be more databases than background workers. A background worker that leaves its
//! database to another one records when it has to be back. A session that adds something
//! earlier moves that time, and the launcher starts a background worker when it has come.
//!
//! Why no signal is lost:
//!
//! - A background worker that leaves computes that time from its calendar, its schedules, the
//!   slow jobs and the bound sessions. It empties its slot first and looks for signals
//!   afterwards. A session sends its signal first and looks afterwards whether the slot is still
//!   occupied; if not, it lowers `wakes_at` and wakes the launcher if that sleeps longer. All
//!   four accesses are in one order (sequentially consistent), so at least one of the two notices
//!   the other.
//! - A background worker that starts occupies its slot first, then sets `wakes_at` to "never",
//!   and then examines everything. So a signal of before reaches it by what it examines, and one
//!   of after by its slot. A session that has found no slot just before may lower `wakes_at`
//!   after that; the cost is a visit that finds nothing.
//! - The exit of a background worker never raises `wakes_at`, it only lowers it.
//! - Entries of the board for background workers serve one database after the other. A process
//!   holds its entry from its start to its exit, also after it has left its slot, and only then
//!   it can write what it records of itself. The launcher assigns an entry anew only when no
//!   process holds it, and each assignment has a generation. A process that a former launcher has
//!   started, and that begins after its assignment has ended, cannot hold the entry. A jobs
//!   process does not look at the entry of its background worker at all: it is started for a
//!   database.
//! - A new background worker does not examine each queue: where the due floors say when something
//!   is due, that is enough. All queues are examined every five minutes as before, and a sweep
//!   that was not finished goes on where it ended.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};

use crate::domain::status::Status;
use crate::signals::activity::{LastRun, SERVICES};

/// Databases of which this is known. The launcher visits further ones in rotation. Not measured:
/// an entry takes about 200 bytes, so all of them take 200 kB of the board.
pub const DATABASES: usize = 1024;

/// What is known about one database. Times are in microseconds since 2000.
pub struct Database {
    /// When a background worker has to serve it, as far as anything is known that a background
    /// worker has not seen: `i64::MAX` when there is no such thing.
    wakes_at: AtomicI64,
    /// The position of the background worker that has served it last.
    position: AtomicUsize,
    /// Whether the launcher lets background workers serve it, because it has the extension and
    /// the settings want that.
    is_served: AtomicBool,
    /// Whether there are counter events that no background worker has packed.
    has_events: AtomicBool,
    /// Statuses, a set of `Status::bit`, that are to be announced for all queues.
    unannounced: AtomicU32,
    /// When all queues were examined.
    swept_at: AtomicI64,
    /// The documents table of the queue with which the next examination of all queues begins.
    sweep_from: AtomicU32,
    /// The last run of each service, in the order of `Task::ALL`.
    pub last: [LastRun; SERVICES],
}

impl Database {
    const fn unknown() -> Self {
        Self {
            wakes_at: AtomicI64::new(i64::MIN),
            position: AtomicUsize::new(0),
            is_served: AtomicBool::new(false),
            has_events: AtomicBool::new(false),
            unannounced: AtomicU32::new(0),
            swept_at: AtomicI64::new(i64::MIN),
            sweep_from: AtomicU32::new(0),
            last: [const { LastRun::never() }; SERVICES],
        }
    }

    fn forget(&self) {
        self.wakes_at.store(i64::MIN, Ordering::SeqCst);
        self.is_served.store(false, Ordering::SeqCst);
        self.has_events.store(false, Ordering::SeqCst);
        // Nobody knows what was not announced before.
        self.unannounced
            .store(Status::Pending.bit(), Ordering::SeqCst);
        self.swept_at.store(i64::MIN, Ordering::SeqCst);
        self.last.iter().for_each(LastRun::forget);
    }

    /// Returns when a background worker has to serve it, in microseconds since 2000.
    pub fn wakes_at(&self) -> i64 {
        self.wakes_at.load(Ordering::SeqCst)
    }

    /// Has a background worker serve it at a time, or earlier. Returns whether nothing wanted one
    /// so early.
    pub fn wake_at(&self, time: i64) -> bool {
        self.wakes_at.fetch_min(time, Ordering::SeqCst) > time
    }

    /// Forgets what a background worker has to look at. To be called by one before it looks at
    /// everything.
    pub fn begin_visit(&self) {
        self.wakes_at.store(i64::MAX, Ordering::SeqCst);
    }

    /// Returns the position of the background worker that has served it last.
    pub fn position(&self) -> usize {
        self.position.load(Ordering::SeqCst)
    }

    /// Records the position of its background worker.
    pub fn set_position(&self, position: usize) {
        self.position.store(position, Ordering::SeqCst);
    }

    /// Returns whether background workers serve it, now or when something is due.
    pub fn is_served(&self) -> bool {
        self.is_served.load(Ordering::SeqCst)
    }

    /// Records whether background workers serve it.
    pub fn set_served(&self, is_served: bool) {
        // The line of the cache stays shared while nothing changes.
        if self.is_served.load(Ordering::Relaxed) != is_served {
            self.is_served.store(is_served, Ordering::SeqCst);
        }
    }

    /// Returns whether there are counter events that no background worker has packed.
    pub fn has_events(&self) -> bool {
        self.has_events.load(Ordering::SeqCst)
    }

    /// Records that there are counter events, or with `false` that they are about to be packed.
    pub fn set_events(&self, has_events: bool) {
        if self.has_events.load(Ordering::Relaxed) != has_events {
            self.has_events.store(has_events, Ordering::SeqCst);
        }
    }

    /// Adds statuses, a set of `Status::bit`, that are to be announced for all queues.
    pub fn add_unannounced(&self, statuses: u32) {
        self.unannounced.fetch_or(statuses, Ordering::SeqCst);
    }

    /// Returns the statuses that are to be announced for all queues, and forgets them.
    pub fn take_unannounced(&self) -> u32 {
        self.unannounced.swap(0, Ordering::SeqCst)
    }

    /// Returns when all queues were examined, in microseconds since 2000.
    pub fn swept_at(&self) -> i64 {
        self.swept_at.load(Ordering::Relaxed)
    }

    /// Records that all queues were examined, at a time in microseconds since 2000.
    pub fn set_swept_at(&self, time: i64) {
        self.swept_at.store(time, Ordering::Relaxed);
    }

    /// Returns the documents table of the queue with which an examination of all queues begins,
    /// because the last background worker left before it came to this one.
    pub fn sweep_from(&self) -> u32 {
        self.sweep_from.load(Ordering::Relaxed)
    }

    /// Records with which queue the next examination of all queues begins.
    pub fn set_sweep_from(&self, table: u32) {
        self.sweep_from.store(table, Ordering::Relaxed);
    }
}

/// The databases of the server. Only the launcher adds and removes them.
pub struct Databases {
    /// The OIDs; 0 where an entry is free. They are kept together, so that a search reads 4 kB.
    oids: [AtomicU32; DATABASES],
    entries: [Database; DATABASES],
    /// Databases with the extension that have no entry.
    unlisted: AtomicU32,
}

/// The entry in which this process has found its database last.
static FOUND: AtomicUsize = AtomicUsize::new(0);

impl Databases {
    /// Returns the state in which no database is known.
    pub const fn new() -> Self {
        Self {
            oids: [const { AtomicU32::new(0) }; DATABASES],
            entries: [const { Database::unknown() }; DATABASES],
            unlisted: AtomicU32::new(0),
        }
    }

    /// Returns the entry of a database, by its OID. None when it has none.
    pub fn find(&self, oid: u32) -> Option<&Database> {
        // Nearly every process asks for one database.
        let found = FOUND.load(Ordering::Relaxed);
        if self.oids[found].load(Ordering::SeqCst) == oid {
            return Some(&self.entries[found]);
        }
        let at = self
            .oids
            .iter()
            .position(|other| other.load(Ordering::SeqCst) == oid)?;
        FOUND.store(at, Ordering::Relaxed);
        Some(&self.entries[at])
    }

    /// Adds a database. Returns whether it has an entry now.
    pub fn add(&self, oid: u32) -> bool {
        if self.find(oid).is_some() {
            return true;
        }
        let free = self.oids.iter().zip(&self.entries);
        for (other, entry) in free {
            if other.load(Ordering::SeqCst) == 0 {
                entry.forget();
                other.store(oid, Ordering::SeqCst);
                return true;
            }
        }
        false
    }

    /// Has a background worker serve a database at a time or earlier, in microseconds since 2000.
    /// Returns whether nothing wanted one so early. None when the database has no entry, and when
    /// the launcher has removed it meanwhile: then it may not know of the time.
    pub fn wake_at(&self, oid: u32, time: i64) -> Option<bool> {
        let entry = self.find(oid)?;
        let is_news = entry.wake_at(time);
        let is_still = |found: &Database| std::ptr::eq(found, entry);
        self.find(oid).is_some_and(is_still).then_some(is_news)
    }

    /// Removes a database. Returns when a background worker has to serve it, in microseconds since
    /// 2000, because the entry does not say so any more; `i64::MAX` when it had no entry.
    pub fn remove(&self, oid: u32) -> i64 {
        let mut wakes_at = i64::MAX;
        for (other, entry) in self.oids.iter().zip(&self.entries) {
            let removed = other.compare_exchange(oid, 0, Ordering::SeqCst, Ordering::SeqCst);
            if removed.is_ok() {
                // Who has lowered the time before is heard here, and who lowers it now finds that
                // the database has no entry.
                wakes_at = wakes_at.min(entry.wakes_at());
            }
        }
        wakes_at
    }

    /// Returns the OIDs of the databases that have an entry.
    pub fn oids(&self) -> impl Iterator<Item = u32> {
        let oids = self.oids.iter().map(|oid| oid.load(Ordering::SeqCst));
        oids.filter(|oid| *oid != 0)
    }

    /// Returns the number of databases with the extension that have no entry.
    pub fn unlisted(&self) -> u32 {
        self.unlisted.load(Ordering::Relaxed)
    }

    /// Records the number of databases with the extension that have no entry.
    pub fn set_unlisted(&self, number: u32) {
        self.unlisted.store(number, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_added_and_removed() {
        let databases = Databases::new();
        assert!(databases.find(7).is_none());
        for oid in 1..=DATABASES as u32 {
            assert!(databases.add(oid));
            assert!(databases.add(oid));
        }
        assert!(!databases.add(5000));
        databases.find(7).unwrap().begin_visit();
        assert_eq!(databases.wake_at(7, 100), Some(true));
        assert_eq!(databases.wake_at(7, 200), Some(false));
        assert_eq!(databases.remove(7), 100);
        assert_eq!(databases.remove(7), i64::MAX);
        assert!(databases.find(7).is_none());
        assert_eq!(databases.wake_at(7, 50), None);
        assert!(databases.add(5000));
        assert_eq!(databases.oids().count(), DATABASES);
    }

    #[test]
    fn a_database_wakes_at_the_earliest_time() {
        let database = Database::unknown();
        database.forget();
        assert_eq!(database.wakes_at(), i64::MIN);
        assert_eq!(database.take_unannounced(), Status::Pending.bit());
        database.begin_visit();
        assert!(database.wake_at(100));
        assert!(!database.wake_at(100));
        assert!(!database.wake_at(200));
        assert!(database.wake_at(50));
        assert_eq!(database.wakes_at(), 50);
    }
}
