//! The ready floors of this server, in shared memory.
//!
//! A *ready floor* is a low-water mark per priority: no index entry of this priority with a
//! key below the floor belongs to a document that can be picked. A pick starts there instead
//! of walking over the entries of documents that are gone. A floor above all keys says that
//! the priority is empty, so no query is needed. Planned and leased documents have a floor
//! each, in the due index.
//!
//! Picks *advance* a floor over dead entries. Whoever writes an index entry below a floor
//! *notes* it, which lowers the floor.
//!
//! A floor only says where to start. The row decides who gets a document.
//! docs/internals/engine.md argues why a floor never hides a document.

use std::sync::atomic::{AtomicI64, Ordering};

use pgrx::pg_sys::Oid;

use crate::pg::index_walk::{self, Column};
use crate::pg::shared::{Area, Content, Place};
use crate::pg::{session, time};
use crate::ready::bucket::{Bucket, GROUPS_PER_BUCKET, Known};
use crate::ready::group::{AdvanceOutcome, LEVELS, View, Views};
use crate::ready::key::{Index, Key, Name};
use crate::signals::board::board;
use crate::{error, settings};

/// Counters of the whole server since it started, as `ready_stats()` shows them.
pub struct Counters {
    advances: AtomicI64,
    advances_discarded: AtomicI64,
    polls_answered: AtomicI64,
    full_scans: AtomicI64,
    floor_misses: AtomicI64,
}

pub(super) struct Floors;

impl Content for Floors {
    const NAME: &std::ffi::CStr = c"fetchq";
    type Header = Counters;
    type Item = Bucket;

    fn header() -> Counters {
        Counters {
            advances: AtomicI64::new(0),
            advances_discarded: AtomicI64::new(0),
            polls_answered: AtomicI64::new(0),
            full_scans: AtomicI64::new(0),
            floor_misses: AtomicI64::new(0),
        }
    }

    fn item() -> Bucket {
        Bucket::new()
    }

    fn place() -> &'static Place {
        static PLACE: Place = Place::unknown();
        &PLACE
    }

    fn items() -> usize {
        settings::ready_slots().div_ceil(GROUPS_PER_BUCKET)
    }
}

pub(super) type Memory = Area<Floors>;

/// Requests the shared memory. Called from `_PG_init` while libraries are preloaded.
pub fn install() {
    Memory::install();
}

/// Returns whether this server keeps floors. It does with `shared_preload_libraries` and a
/// `fetchq.ready_slots` above 0.
pub fn is_available() -> bool {
    Memory::items() > 0
}

fn increment(counter: impl Fn(&Counters) -> &AtomicI64) {
    if let Some(counters) = Memory::header() {
        counter(counters).fetch_add(1, Ordering::Relaxed);
    }
}

/// Access to the floors of one queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueFloors {
    /// The table of the documents.
    pub table: Oid,
    pub pick_index: Oid,
    pub due_index: Oid,
    /// A value that changes when documents may have appeared without a note. It is made of
    /// the file of the table and the last change of the trigger.
    pub epoch: u64,
}

/// A floor of the due index is advanced to this time after now at most: microseconds. There
/// may be very many leases that were settled long before their end, and the background worker
/// does not need to know about those yet.
const DUE_LOOKAHEAD_US: i64 = 10_000_000;

/// The least time between two full scans of a version of a queue: microseconds.
const FULL_SCAN_INTERVAL_US: i64 = 1_000_000;

/// Full scans of a version of a queue take at most this part of the time: one hundredth.
const FULL_SCAN_SHARE: i64 = 100;

impl QueueFloors {
    fn name(&self, index: Index, version: i32) -> Name {
        Name {
            database: session::database(),
            table: self.table.to_u32(),
            version,
            index,
        }
    }

    /// Returns the priorities of a version that have ready documents, or had some, and their
    /// floors, the highest priority first. None means that nothing is known: read without
    /// floors.
    pub fn levels(&self, version: i32) -> Option<Views> {
        self.known_levels(self.name(Index::Pick, version))
    }

