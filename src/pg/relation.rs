//! Tables: look-ups in the system caches without a query, locks, and properties.

use std::convert::Infallible;

use pgrx::pg_sys;

use crate::pg::text::c_string;

/// Looks up a table, or another relation that is no index, in the schema `fetchq_data`. Takes no
/// lock.
///
/// An index of a queue can have a name that is free for a table, such as that of another queue.
pub fn lookup_data_table(name: &str) -> Option<pg_sys::Oid> {
    lookup("fetchq_data", name).filter(|found| class(*found).is_some_and(|class| !class.is_index))
}

/// Looks up an index of a table by its name in the schema `fetchq_data`. Takes no lock. None when
/// the index belongs to another table.
pub fn lookup_data_index(name: &str, table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    lookup("fetchq_data", name).filter(|found| {
        // SAFETY: This reads the system cache, and returns 0 for what is no index.
        unsafe { pg_sys::IndexGetRelation(*found, true) == table }
    })
}

/// Looks up a table, index or other relation in a schema. Takes no lock.
pub fn lookup(schema: &str, name: &str) -> Option<pg_sys::Oid> {
    // SAFETY: Both functions look a name up in the system caches and return 0 when it does not
    // exist.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c_string(schema), true);
        if schema == pg_sys::InvalidOid {
            return None;
        }
        let table = pg_sys::get_relname_relid(c_string(name), schema);
        (table != pg_sys::InvalidOid).then_some(table)
    }
}

/// The outcome of an attempt to lock a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// The lock is held until the end of the transaction.
    Held(File),
    /// Another session holds, or waits for, a lock that conflicts with this one.
    Busy,
    /// The table does not exist.
    Gone,
}

/// The file that has the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// The number of the file. It changes when the table is truncated or rewritten.
    pub number: u32,
    /// This transaction created the file. A rollback brings the previous file back.
    pub is_new: bool,
}

/// The mode of a lock on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// ACCESS SHARE: does not conflict with sessions that read or write rows, and is possible on
    /// a standby.
    Readers,
    /// ROW EXCLUSIVE: does not conflict with sessions that read or write rows.
    Rows,
    /// SHARE ROW EXCLUSIVE: conflicts with sessions that write rows, and with itself.
    Writers,
    /// ACCESS EXCLUSIVE: conflicts with every other session.
    Everybody,
}

impl LockMode {
    fn code(self) -> i32 {
        let mode = match self {
            Self::Readers => pg_sys::AccessShareLock,
            Self::Rows => pg_sys::RowExclusiveLock,
            Self::Writers => pg_sys::ShareRowExclusiveLock,
            Self::Everybody => pg_sys::AccessExclusiveLock,
        };
        mode as i32
    }
}

/// Takes a lock until the end of the transaction, unless it must wait for it.
///
/// Returns whether it has the lock.
pub fn try_lock(table: pg_sys::Oid, mode: LockMode) -> bool {
    // SAFETY: This locks an OID, whether a table has it or not.
    unsafe { pg_sys::ConditionalLockRelationOid(table, mode.code()) }
}

/// Lets one session at a time do something with a table, until the end of the transaction. Waits.
///
/// No SQL command takes this lock: it is one on the object, and SQL locks tables as relations.
pub fn serialize(table: pg_sys::Oid) {
    serialize_part(table, 0);
}

/// As [`serialize`], for a part of what a table is about.
fn serialize_part(table: pg_sys::Oid, part: u16) {
    // SAFETY: This locks numbers, whether an object has them or not.
    unsafe {
        pg_sys::LockDatabaseObject(
            pg_sys::RelationRelationId,
            table,
            part,
            pg_sys::ExclusiveLock as i32,
        );
    }
}

/// As [`serialize`], for a name in the table, whether a row has it or not. Names with the same number
/// wait for each other too.
pub fn serialize_name(table: pg_sys::Oid, name: &str) {
    // FNV-1a, folded to 16 bits.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    serialize_part(table, (hash >> 16) as u16 ^ hash as u16);
}

