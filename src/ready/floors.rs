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
//! The module `ready` argues why a floor never hides a document.

use std::sync::atomic::{AtomicI64, Ordering};

use pgrx::pg_sys::Oid;

use crate::pg::index_walk::{self, Column, Passed, Visit};
use crate::pg::shared::{Area, Content, Place};
use crate::pg::{session, time};
use crate::ready::bucket::{Bucket, GROUPS_PER_BUCKET, Known};
use crate::ready::group::{AdvanceOutcome, LEVELS, View, Views};
use crate::ready::key::{DueKey, Index, Key, Name, PickKey};
use crate::settings;
use crate::signals::board::board;

/// Counters of the whole server since it started, as `ready_stats()` shows them.
pub struct Counters {
    advances: AtomicI64,
    advances_discarded: AtomicI64,
    polls_answered: AtomicI64,
    pub(super) full_scans: AtomicI64,
    pub(super) floor_misses: AtomicI64,
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

pub(super) fn increment(counter: impl Fn(&Counters) -> &AtomicI64) {
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

impl QueueFloors {
    pub(super) fn name(&self, index: Index, version: i32) -> Name {
        name_of(self.table, index, version)
    }

    /// Returns the priorities of a version that have ready documents, or had some, and their
    /// floors, the highest priority first. None means that nothing is known: read without
    /// floors.
    pub fn levels(&self, version: i32) -> Option<Views> {
        self.known_levels(self.name(Index::Pick, version))
    }

    pub(super) fn known_levels(&self, name: Name) -> Option<Views> {
        let bucket = bucket_of(&name);
        let now = time::now();
        match Memory::read(bucket, |b| b.levels(&name, self.epoch, now)) {
            Known::Levels(views) => return Some(views),
            Known::Nothing => return None,
            Known::Unknown => {}
        }
        let has_room = Memory::read(bucket, |b| b.has_room(&name, now));
        let has_entries = || index_walk::has_entries(self.table, self.pick_index, name.version);
        if !has_room && name.index == Index::Pick && !has_entries() {
            return None;
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
        } else if let Some(board) = board() {
            // What is put from here on is not noted, because it is not below these floors.
            board.due_floors_begun(name.database, name.table);
        }
        match Memory::read(bucket, |b| b.levels(&name, self.epoch, now)) {
            Known::Levels(views) => Some(views),
            Known::Nothing | Known::Unknown => None,
        }
    }

    /// Advances the floor of planned or of leased documents as far as possible, and returns
    /// it. `status` is the number of the status; `now` is in microseconds since 2000. None
    /// means that nothing is known: read without a floor.
    pub fn due(&self, status: i32, now: i64) -> Option<DueKey> {
        let name = self.name(Index::Due, 0);
        let floor = |views: Views| {
            let level = views.as_slice().iter().find(|view| view.id == status);
            level.map(|view| view.floor.due())
        };
        let current = floor(self.known_levels(name)?)?;
        if current >= DueKey::until(now) {
            return Some(current);
        }
        // The walk goes beyond now, because the background worker sleeps until the floor.
        let stop = DueKey::until(now.saturating_add(DUE_LOOKAHEAD_US));
        self.advance(Index::Due, 0, status, Key::LAST, stop.into(), None);
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

    /// Advances the floor of a priority to the first document that is alive, or may become so, and whose
    /// subject is not passed over, but not above `bound`. Whoever ends a reason to pass over one notes it.
    pub fn advance_level(
        &self,
        version: i32,
        priority: i32,
        bound: PickKey,
        is_passed: Option<Passed>,
    ) {
        let (bound, stop) = (bound.into(), bound.into());
        self.advance(Index::Pick, version, priority, bound, stop, is_passed);
    }

    /// Advances the floor of a level, but not above `bound`. The walk ends at the first entry
    /// at or above `stop`, dead or alive.
    fn advance(
        &self,
        index: Index,
        version: i32,
        level: i32,
        bound: Key,
        stop: Key,
        is_passed: Option<Passed>,
    ) {
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
        let reached = self.walk(&name, level, advance.from, stop, is_passed, renew);
        guard.reached = Some(reached.min(bound));
    }

    /// Returns the key of the first entry from `from` on whose document is alive or may become
    /// so, or of the first entry at or above `stop`. Calls `renew` now and then.
    fn walk(
        &self,
        name: &Name,
        level: i32,
        from: Key,
        stop: Key,
        is_passed: Option<Passed>,
        renew: impl Fn(),
    ) -> Key {
        let visit = |key: Key| {
            if key >= stop {
                Visit::Stop
            } else {
                Visit::Look
            }
        };
        match name.index {
            Index::Pick => {
                let key = |columns: &[Column; 3]| match *columns {
                    [
                        Column::Timestamptz(time),
                        Column::Int4(attempts),
                        Column::Int8(seq),
                    ] => PickKey::new(time, attempts, seq).into(),
                    _ => Key::FIRST,
                };
                let from = from.pick();
                index_walk::first_alive(
                    self.table,
                    self.pick_index,
                    &[name.version, level],
                    [
                        Column::Timestamptz(from.next_iteration),
                        Column::Int4(from.attempts),
                        Column::Int8(from.seq),
                    ],
                    |columns| visit(key(columns)),
                    is_passed,
                    renew,
                )
                .map_or(Key::LAST, |columns| key(&columns))
            }
            Index::Due => {
                let key = |columns: &[Column; 2]| match *columns {
                    [Column::Timestamptz(time), Column::Int8(seq)] => DueKey::new(time, seq).into(),
                    _ => Key::FIRST,
                };
                let from = from.due();
                index_walk::first_alive(
                    self.table,
                    self.due_index,
                    &[level],
                    [
                        Column::Timestamptz(from.next_iteration),
                        Column::Int8(from.seq),
                    ],
                    |columns| visit(key(columns)),
                    None,
                    renew,
                )
                .map_or(Key::LAST, |columns| key(&columns))
            }
        }
    }

    /// The versions of which floors are known. The slots of those that nobody uses are freed.
    pub fn versions(&self) -> Vec<i32> {
        let (database, table) = (session::database(), self.table.to_u32());
        let now = time::now();
        let mut versions = Vec::new();
        for at in 0..Memory::items() {
            if Memory::read(at, |b| b.has_unused(database, table, now)) {
                Memory::write(at, |b| b.free_unused(database, table, now));
            }
            // Memory is reserved first, because nothing may fail under the lock.
            versions.reserve(GROUPS_PER_BUCKET);
            Memory::read(at, |b| {
                b.visit_known(database, table, self.epoch, |name| {
                    if name.index == Index::Pick {
                        versions.push(name.version);
                    }
                });
            });
        }
        versions
    }

    /// Counts a poll that the floors answered without a query.
    pub fn count_answered_poll(&self) {
        increment(|c| &c.polls_answered);
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

/// Notes an entry of the pick index: of a document that is pending. It must be called after the
/// entry exists and before its transaction commits.
pub fn note_pick_entry(table: Oid, version: i32, priority: i32, key: PickKey) {
    if !is_available() {
        return;
    }
    let name = name_of(table, Index::Pick, version);
    let bucket = bucket_of(&name);
    note_if_needed(&name, bucket, priority, key.into(), |b| {
        b.needs_note(&name, priority, key.into())
    });
}

/// Notes an entry of the due index: of a document that is planned or active, which is the code of
/// its status. It must be called after the entry exists and before its transaction commits.
///
/// An entry that the background worker may not know of is a due change, and is sent to it.
pub fn note_due_entry(table: Oid, status: i32, key: DueKey) {
    if !is_available() {
        return;
    }
    let name = name_of(table, Index::Due, 0);
    let bucket = bucket_of(&name);
    let mut is_known = true;
    let was_noted = note_if_needed(&name, bucket, status, key.into(), |b| {
        let needs_note = b.needs_note(&name, status, key.into());
        is_known = needs_note || b.contains(&name);
        needs_note
    });
    // The background worker sleeps until the floors of the due index. It may not know a queue
    // without floors yet.
    if (was_noted || !is_known)
        && let Some(board) = board()
    {
        board.note_due_change(name.database, name.table, key.next_iteration);
    }
}

fn name_of(table: Oid, index: Index, version: i32) -> Name {
    Name {
        database: session::database(),
        table: table.to_u32(),
        version,
        index,
    }
}

/// Notes an index entry if `needs_note` says so, and returns whether it did. Nearly every entry is
/// above the floor. The shared lock suffices to see that, so readers do not wait.
fn note_if_needed(
    name: &Name,
    bucket: usize,
    level: i32,
    key: Key,
    needs_note: impl FnOnce(&Bucket) -> bool,
) -> bool {
    let needs_note = Memory::read(bucket, needs_note);
    if needs_note {
        let now = time::now();
        Memory::write(bucket, |b| b.note(name, level, key, now));
    }
    needs_note
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
    /// Ready or due documents that were below a floor. Each one is a defect.
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

/// What is known of one level of an index of a queue.
#[derive(Debug, Clone, Copy)]
pub struct KnownFloor {
    /// The table of the documents.
    pub table: Oid,
    pub index: Index,
    /// The version of the documents; 0 in the due index.
    pub version: i32,
    /// The floor holds only as long as this is the epoch of the table, see [`epoch_of`].
    pub epoch: u64,
    /// The level, and its floor.
    pub view: View,
}

/// Returns all floors of this database, in no order.
pub fn all() -> Vec<KnownFloor> {
    let database = session::database();
    let mut floors = Vec::new();
    for at in 0..Memory::items() {
        // Memory is reserved first, because nothing may fail under the lock.
        floors.reserve(GROUPS_PER_BUCKET * LEVELS);
        Memory::read(at, |b| {
            b.visit_database(database, |name, epoch, view| {
                floors.push(KnownFloor {
                    table: Oid::from(name.table),
                    index: name.index,
                    version: name.version,
                    epoch,
                    view,
                });
            });
        });
    }
    floors
}

/// Returns the epoch of a table, which changes when documents may have appeared without a note:
/// from the number of its file, and the transaction that last wrote the catalog row of the
/// trigger of the ready floors.
pub fn epoch_of(file: u32, trigger: u32) -> u64 {
    u64::from(file) << 32 | u64::from(trigger)
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
