//! The ready floors: shared memory remembers, for each priority of each version of a
//! queue, and for planned and leased documents, a place in the index before which
//! there is nothing to find. Queries start there instead of walking over the entries
//! of documents that are gone, and where the floor is behind everything no query is
//! needed at all.
//!
//! A floor only says where to start. Who gets a document is still decided by its row.
//! docs/engine.md argues why no document is ever hidden behind a floor.

use std::sync::atomic::{AtomicI64, Ordering};

use pgrx::pg_sys::Oid;

use crate::pg::index_walk::{self, Column};
use crate::pg::shared::{Area, Content, Place};
use crate::pg::{session, time};
use crate::ready::bucket::{Bucket, GROUPS_PER_BUCKET, Known};
use crate::ready::group::{Ended, LEVELS, View, Views};
use crate::ready::key::{Index, Key, Name};
use crate::signals::board::board;
use crate::{error, settings};

/// Counters of the whole server since it started.
pub struct Header {
    advances: AtomicI64,
    advances_discarded: AtomicI64,
    polls_answered: AtomicI64,
    full_scans: AtomicI64,
    floor_misses: AtomicI64,
}

struct Floors;

impl Content for Floors {
    const NAME: &std::ffi::CStr = c"fetchq";
    type Header = Header;
    type Item = Bucket;

