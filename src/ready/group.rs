//! A group of ready floors: one version of a queue in the pick index, or the due index of a
//! queue. This file holds its state and the rules that concern a single group.
//!
//! There is no PostgreSQL in here. The caller holds the lock of the bucket that the group
//! belongs to. The module `ready` has the argument for each rule.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::domain::status::Status;
use crate::ready::key::{Index, Key, Name};

/// How many priorities of one version can have ready documents at a time. It bounds the
/// memory of a group; a version with more of them is read without floors. 12 levels make a group
/// of about 1.3 kB. The number was not measured.
pub const LEVELS: usize = 12;

/// Another backend may take an advance over when it was not renewed for this time, because
/// its backend was terminated: microseconds. A walk renews it much more often than that.
pub const ADVANCE_TIMEOUT_US: i64 = 10_000_000;

/// The index is examined again after this time when a group had too many levels:
/// microseconds.
pub const OVERFLOW_RETRY_US: i64 = 10_000_000;

/// A group that was not used for this time gives its slot to any other one: microseconds. The due
/// index of each queue is examined every five minutes, so twice that says that nobody uses it.
pub const UNUSED_AFTER_US: i64 = 600_000_000;

/// The floor of a level is advanced when this number of its documents was picked. Not measured: a
/// guess between the cost of an advance and that of the dead entries that a pick reads over.
pub const PICKS_PER_ADVANCE: u32 = 32;

/// The state of one priority in the pick index, or of one status in the due index.
#[repr(C)]
pub struct Level {
    id: i32,
    is_used: bool,
    /// Documents picked since the last advance began.
    pub picks: AtomicU32,
    /// The number of the advance that runs; 0 when none runs.
    pub advance: u64,
    /// The least key that was noted since the advance began.
    pub least_noted: Key,
    /// When the advance began or was last renewed, in microseconds since 2000.
    pub renewed_at: i64,
    /// No document with a key below this one can be picked, unless a note says so.
    pub floor: Key,
    /// The key up to which the advance that runs may move the floor.
    pub bound: Key,
}

/// What a group knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The slot of the group is not used.
    Free,
    /// The group takes notes, but it is not known yet which levels the index has.
    New,
    /// The levels are known.
    Ready,
    /// The index has more levels than a group can hold, so nothing is known.
    Overflow,
}

/// The floors of one version of a queue's documents, or of a queue's due index.
#[repr(C)]
pub struct Group {
    pub name: Name,
    pub phase: Phase,
    /// Changes when documents may have appeared without a note. What is known of another
    /// epoch is void.
    pub epoch: u64,
    /// Identifies one life of the group: from a `restart` to the next.
    pub token: u64,
    /// The last number that was given out, as a token or to an advance. A group that is
    /// restarted, in this slot or in another one, continues above all numbers of its bucket.
    pub last_number: u64,
    /// Until when the group is in overflow, in microseconds since 2000.
    pub overflow_until: i64,
    /// When the group was last read, in microseconds since 2000.
    pub last_used: AtomicI64,
    /// The earliest time of the next full scan, in microseconds since 2000.
    pub next_full_scan: AtomicI64,
    pub levels: [Level; LEVELS],
}

/// What a reader sees of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The priority in the pick index, the number of the status in the due index.
    pub id: i32,
    pub floor: Key,
}

/// The levels of a group at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Views {
    views: [View; LEVELS],
    len: usize,
}

impl Views {
    fn empty() -> Self {
        let none = View {
            id: 0,
            floor: Key::LAST,
        };
        Self {
            views: [none; LEVELS],
            len: 0,
        }
    }

    fn push(&mut self, view: View) {
        self.views[self.len] = view;
        self.len += 1;
    }

    /// Returns the levels, the highest priority first.
    pub fn as_slice(&self) -> &[View] {
        &self.views[..self.len]
    }

    fn sort(&mut self) {
        self.views[..self.len].sort_unstable_by_key(|view| Reverse(view.id));
    }
}

/// An advance that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Advance {
    /// The floor from which the walk starts.
    pub from: Key,
    pub number: u64,
}

/// How an advance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvanceOutcome {
    /// The floor is at the key where the walk ended.
    Advanced,
    /// The floor is at a key that was noted during the walk.
    CutShort,
    /// The floor was not changed.
    Abandoned,
}

impl Level {
    fn unused() -> Self {
        Self {
            id: 0,
            is_used: false,
            picks: AtomicU32::new(0),
            advance: 0,
            least_noted: Key::LAST,
            renewed_at: 0,
            floor: Key::FIRST,
            bound: Key::FIRST,
        }
    }
}

