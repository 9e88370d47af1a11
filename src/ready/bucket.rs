//! What shared memory knows, and the rules by which it changes. No PostgreSQL in
//! here: whoever calls holds the lock of the bucket. docs/engine.md has the argument
//! for each rule.

use std::sync::atomic::Ordering;

use crate::ready::group::{
    Ended, Group, Level, PICKS_PER_RAISE, Phase, RAISE_TIMEOUT, Raise, View, Views,
};
use crate::ready::key::{Key, Name};

/// Groups in one bucket.
const WAYS: usize = 16;

/// The groups that share a lock.
#[repr(C)]
pub struct Bucket {
    groups: [Group; WAYS],
}

/// What is known about a group.
#[allow(clippy::large_enum_variant)] // lives for one call, on the stack
pub enum Known {
    Levels(Views),
    /// Nothing can be known now: read without floors.
    Nothing,
    /// Nobody has looked yet.
    Unknown,
}

/// Groups in each bucket.
pub const GROUPS_PER_BUCKET: usize = WAYS;

impl Bucket {
    pub fn new() -> Self {
        Self {
            groups: std::array::from_fn(|_| Group::free()),
        }
    }

    fn find(&self, name: &Name) -> Option<&Group> {
        self.groups.iter().find(|group| group.is(name))
    }