    fn header() -> Header {
        Header {
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

type Memory = Area<Floors>;

/// Asks for the shared memory. Called while libraries are preloaded.
pub fn install() {
    Memory::install();
}

/// Whether this server remembers floors.
pub fn is_available() -> bool {
    Memory::items() > 0
}

fn add(counter: impl Fn(&Header) -> &AtomicI64) {
    if let Some(header) = Memory::header() {
        counter(header).fetch_add(1, Ordering::Relaxed);
    }
}

/// The documents of a queue as the floors know them.
#[derive(Debug, Clone, Copy)]
pub struct QueueFloors {
    pub table: Oid,
    pub pick_index: Oid,
    pub due_index: Oid,
    /// Changes whenever documents may have come that nobody noted: the file of the
    /// table, and the last change of the trigger.
    pub epoch: u64,
}

/// How far beyond now the floors of what is due are raised, in microseconds.
const DUE_AHEAD: i64 = 10_000_000;

/// How often the safety net looks, in microseconds.
const FULL_SCAN_EVERY: i64 = 1_000_000;

/// The safety net takes at most one part in so many of the time.
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

    /// The priorities of a version that have ready documents, or had, highest first,
    /// and their floors. None: nothing is known, read without floors.
    pub fn levels(&self, version: i32) -> Option<Views> {
        self.known(self.name(Index::Pick, version))
    }

    fn known(&self, name: Name) -> Option<Views> {
        let bucket = bucket_of(&name);
        let now = time::now();
        match Memory::read(bucket, |b| b.levels(&name, self.epoch, now)) {
            Known::Levels(views) => return Some(views),
            Known::Nothing => return None,
            Known::Unknown => {}
        }
        // Notes reach the group before the index is read: a document whose entry the
        // reading misses is noted afterwards.
        let token = Memory::write(bucket, |b| b.begin(name, self.epoch, now));
        if name.index == Index::Pick {
            let found =
                index_walk::second_column(self.table, self.pick_index, name.version, LEVELS);
            Memory::write(bucket, |b| {
                b.discovered(&name, token, found.as_deref(), now);
            });
        }
        match Memory::read(bucket, |b| b.levels(&name, self.epoch, now)) {
            Known::Levels(views) => Some(views),
            Known::Nothing | Known::Unknown => None,
        }
    }

    /// The floor of planned or of leased documents, raised as far as it goes now.
    /// None: nothing is known, read without it.
    pub fn due(&self, status: i32, now: i64) -> Option<Key> {
        let name = self.name(Index::Due, 0);
        let floor = |views: Views| {
            let level = views.as_slice().iter().find(|view| view.id == status);
            level.map(|view| view.floor)
        };
        let before = floor(self.known(name)?)?;
        if before >= Key::until(now) {
            return Some(before);
        }
        // Beyond now: the worker sleeps until then. But not far beyond: there may be very
        // many leases that were settled long before their end.
        let stop = Key::until(now.saturating_add(DUE_AHEAD));
        self.raise_until(Index::Due, 0, status, Key::LAST, stop);
        floor(self.known(name)?)
    }

    /// Counts documents picked from a level; true when its floor is due to be raised.
    pub fn count_picks(&self, version: i32, priority: i32, n: i32) -> bool {
        let name = self.name(Index::Pick, version);
        Memory::read(bucket_of(&name), |b| {
            b.count(&name, priority, n.unsigned_abs())
        })
    }

    /// Raises the floor of a priority to the first document before `bound` that is
    /// alive, or may yet be.
    pub fn advance_level(&self, version: i32, priority: i32, bound: Key) {
        self.raise(Index::Pick, version, priority, bound);
    }

    fn raise(&self, index: Index, version: i32, level: i32, bound: Key) {
        self.raise_until(index, version, level, bound, bound);
    }

    /// The same, to the first document behind `stop` at the latest, dead or alive.
    fn raise_until(&self, index: Index, version: i32, level: i32, bound: Key, stop: Key) {
        let name = self.name(index, version);
        let bucket = bucket_of(&name);
        let now = time::clock();
        let Some(raise) = Memory::write(bucket, |b| b.begin_raise(&name, level, bound, now)) else {
            return;
        };
        // Given up when the walk ends in an error.
        let mut ending = Ending {
            end: |reached| Memory::write(bucket, |b| b.end_raise(&name, level, raise, reached)),
            reached: None,
        };
        let goes_on = || {
            let now = time::clock();
            Memory::write(bucket, |b| b.goes_on(&name, level, raise, now));
        };
        let reached = self.walk(&name, level, raise.from, stop, goes_on);
        ending.reached = Some(reached.min(bound));
    }

    /// Where the first document is that is alive, or may yet be.
    fn walk(&self, name: &Name, level: i32, from: Key, bound: Key, goes_on: impl Fn()) -> Key {
        let at = |time| Column::Timestamptz(time);
        match name.index {
            Index::Pick => {
                let key = |place: &[Column; 3]| match *place {
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
                        at(from.next_iteration),
                        Column::Int4(from.attempts),
                        Column::Int8(from.seq),
                    ],
                    |place| key(place) >= bound,
                    goes_on,
                )
                .map_or(Key::LAST, |place| key(&place))
            }
            Index::Due => {
                let key = |place: &[Column; 2]| match *place {
                    [Column::Timestamptz(time), Column::Int8(seq)] => Key::new(time, 0, seq),
                    _ => Key::FIRST,
                };
                index_walk::first_alive(
                    self.table,
                    self.due_index,
                    &[level],
                    [at(from.next_iteration), Column::Int8(from.seq)],
                    |place| key(place) >= bound,
                    goes_on,
                )
                .map_or(Key::LAST, |place| key(&place))
            }
        }
    }

    /// A poll that needed no query.
    pub fn count_answered_poll(&self) {
        add(|h| &h.polls_answered);
    }

    /// The safety net, for a pick that found nothing: about once a second for each
    /// version of a queue `scan` looks without floors, and tells the priorities and
    /// places of what it found. Each of them should have been found above its floor.
    pub fn full_scan(&self, version: i32, queue: &str, scan: impl FnOnce() -> Vec<(i32, Key)>) {
        let name = self.name(Index::Pick, version);
        let bucket = bucket_of(&name);
        let began = time::clock();
        let is_due = Memory::read(bucket, |b| {
            b.take_full_scan(&name, began, began + FULL_SCAN_EVERY)
        });
        if !is_due {
            return;
        }
        add(|h| &h.full_scans);
        let found = scan();
        let took = (time::clock() - began).max(0);
        if took > FULL_SCAN_EVERY / FULL_SCAN_SHARE {
            let until = began.saturating_add(took.saturating_mul(FULL_SCAN_SHARE));
            Memory::read(bucket, |b| b.put_off_full_scan(&name, until));
        }
        // A document that came since the pick was noted before it could be seen, so its
        // floor is below it by now.
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
            if let Some(header) = Memory::header() {
                header.floor_misses.fetch_add(missed, Ordering::Relaxed);
            }
            error::warn(
                pgrx::PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("{missed} documents of queue \"{queue}\" were ready below the ready floor"),
                "They have been picked now. This is a defect of fetchq: please report it.",
            );
        }
    }
}

/// Ends a raise when it goes out of scope, also when an error does that.
struct Ending<F: Fn(Option<Key>) -> Ended> {
    end: F,
    reached: Option<Key>,
}

