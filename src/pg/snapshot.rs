//! A snapshot that several reads share, statements and others.

use pgrx::pg_sys;

/// The snapshot that a statement gets that starts now. It is released when this is dropped.
///
/// In a transaction that keeps one snapshot for all its statements, it is that one.
pub struct Snapshot(pg_sys::Snapshot);

impl Snapshot {
    /// Takes the snapshot. Must be called in a transaction.
    pub fn take() -> Self {
        // SAFETY: A snapshot of the transaction can be registered, and is then a copy that stays as
        // it is. After an ERROR the resource owner releases it.
        unsafe {
            // What this transaction has written so far is visible, as for a statement.
            pg_sys::CommandCounterIncrement();
            Self(pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot()))
        }
    }

    /// Takes a snapshot as of this instant, also in a transaction that keeps one snapshot.
    pub fn latest() -> Self {
        // SAFETY: As in `take`.
        unsafe {
            pg_sys::CommandCounterIncrement();
            Self(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()))
        }
    }

    pub(super) fn ptr(&self) -> pg_sys::Snapshot {
        self.0
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // After an ERROR the end of the transaction releases it.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: `take` has registered it.
        unsafe { pg_sys::UnregisterSnapshot(self.0) };
    }
}
