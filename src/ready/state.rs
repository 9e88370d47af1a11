//! What shared memory knows, and the rules by which it changes. No PostgreSQL in
//! here: whoever calls holds the lock of the bucket. docs/engine.md has the argument
//! for each rule.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Place of a document in the pick index below version and priority, and, with
/// `attempts` 0, in the due index below status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Key {
    /// Microseconds since 2000.
    pub next_iteration: i64,
    pub attempts: i32,
    pub seq: i64,
}

impl Key {
    /// Before every document.
    pub const FIRST: Self = Self::new(i64::MIN, i32::MIN, i64::MIN);
    /// Behind every document: a floor here says that there is none.
    pub const LAST: Self = Self::new(i64::MAX, i32::MAX, i64::MAX);

    pub const fn new(next_iteration: i64, attempts: i32, seq: i64) -> Self {
        Self {
            next_iteration,
            attempts,
            seq,
        }
    }

    /// Before every document of a moment.
    pub const fn at(next_iteration: i64) -> Self {
        Self::new(next_iteration, i32::MIN, i64::MIN)
    }

    /// Behind every document of a moment.
    pub const fn until(next_iteration: i64) -> Self {
        Self::new(next_iteration, i32::MAX, i64::MAX)
    }
}

/// Which index a group is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Index {
    /// Levels are the priorities of one version.
    Pick,
    /// Levels are the states planned and active.
    Due,
}

/// Whose floors a group holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Name {
    pub database: u32,
    pub table: u32,
    /// 0 in the due index.
    pub version: i32,
    pub index: Index,
}

/// How many priorities of one version may have ready documents at a time.
pub const LEVELS: usize = 12;

/// A raise whose backend has not been heard of for this time, in microseconds, may be
/// taken over: it was terminated.
const RAISE_TIMEOUT: i64 = 10_000_000;

/// A group with too many levels is looked at again after this time, in microseconds.
const OVERFLOW_PAUSE: i64 = 10_000_000;

/// After this many documents of a level its floor is raised.
pub const PICKS_PER_RAISE: u32 = 32;