impl Group {
    /// Returns a group that is not used.
    pub fn free() -> Self {
        Self {
            name: Name {
                database: 0,
                table: 0,
                version: 0,
                index: Index::Pick,
            },
            phase: Phase::Free,
            epoch: 0,
            token: 0,
            last_number: 0,
            overflow_until: 0,
            last_used: AtomicI64::new(0),
            next_full_scan: AtomicI64::new(0),
            levels: std::array::from_fn(|_| Level::unused()),
        }
    }

    /// Returns a number that the group never had before.
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns whether the group is used and has this name.
    pub fn has_name(&self, name: &Name) -> bool {
        self.phase != Phase::Free && self.name == *name
    }

    /// Returns whether the group belongs to the same table as another name.
    pub fn is_of_table_of(&self, name: &Name) -> bool {
        self.name.database == name.database && self.name.table == name.table
    }

    /// Returns whether the index has no entry of the group, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.phase == Phase::Ready && !self.levels.iter().any(|level| level.is_used)
    }

    /// Returns whether the group was not used for so long that nobody needs it. `now` is in
    /// microseconds since 2000.
    pub fn is_unused(&self, now: i64) -> bool {
        now.saturating_sub(self.last_used.load(Ordering::Relaxed)) > UNUSED_AFTER_US
    }

    /// Makes the group one of this name and epoch of which nothing is known. `now` is in
    /// microseconds since 2000. A group of the due index has its two levels at once.
    pub fn restart(&mut self, name: Name, epoch: u64, now: i64) {
        self.name = name;
        self.epoch = epoch;
        self.phase = Phase::New;
        self.token = self.next_number();
        *self.last_used.get_mut() = now;
        *self.next_full_scan.get_mut() = 0;
        for level in &mut self.levels {
            level.is_used = false;
        }
        if name.index == Index::Due {
            for status in [Status::Planned, Status::Active] {
                self.add(status.code(), Key::FIRST);
            }
            self.phase = Phase::Ready;
        }
    }

    /// Returns the position of a level in `levels`; None when the group does not have it.
    pub fn position(&self, id: i32) -> Option<usize> {
        self.levels
            .iter()
            .position(|level| level.is_used && level.id == id)
    }

    /// Adds a level. When all are used, it replaces one that is known to be empty. Returns
    /// false when there is none.
    pub fn add(&mut self, id: i32, floor: Key) -> bool {
        let unused = self.levels.iter().position(|level| !level.is_used);
        let is_empty = |level: &Level| level.floor == Key::LAST;
        let Some(at) = unused.or_else(|| self.levels.iter().position(is_empty)) else {
            return false;
        };
        self.levels[at] = Level {
            id,
            is_used: true,
            floor,
            ..Level::unused()
        };
        true
    }

    /// Returns whether the group had too many levels a moment ago. A later time than that of an
    /// overflow now was written before the clock was set back.
    pub fn is_overflow_recent(&self, now: i64) -> bool {
        (now..=now.saturating_add(OVERFLOW_RETRY_US)).contains(&self.overflow_until)
            && now != self.overflow_until
    }

    /// Records that the group has too many levels. `now` is in microseconds since 2000.
    pub fn overflow(&mut self, now: i64) {
        self.phase = Phase::Overflow;
        self.overflow_until = now.saturating_add(OVERFLOW_RETRY_US);
    }

    /// Returns whether a note of this key would change anything.
    pub fn needs_note(&self, id: i32, key: Key) -> bool {
        match self.position(id) {
            // The index will be examined from its start.
            _ if self.phase == Phase::Overflow => false,
            Some(at) => {
                let level = &self.levels[at];
                key < level.floor.max(level.bound)
            }
            None => true,
        }
    }

    /// Notes an index entry: lowers the floor of its level to the key, and adds the level when
    /// it is missing. `now` is in microseconds since 2000.
    pub fn note(&mut self, id: i32, key: Key, now: i64) {
        match self.position(id) {
            Some(at) => {
                let level = &mut self.levels[at];
                level.floor = level.floor.min(key);
                level.least_noted = level.least_noted.min(key);
            }
            None => {
                if !self.add(id, key) {
                    self.overflow(now);
                }
            }
        }
    }

    /// Returns the levels, the highest priority first.
    pub fn views(&self) -> Views {
        let mut views = Views::empty();
        for level in self.levels.iter().filter(|level| level.is_used) {
            views.push(View {
                id: level.id,
                floor: level.floor,
            });
        }
        views.sort();
        views
    }
}
