//! The transaction of this session, and callbacks for the end of a transaction or process.

use std::sync::OnceLock;

use pgrx::pg_sys;

use crate::error;
use crate::pg::memory;

/// The state in which a callback finds a transaction that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The transaction will commit, unless an ERROR still happens.
    Committing,
    /// The transaction has committed, and other sessions see its changes.
    Committed,
    /// The transaction was rolled back.
    RolledBack,
    /// The transaction was prepared. Another session will commit it or roll it back.
    Prepared,
}

/// Returns the ID of the innermost (sub)transaction. Assigns one if it has none.
pub fn current() -> pg_sys::TransactionId {
    // SAFETY: This is allowed in every transaction that can write.
    unsafe { pg_sys::GetCurrentTransactionId() }
}

/// Returns whether a (sub)transaction belongs to the running transaction of this session and was
/// not rolled back, so that its changes are still there.
pub fn is_current(transaction: pg_sys::TransactionId) -> bool {
    // SAFETY: This reads the state of this backend.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(transaction) }
}

/// Returns the whole transaction of a (sub)transaction that another session runs, or that is prepared.
/// None for one that has ended, and for a number that is that of no transaction. To be called while a
/// statement runs.
pub fn running(transaction: pg_sys::TransactionId) -> Option<pg_sys::TransactionId> {
    // SAFETY: The statement has a snapshot, so TransactionXmin is set. What is not before it and before
    // the next ID has an entry among the subtransactions.
    unsafe {
        let next = pg_sys::TransactionId::from(pg_sys::ReadNextFullTransactionId().value as u32);
        let is_known = transaction >= pg_sys::FirstNormalTransactionId
            && !pg_sys::TransactionIdPrecedes(transaction, pg_sys::TransactionXmin)
            && pg_sys::TransactionIdPrecedes(transaction, next);
        let runs =
            is_known && !is_current(transaction) && pg_sys::TransactionIdIsInProgress(transaction);
        runs.then(|| pg_sys::SubTransGetTopmostTransaction(transaction))
    }
}

/// Returns whether the server allows transactions to be prepared.
pub fn may_be_prepared() -> bool {
    // SAFETY: The server has defined it in all versions, and sets it when it starts.
    unsafe { max_prepared_xacts > 0 }
}

unsafe extern "C" {
    /// The setting `max_prepared_transactions`, which pgrx does not declare.
    static max_prepared_xacts: std::ffi::c_int;
}

/// Returns the number of the innermost subtransaction within the transaction. A transaction
/// without any has one, too. It assigns no transaction ID.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: This is allowed in every transaction.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Returns the 64-bit ID of the whole transaction, which is never reused. Assigns one if it has
/// none.
pub fn number() -> i64 {
    // SAFETY: This is allowed in every transaction that can write.
    unsafe { pg_sys::GetTopFullTransactionId().value as i64 }
}

static ON_END: OnceLock<fn(End)> = OnceLock::new();

static ON_SUBTRANSACTION_ROLLBACK: OnceLock<fn(u32)> = OnceLock::new();

static ON_EXIT: OnceLock<fn()> = OnceLock::new();

/// Registers a function that is called at the end of every transaction of this process.
///
/// The function may raise an ERROR only for `End::Committing`. Only the first function that is
/// registered in a process is called.
pub fn on_end(function: fn(End)) {
    if ON_END.set(function).is_ok() {
        // SAFETY: The callback lives as long as the process.
        unsafe { pg_sys::RegisterXactCallback(Some(call_on_end), std::ptr::null_mut()) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn call_on_end(
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
        memory::watch(|| {
            // After this event no ERROR can be raised.
            if end == End::Committing {
                error::raise(memory::require_again());
            }
            function(end);
        });
    }
}

/// Registers a function that is called at the rollback of every subtransaction of this process, with its
/// number. It must not raise an ERROR. Only the first function that is registered in a process is called.
pub fn on_subtransaction_rollback(function: fn(u32)) {
    if ON_SUBTRANSACTION_ROLLBACK.set(function).is_ok() {
        // SAFETY: The callback lives as long as the process.
        unsafe {
            pg_sys::RegisterSubXactCallback(Some(call_on_subtransaction), std::ptr::null_mut());
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn call_on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB
        && let Some(function) = ON_SUBTRANSACTION_ROLLBACK.get()
    {
        function(own);
    }
}

/// Registers a function that is called when this process exits.
///
/// Only the first function that is registered in a process is called.
pub fn on_exit(function: fn()) {
    if ON_EXIT.set(function).is_ok() {
        // SAFETY: The callback lives as long as the process.
        unsafe { pg_sys::before_shmem_exit(Some(call_on_exit), pg_sys::Datum::from(0)) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn call_on_exit(_code: i32, _argument: pg_sys::Datum) {
    if let Some(function) = ON_EXIT.get() {
        function();
    }
}
