//! A bucket: the groups of ready floors that share a lock, and the rules by which notes and
//! advances change them.
//!
//! There is no PostgreSQL in here. The caller holds the lock of the bucket: shared for
//! methods on `&self`, exclusive for methods on `&mut self`. The module `ready` has the
//! argument for each rule.

use std::sync::atomic::Ordering;

use crate::ready::group::{
    ADVANCE_TIMEOUT_US, Advance, AdvanceOutcome, Group, Level, PICKS_PER_ADVANCE, Phase, View,
    Views,
};
use crate::ready::key::{Index, Key, Name};

/// Groups in each bucket. A search goes through all of them, so there are few. The number
/// was not measured.
pub const GROUPS_PER_BUCKET: usize = 16;

/// Groups of a bucket that a role, and a table, may have before it gives one to others: one of the
/// pick index and one of the due index.
const SMALL_SHARE: usize = 2;

/// The groups that share a lock.
#[repr(C)]
pub struct Bucket {
    groups: [Group; GROUPS_PER_BUCKET],
}

/// What is known about a group.
#[allow(clippy::large_enum_variant)] // It lives for one call, on the stack.
pub enum Known {
    /// The levels and their floors.
    Levels(Views),
    /// Nothing can be known at present: read without floors.
    Nothing,
    /// No backend has examined the index yet.
    Unknown,
}

impl Bucket {
    /// Returns a bucket without groups.
    pub fn new() -> Self {
        Self {
            groups: std::array::from_fn(|_| Group::free()),
        }
    }

    fn find(&self, name: &Name) -> Option<&Group> {
        self.groups.iter().find(|group| group.has_name(name))
    }

