//! Processes of our own in the server: how they are started, wait, and end.

use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};

use crate::pg::catalog;

/// Wakes a process that sleeps in `sleep`.
pub struct Latch(AtomicPtr<pg_sys::Latch>);

impl Latch {
    pub const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// From now on this one wakes this process.
    pub fn take(&self) {
        // SAFETY: a variable of this process; the latch of a process with a place in
        // shared memory is there too, at the same address for all of them.
        self.0.store(unsafe { pg_sys::MyLatch }, Ordering::Release);
    }

    pub fn leave(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }

    pub fn set(&self) {
        let latch = self.0.load(Ordering::Acquire);
        if !latch.is_null() {
            // SAFETY: the memory of a latch outlives its process; one that nobody owns
            // any more, or somebody else does, may be set without harm.
            unsafe { pg_sys::SetLatch(latch) };
        }
    }
}

/// Has the postmaster keep a launcher running, while libraries are preloaded.
pub fn register_launcher() {
    BackgroundWorkerBuilder::new("fetchq launcher")
        .set_type("fetchq launcher")
        .set_library("fetchq")
        .set_function("fetchq_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

/// A worker that this process has started.
pub struct Started(DynamicBackgroundWorker);

impl Started {
    /// Tells it to end.
    pub fn terminate(self) {
        // (the end is not waited for)
        let _ = self.0.terminate();
    }

    pub fn is_gone(&self) -> bool {
        matches!(
            self.0.pid(),
            Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
        )
    }
}

/// Starts the worker of a database; None when `max_worker_processes` are running.
pub fn start_worker(argument: usize, database: &str) -> Option<Started> {
    start("fetchq worker", "fetchq_worker_main", argument, database)
}

/// The same for the process of its slow jobs.
pub fn start_jobs(argument: usize, database: &str) -> Option<Started> {
    start("fetchq jobs", "fetchq_jobs_main", argument, database)
}

fn start(what: &str, main: &str, argument: usize, database: &str) -> Option<Started> {
    // SAFETY: a variable of this process.
    let pid = unsafe { pg_sys::MyProcPid };
    BackgroundWorkerBuilder::new(&format!("{what} {database}"))
        .set_type(what)
        .set_library("fetchq")
        .set_function(main)
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(None)
        .set_argument(Some(pg_sys::Datum::from(argument)))
        .set_notify_pid(pid)
        .load_dynamic()
        .ok()
        .map(Started)
}

/// Whether there is a process of this number.
pub fn is_alive(pid: i32) -> bool {
    // SAFETY: no signal is sent, it is only asked whether that would be possible.
    unsafe { libc_kill(pid, 0) == 0 }
}

/// Tells a process of the server to end; false when there is none of this number.
pub fn terminate(pid: i32) -> bool {
    // SAFETY: a signal, as pg_terminate_backend() sends it; the number was that of a
    // process of ours a moment ago.
    unsafe { libc_kill(pid, pg_sys::SIGTERM as i32) == 0 }
}

unsafe extern "C" {
    #[link_name = "kill"]
    fn libc_kill(pid: i32, signal: i32) -> i32;
}

/// Interrupts whatever the process does: at the next point where that is possible, it
/// ends.
unsafe extern "C-unwind" fn on_terminate(_: i32) {
    // SAFETY: what PostgreSQL's own handler does for a process without a client.
    unsafe {
        (&raw mut pg_sys::InterruptPending).write_volatile(1);
        (&raw mut pg_sys::ProcDiePending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    }
}

unsafe extern "C-unwind" fn on_reload(_: i32) {
    // SAFETY: as above.
    unsafe {
        (&raw mut pg_sys::ConfigReloadPending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    }
}

/// Gets ready to be told to end, and connects: to one database as the superuser, or to
/// none, to read what all databases share. `name` is what clients call theirs.
pub fn begin(database: Option<u32>, name: &CStr) {
    // SAFETY: called first in the main function of a background worker.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        {
            pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(on_terminate));
            pg_sys::pqsignal(pg_sys::SIGHUP as i32, Some(on_reload));
        }
        #[cfg(feature = "pg18")]
        {
            pg_sys::pqsignal_be(pg_sys::SIGTERM as i32, Some(on_terminate));
            pg_sys::pqsignal_be(pg_sys::SIGHUP as i32, Some(on_reload));
        }
        pg_sys::BackgroundWorkerUnblockSignals();
        match database {
            Some(database) => pg_sys::BackgroundWorkerInitializeConnectionByOid(
                pg_sys::Oid::from(database),
                pg_sys::InvalidOid,
                0,
            ),
            None => {
                pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0)
            }
        }
    }
    // Whatever sessions of this database begin with.
    for (setting, value) in [
        (c"application_name", name),
        // As the functions of maintenance have it: a superuser must not meet operators
        // that somebody else has made.
        (c"search_path", c"pg_catalog, pg_temp"),
        // What is lost by a crash was not told to anybody, and is done again.
        (c"synchronous_commit", c"off"),
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (c"transaction_timeout", c"0"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
    ] {
        // SAFETY: settings that everybody may set.
        unsafe {
            pg_sys::SetConfigOption(
                setting.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}

/// Whether the process was told to end.
pub fn should_stop() -> bool {
    // SAFETY: a variable that the signal handler sets.
    unsafe { (&raw const pg_sys::ProcDiePending).read_volatile() != 0 }
}

/// Reads the configuration again when it was told to; says whether it did.
pub fn reload() -> bool {
    // SAFETY: outside of a transaction, as the server's own processes do it.
    unsafe {
        let asked = (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0;
        if asked {
            (&raw mut pg_sys::ConfigReloadPending).write_volatile(0);
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        asked
    }
}

/// Sleeps until the latch is set, or for some time; ends with the postmaster.
pub fn sleep(time: Duration) {
    let milliseconds = time.as_micros().div_ceil(1000).min(3_600_000) as std::ffi::c_long;
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the process has a latch; waiting is what it is for.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            milliseconds,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    // What is pending besides an end: barriers, and memory contexts to be logged.
    if !should_stop() {
        pgrx::check_for_interrupts!();
    }
}

/// The same in a session of a client: a cancel, or the end of the session, ends it.
pub fn sleep_in_session(time: Duration) {
    sleep(time);
    pgrx::check_for_interrupts!();
}

/// Ends the process. With `again` the postmaster starts a launcher anew.
pub fn end(again: bool) -> ! {
    // SAFETY: runs the exit callbacks and does not return.
    unsafe { pg_sys::proc_exit(i32::from(again)) };
    // (the bindings of PostgreSQL 18 do not say so)
    #[allow(unreachable_code)]
    {
        unreachable!("proc_exit does not return")
    }
}

/// Reports what the process has read and written, for autovacuum and the views of
/// statistics: sessions do so when they wait for a client. With `all` also what is of the
/// last moment. Outside of a transaction.
pub fn report_statistics(all: bool) {
    // SAFETY: as a session does when it is idle.
    unsafe {
        pg_sys::pgstat_report_stat(all);
    }
}

/// Runs `work` in a transaction of its own; the message of the error that undid it, if
/// one did. Told to end, it ends.
pub fn transaction<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    // SAFETY: the loop of PostgreSQL's own workers: a transaction and a snapshot, and
    // after an ERROR the transaction is aborted.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        PgTryBuilder::new(AssertUnwindSafe(|| {
            // (the launcher has no database)
            if pg_sys::MyDatabaseId != pg_sys::InvalidOid {
                catalog::lock_extension();
            }
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let result = work();
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            Ok(result)
        }))
        .catch_others(|error| {
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic {
                ereport: report, ..
            }) = &error;
            if report.level() >= pgrx::PgLogLevel::FATAL {
                error.rethrow()
            }
            let message = report.message().to_owned();
            pg_sys::AbortCurrentTransaction();
            Err(message)
        })
        .execute()
    }
}