    fn known_levels(&self, name: Name) -> Option<Views> {
        let bucket = bucket_of(&name);
        let now = time::now();
        match Memory::read(bucket, |b| b.levels(&name, self.epoch, now)) {
            Known::Levels(views) => return Some(views),
            Known::Nothing => return None,
            Known::Unknown => {}
        }
        // The group exists before the index is read, so notes reach it. A document whose
        // entry this reading misses has no entry yet; it is noted afterwards.
        let token = Memory::write(bucket, |b| b.begin_discovery(name, self.epoch, now));
        if name.index == Index::Pick {
            let found = index_walk::distinct_second_column(
                self.table,
                self.pick_index,
                name.version,
                LEVELS,
            );
            Memory::write(bucket, |b| {
                b.complete_discovery(&name, token, found.as_deref(), now);
            });
        }
        match Memory::read(bucket, |b| b.levels(&name, self.epoch, now)) {
            Known::Levels(views) => Some(views),
            Known::Nothing | Known::Unknown => None,
        }
    }

    /// Advances the floor of planned or of leased documents as far as possible, and returns
    /// it. `status` is the number of the status; `now` is in microseconds since 2000. None
    /// means that nothing is known: read without a floor.
    pub fn due(&self, status: i32, now: i64) -> Option<Key> {
        let name = self.name(Index::Due, 0);
        let floor = |views: Views| {
            let level = views.as_slice().iter().find(|view| view.id == status);
            level.map(|view| view.floor)
        };
        let current = floor(self.known_levels(name)?)?;
        if current >= Key::until(now) {
            return Some(current);
        }
        // The walk goes beyond now, because the background worker sleeps until the floor.
        let stop = Key::until(now.saturating_add(DUE_LOOKAHEAD_US));
        self.advance(Index::Due, 0, status, Key::LAST, stop);
        floor(self.known_levels(name)?)
    }

    /// Counts documents that were picked from a priority. Returns whether its floor should be
    /// advanced now.
    pub fn count_picks(&self, version: i32, priority: i32, documents: i32) -> bool {
        let name = self.name(Index::Pick, version);
        Memory::read(bucket_of(&name), |b| {
            b.count_picks(&name, priority, documents.unsigned_abs())
        })
    }

    /// Advances the floor of a priority to the first document that is alive, or may become so,
    /// but not above `bound`.
    pub fn advance_level(&self, version: i32, priority: i32, bound: Key) {
        self.advance(Index::Pick, version, priority, bound, bound);
    }

    /// Advances the floor of a level, but not above `bound`. The walk ends at the first entry
    /// at or above `stop`, dead or alive.
    fn advance(&self, index: Index, version: i32, level: i32, bound: Key, stop: Key) {
        let name = self.name(index, version);
        let bucket = bucket_of(&name);
        let now = time::clock();
        let begun = Memory::write(bucket, |b| b.begin_advance(&name, level, bound, now));
        let Some(advance) = begun else {
            return;
        };
        // Dropping it without a key, as an error of the walk does, abandons the advance.
        let mut guard = AdvanceGuard {
            end: |reached| Memory::write(bucket, |b| b.end_advance(&name, level, advance, reached)),
            reached: None,
        };
        let renew = || {
            let now = time::clock();
            Memory::write(bucket, |b| b.renew_advance(&name, level, advance, now));
        };
        let reached = self.walk(&name, level, advance.from, stop, renew);
        guard.reached = Some(reached.min(bound));
    }

    /// Returns the key of the first entry from `from` on whose document is alive or may become
    /// so, or of the first entry at or above `stop`. Calls `renew` now and then.
    fn walk(&self, name: &Name, level: i32, from: Key, stop: Key, renew: impl Fn()) -> Key {
        match name.index {
            Index::Pick => {
                let key = |columns: &[Column; 3]| match *columns {
                    [
                        Column::Timestamptz(time),
                        Column::Int4(attempts),
                        Column::Int8(seq),
                    ] => Key::new(time, attempts, seq),
                    _ => Key::FIRST,
                };
                index_walk::first_alive(
                    self.table,
                    self.pick_index,
                    &[name.version, level],
                    [
                        Column::Timestamptz(from.next_iteration),
                        Column::Int4(from.attempts),
                        Column::Int8(from.seq),
                    ],
                    |columns| key(columns) >= stop,
                    renew,
                )
                .map_or(Key::LAST, |columns| key(&columns))
            }
            Index::Due => {
                let key = |columns: &[Column; 2]| match *columns {
                    [Column::Timestamptz(time), Column::Int8(seq)] => Key::new(time, 0, seq),
                    _ => Key::FIRST,
                };
                index_walk::first_alive(
                    self.table,
                    self.due_index,
                    &[level],
                    [
                        Column::Timestamptz(from.next_iteration),
                        Column::Int8(from.seq),
                    ],
                    |columns| key(columns) >= stop,
                    renew,
                )
                .map_or(Key::LAST, |columns| key(&columns))
            }
        }
    }

