//! Looks into an index of the documents: bounded, without a query, without lasting locks, and
//! without rights on the table. For reports, which must be cheap and must not wait.

use pgrx::pg_sys;

use crate::pg::index_walk::{
    Column, INTERRUPTS_EVERY, LESS_INT4, Passed, RangeKeys, Walk, equal, scan_key,
};
use crate::pg::memory;

/// The OID of `int4ge`. Built-in functions have the same OID in every version of PostgreSQL.
const GREATER_OR_EQUAL_INT4: u32 = 150;

/// What a look at an index has found.
#[derive(Debug, Clone, Copy)]
pub enum Look<const N: usize> {
    /// The first entry whose row is visible.
    Found([Column; N]),
    /// There is none before the end of the look. The first entry there, if any, may be of a row
    /// that is dead or not committed.
    NothingBefore(Option<[Column; N]>),
    /// The table or the index is locked or was changed, or there were too many entries.
    Unknown,
}

/// Looks from `from` on for the first entry whose row is visible to a transaction that starts now and whose
/// subject is not passed over,
/// up to the first entry for which `is_beyond` returns true.
///
/// Only entries whose first columns equal `prefix` are read. `from` has the columns after the
/// prefix. `budget` is the number of entries that may be read, and is reduced by those that were.
/// The caller has locked the table with a [`ReadLock`], and has checked the columns and the
/// predicate of the index, which is locked for the look if that is possible without waiting. Works
/// on a hot standby, too. Needs no rights on the table.
pub fn first_visible<const N: usize>(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    prefix: &[i32],
    from: [Column; N],
    is_beyond: impl Fn(&[Column; N]) -> bool,
    is_passed: Option<Passed>,
    budget: &mut u32,
) -> Look<N> {
    let Some(lock) = ReadLock::try_take(index) else {
        return Look::Unknown;
    };
    let mut keys = RangeKeys::new(prefix, from);

    // SAFETY: Both are locked, and `is_readable` says that they are a heap and a B-tree index of
    // it. `keys` lives until the scan is over.
    unsafe {
        if !is_readable(table, index) || !has_types(index, prefix.len(), &from) {
            return Look::Unknown;
        }
        let mut walk = Walk::open(table, index, keys.number());
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        keys.start(&mut walk);
        let mut look = Look::NothingBefore(None);
        while walk.next() {
            if *budget == 0 {
                look = Look::Unknown;
                break;
            }
            *budget -= 1;
            let Some(datums) = walk.columns::<N>(prefix.len()) else {
                look = Look::Unknown;
                break;
            };
            let entry = std::array::from_fn(|at| from[at].with(datums[at]));
            if is_beyond(&entry) {
                look = Look::NothingBefore(Some(entry));
                break;
            }
            if walk.is_visible(snapshot) && !walk.is_passed(table, is_passed) {
                look = Look::Found(entry);
                break;
            }
            if u64::from(*budget).is_multiple_of(INTERRUPTS_EVERY) {
                memory::check_for_interrupts();
            }
        }
        drop(walk);
        // A walk keeps its own lock on the index. A report on all queues must not.
        pg_sys::UnlockRelationOid(index, pg_sys::AccessShareLock as i32);
        pg_sys::UnregisterSnapshot(snapshot);
        drop(lock);
        look
    }
}

/// Types of the columns of a pick index after version and priority.
const PICK_TIMES: [Column; 3] = [Column::Timestamptz(0), Column::Int4(0), Column::Int8(0)];

/// Returns whether an index has columns of these types: as many of type `integer` as the prefix has,
/// and those of `columns`. It is locked.
unsafe fn has_types(index: pg_sys::Oid, prefix: usize, columns: &[Column]) -> bool {
    // SAFETY: The caller has locked the index, and `is_readable` has opened it before.
    unsafe {
        let tree = pg_sys::relation_open(index, pg_sys::NoLock as i32);
        let desc = (*tree).rd_att;
        let integers = std::iter::repeat_n(pg_sys::INT4OID, prefix);
        let types: Vec<pg_sys::Oid> = integers.chain(columns.iter().map(Column::oid)).collect();
        let has_types = (*desc).natts as usize == types.len()
            && (1..)
                .zip(&types)
                .all(|(column, oid)| pg_sys::SPI_gettypeid(desc, column) == *oid);
        pg_sys::relation_close(tree, pg_sys::NoLock as i32);
        has_types
    }
}