/// Processes what other sessions have committed to the catalog.
///
/// To lock a table does that too, but not when the transaction has the lock already.
pub fn accept_invalidations() {
    // SAFETY: This is allowed wherever a transaction runs.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Returns whether a table exists and has pages, used or not.
pub fn has_pages(table: pg_sys::Oid) -> bool {
    pages(table) > 0
}

/// Returns whether a B-tree may have entries. One that never had an entry is a single page.
pub fn may_have_entries(index: pg_sys::Oid) -> bool {
    pages(index) > 1
}

/// Returns whether a write to a table in the schema `fetchq_data` may run code of somebody else: a trigger, a
/// rule or a constraint. A table that does not exist runs none.
pub fn runs_code(name: &str) -> bool {
    let Some(table) = lookup_data_table(name) else {
        return false;
    };
    // SAFETY: The table is opened for reading and closed again. What the relation cache has of it is read
    // in between.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32);
        if relation.is_null() {
            return false;
        }
        let constr = (*(*relation).rd_att).constr;
        let runs = !(*relation).trigdesc.is_null()
            || !(*relation).rd_rules.is_null()
            || (!constr.is_null() && (*constr).num_check > 0);
        pg_sys::relation_close(relation, pg_sys::AccessShareLock as i32);
        runs
    }
}

/// The number of pages of a table or an index; 0 where there is none.
fn pages(table: pg_sys::Oid) -> u32 {
    // SAFETY: The table is opened for reading and closed again.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32);
        if relation.is_null() {
            return 0;
        }
        let pages =
            pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
        pg_sys::relation_close(relation, pg_sys::AccessShareLock as i32);
        pages
    }
}

/// Sends an invalidation message for a table to all sessions when the transaction commits.
pub fn invalidate(table: pg_sys::Oid) {
    // SAFETY: The function looks the table up, and raises an ERROR when it does not exist.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) };
}

/// Locks a table until the end of the transaction as a writer of rows does, so that it cannot
/// be dropped meanwhile. Waits for the lock.
pub fn lock_rows(table: pg_sys::Oid) -> Lock {
    lock(table, LockMode::Rows, true)
}

