//! Properties of the session and of its transaction.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

use crate::domain::library_list;

/// Returns whether the server is a hot standby, on which no session can write.
pub fn is_standby() -> bool {
    // SAFETY: This reads shared state of the server, which is allowed at any time.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Returns the process ID of this session.
pub fn pid() -> i32 {
    // SAFETY: This is a plain variable of this process.
    unsafe { pg_sys::MyProcPid }
}

/// Returns the time when this session began, in microseconds since 2000.
pub fn started() -> i64 {
    // SAFETY: This is a plain variable of this process.
    unsafe { pg_sys::MyStartTimestamp }
}

/// Returns the setting `application_name`, which the client chooses.
pub fn application() -> String {
    // SAFETY: The value of the setting is a C string, or NULL before it is set.
    unsafe {
        let name = pg_sys::application_name;
        if name.is_null() {
            return String::new();
        }
        std::ffi::CStr::from_ptr(name)
            .to_string_lossy()
            .into_owned()
    }
}

/// Returns the OID of the database of this session. 0 in a process without a database.
pub fn database() -> u32 {
    // SAFETY: This is a plain variable of this backend, which was set when it connected.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

/// Returns the number of this session, which no other running session has.
///
/// A later session can have the same number.
pub fn number() -> u32 {
    // SAFETY: This is a plain variable of this backend, which was set when it started.
    unsafe {
        #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15", feature = "pg16"))]
        let number = pg_sys::MyBackendId;
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        let number = pg_sys::MyProcNumber;
        number.unsigned_abs()
    }
}

/// Returns whether the session is in a transaction block, so that the transaction goes on after
/// this statement.
pub fn is_in_block() -> bool {
    // SAFETY: This reads the state of the transaction of this backend.
    unsafe { pg_sys::IsTransactionBlock() }
}

/// Returns whether every snapshot that can read the table, now or later, shows what a committed
/// transaction has done.
///
/// Returns false when the table does not exist.
pub fn is_visible_to_all(transaction: pg_sys::TransactionId, table: pg_sys::Oid) -> bool {
    // SAFETY: The table is open while it is used. The function reads shared state of the
    // server.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::AccessShareLock as i32);
        if relation.is_null() {
            return false;
        }
        #[cfg(feature = "pg13")]
        let oldest = pg_sys::GetOldestXmin(relation, pg_sys::PROCARRAY_FLAGS_VACUUM as i32);
        #[cfg(not(feature = "pg13"))]
        let oldest = pg_sys::GetOldestNonRemovableTransactionId(relation);
        pg_sys::relation_close(relation, pg_sys::AccessShareLock as i32);
        pg_sys::TransactionIdPrecedes(transaction, oldest)
    }
}

/// Returns whether the transaction is read only. It always is on a hot standby.
pub fn is_read_only() -> bool {
    // SAFETY: This is a plain variable of this backend.
    unsafe { pg_sys::XactReadOnly }
}

/// Returns whether the transaction keeps one snapshot for all its statements, as REPEATABLE READ
/// and SERIALIZABLE do.
pub fn keeps_snapshot() -> bool {
    // SAFETY: This is a plain variable of this backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// Returns whether a statement reads the server's list of sessions.
pub(super) fn reads_activity(sql: &str) -> bool {
    sql.contains("pg_stat_get_activity") || sql.contains("pg_stat_activity")
}

/// Has the next read of `pg_stat_activity` show the sessions as of now. The server keeps what it has
/// read until the transaction ends. `Spi` calls this before each statement that reads the list, so
/// that a session that is newer than the copy is not mistaken for one that has ended.
pub(super) fn refresh_activity() {
    // SAFETY: This frees a copy that the functions of the server make again when they are called.
    // None of them keeps a pointer into it between two calls.
    unsafe {
        #[cfg(feature = "pg13")]
        pg_sys::pgstat_clear_snapshot();
        #[cfg(not(feature = "pg13"))]
        pg_sys::pgstat_clear_backend_activity_snapshot();
    }
}

/// Returns the time that the server's list of sessions shows as the start of the statement that
/// this session runs (`query_start`), in microseconds since 2000. Where it shows none, because of
/// `track_activities`, the start of the statement as the session knows it.
///
/// The value identifies the statement. It is no measure of time, because the clock may be set back.
pub fn statement_mark() -> i64 {
    // SAFETY: These are variables of this process, and its entry in the list, which no other process
    // writes.
    unsafe {
        // The entry is not accessible in PostgreSQL 13. The times differ only in background workers
        // that set the start of a statement after they have reported it.
        #[cfg(not(feature = "pg13"))]
        if let Some(entry) = pg_sys::MyBEEntry.as_ref()
            && entry.st_activity_start_timestamp != 0
        {
            return entry.st_activity_start_timestamp;
        }
        pg_sys::GetCurrentStatementStartTimestamp()
    }
}

/// Returns whether the transaction is SERIALIZABLE, so that every answer from the documents must
/// come from a read that leaves predicate locks.
pub fn is_serializable() -> bool {
    // SAFETY: This is a plain variable of this backend.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as i32 }
}

static IS_PRELOADED: AtomicBool = AtomicBool::new(false);

/// Remembers whether `shared_preload_libraries` loads this library. Called from `_PG_init`.
pub fn remember_preloading() {
    // SAFETY: This is a plain variable, which is set while the postmaster loads libraries.
    let is_preloading = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    IS_PRELOADED.store(is_preloading, Ordering::Relaxed);
}

/// Returns whether `shared_preload_libraries` loaded this library.
pub fn is_preloaded() -> bool {
    IS_PRELOADED.load(Ordering::Relaxed)
}

/// Returns whether the setting `shared_preload_libraries` lists a library of this name.
pub fn preloads(name: &str) -> bool {
    // SAFETY: The setting is a C string, or null before it has a value. Only a restart changes it.
    let list = unsafe {
        let list = pg_sys::shared_preload_libraries_string;
        (!list.is_null()).then(|| CStr::from_ptr(list).to_string_lossy())
    };
    list.is_some_and(|list| library_list::has_library(&list, name))
}

/// Returns whether pg_upgrade has started this server.
///
/// It starts the old and the new server to dump and to restore definitions, and has read or will
/// write the transaction IDs of the cluster by other means. A process that writes rows meanwhile
/// leaves IDs in the tables that the new cluster does not know.
pub fn is_binary_upgrade() -> bool {
    // SAFETY: This is a plain variable, which the postmaster sets from its command line before it
    // loads libraries. Its processes inherit it.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// Reserves the prefix `fetchq.`, so that the server reports settings with a misspelt name.
///
/// Without it the server would accept them silently, as placeholders. PostgreSQL 15 and newer
/// refuse them with an error, and PostgreSQL 13 and 14 raise a warning.
pub fn reserve_settings_prefix() {
    // SAFETY: This is called from _PG_init, after all settings were defined.
    unsafe {
        #[cfg(any(feature = "pg13", feature = "pg14"))]
        pg_sys::EmitWarningsOnPlaceholders(c"fetchq".as_ptr());
        #[cfg(not(any(feature = "pg13", feature = "pg14")))]
        pg_sys::MarkGUCPrefixReserved(c"fetchq".as_ptr());
    }
}