/// What is looked for in a pick index.
pub struct PickScan<'a> {
    /// The time that divides the documents that are due from those that wait for a retry, in
    /// microseconds since 2000.
    pub now: i64,
    /// The time before which a level, given by version and priority, has no documents.
    pub floor: &'a dyn Fn(i32, i32) -> i64,
    /// How many due documents are counted. Beyond that, only the first of each level is looked for.
    pub max_due: u32,
    /// How many later documents are counted.
    pub max_later: u32,
}

/// What a pick index has. Times are in microseconds since 2000.
#[derive(Debug, Default, Clone)]
pub struct PickLook {
    /// How many documents are due, as far as they were counted.
    pub due: u32,
    /// When the first one was due.
    pub first_due: Option<i64>,
    /// The versions that have due documents, and when the first of each was due.
    pub due_versions: Vec<(i32, i64)>,
    /// How many documents are due later, as far as they were counted.
    pub later: u32,
    /// When the first one is due.
    pub first_later: Option<i64>,
}

impl PickLook {
    /// Adds the first due document of a level. The levels of a version follow one another.
    fn add_due(&mut self, version: i32, time: i64) {
        self.first_due = Some(self.first_due.map_or(time, |first| first.min(time)));
        match self.due_versions.last_mut() {
            Some((last, first)) if *last == version => *first = time.min(*first),
            _ => self.due_versions.push((version, time)),
        }
    }
}

/// Looks at all levels of a pick index. None when the index is locked or was changed, or when there
/// were too many entries. All else is as in [`first_visible`].
pub fn look_at_picks(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    scan: &PickScan,
    budget: &mut u32,
) -> Option<PickLook> {
    let lock = ReadLock::try_take(index)?;
    // SAFETY: As in `first_visible`. The walks keep three locks of their own on the index.
    unsafe {
        if !is_readable(table, index) || !has_types(index, 2, &PICK_TIMES) {
            return None;
        }
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let mut walks = PickWalks {
            versions: Walk::open(table, index, 1),
            priorities: Walk::open(table, index, 2),
            level: Walk::open(table, index, 3),
            snapshot,
            look: PickLook::default(),
        };
        let is_complete = walks.visit_levels(scan, budget).is_some();
        let look = std::mem::take(&mut walks.look);
        drop(walks);
        for _ in 0..3 {
            pg_sys::UnlockRelationOid(index, pg_sys::AccessShareLock as i32);
        }
        pg_sys::UnregisterSnapshot(snapshot);
        drop(lock);
        is_complete.then_some(look)
    }
}

/// The walks of a look at a pick index.
struct PickWalks {
    /// From a version on.
    versions: Walk,
    /// In a version, below a priority.
    priorities: Walk,
    /// In a level, from a time on.
    level: Walk,
    snapshot: pg_sys::Snapshot,
    look: PickLook,
}

impl PickWalks {
    /// Visits all levels. None when something is not known.
    unsafe fn visit_levels(&mut self, scan: &PickScan, budget: &mut u32) -> Option<()> {
        let mut least_version = Some(i32::MIN);
        // SAFETY: The walks are open, each with the number of its keys.
        unsafe {
            while let Some(least) = least_version {
                let from = scan_key(
                    0,
                    1,
                    pg_sys::BTGreaterEqualStrategyNumber,
                    GREATER_OR_EQUAL_INT4,
                    pg_sys::Datum::from(least),
                );
                self.versions.start(&mut [from]);
                *budget = budget.checked_sub(1)?;
                if !self.versions.next() {
                    return Some(());
                }
                // The index has the priorities in descending order.
                let [version, priority] = self.versions.columns::<2>(0)?;
                let (version, mut priority) = (version.value() as i32, priority.value() as i32);
                loop {
                    self.visit_level(version, priority, scan, budget)?;
                    let less = scan_key(
                        0,
                        2,
                        pg_sys::BTLessStrategyNumber,
                        LESS_INT4,
                        pg_sys::Datum::from(priority),
                    );
                    self.priorities.start(&mut [equal(1, version), less]);
                    *budget = budget.checked_sub(1)?;
                    if !self.priorities.next() {
                        break;
                    }
                    let [next] = self.priorities.columns::<1>(1)?;
                    priority = next.value() as i32;
                }
                least_version = version.checked_add(1);
            }
        }
        Some(())
    }

