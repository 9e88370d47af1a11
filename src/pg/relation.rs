//! Tables by name, through the system caches: no query, no lock.

use pgrx::pg_sys;

use super::call::c_string;

/// The table of this name in the schema `fetchq_data`.
pub fn lookup_data_table(name: &str) -> Option<pg_sys::Oid> {
    // SAFETY: both functions look names up in the system caches and return 0 when
    // there is none.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"fetchq_data".as_ptr(), true);
        if schema == pg_sys::InvalidOid {
            return None;
        }
        let table = pg_sys::get_relname_relid(c_string(name), schema);
        (table != pg_sys::InvalidOid).then_some(table)
    }
}

/// What became of an attempt to lock a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Held until the end of the transaction.
    Held(File),
    /// Another session holds, or waits for, a lock that excludes this one.
    Busy,
    /// There is no such table (any more).
    Gone,
}

/// Where the rows of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Changes when the table is truncated or rewritten.
    pub number: u32,
    /// This transaction made it, and a rollback would bring the one before back.
    pub is_new: bool,
}

/// Locks a table until the end of the transaction as a writer of rows does, so that
/// nobody can drop it meanwhile. Waits for the lock, or with `wait` false gives up.
pub fn lock_rows(table: pg_sys::Oid, wait: bool) -> Lock {
    let mode = pg_sys::RowExclusiveLock as i32;
    // SAFETY: try_relation_open waits for the lock, unless it is held already, and
    // returns NULL for a table that does not exist; closing with NoLock keeps it.
    unsafe {
        if !wait && !pg_sys::ConditionalLockRelationOid(table, mode) {
            return Lock::Busy;
        }
        let relation = pg_sys::try_relation_open(table, mode);
        if relation.is_null() {
            return Lock::Gone;
        }
        #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15"))]
        let new_file = (*relation).rd_newRelfilenodeSubid;
        #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
        let new_file = (*relation).rd_newRelfilelocatorSubid;
        let file = File {
            number: u32::from((*(*relation).rd_rel).relfilenode),
            is_new: new_file != 0 || (*relation).rd_createSubid != 0,
        };
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        Lock::Held(file)
    }
}
