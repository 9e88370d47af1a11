//! What shared memory knows, and the rules by which it changes. No PostgreSQL in
//! here: whoever calls holds the lock of the bucket. docs/engine.md has the argument
//! for each rule.

use std::sync::atomic::{AtomicI64, AtomicU32};

use crate::ready::key::{Index, Key, Name};

/// How many priorities of one version may have ready documents at a time.
pub const LEVELS: usize = 12;

/// A raise whose backend has not been heard of for this time, in microseconds, may be
/// taken over: it was terminated.
pub const RAISE_TIMEOUT: i64 = 10_000_000;

/// A group with too many levels is looked at again after this time, in microseconds.
pub const OVERFLOW_PAUSE: i64 = 10_000_000;

/// After this many documents of a level its floor is raised.
pub const PICKS_PER_RAISE: u32 = 32;

/// One priority, or one state.
#[repr(C)]
pub struct Level {
    id: i32,
    is_used: bool,
    /// Documents picked since the last raise began.
    pub picked: AtomicU32,
    /// Which raise is running; 0: none.
    pub raise: u64,
    /// The least key that was noted since it began.
    pub least: Key,
    pub raising_since: i64,
    /// No document before it can be picked, unless a note says so.
    pub floor: Key,
    /// How far the running raise looks.
    pub bound: Key,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Free,
    /// Takes notes; which levels the index holds is not known yet.
    New,
    Ready,
    /// More levels than fit: nothing is known.
    Overflow,
}

/// The floors of one version of a queue's documents, or of its due index.
#[repr(C)]
pub struct Group {
    pub name: Name,
    pub phase: Phase,
    /// Changes when documents may have come without a note: what is known is void.
    pub epoch: u64,
    /// Of this life of the group.
    pub token: u64,
    /// QueueFloors of tokens and of the numbers of advances. A group that is made anew, here or
    /// in another slot, goes on behind all that its bucket has given out.
    pub clock: u64,
    pub overflow_until: i64,
    pub last_used: AtomicI64,
    pub next_full_scan: AtomicI64,
    pub levels: [Level; LEVELS],
}

/// What a reader sees of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
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

    pub fn as_slice(&self) -> &[View] {
        &self.views[..self.len]
    }

    /// Highest priority first.
    fn sort(&mut self) {
        self.views[..self.len].sort_unstable_by_key(|view| std::cmp::Reverse(view.id));
    }
}

/// A raise that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Raise {
    pub from: Key,
    pub number: u64,
}

/// How a raise ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The floor is where the walk has come to.
    Raised,
    /// The floor is at a document that was noted meanwhile.
    CutShort,
    /// The floor is where it was.
    GivenUp,
}

impl Level {
    fn unused() -> Self {
        Self {
            id: 0,
            is_used: false,
            picked: AtomicU32::new(0),
            raise: 0,
            least: Key::LAST,
            raising_since: 0,
            floor: Key::FIRST,
            bound: Key::FIRST,
        }
    }
}

impl Group {
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
            clock: 0,
            overflow_until: 0,
            last_used: AtomicI64::new(0),
            next_full_scan: AtomicI64::new(0),
            levels: std::array::from_fn(|_| Level::unused()),
        }
    }

    pub fn next(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn is(&self, name: &Name) -> bool {
        self.phase != Phase::Free && self.name == *name
    }

    pub fn begin(&mut self, name: Name, epoch: u64, now: i64) {
        self.name = name;
        self.epoch = epoch;
        self.phase = Phase::New;
        self.token = self.next();
        *self.last_used.get_mut() = now;
        *self.next_full_scan.get_mut() = 0;
        for level in &mut self.levels {
            level.is_used = false;
        }
        if name.index == Index::Due {
            for id in [0, 2] {
                self.add(id, Key::FIRST);
            }
            self.phase = Phase::Ready;
        }
    }

    pub fn position(&self, id: i32) -> Option<usize> {
        self.levels
            .iter()
            .position(|level| level.is_used && level.id == id)
    }

    /// Adds a level, in place of one that is known to be empty where all are used;
    /// false when there is no room.
    pub fn add(&mut self, id: i32, floor: Key) -> bool {
        let room = self.levels.iter().position(|l| !l.is_used);
        let Some(at) = room.or_else(|| self.levels.iter().position(|l| l.floor == Key::LAST))
        else {
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

    pub fn overflow(&mut self, now: i64) {
        self.phase = Phase::Overflow;
        self.overflow_until = now.saturating_add(OVERFLOW_PAUSE);
    }

    /// Whether a note about this key would change anything.
    pub fn needs(&self, id: i32, key: Key) -> bool {
        match self.position(id) {
            // It will be looked at from the start.
            _ if self.phase == Phase::Overflow => false,
            Some(at) => {
                let level = &self.levels[at];
                key < level.floor.max(level.bound)
            }
            None => true,
        }
    }

    pub fn note(&mut self, id: i32, key: Key, now: i64) {
        match self.position(id) {
            Some(at) => {
                let level = &mut self.levels[at];
                level.floor = level.floor.min(key);
                level.least = level.least.min(key);
            }
            None => {
                if !self.add(id, key) {
                    self.overflow(now);
                }
            }
        }
    }

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
