//! Tables by name, through the system caches: no query, no lock.

use pgrx::pg_sys;

use crate::pg::text::c_string;

/// The table of this name in the schema `fetchq_data`.
pub fn lookup_data_table(name: &str) -> Option<pg_sys::Oid> {
    lookup("fetchq_data", name)
}

/// The table of this name in a schema.
pub fn lookup(schema: &str, name: &str) -> Option<pg_sys::Oid> {
    // SAFETY: both functions look names up in the system caches and return 0 when
    // there is none.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c_string(schema), true);
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

/// Whom a lock keeps away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Nobody who reads or writes rows.
    Rows,
    /// All who write, and all who take the same lock.
    Writers,
    Everybody,
}

/// Takes a lock until the end of the transaction, unless that means waiting.
pub fn try_lock(table: pg_sys::Oid, mode: LockMode) -> bool {
    let mode = match mode {
        LockMode::Rows => pg_sys::RowExclusiveLock,
        LockMode::Writers => pg_sys::ShareRowExclusiveLock,
        LockMode::Everybody => pg_sys::AccessExclusiveLock,
    };
    // SAFETY: takes a lock by number, whatever has that number.
    unsafe { pg_sys::ConditionalLockRelationOid(table, mode as i32) }
}

/// Keeps all who write a table away until the end of the transaction; waits for those
/// who do.
pub fn lock_writers(table: pg_sys::Oid) {
    // SAFETY: takes a lock by number, whatever has that number.
    unsafe { pg_sys::LockRelationOid(table, pg_sys::ShareRowExclusiveLock as i32) };
}

/// Learns of what other sessions have committed to the catalog. Locking a table does
/// that too, but not where the transaction has that lock already.
pub fn accept_invalidations() {
    // SAFETY: allowed wherever a transaction runs.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Whether a table has room for rows, used or not.
pub fn has_pages(table: pg_sys::Oid) -> bool {
    // SAFETY: opens the table for reading and closes it again.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32);
        if relation.is_null() {
            return false;
        }
        let pages =
            pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
        pg_sys::relation_close(relation, pg_sys::AccessShareLock as i32);
        pages > 0
    }
}

/// Tells all sessions, when the transaction commits, that a table has changed.
pub fn invalidate(table: pg_sys::Oid) {
    // SAFETY: the table exists and is locked by the caller.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
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

unsafe extern "C-unwind" {
    /// Of `commands/sequence.h`, which pgrx has no binding for.
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// The next value of an identity column, which needs no right on its sequence.
pub fn next_identity(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: looks the sequence up, an ERROR when there is none; the boundary turns that
    // into a panic, as for every function that pgrx binds.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// The queue whose documents are in this table, by the table's name.
pub fn queue_of_table(table: u32) -> Option<String> {
    // SAFETY: a look-up in the system cache; NULL when there is no such table.
    unsafe {
        let name = pg_sys::get_rel_name(pg_sys::Oid::from(table));
        if name.is_null() {
            return None;
        }
        let name = std::ffi::CStr::from_ptr(name).to_string_lossy();
        name.strip_suffix("__docs").map(str::to_owned)
    }
}

/// The role that owns a table, if it exists.
pub fn owner_of_table(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: opens the table for reading and closes it again.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32);
        if relation.is_null() {
            return None;
        }
        let owner = (*(*relation).rd_rel).relowner;
        pg_sys::relation_close(relation, pg_sys::AccessShareLock as i32);
        Some(owner)
    }
}

/// Whether the caller may read a table, which may be gone.
pub fn may_read(table: pg_sys::Oid) -> bool {
    // SAFETY: asks the system cache.
    unsafe {
        let role = pg_sys::GetUserId();
        let mode = pg_sys::AclMode::from(pg_sys::ACL_SELECT);
        pg_sys::SearchSysCacheExists(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(table),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
        ) && pg_sys::pg_class_aclcheck(table, role, mode) == pg_sys::AclResult::ACLCHECK_OK
    }
}