/// Shows in `pg_stat_activity` what the process is doing, or that it is idle.
pub fn show_activity(activity: Option<&str>) {
    let (state, text) = match activity {
        Some(text) => (pg_sys::BackendState::STATE_RUNNING, text),
        None => (pg_sys::BackendState::STATE_IDLE, ""),
    };
    // (not palloc'ed: outside of a transaction nothing would free it)
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: copies the text.
    unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
}

/// Whether somebody has, or waits for, a lock on this database that keeps sessions from
/// connecting to it: to drop, rename or copy it. In a transaction.
pub fn is_database_wanted() -> bool {
    // SAFETY: a lock like that of a session that connects, taken only if it is free, and
    // released at the end of the transaction.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: 0,
            locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
            locktag_field3: pg_sys::MyDatabaseId.to_u32(),
            locktag_field4: 0,
            locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
            locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        };
        let mode = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
        let result = pg_sys::LockAcquire(&tag, mode, false, true);
        result == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// Runs `work` with the rights of a role, as the server runs the functions of an index:
/// without a way back to those of the session, and without its settings.
pub fn as_role<R>(role: pg_sys::Oid, work: impl FnOnce() -> R) -> R {
    struct Back(pg_sys::Oid, i32);
    impl Drop for Back {
        fn drop(&mut self) {
            // SAFETY: what it was before. After an ERROR the end of the (sub)transaction
            // does the same.
            unsafe { pg_sys::SetUserIdAndSecContext(self.0, self.1) };
        }
    }
    // SAFETY: reads and sets variables of this process.
    unsafe {
        let mut before = Back(pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut before.0, &mut before.1);
        let context = before.1 | pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
        pg_sys::SetUserIdAndSecContext(role, context);
        // Settings are undone too, or the role could leave a search_path behind. After an
        // ERROR the end of the (sub)transaction does that.
        let settings = pg_sys::NewGUCNestLevel();
        let _back = before;
        let result = work();
        pg_sys::AtEOXact_GUC(false, settings);
        result
    }
}