    fn find_mut(&mut self, name: &Name) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.has_name(name))
    }

    /// Returns the number of groups that are used.
    pub fn used(&self) -> usize {
        self.groups
            .iter()
            .filter(|group| group.phase != Phase::Free)
            .count()
    }

    /// Returns the levels of a group, as far as they are known in this epoch. `now` is in
    /// microseconds since 2000; it becomes the time when the group was last used.
    pub fn levels(&self, name: &Name, epoch: u64, now: i64) -> Known {
        let Some(group) = self.find(name).filter(|group| group.epoch == epoch) else {
            return Known::Unknown;
        };
        match group.phase {
            Phase::Ready => {
                group.last_used.store(now, Ordering::Relaxed);
                Known::Levels(group.views())
            }
            Phase::Overflow if group.is_overflow_recent(now) => Known::Nothing,
            _ => Known::Unknown,
        }
    }

    /// Returns the levels of a group that are known in this epoch. That is no use of the group, so it
    /// does not keep its slot by it.
    pub fn peek(&self, name: &Name, epoch: u64) -> Option<Views> {
        let group = self.find(name)?;
        (group.epoch == epoch && group.phase == Phase::Ready).then(|| group.views())
    }

    /// Counts documents that were picked from a level. Returns whether its floor should be
    /// advanced now.
    pub fn count_picks(&self, name: &Name, id: i32, documents: u32) -> bool {
        let Some(group) = self.find(name) else {
            return false;
        };
        let Some(at) = group.position(id) else {
            return false;
        };
        let picks = &group.levels[at].picks;
        let counted = picks
            .fetch_add(documents, Ordering::Relaxed)
            .saturating_add(documents);
        // Nothing is known about a new level, so its floor is advanced at once.
        if counted < PICKS_PER_ADVANCE && group.levels[at].floor != Key::FIRST {
            return false;
        }
        picks.store(0, Ordering::Relaxed);
        true
    }

    /// Creates a group, or restarts it for a new epoch, and returns the token of its life. From
    /// here on notes reach the group, so the index must be examined after this call. `now` is in
    /// microseconds since 2000.
    pub fn begin_discovery(&mut self, name: Name, epoch: u64, now: i64) -> u64 {
        let at = self
            .own_or_free(&name)
            .unwrap_or_else(|| self.giving(&name, now));
        let last_number = self.groups.iter().map(|group| group.last_number).max();
        let group = &mut self.groups[at];
        // Another backend may have begun already. It examines the index now, or has done so;
        // both backends may complete the same life of the group.
        let has_begun = matches!(group.phase, Phase::New | Phase::Ready);
        if !(has_begun && group.name == name && group.epoch == epoch) {
            group.last_number = last_number.unwrap_or(0);
            group.restart(name, epoch, now);
        }
        group.token
    }

    /// Returns whether a group may be created of which it is not known whether it has any document.
    /// Where versions of one table compete, one that may be empty takes no slot from one that is
    /// not. `now` is in microseconds since 2000.
    pub fn has_room(&self, name: &Name, now: i64) -> bool {
        self.own_or_free(name).is_some() || {
            let group = &self.groups[self.giving(name, now)];
            !group.is_of_table_of(name) || group.is_empty() || group.is_unused(now)
        }
    }

    /// Returns the slot of a group, or a free one.
    fn own_or_free(&self, name: &Name) -> Option<usize> {
        let own = self.groups.iter().position(|group| group.has_name(name));
        own.or_else(|| self.groups.iter().position(|g| g.phase == Phase::Free))
    }

    /// Returns which group gives its slot to a new one, in a full bucket: one that nobody uses, or
    /// else one of the table that has the most groups. The new group counts for its own table, which
    /// gives first. So a queue with many versions takes only from itself. Where the shares are equal,
    /// the longest unused group gives.
    fn giving(&self, name: &Name, now: i64) -> usize {
        let last_used = |group: &Group| group.last_used.load(Ordering::Relaxed);
        let oldest = |groups: &mut dyn Iterator<Item = usize>| {
            groups.min_by_key(|at| last_used(&self.groups[*at]))
        };
        let all = oldest(&mut (0..GROUPS_PER_BUCKET)).unwrap_or(0);
        if self.groups[all].is_unused(now) {
            return all;
        }
        let of_table = |of: &Group| {
            let groups = self.groups.iter().filter(|g| g.is_of_table_of(&of.name));
            groups.count() + usize::from(of.is_of_table_of(name))
        };
        // Of equal shares, that of the new group gives. Small shares are equal: a queue and its
        // due index must not take the slot from each other.
        let share = |groups: usize, is_own: bool| match groups {
            0..=SMALL_SHARE => (0, false),
            _ => (groups, is_own),
        };
        let shares = |group: &Group| share(of_table(group), group.is_of_table_of(name));
        let greatest = self.groups.iter().map(shares).max();
        let with_it = |at: &usize| Some(shares(&self.groups[*at])) == greatest;
        let first = oldest(&mut (0..GROUPS_PER_BUCKET).filter(with_it)).unwrap_or(all);
        // Of one table, versions without documents give first, and the due index last, because
        // there is one for all versions.
        let table = self.groups[first].name;
        (0..GROUPS_PER_BUCKET)
            .filter(|at| self.groups[*at].is_of_table_of(&table))
            .min_by_key(|at| {
                let group = &self.groups[*at];
                let is_due = group.name.index == Index::Due;
                (is_due, !group.is_empty(), last_used(group))
            })
            .unwrap_or(first)
    }

    /// Stores the levels that were found in the index since `begin_discovery`; None says that
    /// there are too many. It does nothing when `token` is of an earlier life of the group.
    /// `now` is in microseconds since 2000.
    pub fn complete_discovery(&mut self, name: &Name, token: u64, found: Option<&[i32]>, now: i64) {
        let Some(group) = self
            .find_mut(name)
            .filter(|group| group.token == token && group.phase == Phase::New)
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
                    group.levels[at].least_noted = Key::FIRST;
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

    /// Returns whether a note of this key would change anything.
    pub fn needs_note(&self, name: &Name, id: i32, key: Key) -> bool {
        self.find(name)
            .is_some_and(|group| group.needs_note(id, key))
    }

    /// Returns whether the bucket has this group.
    pub fn contains(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// Returns whether a pick would not find a document with this key.
    pub fn hides(&self, name: &Name, id: i32, key: Key) -> bool {
        self.find(name)
            .filter(|group| group.phase == Phase::Ready)
            .is_some_and(|group| match group.position(id) {
                Some(at) => key < group.levels[at].floor,
                None => true,
            })
    }

    /// Notes that a document has an index entry with this key. `now` is in microseconds since
    /// 2000.
    pub fn note(&mut self, name: &Name, id: i32, key: Key, now: i64) {
        if let Some(group) = self.find_mut(name)
            && group.needs_note(id, key)
        {
            group.note(id, key, now);
        }
    }

    /// Begins an advance of a floor up to `bound` at most. Returns None when there is nothing to
    /// advance, and while another backend advances the level. `now` is in microseconds since
    /// 2000.
    pub fn begin_advance(&mut self, name: &Name, id: i32, bound: Key, now: i64) -> Option<Advance> {
        let group = self.find_mut(name)?;
        let at = group.position(id)?;
        let renewed_at = group.levels[at].renewed_at;
        // A time before the renewal means that the clock was set back. The advance counts as
        // lost then, too.
        let is_renewed = (renewed_at..renewed_at.saturating_add(ADVANCE_TIMEOUT_US)).contains(&now);
        let is_running = group.levels[at].advance != 0 && is_renewed;
        if is_running || group.levels[at].floor >= bound {
            return None;
        }
        let number = group.next_number();
        let level = &mut group.levels[at];
        level.advance = number;
        level.renewed_at = now;
        level.least_noted = Key::LAST;
        level.bound = bound;
        level.picks.store(0, Ordering::Relaxed);
        Some(Advance {
            from: level.floor,
            number,
        })
    }

    /// Returns the level, if this advance is the one that runs.
    fn level_of(&mut self, name: &Name, id: i32, advance: Advance) -> Option<&mut Level> {
        let group = self.find_mut(name)?;
        let at = group.position(id)?;
        let level = &mut group.levels[at];
        (level.advance == advance.number).then_some(level)
    }

    /// Records that the backend of an advance is alive, so that no other backend takes it over.
    /// `now` is in microseconds since 2000.
    pub fn renew_advance(&mut self, name: &Name, id: i32, advance: Advance, now: i64) {
        if let Some(level) = self.level_of(name, id, advance) {
            level.renewed_at = now;
        }
    }

    /// Ends an advance. The floor becomes `reached`, the key where the walk ended, or the least
    /// key that was noted since the advance began. None abandons the advance.
    pub fn end_advance(
        &mut self,
        name: &Name,
        id: i32,
        advance: Advance,
        reached: Option<Key>,
    ) -> AdvanceOutcome {
        let Some(level) = self.level_of(name, id, advance) else {
            return AdvanceOutcome::Abandoned;
        };
        level.advance = 0;
        level.bound = Key::FIRST;
        let Some(reached) = reached else {
            return AdvanceOutcome::Abandoned;
        };
        level.floor = reached.min(level.least_noted);
        if level.floor == reached {
            AdvanceOutcome::Advanced
        } else {
            AdvanceOutcome::CutShort
        }
    }

    /// Forgets all groups of a table.
    pub fn forget(&mut self, database: u32, table: u32) {
        for group in &mut self.groups {
            if group.name.database == database && group.name.table == table {
                group.phase = Phase::Free;
            }
        }
    }

    /// Forgets a group.
    pub fn forget_group(&mut self, name: &Name) {
        if let Some(group) = self.find_mut(name) {
            group.phase = Phase::Free;
        }
    }

    /// Returns whether a group of a table gives its slot because nobody uses it. `now` is in
    /// microseconds since 2000.
    pub fn has_unused(&self, database: u32, table: u32, now: i64) -> bool {
        self.groups_of(database, table)
            .any(|group| group.is_unused(now))
    }

    /// Frees the slots of the groups of a table that nobody uses. Arguments as for
    /// [`Self::has_unused`].
    pub fn free_unused(&mut self, database: u32, table: u32, now: i64) {
        for group in &mut self.groups {
            let is_of_table = group.name.database == database && group.name.table == table;
            if group.phase != Phase::Free && is_of_table && group.is_unused(now) {
                group.phase = Phase::Free;
            }
        }
    }

    fn groups_of(&self, database: u32, table: u32) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| {
            let name = group.name;
            group.phase != Phase::Free && name.database == database && name.table == table
        })
    }

    /// Calls `visit` with the name of each group of a table whose levels are known in this epoch.
    pub fn visit_known(&self, database: u32, table: u32, epoch: u64, mut visit: impl FnMut(Name)) {
        for group in self.groups_of(database, table) {
            if group.phase == Phase::Ready && group.epoch == epoch {
                visit(group.name);
            }
        }
    }

    /// Returns whether a full scan is due. If so, the next one is due at `next`, so that only one
    /// backend scans. Times are in microseconds since 2000.
    pub fn claim_full_scan(&self, name: &Name, now: i64, next: i64) -> bool {
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

    /// Postpones the next full scan to a time in microseconds since 2000.
    pub fn postpone_full_scan(&self, name: &Name, until: i64) {
        if let Some(group) = self.find(name) {
            group.next_full_scan.store(until, Ordering::Relaxed);
        }
    }

    /// Returns the time of the lowest floor of a group, in microseconds since 2000. None when
    /// nothing is known of it in this epoch.
    pub fn first_due(&self, name: &Name, epoch: u64) -> Option<i64> {
        let group = self
            .find(name)
            .filter(|group| group.phase == Phase::Ready && group.epoch == epoch)?;
        let views = group.views();
        let floors = views.as_slice().iter().map(|view| view.floor);
        floors.map(Key::next_iteration).min()
    }

    /// Calls `visit` with each known level of a table.
    pub fn visit_table(&self, database: u32, table: u32, mut visit: impl FnMut(Name, View)) {
        self.visit_database(database, |name, _, view| {
            if name.table == table {
                visit(name, view);
            }
        });
    }

    /// Calls `visit` with each known level of all tables of a database, and with the epoch in
    /// which it is known.
    pub fn visit_database(&self, database: u32, mut visit: impl FnMut(Name, u64, View)) {
        for group in &self.groups {
            if group.phase == Phase::Ready && group.name.database == database {
                for view in group.views().as_slice() {
                    visit(group.name, group.epoch, *view);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
