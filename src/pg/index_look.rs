//! Looks into an index of the documents: bounded, without a query, without lasting locks, and
//! without rights on the table. For reports, which must be cheap and must not wait.

use pgrx::pg_sys;

use crate::pg::index_walk::{Column, INTERRUPTS_EVERY, RangeKeys, Walk};

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

/// Looks from `from` on for the first entry whose row is visible to a transaction that starts now,
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
    budget: &mut u32,
) -> Look<N> {
    let Some(lock) = ReadLock::try_take(index) else {
        return Look::Unknown;
    };
    let mut keys = RangeKeys::new(prefix, from);

    // SAFETY: Both are locked, and `is_readable` says that they are a heap and a B-tree index of
    // it. `keys` lives until the scan is over.
    unsafe {
        if !is_readable(table, index) {
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
            if walk.is_visible(snapshot) {
                look = Look::Found(entry);
                break;
            }
            if u64::from(*budget).is_multiple_of(INTERRUPTS_EVERY) {
                pgrx::check_for_interrupts!();
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
