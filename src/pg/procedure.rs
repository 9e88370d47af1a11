//! Procedures that end transactions: what CALL runs outside of a transaction block.

use pgrx::pg_sys;

use crate::pg::call::Call;

/// Whether the call is part of a transaction that its caller will end.
pub fn is_atomic(call: &Call) -> bool {
    // SAFETY: CALL passes a CallContext; the node tag is checked before it is read.
    unsafe {
        let context = (*call.fcinfo()).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_CallContext {
            return true;
        }
        (*(context as *const pg_sys::CallContext)).atomic
    }
}

/// Runs the body of a procedure that is not atomic; `work` may commit.
pub fn run<R>(work: impl FnOnce(&Transactions) -> R) -> R {
    // SAFETY: paired; after an ERROR the end of the transaction closes what is open.
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

/// The right to end transactions.
pub struct Transactions(());

impl Transactions {
    /// Ends the transaction and begins another one, which has no snapshot yet.
    pub fn commit(&self) {
        // SAFETY: the connection was opened for that. In newer versions the second call
        // does nothing, because the first one begins the next transaction.
        unsafe {
            pg_sys::SPI_commit();
            pg_sys::SPI_start_transaction();
        }
    }

    /// Runs `work` with a snapshot, as a statement.
    pub fn statement<R>(&self, work: impl FnOnce() -> R) -> R {
        // SAFETY: popped again; after an ERROR the end of the transaction pops it.
        unsafe {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let result = work();
            pg_sys::PopActiveSnapshot();
            result
        }
    }
}
