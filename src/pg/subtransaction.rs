//! Work that can fail or be rolled back while the transaction goes on.
//!
//! Maintenance jobs and picks of queues with limits use it. A subtransaction that writes costs a
//! transaction ID, so no hot path uses one.

use std::ffi::c_int;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};

use crate::error;
use crate::pg::memory;

fn report_of(error: &CaughtError) -> &ErrorReportWithLevel {
    match error {
        CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic {
            ereport: report, ..
        } => report,
    }
}

/// Returns whether the server has raised an ERROR because this session was cancelled, or is to end. The
/// SQLSTATE alone does not say so: a trigger can raise any, and pass on that of another server.
fn is_interrupt(report: &ErrorReportWithLevel) -> bool {
    let is_code = matches!(
        report.sql_error_code(),
        PgSqlErrorCode::ERRCODE_QUERY_CANCELED | PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN
    );
    is_code && report.function_name() == Some("ProcessInterrupts")
}

/// Returns whether an ERROR says nothing about the work: another attempt, or one after the cause was
/// removed, may succeed. That is an interrupt, a serialization failure, a deadlock, a lock that could not
/// be had in time, and a lack of memory or of space.
fn is_transient(report: &ErrorReportWithLevel) -> bool {
    let code = report.sql_error_code();
    let class = |code: PgSqlErrorCode| code as c_int & 0xfff;
    let classes = [
        PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        PgSqlErrorCode::ERRCODE_INSUFFICIENT_RESOURCES,
        PgSqlErrorCode::ERRCODE_SYSTEM_ERROR,
    ];
    is_interrupt(report)
        || code == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
        || classes.iter().any(|of| class(*of) == class(code))
}

/// Runs `work` in a subtransaction.
///
/// When an ERROR or a panic rolls the work back, returns its message. A cancel or a shutdown of this
/// session is not a failure of the work, so its ERROR is raised again.
pub fn attempt<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    run(|| Ok(work()), is_interrupt)
}

/// Runs `work` in a subtransaction, for a caller who goes on without it for good: only what the tables,
/// or the triggers of users, refuse is a failure of the work. Any other ERROR is raised again, see
/// [`is_transient`]. Work that returns an error is rolled back, too.
pub fn attempt_once<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    run(work, is_transient)
}

/// `passes`: whether an ERROR is raised again.
fn run<R>(
    work: impl FnOnce() -> Result<R, String>,
    passes: fn(&ErrorReportWithLevel) -> bool,
) -> Result<R, String> {
    // Work that is attempted may follow work that has failed for want of memory, and has used up the
    // ballast. Without it, another such failure would end the session.
    error::raise(memory::require());
    // SAFETY: This is what an exception block of PL/pgSQL does. The memory context and the
    // resource owner are restored after the subtransaction, whether it failed or not.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);

        let outcome = PgTryBuilder::new(AssertUnwindSafe(|| {
            let result = work();
            match result {
                Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
                Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
            }
            result
        }))
        .catch_others(|error| {
            let report = report_of(&error);
            if passes(report) {
                // The subtransaction is rolled back here, because the abort of a statement
                // ends only the innermost transaction, and that of the caller would stay open.
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
                pg_sys::MemoryContextSwitchTo(context);
                pg_sys::CurrentResourceOwner = owner;
                error.rethrow()
            }
            let message = report.message().to_owned();
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            Err(message)
        })
        .execute();

        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome
    }
}

/// Runs `work` in a subtransaction, and rolls it back unless `work` returns true.
///
/// A rollback also releases the locks that the work has taken. Returns the first value that
/// `work` returns. An ERROR rolls the work back and is raised again.
pub fn roll_back_unless_kept<R>(work: impl FnOnce() -> (R, bool)) -> R {
    // SAFETY: As in `attempt`.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);

        let result = PgTryBuilder::new(AssertUnwindSafe(|| {
            let (result, is_kept) = work();
            if is_kept {
                pg_sys::ReleaseCurrentSubTransaction();
            } else {
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
            }
            result
        }))
        .catch_others(|error| {
            // The subtransaction is rolled back here. Otherwise the abort of the caller would
            // end this one instead of its own.
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
mod tests {
    use super::attempt;
    use crate::pg::spi;
    use pgrx::pg_extern;

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

    #[pg_extern(sql = false)]
    fn a_failure_rolls_back_only_its_own_work() {
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
        // A panic of Rust is a failure too, and the next attempt still works.
        assert!(attempt(|| panic!("on purpose")).is_err());
        assert_eq!(attempt(|| insert(3)), Ok(()));
        assert_eq!(count(), 2);
    }
}
