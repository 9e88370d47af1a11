//! Facts about the session.

use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

/// True when this session can not write now, because the server is a hot standby.
pub fn is_standby() -> bool {
    // SAFETY: reads shared state of the server; allowed at any time.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// The process of this session.
pub fn pid() -> i32 {
    // SAFETY: a plain variable of this process.
    unsafe { pg_sys::MyProcPid }
}

/// When this session began: microseconds since 2000.
pub fn started() -> i64 {
    // SAFETY: a plain variable of this process.
    unsafe { pg_sys::MyStartTimestamp }
}

/// What the client calls itself (`application_name`).
pub fn application() -> String {
    // SAFETY: the value of a setting; a C string, or NULL before it is set.
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

/// The database of this session.
pub fn database() -> u32 {
    // SAFETY: a plain variable of this backend, set when it connected.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

/// The number of this session among those that run now: no other one has it.
pub fn number() -> u32 {
    // SAFETY: a plain variable of this backend, set when it started.
    unsafe {
        #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15", feature = "pg16"))]
        let number = pg_sys::MyBackendId;
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        let number = pg_sys::MyProcNumber;
        number.unsigned_abs()
    }
}

/// True inside BEGIN … COMMIT: the transaction goes on after this statement.
pub fn is_in_block() -> bool {
    // SAFETY: reads the state of this backend's transaction.
    unsafe { pg_sys::IsTransactionBlock() }
}

/// Whether every snapshot that may read the table, now or later, sees what this
/// transaction has committed.
pub fn is_visible_to_all(transaction: u32, table: pg_sys::Oid) -> bool {
    // SAFETY: the table is opened for the question, whose answer comes from shared state
    // of the server.
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
        pg_sys::TransactionIdPrecedes(pg_sys::TransactionId::from(transaction), oldest)
    }
}

/// True when the transaction is read only (always so on a hot standby).
pub fn is_read_only() -> bool {
    // SAFETY: a plain variable of this backend.
    unsafe { pg_sys::XactReadOnly }
}

/// True when the transaction keeps one snapshot for all its statements.
pub fn keeps_snapshot() -> bool {
    // SAFETY: a plain variable of this backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

static IS_PRELOADED: AtomicBool = AtomicBool::new(false);

/// Remembers whether `shared_preload_libraries` is loading this library. Called from
/// `_PG_init`.
pub fn remember_preloading() {
    // SAFETY: a plain variable, set while the postmaster loads libraries.
    let is_preloading = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    IS_PRELOADED.store(is_preloading, Ordering::Relaxed);
}

/// Whether `shared_preload_libraries` loaded this library.
pub fn is_preloaded() -> bool {
    IS_PRELOADED.load(Ordering::Relaxed)
}

/// Makes a misspelt `fetchq.…` setting a warning instead of a silent placeholder.
pub fn reserve_settings_prefix() {
    // SAFETY: called from _PG_init, after all settings are defined.
    unsafe {
        #[cfg(any(feature = "pg13", feature = "pg14"))]
        pg_sys::EmitWarningsOnPlaceholders(c"fetchq".as_ptr());
        #[cfg(not(any(feature = "pg13", feature = "pg14")))]
        pg_sys::MarkGUCPrefixReserved(c"fetchq".as_ptr());
    }
}
