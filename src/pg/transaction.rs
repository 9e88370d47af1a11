//! What happens at the end of a transaction, and of a session.

use std::sync::OnceLock;

use pgrx::pg_sys;

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It will commit, unless something still fails.
    Committing,
    /// Everybody can see what it did.
    Committed,
    RolledBack,
    /// Another session will commit it, or roll it back.
    Prepared,
}

/// The transaction that writes now: the innermost one.
pub fn current() -> pg_sys::TransactionId {
    // SAFETY: gives the transaction a number if it has none.
    unsafe { pg_sys::GetCurrentTransactionId() }
}

/// Whether a transaction of this session, or a part of one, still runs: then what it has
/// written is there.
pub fn is_current(transaction: pg_sys::TransactionId) -> bool {
    // SAFETY: asks the state of this backend.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(transaction) }
}

/// The number of the whole transaction, which no other one ever has.
pub fn number() -> i64 {
    // SAFETY: gives the transaction a number if it has none.
    unsafe { pg_sys::GetTopFullTransactionId().value as i64 }
}

static ON_END: OnceLock<fn(End)> = OnceLock::new();

static ON_EXIT: OnceLock<fn()> = OnceLock::new();

/// Has a function called at the end of every transaction of this process. It may fail
/// only while the transaction is still committing. Once in the life of a process.
pub fn on_end(function: fn(End)) {
    if ON_END.set(function).is_ok() {
        // SAFETY: the callback lives as long as the process.
        unsafe { pg_sys::RegisterXactCallback(Some(ended), std::ptr::null_mut()) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn ended(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    let end = match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => End::Committing,
        pg_sys::XactEvent::XACT_EVENT_COMMIT => End::Committed,
        pg_sys::XactEvent::XACT_EVENT_ABORT => End::RolledBack,
        pg_sys::XactEvent::XACT_EVENT_PREPARE => End::Prepared,
        _ => return,
    };
    if let Some(function) = ON_END.get() {
        function(end);
    }
}

/// Has a function called when this process exits. The first one stays.
pub fn on_exit(function: fn()) {
    if ON_EXIT.set(function).is_ok() {
        // SAFETY: the callback lives as long as the process.
        unsafe { pg_sys::before_shmem_exit(Some(exits), pg_sys::Datum::from(0)) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn exits(_code: i32, _argument: pg_sys::Datum) {
    if let Some(function) = ON_EXIT.get() {
        function();
    }
}