    fn find_mut(&mut self, name: &Name) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.is(name))
    }

    pub fn used(&self) -> usize {
        self.groups
            .iter()
            .filter(|group| group.phase != Phase::Free)
            .count()
    }

    /// The levels, as far as they are known. Needs the lock, shared.
    pub fn levels(&self, name: &Name, epoch: u64, now: i64) -> Known {
        let Some(group) = self.find(name).filter(|group| group.epoch == epoch) else {
            return Known::Unknown;
        };
        match group.phase {
            Phase::Ready => {
                group.last_used.store(now, Ordering::Relaxed);
                Known::Levels(group.views())
            }
            Phase::Overflow if now < group.overflow_until => Known::Nothing,
            _ => Known::Unknown,
        }
    }

    /// Counts documents of a level; true when its floor is due to be raised. Needs
    /// the lock, shared.
    pub fn count(&self, name: &Name, id: i32, n: u32) -> bool {
        let Some(group) = self.find(name) else {
            return false;
        };
        let Some(at) = group.position(id) else {
            return false;
        };
        let picked = &group.levels[at].picked;
        let so_far = picked.fetch_add(n, Ordering::Relaxed).saturating_add(n);
        // (nothing is known of a level that is new: at once)
        if so_far < PICKS_PER_RAISE && group.levels[at].floor != Key::FIRST {
            return false;
        }
        picked.store(0, Ordering::Relaxed);
        true
    }

    /// Makes the group, or makes it anew; gives the token of its life. From here on
    /// notes reach it.
    pub fn begin(&mut self, name: Name, epoch: u64, now: i64) -> u64 {
        let at = self
            .groups
            .iter()
            .position(|group| group.is(&name))
            .or_else(|| self.groups.iter().position(|g| g.phase == Phase::Free))
            .unwrap_or_else(|| self.oldest());
        let clock = self.groups.iter().map(|group| group.clock).max();
        let group = &mut self.groups[at];
        // Another backend has begun it and is looking, or has looked: let both.
        let is_begun = matches!(group.phase, Phase::New | Phase::Ready);
        if !(is_begun && group.name == name && group.epoch == epoch) {
            group.clock = clock.unwrap_or(0);
            group.begin(name, epoch, now);
        }
        group.token
    }

    fn oldest(&self) -> usize {
        let used = |group: &Group| group.last_used.load(Ordering::Relaxed);
        (0..WAYS)
            .min_by_key(|at| used(&self.groups[*at]))
            .unwrap_or(0)
    }

    /// Takes the levels that were found in the index since `begin`; None: too many.
    pub fn discovered(&mut self, name: &Name, token: u64, found: Option<&[i32]>, now: i64) {
        let Some(group) = self
            .find_mut(name)
            .filter(|g| g.token == token && g.phase == Phase::New)
        else {
            return;
        };
        let Some(found) = found else {
            return group.overflow(now);
        };
        for id in found {
            match group.position(*id) {
                Some(at) => {
                    group.levels[at].floor = Key::FIRST;
                    group.levels[at].least = Key::FIRST;
                }
                None => {
                    if !group.add(*id, Key::FIRST) {
                        return group.overflow(now);
                    }
                }
            }
        }
        group.phase = Phase::Ready;
    }

    /// Whether a note would change anything. Needs the lock, shared.
    pub fn needs(&self, name: &Name, id: i32, key: Key) -> bool {
        self.find(name).is_some_and(|group| group.needs(id, key))
    }

    /// Whether anything is known of a group.
    pub fn knows(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// Whether a document with this key would not be found.
    pub fn hides(&self, name: &Name, id: i32, key: Key) -> bool {
        self.find(name)
            .filter(|group| group.phase == Phase::Ready)
            .is_some_and(|group| match group.position(id) {
                Some(at) => key < group.levels[at].floor,
                None => true,
            })
    }

    /// A document has got an index entry with this key.
    pub fn note(&mut self, name: &Name, id: i32, key: Key, now: i64) {
        if let Some(group) = self.find_mut(name)
            && group.needs(id, key)
        {
            group.note(id, key, now);
        }
    }

    /// Begins a raise up to `bound`; None while another backend advances the level.
    pub fn begin_raise(&mut self, name: &Name, id: i32, bound: Key, now: i64) -> Option<Raise> {
        let group = self.find_mut(name)?;
        let at = group.position(id)?;
        let since = group.levels[at].raising_since;
        // (a clock that was set back ends the wait, too)
        let is_heard_of = (since..since.saturating_add(RAISE_TIMEOUT)).contains(&now);
        let is_taken = group.levels[at].raise != 0 && is_heard_of;
        if is_taken || group.levels[at].floor >= bound {
            return None;
        }
        let number = group.next();
        let level = &mut group.levels[at];
        level.raise = number;
        level.raising_since = now;
        level.least = Key::LAST;
        level.bound = bound;
        level.picked.store(0, Ordering::Relaxed);
        Some(Raise {
            from: level.floor,
            number,
        })
    }

    /// The level, if this raise is the one that runs.
    fn raising(&mut self, name: &Name, id: i32, raise: Raise) -> Option<&mut Level> {
        let group = self.find_mut(name)?;
        let at = group.position(id)?;
        let level = &mut group.levels[at];
        (level.raise == raise.number).then_some(level)
    }

    /// A raise tells that its backend is alive.
    pub fn goes_on(&mut self, name: &Name, id: i32, raise: Raise, now: i64) {
        if let Some(level) = self.raising(name, id, raise) {
            level.raising_since = now;
        }
    }

    /// Ends a raise. The floor goes to where the walk has come to, or to the least key
    /// that was noted since it began. Without `reached` the raise is given up.
    pub fn end_raise(&mut self, name: &Name, id: i32, raise: Raise, reached: Option<Key>) -> Ended {
        let Some(level) = self.raising(name, id, raise) else {
            return Ended::GivenUp;
        };
        level.raise = 0;
        level.bound = Key::FIRST;
        let Some(reached) = reached else {
            return Ended::GivenUp;
        };
        level.floor = reached.min(level.least);
        if level.floor == reached {
            Ended::Raised
        } else {
            Ended::CutShort
        }
    }

    /// Forgets all that is known about a table.
    pub fn forget(&mut self, database: u32, table: u32) {
        for group in &mut self.groups {
            if group.name.database == database && group.name.table == table {
                group.phase = Phase::Free;
            }
        }
    }

    /// Whether the safety net is due; if so, not again before `next`.
    pub fn take_full_scan(&self, name: &Name, now: i64, next: i64) -> bool {
        let Some(group) = self.find(name) else {
            return false;
        };
        let due = group.next_full_scan.load(Ordering::Relaxed);
        due <= now
            && group
                .next_full_scan
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Puts the next full scan off.
    pub fn put_off_full_scan(&self, name: &Name, until: i64) {
        if let Some(group) = self.find(name) {
            group.next_full_scan.store(until, Ordering::Relaxed);
        }
    }

    /// All that is known about a table's documents.
    pub fn describe(&self, database: u32, table: u32, mut each: impl FnMut(Name, View)) {
        self.each(database, |name, view| {
            if name.table == table {
                each(name, view);
            }
        });
    }

    /// The levels of all tables of a database.
    pub fn each(&self, database: u32, mut each: impl FnMut(Name, View)) {
        for group in &self.groups {
            if group.phase == Phase::Ready && group.name.database == database {
                for view in group.views().as_slice() {
                    each(group.name, *view);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