/// Locks a table until the end of the transaction.
///
/// With `wait`, waits for the lock. Otherwise returns `Lock::Busy` when it would have to wait.
fn lock(table: pg_sys::Oid, mode: LockMode, wait: bool) -> Lock {
    // SAFETY: try_relation_open waits for the lock, unless the lock is held already, and returns
    // NULL for a table that does not exist. Closing with NoLock keeps the lock.
    unsafe {
        if !wait && !pg_sys::ConditionalLockRelationOid(table, mode.code()) {
            return Lock::Busy;
        }
        let needed = if wait {
            mode.code()
        } else {
            pg_sys::NoLock as i32
        };
        let relation = pg_sys::try_relation_open(table, needed);
        if relation.is_null() {
            if !wait {
                pg_sys::UnlockRelationOid(table, mode.code());
            }
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

/// The outcome of an attempt to lock a table by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedLock {
    /// The lock on this table is held until the end of the transaction.
    Held(pg_sys::Oid, File),
    /// Another session holds, or waits for, a lock that conflicts with this one.
    Busy,
    /// No table has the name.
    Missing,
}

/// Locks the table that has a name in the schema `fetchq_data`.
///
/// While a session waits for the lock, the table may get another name, and another table this
/// one. So the name is looked up again when the session has processed changes of the catalog since
/// the first look-up, as PostgreSQL does for the tables of a statement. With `wait`, waits for the
/// lock.
pub fn lock_data_table(name: &str, mode: LockMode, wait: bool) -> NamedLock {
    let Ok(outcome) = lock_data_table_if(name, mode, wait, |_| Ok::<_, Infallible>(()));
    outcome
}

/// Locks the table that has a name in the schema `fetchq_data`, as [`lock_data_table`] does, but
/// only a table that `check` accepts. Fails as `check` does.
pub fn lock_data_table_if<E>(
    name: &str,
    mode: LockMode,
    wait: bool,
    check: impl Fn(pg_sys::Oid) -> Result<(), E>,
) -> Result<NamedLock, E> {
    // SAFETY: This is a plain variable of this process.
    let changes = || unsafe { (&raw const pg_sys::SharedInvalidMessageCounter).read_volatile() };
    loop {
        let before = changes();
        let Some(table) = lookup_data_table(name) else {
            return Ok(NamedLock::Missing);
        };
        check(table)?;
        match lock(table, mode, wait) {
            Lock::Held(file) => {
                if changes() == before || lookup_data_table(name) == Some(table) {
                    return Ok(NamedLock::Held(table, file));
                }
                // SAFETY: This releases the lock that was just taken. One that the transaction
                // had before stays.
                unsafe { pg_sys::UnlockRelationOid(table, mode.code()) };
            }
            Lock::Busy => return Ok(NamedLock::Busy),
            // The table was dropped after the look-up. There may be a new one by now.
            Lock::Gone => {}
        }
    }
}

unsafe extern "C-unwind" {
    /// From `commands/sequence.h`, for which pgrx has no binding.
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// Returns the next value of an identity column. The caller needs no privilege on its sequence.
///
/// Raises an ERROR when the sequence does not exist.
pub fn next_identity(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: The function looks the sequence up and raises an ERROR when there is none. The
    // boundary turns an ERROR into a panic, as for every function that pgrx binds.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// Returns the name of the queue whose documents are in this table, from the name of the table.
///
/// Returns None when there is no such table, or when its name does not end with `__docs`.
pub fn queue_of_table(table: u32) -> Option<String> {
    // SAFETY: This looks the table up in the system cache. It returns NULL or a C string.
    unsafe {
        let name = pg_sys::get_rel_name(pg_sys::Oid::from(table));
        if name.is_null() {
            return None;
        }
        let name = std::ffi::CStr::from_ptr(name).to_string_lossy();
        name.strip_suffix("__docs").map(str::to_owned)
    }
}

/// Returns the role that owns a schema. None when the schema does not exist. Takes no lock.
pub(super) fn owner_of_schema(name: &str) -> Option<pg_sys::Oid> {
    // SAFETY: The system cache returns a row of pg_namespace, or NULL. It is released after the
    // column is read.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::NAMESPACENAME as i32,
            pg_sys::Datum::from(c_string(name)),
        );
        if tuple.is_null() {
            return None;
        }
        let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_namespace>(tuple);
        let owner = row.nspowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}

/// What the catalog says of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    /// The role that owns it.
    pub owner: pg_sys::Oid,
    /// Whether it is an index.
    pub is_index: bool,
}

/// Looks a table up in the system cache, without a lock. None when it does not exist.
pub(super) fn class(table: pg_sys::Oid) -> Option<Class> {
    // SAFETY: The system cache returns a row of pg_class, or NULL. It is released after the
    // columns are read.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(table),
        );
        if tuple.is_null() {
            return None;
        }
        let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_class>(tuple);
        let class = Class {
            owner: row.relowner,
            is_index: row.relkind == pg_sys::RELKIND_INDEX as std::ffi::c_char
                || row.relkind == pg_sys::RELKIND_PARTITIONED_INDEX as std::ffi::c_char,
        };
        pg_sys::ReleaseSysCache(tuple);
        Some(class)
    }
}

/// Returns the role that owns a table, from the system cache and without a lock. None when the
/// table does not exist.
pub fn owner_of(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    class(table).map(|class| class.owner)
}

/// Returns whether a table exists. Takes no lock.
pub(super) fn exists(table: pg_sys::Oid) -> bool {
    // SAFETY: This function reads the system cache.
    unsafe {
        pg_sys::SearchSysCacheExists(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(table),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
            pg_sys::Datum::from(0),
        )
    }
}
