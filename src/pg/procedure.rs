//! Procedures that end transactions. CALL runs them outside of a transaction block.

use pgrx::pg_sys;

use crate::pg::call::Call;

/// Returns whether a call cannot end the transaction, because its caller will end it.
pub fn is_atomic(call: &Call) -> bool {
    // SAFETY: CALL passes a CallContext. Its node tag is checked before it is read.
    unsafe {
        let context = (*call.fcinfo()).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_CallContext {
            return true;
        }
        (*(context as *const pg_sys::CallContext)).atomic
    }
}

/// Runs the body of a procedure whose call is not atomic. `work` may commit.
pub fn run<R>(work: impl FnOnce(&Transactions) -> R) -> R {
    // SAFETY: The connection is closed below. After an ERROR the end of the transaction closes
    // it.
    unsafe {
        let code = pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32);
        if code < 0 {
            pgrx::error!("SPI_connect_ext failed with code {code}");
        }
        let result = work(&Transactions(()));
        pg_sys::SPI_finish();
        result
    }
}

/// The permission to end transactions, which only [`run`] gives.
pub struct Transactions(());

impl Transactions {
    /// Commits the transaction and begins another one, which has no snapshot yet.
    pub fn commit(&self) {
        // SAFETY: The connection was opened as not atomic. In newer versions of PostgreSQL the
        // second call does nothing, because the first one begins the next transaction.
        unsafe {
            pg_sys::SPI_commit();
            pg_sys::SPI_start_transaction();
        }
    }

    /// Runs `work` with a snapshot of its own, as the server runs a statement.
    pub fn statement<R>(&self, work: impl FnOnce() -> R) -> R {
        // SAFETY: The snapshot is popped below. After an ERROR the end of the transaction pops
        // it.
        unsafe {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let result = work();
            pg_sys::PopActiveSnapshot();
            result
        }
    }
}
