//! Commits that need not wait for the disk, because a crash may lose the transaction.
//!
//! The server counts what a transaction writes: `XactLastRecEnd` is the end of the last record of
//! the write-ahead log that this session has written for it, and 0 before the first one. So a
//! transaction that has written nothing else is known for certain, whatever statements it ran.

use std::cell::Cell;

use pgrx::pg_sys;

/// A position that no record has: the transaction must not be lost.
const NEVER: u64 = u64::MAX;

thread_local! {
    /// The end of the records of this transaction that may be lost. 0: there are none yet.
    static MAY_BE_LOST: Cell<u64> = const { Cell::new(0) };
}

/// The end of the last record that this transaction has written, or 0.
fn written() -> u64 {
    // SAFETY: This is a plain variable of this backend.
    unsafe { pg_sys::XactLastRecEnd }
}

/// Runs `work`, whose changes may be lost in a crash after they were committed.
pub fn may_be_lost<R>(work: impl FnOnce() -> R) -> R {
    let is_all = written() == MAY_BE_LOST.get();
    let result = work();
    if is_all && MAY_BE_LOST.get() != NEVER {
        MAY_BE_LOST.set(written());
    }
    result
}

/// Has this transaction wait for the disk as the session demands, although it may run in
/// [`may_be_lost`].
pub fn must_not_be_lost() {
    MAY_BE_LOST.set(NEVER);
}

/// Has this transaction commit without a wait for the disk, or for a standby, if it has written
/// nothing but what may be lost. Called right before it commits.
pub fn before_commit() {
    let end = written();
    if end == 0 || end != MAY_BE_LOST.get() {
        return;
    }
    // SAFETY: The variable is a plain one of this backend. A local value of a setting ends with the
    // transaction. It is set like one of the session's, because it also decides whether the commit
    // waits for standbys.
    unsafe {
        if pg_sys::synchronous_commit > pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32 {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"off".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// Forgets what the transaction has written. Called when it has ended.
pub fn transaction_ended() {
    MAY_BE_LOST.set(0);
}
