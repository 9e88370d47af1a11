//! A piece of work that may fail, or be undone, without taking the transaction with it.
//! For maintenance jobs and for picks of queues with limits: a subtransaction costs a
//! transaction id, so never on a hot path.

use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};

/// Runs `work`; gives the message of the error that undid it, if one did.
/// A cancel or a shutdown is not a failure of the work: it goes on to the caller.
pub fn attempt<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    // SAFETY: the pattern of PL/pgSQL's exception block: memory context and resource
    // owner are put back after the subtransaction ends, either way.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);

        let outcome = PgTryBuilder::new(AssertUnwindSafe(|| {
            let result = work();
            pg_sys::ReleaseCurrentSubTransaction();
            Ok(result)
        }))
        .catch_others(|error| {
            let fatal = match &error {
                CaughtError::PostgresError(e)
                | CaughtError::ErrorReport(e)
                | CaughtError::RustPanic { ereport: e, .. } => matches!(
                    e.sql_error_code(),
                    pgrx::PgSqlErrorCode::ERRCODE_QUERY_CANCELED
                        | pgrx::PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN
                ),
            };
            if fatal {
                // Undone here too: the abort of a statement ends only the innermost
                // transaction, and the caller's would stay open.
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
                pg_sys::MemoryContextSwitchTo(context);
                pg_sys::CurrentResourceOwner = owner;
                error.rethrow()
            }
            let message = match &error {
                CaughtError::PostgresError(e)
                | CaughtError::ErrorReport(e)
                | CaughtError::RustPanic { ereport: e, .. } => e.message().to_owned(),
            };
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            Err(message)
        })
        .execute();

        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome
    }
}

/// Runs `work`, which says whether what it did is to stay; else it is undone, and the
/// locks that it took are given back. An error goes on to the caller.
pub fn trial<R>(work: impl FnOnce() -> (R, bool)) -> R {
    // SAFETY: as above.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);

        let result = PgTryBuilder::new(AssertUnwindSafe(|| {
            let (result, stays) = work();
            if stays {
                pg_sys::ReleaseCurrentSubTransaction();
            } else {
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
            }
            result
        }))
        .catch_others(|error| {
            // Undone here, or the caller's abort would end this one instead of its own.
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
            error.rethrow()
        })
        .execute();

        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::attempt;
    use crate::pg::spi;
    use pgrx::pg_test;

    fn count() -> i64 {
        spi::connect(|spi| {
            spi.once("select count(*) from attempted", &[])
                .get(0, 1)
                .unwrap_or(-1)
        })
    }

    fn insert(value: i32) {
        spi::connect(|spi| {
            spi.once(
                "insert into attempted values ($1)",
                &[crate::pg::value::Arg::from(value)],
            );
        });
    }

    #[pg_test]
    fn a_failure_undoes_only_its_own_work() {
        spi::connect(|spi| {
            spi.once("create temp table attempted (n int primary key)", &[]);
        });
        assert_eq!(attempt(|| insert(1)), Ok(()));
        let failed = attempt(|| {
            insert(2);
            insert(1);
        });
        assert!(failed.is_err_and(|m| m.contains("duplicate key")));
        assert_eq!(count(), 1);
        // A panic of Rust counts as a failure too, and the next one still works.
        assert!(attempt(|| panic!("on purpose")).is_err());
        assert_eq!(attempt(|| insert(3)), Ok(()));
        assert_eq!(count(), 2);
    }
}