    /// Counts a poll that the floors answered without a query.
    pub fn count_answered_poll(&self) {
        increment(|c| &c.polls_answered);
    }

    /// Checks the floors, for a pick that found nothing. `scan` looks for ready documents
    /// without floors and returns the priority and key of each. It runs about once a second for
    /// each version of a queue. Each document that it finds should have been above the floor
    /// of its priority; the others are counted and reported as a WARNING. `queue` is the name
    /// of the queue.
    pub fn full_scan(&self, version: i32, queue: &str, scan: impl FnOnce() -> Vec<(i32, Key)>) {
        let name = self.name(Index::Pick, version);
        let bucket = bucket_of(&name);
        let began = time::clock();
        let is_due = Memory::read(bucket, |b| {
            b.claim_full_scan(&name, began, began + FULL_SCAN_INTERVAL_US)
        });
        if !is_due {
            return;
        }
        increment(|c| &c.full_scans);
        let found = scan();
        let duration = (time::clock() - began).max(0);
        if duration > FULL_SCAN_INTERVAL_US / FULL_SCAN_SHARE {
            let until = began.saturating_add(duration.saturating_mul(FULL_SCAN_SHARE));
            Memory::read(bucket, |b| b.postpone_full_scan(&name, until));
        }
        // A document that appeared after the pick was noted before the scan could see it. Its
        // floor is below it by now, so it does not count as missed.
        let missed = Memory::write(bucket, |b| {
            let mut missed = 0;
            for (priority, key) in &found {
                if b.hides(&name, *priority, *key) {
                    b.note(&name, *priority, *key, began);
                    missed += 1;
                }
            }
            missed
        });
        if missed > 0 {
            if let Some(counters) = Memory::header() {
                counters.floor_misses.fetch_add(missed, Ordering::Relaxed);
            }
            error::warn(
                pgrx::PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("{missed} documents of queue \"{queue}\" were ready below the ready floor"),
                "They have been picked now. This is a defect of fetchq: please report it.",
            );
        }
    }
}

/// Ends an advance when it goes out of scope, also when an error causes that.
struct AdvanceGuard<F: Fn(Option<Key>) -> AdvanceOutcome> {
    end: F,
    reached: Option<Key>,
}

impl<F: Fn(Option<Key>) -> AdvanceOutcome> Drop for AdvanceGuard<F> {
    fn drop(&mut self) {
        match (self.end)(self.reached) {
            AdvanceOutcome::Advanced => increment(|c| &c.advances),
            AdvanceOutcome::CutShort | AdvanceOutcome::Abandoned => {
                increment(|c| &c.advances_discarded);
            }
        }
    }
}

/// Forgets all floors of a table of this database, so that its indexes are examined again.
pub fn forget(table: Oid) {
    for at in 0..Memory::items() {
        Memory::write(at, |b| b.forget(session::database(), table.to_u32()));
    }
}