/// One priority, or one state.
#[repr(C)]
struct Level {
    id: i32,
    is_used: bool,
    /// Documents picked since the last raise began.
    picked: AtomicU32,
    /// Which raise is running; 0: none.
    raise: u64,
    /// The least key that was noted since it began.
    least: Key,
    raising_since: i64,
    /// No document before it can be picked, unless a note says so.
    floor: Key,
    /// How far the running raise looks.
    bound: Key,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
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
    name: Name,
    phase: Phase,
    /// Changes when documents may have come without a note: what is known is void.
    epoch: u64,
    /// Of this life of the group.
    token: u64,
    /// Source of tokens and of the numbers of raises. A group that is made anew, here or
    /// in another slot, goes on behind all that its bucket has given out.
    clock: u64,
    overflow_until: i64,
    last_used: AtomicI64,
    next_full_scan: AtomicI64,
    levels: [Level; LEVELS],
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
    number: u64,
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
    fn free() -> Self {
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

    fn next(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn is(&self, name: &Name) -> bool {
        self.phase != Phase::Free && self.name == *name
    }

    fn begin(&mut self, name: Name, epoch: u64, now: i64) {
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

    fn position(&self, id: i32) -> Option<usize> {
        self.levels
            .iter()
            .position(|level| level.is_used && level.id == id)
    }

    /// Adds a level, in place of one that is known to be empty where all are used;
    /// false when there is no room.
    fn add(&mut self, id: i32, floor: Key) -> bool {
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

    fn overflow(&mut self, now: i64) {
        self.phase = Phase::Overflow;
        self.overflow_until = now.saturating_add(OVERFLOW_PAUSE);
    }

    /// Whether a note about this key would change anything.
    fn needs(&self, id: i32, key: Key) -> bool {
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

    fn note(&mut self, id: i32, key: Key, now: i64) {
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

    fn views(&self) -> Views {
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

    /// Begins a raise up to `bound`; None while another backend raises the level.
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
mod tests {
    use super::*;

    const NAME: Name = Name {
        database: 1,
        table: 2,
        version: 0,
        index: Index::Pick,
    };

    fn bucket() -> Box<Bucket> {
        Box::new(Bucket::new())
    }

    fn ready(levels: &[i32]) -> Box<Bucket> {
        let mut b = bucket();
        let token = b.begin(NAME, 7, 1);
        b.discovered(&NAME, token, Some(levels), 1);
        b
    }

    fn key(n: i64) -> Key {
        Key::new(n, 0, n)
    }

    fn floors(b: &Bucket) -> Vec<(i32, Key)> {
        match b.levels(&NAME, 7, 1) {
            Known::Levels(views) => views.as_slice().iter().map(|v| (v.id, v.floor)).collect(),
            _ => panic!("not known"),
        }
    }

    fn raise(b: &mut Bucket, to: Key) -> bool {
        let raise = b.begin_raise(&NAME, 0, to, 1).unwrap();
        b.end_raise(&NAME, 0, raise, Some(to)) == Ended::Raised
    }

    #[test]
    fn a_discovered_level_starts_before_every_document() {
        assert_eq!(floors(&ready(&[0, 5])), [(5, Key::FIRST), (0, Key::FIRST)]);
    }

    #[test]
    fn a_level_that_was_noted_before_it_was_discovered_starts_there_too() {
        let mut b = bucket();
        let token = b.begin(NAME, 7, 1);
        b.note(&NAME, 3, key(10), 1);
        b.discovered(&NAME, token, Some(&[3]), 1);
        assert_eq!(floors(&b), [(3, Key::FIRST)]);
    }

    #[test]
    fn what_was_discovered_in_an_earlier_life_is_void() {
        let mut b = bucket();
        let token = b.begin(NAME, 7, 1);
        b.begin(NAME, 8, 1);
        b.discovered(&NAME, token, Some(&[]), 1);
        assert!(matches!(b.levels(&NAME, 8, 1), Known::Unknown));
    }

    #[test]
    fn a_note_below_the_floor_lowers_it_and_one_above_does_not() {
        let mut b = ready(&[0]);
        assert!(raise(&mut b, key(100)));
        assert!(!b.needs(&NAME, 0, key(100)));
        assert!(b.needs(&NAME, 0, key(99)));
        b.note(&NAME, 0, key(50), 1);
        assert_eq!(floors(&b), [(0, key(50))]);
    }

    #[test]
    fn a_note_below_the_bound_cuts_the_raise_short() {
        let mut b = ready(&[0]);
        let raise = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
        b.note(&NAME, 0, key(99), 1);
        b.note(&NAME, 0, key(98), 1);
        assert_eq!(
            b.end_raise(&NAME, 0, raise, Some(key(100))),
            Ended::CutShort
        );
        assert_eq!(floors(&b), [(0, key(98))]);
        // One at the bound does not: the raise never goes further.
        let raise = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
        b.note(&NAME, 0, key(100), 1);
        assert_eq!(b.end_raise(&NAME, 0, raise, Some(key(100))), Ended::Raised);
        assert_eq!(floors(&b), [(0, key(100))]);
    }

    #[test]
    fn one_raises_at_a_time_until_it_is_taken_over() {
        let mut b = ready(&[0]);
        let first = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
        assert!(b.begin_raise(&NAME, 0, key(100), 2).is_none());
        b.goes_on(&NAME, 0, first, 5);
        assert!(
            b.begin_raise(&NAME, 0, key(100), RAISE_TIMEOUT + 2)
                .is_none()
        );
        let second = b.begin_raise(&NAME, 0, key(50), RAISE_TIMEOUT + 6).unwrap();
        assert_eq!(b.end_raise(&NAME, 0, first, Some(key(100))), Ended::GivenUp);
        assert_eq!(b.end_raise(&NAME, 0, second, Some(key(50))), Ended::Raised);
        assert_eq!(floors(&b), [(0, key(50))]);
        // Given up: the next one may start at once.
        let third = b.begin_raise(&NAME, 0, key(100), 3).unwrap();
        assert_eq!(b.end_raise(&NAME, 0, third, None), Ended::GivenUp);
        assert!(raise(&mut b, key(100)));
    }

    #[test]
    fn a_clock_that_was_set_back_blocks_no_level() {
        let mut b = ready(&[0]);
        b.begin_raise(&NAME, 0, key(100), 1_000_000).unwrap();
        assert!(b.begin_raise(&NAME, 0, key(100), 500).is_some());
    }

    /// The group is evicted while its floor is raised, and made again in another slot.
    #[test]
    fn a_raise_of_an_earlier_life_ends_in_no_later_one() {
        let mut b = ready(&[0]);
        let old = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
        for version in 1..=WAYS as i32 {
            let other = Name { version, ..NAME };
            let token = b.begin(other, 7, 10 + i64::from(version));
            b.discovered(&other, token, Some(&[]), 1);
        }
        assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
        let token = b.begin(NAME, 7, 100);
        b.discovered(&NAME, token, Some(&[0]), 100);
        for now in 0..40 {
            if let Some(raise) = b.begin_raise(&NAME, 0, key(1), now) {
                assert_eq!(b.end_raise(&NAME, 0, old, Some(key(100))), Ended::GivenUp);
                b.end_raise(&NAME, 0, raise, None);
            }
        }
        assert_eq!(floors(&b), [(0, Key::FIRST)]);
    }

    #[test]
    fn what_is_forgotten_starts_anew() {
        let mut b = ready(&[0]);
        assert!(raise(&mut b, Key::LAST));
        b.forget(NAME.database, NAME.table);
        assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
    }

    #[test]
    fn an_empty_level_gives_room_to_a_new_one_and_its_raise_is_void() {
        let mut b = ready(&(0..LEVELS as i32).collect::<Vec<_>>());
        assert!(raise(&mut b, Key::LAST));
        b.note(&NAME, 0, key(5), 1);
        assert_eq!(floors(&b).last(), Some(&(0, key(5))));
        assert!(raise(&mut b, Key::LAST));
        b.note(&NAME, 99, key(7), 1);
        assert_eq!(floors(&b).first(), Some(&(99, key(7))));
        assert!(b.begin_raise(&NAME, 0, Key::LAST, 1).is_none());
        // No room left: nothing is known any more.
        b.note(&NAME, 100, key(7), 1);
        assert!(matches!(b.levels(&NAME, 7, 1), Known::Nothing));
        assert!(matches!(
            b.levels(&NAME, 7, 2 + OVERFLOW_PAUSE),
            Known::Unknown
        ));
    }

    #[test]
    fn another_epoch_knows_nothing() {
        let b = ready(&[0]);
        assert!(matches!(b.levels(&NAME, 8, 1), Known::Unknown));
    }

    #[test]
    fn the_group_that_was_not_used_for_longest_gives_way() {
        let mut b = bucket();
        for version in 0..=WAYS as i32 {
            let name = Name { version, ..NAME };
            let token = b.begin(name, 7, i64::from(version));
            b.discovered(&name, token, Some(&[]), 1);
        }
        let known = |version| {
            let name = Name { version, ..NAME };
            matches!(b.levels(&name, 7, 1), Known::Levels(_))
        };
        assert!(!known(0));
        assert!(known(1) && known(WAYS as i32));
        assert_eq!(b.used(), WAYS);
    }

    #[test]
    fn a_floor_is_due_after_enough_picks() {
        let mut b = ready(&[0]);
        assert!(b.count(&NAME, 0, 1), "nothing is known of it yet");
        assert!(raise(&mut b, key(1)));
        let due = (0..PICKS_PER_RAISE * 2)
            .filter(|_| b.count(&NAME, 0, 1))
            .count();
        assert_eq!(due, 2);
        assert!(b.count(&NAME, 0, 100));
    }

    #[test]
    fn the_due_index_has_its_two_levels_at_once() {
        let mut b = bucket();
        let name = Name {
            index: Index::Due,
            ..NAME
        };
        b.begin(name, 7, 1);
        let Known::Levels(views) = b.levels(&name, 7, 1) else {
            panic!("not known");
        };
        assert_eq!(
            views.as_slice().iter().map(|v| v.id).collect::<Vec<_>>(),
            [2, 0]
        );
    }

    #[test]
    fn the_safety_net_is_taken_by_one() {
        let b = ready(&[0]);
        assert!(b.take_full_scan(&NAME, 5, 10));
        assert!(!b.take_full_scan(&NAME, 9, 20));
        assert!(b.take_full_scan(&NAME, 10, 20));
        b.put_off_full_scan(&NAME, 50);
        assert!(!b.take_full_scan(&NAME, 49, 60));
    }
}