    unsafe fn visit_level(
        &mut self,
        version: i32,
        priority: i32,
        scan: &PickScan,
        budget: &mut u32,
    ) -> Option<()> {
        let floor = (scan.floor)(version, priority);
        // SAFETY: As in `visit_levels`.
        unsafe {
            if floor <= scan.now {
                let mut found = false;
                self.walk(version, priority, floor, budget, |look, time| {
                    if time > scan.now {
                        return false;
                    }
                    if !found {
                        found = true;
                        look.add_due(version, time);
                    }
                    look.due = (look.due + 1).min(scan.max_due);
                    look.due < scan.max_due
                })?;
            }
            let later = floor.max(scan.now.saturating_add(1));
            self.walk(version, priority, later, budget, |look, time| {
                look.first_later = Some(look.first_later.map_or(time, |first| first.min(time)));
                look.later = (look.later + 1).min(scan.max_later);
                look.later < scan.max_later
            })
        }
    }

    /// Calls `visit` for the visible documents of a level from a time on, until it returns false.
    unsafe fn walk(
        &mut self,
        version: i32,
        priority: i32,
        from: i64,
        budget: &mut u32,
        mut visit: impl FnMut(&mut PickLook, i64) -> bool,
    ) -> Option<()> {
        let from = [
            Column::Timestamptz(from),
            Column::Int4(i32::MIN),
            Column::Int8(i64::MIN),
        ];
        let mut keys = RangeKeys::new(&[version, priority], from);
        // SAFETY: As in `visit_levels`. `keys` lives until the scan is started again or ends, and it
        // is not read in between.
        unsafe {
            keys.start(&mut self.level);
            while self.level.next() {
                *budget = budget.checked_sub(1)?;
                if u64::from(*budget).is_multiple_of(INTERRUPTS_EVERY) {
                    memory::check_for_interrupts();
                }
                let [time] = self.level.columns::<1>(2)?;
                if self.level.is_visible(self.snapshot)
                    && !visit(&mut self.look, time.value() as i64)
                {
                    break;
                }
            }
        }
        Some(())
    }
}

/// Returns whether a table is a heap, and an index a valid B-tree of it. Both are locked.
unsafe fn is_readable(table: pg_sys::Oid, index: pg_sys::Oid) -> bool {
    // SAFETY: try_relation_open returns NULL for a relation that does not exist. The caller has
    // locked both, and keeps the locks.
    unsafe {
        let heap = pg_sys::try_relation_open(table, pg_sys::NoLock as i32);
        if heap.is_null() {
            return false;
        }
        let tree = pg_sys::try_relation_open(index, pg_sys::NoLock as i32);
        if tree.is_null() {
            pg_sys::relation_close(heap, pg_sys::NoLock as i32);
            return false;
        }
        let is_heap = (*(*heap).rd_rel).relkind == pg_sys::RELKIND_RELATION as std::ffi::c_char
            && (*(*heap).rd_rel).relam == pg_sys::HEAP_TABLE_AM_OID;
        let is_tree =
            (*(*tree).rd_rel).relam == pg_sys::BTREE_AM_OID && !(*tree).rd_index.is_null();
        let is_valid = is_heap
            && is_tree
            && (*(*tree).rd_index).indrelid == table
            && (*(*tree).rd_index).indisvalid
            && (*(*tree).rd_index).indisready;
        pg_sys::relation_close(tree, pg_sys::NoLock as i32);
        pg_sys::relation_close(heap, pg_sys::NoLock as i32);
        is_valid
    }
}

/// The lock of a reader on a table or an index, which is released when this is dropped, so that a
/// look at many queues does not keep many locks.
pub struct ReadLock(pg_sys::Oid);

impl ReadLock {
    /// Takes the lock. None when that would have to wait.
    pub fn try_take(relation: pg_sys::Oid) -> Option<Self> {
        let mode = pg_sys::AccessShareLock as i32;
        // SAFETY: This locks an OID, whether a relation has it or not.
        unsafe { pg_sys::ConditionalLockRelationOid(relation, mode) }.then(|| Self(relation))
    }

    /// Returns what is locked.
    pub fn relation(&self) -> pg_sys::Oid {
        self.0
    }
}

impl Drop for ReadLock {
    fn drop(&mut self) {
        // After an ERROR the end of the transaction releases the locks.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: `try_take` has taken the lock.
        unsafe { pg_sys::UnlockRelationOid(self.0, pg_sys::AccessShareLock as i32) };
    }
}