impl<F: Fn(Option<Key>) -> Ended> Drop for Ending<F> {
    fn drop(&mut self) {
        match (self.end)(self.reached) {
            Ended::Raised => add(|h| &h.advances),
            Ended::CutShort | Ended::GivenUp => add(|h| &h.advances_discarded),
        }
    }
}

/// Forgets all that is known about a table: everything is looked at anew.
pub fn forget(table: Oid) {
    for at in 0..Memory::items() {
        Memory::write(at, |b| b.forget(session::database(), table.to_u32()));
    }
}

fn bucket_of(name: &Name) -> usize {
    // Fibonacci hashing of the three numbers.
    let mix = |h: u64, v: u32| (h ^ u64::from(v)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut h = mix(0x5bd1_e995, name.database);
    h = mix(h, name.table);
    h = mix(h, name.version as u32);
    h = mix(h, name.index as u32);
    ((h >> 32) % Memory::items().max(1) as u64) as usize
}

/// Notes that a document has got an index entry: called after the entry exists, and
/// before its transaction commits. `level` is its priority, or its status.
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
    // Nearly every document comes behind the floor: readers do not wait for it.
    let (needs, knows) = Memory::read(bucket, |b| {
        let needs = b.needs(&name, level, key);
        (needs, needs || index == Index::Pick || b.knows(&name))
    });
    if needs {
        let now = time::now();
        Memory::write(bucket, |b| b.note(&name, level, key, now));
    }
    // The worker sleeps until the floor of what is planned; of a queue of which nothing
    // is known it may not have heard yet.
    if index == Index::Due
        && (needs || !knows)
        && let Some(board) = board()
    {
        board.note_due_change(name.database, name.table, key.next_iteration);
    }
}

/// What the area holds, for `ready_stats()`.
pub struct Stats {
    pub slots: i32,
    pub slots_used: i32,
    pub advances: i64,
    pub advances_discarded: i64,
    pub polls_answered: i64,
    pub full_scans: i64,
    pub floor_misses: i64,
}

pub fn stats() -> Stats {
    let count = |counter: fn(&Header) -> &AtomicI64| {
        Memory::header().map_or(0, |h| counter(h).load(Ordering::Relaxed))
    };
    let used: usize = (0..Memory::items())
        .map(|at| Memory::read(at, Bucket::used))
        .sum();
    Stats {
        slots: (Memory::items() * GROUPS_PER_BUCKET) as i32,
        slots_used: used as i32,
        advances: count(|h| &h.advances),
        advances_discarded: count(|h| &h.advances_discarded),
        polls_answered: count(|h| &h.polls_answered),
        full_scans: count(|h| &h.full_scans),
        floor_misses: count(|h| &h.floor_misses),
    }
}

/// The tables of this database of which a floor is before a time.
pub fn tables_behind(time: i64) -> Vec<Oid> {
    let database = session::database();
    let mut tables: Vec<u32> = Vec::new();
    for at in 0..Memory::items() {
        // Room first: nothing may fail under the lock.
        tables.reserve(GROUPS_PER_BUCKET * LEVELS);
        Memory::read(at, |b| {
            b.each(database, |name, view| {
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

/// The earliest floor before a time, of one level or of all, in this database: nothing
/// of them is older than that.
pub fn first_before(index: Index, level: Option<i32>, time: i64) -> Option<i64> {
    let database = session::database();
    let mut first: Option<i64> = None;
    for at in 0..Memory::items() {
        Memory::read(at, |b| {
            b.each(database, |name, view| {
                let floor = view.floor.next_iteration;
                let is_asked = name.index == index && level.is_none_or(|level| level == view.id);
                // (the first key of all means that nothing is known)
                if is_asked && floor < time && floor > i64::MIN {
                    first = Some(first.map_or(floor, |before| before.min(floor)));
                }
            });
        });
    }
    first
}

/// The floors of a table, for `ready_floors()`: index, version, level.
pub fn describe(table: Oid) -> Vec<(Index, i32, View)> {
    let mut floors = Vec::new();
    for at in 0..Memory::items() {
        // Room first: nothing may fail under the lock.
        floors.reserve(GROUPS_PER_BUCKET * LEVELS);
        Memory::read(at, |b| {
            b.describe(session::database(), table.to_u32(), |name, view| {
                floors.push((name.index, name.version, view));
            });
        });
    }
    floors
        .sort_by_key(|(index, version, view)| (*index as u8, *version, std::cmp::Reverse(view.id)));
    floors
}