pub(super) fn bucket_of(name: &Name) -> usize {
    // Fibonacci hashing of the three numbers.
    let mix = |h: u64, v: u32| (h ^ u64::from(v)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut h = mix(0x5bd1_e995, name.database);
    h = mix(h, name.table);
    h = mix(h, name.version as u32);
    h = mix(h, name.index as u32);
    ((h >> 32) % Memory::items().max(1) as u64) as usize
}

/// Notes an index entry of a document. It must be called after the entry exists and before
/// its transaction commits. `level` is the priority in the pick index and the number of the
/// status in the due index; `version` is 0 in the due index.
///
/// An entry of the due index that the background worker may not know of is a due change, and is
/// sent to it.
pub fn note_entry(table: Oid, index: Index, version: i32, level: i32, key: Key) {
    if !is_available() {
        return;
    }
    let name = Name {
        database: session::database(),
        table: table.to_u32(),
        version,
        index,
    };
    let bucket = bucket_of(&name);
    // Nearly every entry is above the floor. The shared lock suffices to see that, so readers
    // do not wait.
    let (needs_note, is_known) = Memory::read(bucket, |b| {
        let needs_note = b.needs_note(&name, level, key);
        let is_known = needs_note || index == Index::Pick || b.contains(&name);
        (needs_note, is_known)
    });
    if needs_note {
        let now = time::now();
        Memory::write(bucket, |b| b.note(&name, level, key, now));
    }
    // The background worker sleeps until the floors of the due index. It may not know a queue
    // without floors yet.
    if index == Index::Due
        && (needs_note || !is_known)
        && let Some(board) = board()
    {
        board.note_due_change(name.database, name.table, key.next_iteration);
    }
}

/// The use of the shared memory and its counters, for `ready_stats()`.
pub struct Stats {
    /// Groups that fit into the shared memory.
    pub slots: i32,
    pub slots_used: i32,
    /// Advances that ended where their walk ended.
    pub advances: i64,
    /// Advances that were cut short by a note, or abandoned.
    pub advances_discarded: i64,
    /// Polls that needed no query.
    pub polls_answered: i64,
    pub full_scans: i64,
    /// Ready documents that were below a floor. Each one is a defect.
    pub floor_misses: i64,
}

/// Returns the use of the shared memory and its counters; all are 0 without shared memory.
pub fn stats() -> Stats {
    let count = |counter: fn(&Counters) -> &AtomicI64| {
        Memory::header().map_or(0, |c| counter(c).load(Ordering::Relaxed))
    };
    let used: usize = (0..Memory::items())
        .map(|at| Memory::read(at, Bucket::used))
        .sum();
    Stats {
        slots: (Memory::items() * GROUPS_PER_BUCKET) as i32,
        slots_used: used as i32,
        advances: count(|c| &c.advances),
        advances_discarded: count(|c| &c.advances_discarded),
        polls_answered: count(|c| &c.polls_answered),
        full_scans: count(|c| &c.full_scans),
        floor_misses: count(|c| &c.floor_misses),
    }
}

/// Returns the tables of this database that have a floor before a time, in microseconds since
/// 2000.
pub fn tables_behind(time: i64) -> Vec<Oid> {
    let database = session::database();
    let mut tables: Vec<u32> = Vec::new();
    for at in 0..Memory::items() {
        // Memory is reserved first, because nothing may fail under the lock.
        tables.reserve(GROUPS_PER_BUCKET * LEVELS);
        Memory::read(at, |b| {
            b.visit_database(database, |name, view| {
                if view.floor.next_iteration < time {
                    tables.push(name.table);
                }
            });
        });
    }
    tables.sort_unstable();
    tables.dedup();
    tables.into_iter().map(Oid::from).collect()
}

/// Returns the earliest floor before `time` in this database, of one level of an index or of
/// all its levels. No document of those levels is older than the result. Times are in
/// microseconds since 2000.
pub fn first_before(index: Index, level: Option<i32>, time: i64) -> Option<i64> {
    let database = session::database();
    let mut first: Option<i64> = None;
    for at in 0..Memory::items() {
        Memory::read(at, |b| {
            b.visit_database(database, |name, view| {
                let floor = view.floor.next_iteration;
                let is_wanted = name.index == index && level.is_none_or(|level| level == view.id);
                // A floor before all keys means that nothing is known.
                if is_wanted && floor < time && floor > i64::MIN {
                    first = Some(first.map_or(floor, |earliest| earliest.min(floor)));
                }
            });
        });
    }
    first
}

/// Returns the floors of a table for `ready_floors()`: index, version and level, in this
/// order.
pub fn describe(table: Oid) -> Vec<(Index, i32, View)> {
    let mut floors = Vec::new();
    for at in 0..Memory::items() {
        // Memory is reserved first, because nothing may fail under the lock.
        floors.reserve(GROUPS_PER_BUCKET * LEVELS);
        Memory::read(at, |b| {
            b.visit_table(session::database(), table.to_u32(), |name, view| {
                floors.push((name.index, name.version, view));
            });
        });
    }
    floors
        .sort_by_key(|(index, version, view)| (*index as u8, *version, std::cmp::Reverse(view.id)));
    floors
}
