//! The background processes of fetchq: how they start, wait, work in transactions, and end.

use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::time::Duration;

use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgTryBuilder, pg_sys};

use crate::error;
use crate::pg::process_settings::ServerSettings;
use crate::pg::{catalog, errno, memory, session, version};

/// The latch of a process in shared memory, which wakes the process from `sleep`.
pub struct Latch(AtomicPtr<pg_sys::Latch>);

impl Latch {
    /// Makes a latch that belongs to no process.
    pub const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Makes this the latch of this process.
    pub fn take(&self) {
        // A unit test is no process of a server.
        if cfg!(not(test)) {
            // SAFETY: This is a variable of this process. The latch to which it points is in shared
            // memory, at the same address in all processes.
            self.0.store(unsafe { pg_sys::MyLatch }, Ordering::Release);
        }
    }

    /// Makes this the latch of no process.
    pub fn leave(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// Wakes the process of this latch, if there is one.
    pub fn set(&self) {
        let latch = self.0.load(Ordering::Acquire);
        if cfg!(not(test)) && !latch.is_null() {
            // SAFETY: The memory of a latch outlives its process. A latch that no longer
            // belongs to a process, or belongs to another one, can be set without harm.
            unsafe { pg_sys::SetLatch(latch) };
        }
    }
}

/// Registers the launcher, which the postmaster then keeps running.
///
/// Must be called while libraries are preloaded. The postmaster restarts the launcher one second
/// after it has failed.
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

/// A background process that this process has started.
pub struct Started(DynamicBackgroundWorker);

impl Started {
    /// Asks the process to end.
    pub fn terminate(self) {
        // The result would be used to wait for the end, which is not necessary.
        let _ = self.0.terminate();
    }

    /// Returns whether the process has ended.
    pub fn is_gone(&self) -> bool {
        matches!(
            self.0.pid(),
            Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
        )
    }
}

/// Starts the background worker of a database.
///
/// `argument` is passed to its main function, and `database` is shown in its name. Returns None
/// when `max_worker_processes` processes are running.
pub fn start_background_worker(argument: usize, database: &str) -> Option<Started> {
    start(
        "fetchq background worker",
        "fetchq_background_worker_main",
        argument,
        database,
    )
}

/// Starts the jobs process of a database. The arguments and the result are those of
/// [`start_background_worker`].
pub fn start_jobs(argument: usize, database: &str) -> Option<Started> {
    start("fetchq jobs", "fetchq_jobs_main", argument, database)
}

fn start(kind: &str, main: &str, argument: usize, database: &str) -> Option<Started> {
    // SAFETY: This is a plain variable of this process.
    let pid = unsafe { pg_sys::MyProcPid };
    BackgroundWorkerBuilder::new(&format!("{kind} {database}"))
        .set_type(kind)
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

/// Returns whether a process with this ID exists.
pub fn is_alive(pid: i32) -> bool {
    // SAFETY: Signal 0 only checks whether a signal could be sent.
    unsafe { libc_kill(pid, 0) == 0 }
}

/// Asks a process of the server to end. Returns false when no process has this ID.
pub fn terminate(pid: i32) -> bool {
    // SAFETY: This is the signal that pg_terminate_backend() sends. The ID was that of a
    // process of fetchq a moment ago.
    unsafe { libc_kill(pid, pg_sys::SIGTERM as i32) == 0 }
}

unsafe extern "C" {
    #[link_name = "kill"]
    fn libc_kill(pid: i32, signal: i32) -> i32;
}

/// Handles SIGTERM: the process ends at the next point at which it can be interrupted.
unsafe extern "C-unwind" fn on_terminate(_: i32) {
    // SAFETY: This is what PostgreSQL's own handler does for a process without a client, or what it does
    // for a cancel.
    errno::preserve(|| unsafe {
        IS_TERMINATED.store(true, Ordering::Relaxed);
        match LAST_WORK.load(Ordering::Relaxed) {
            NO_LAST_WORK => (&raw mut pg_sys::ProcDiePending).write_volatile(1),
            LAST_WORK_IS_LEFT => (&raw mut pg_sys::QueryCancelPending).write_volatile(1),
            _ => {}
        }
        (&raw mut pg_sys::InterruptPending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    });
}

static IS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// What this process does before it ends: one of these.
static LAST_WORK: AtomicU8 = AtomicU8::new(NO_LAST_WORK);
const NO_LAST_WORK: u8 = 0;
const LAST_WORK_IS_LEFT: u8 = 1;
const LAST_WORK_HAS_BEGUN: u8 = 2;

/// Says that this process has work to do before it ends. From here on SIGTERM cancels what runs, no
/// transaction begins after it, and the process has to end by itself when [`should_stop`] returns true.
pub fn expect_last_work() {
    LAST_WORK.store(LAST_WORK_IS_LEFT, Ordering::Relaxed);
}

/// Begins the work that is left. SIGTERM has no effect on it.
pub fn begin_last_work() {
    LAST_WORK.store(LAST_WORK_HAS_BEGUN, Ordering::Relaxed);
    // SAFETY: This is a plain variable, which signal handlers set.
    unsafe { (&raw mut pg_sys::QueryCancelPending).write_volatile(0) };
}

/// Returns whether this process was asked to end, and begins nothing but its last work.
fn is_ending() -> bool {
    LAST_WORK.load(Ordering::Relaxed) == LAST_WORK_IS_LEFT && IS_TERMINATED.load(Ordering::Relaxed)
}

/// Handles SIGHUP: [`reload`] then reads the configuration again.
unsafe extern "C-unwind" fn on_reload(_: i32) {
    // SAFETY: This is what PostgreSQL's own handler does.
    errno::preserve(|| unsafe {
        (&raw mut pg_sys::ConfigReloadPending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    });
}

/// Installs the signal handlers of a background process and connects it.
///
/// It connects as the superuser to the database with this OID. With None it connects to no
/// database, and can read only the catalogs that all databases share. `name` becomes its
/// `application_name`. Its settings are those of the server, and not those of the database or of
/// a role. Must be called first in the main function of the process.
pub fn begin(database: Option<u32>, name: &CStr) {
    // No process is registered in a server that pg_upgrade runs. One that is there all the same
    // must not write.
    if session::is_binary_upgrade() {
        end(false);
    }
    let server_settings = ServerSettings::read();
    // SAFETY: This is called first in the main function of a background process.
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
    server_settings.apply(name);
}

/// Returns whether the process was asked to end.
pub fn should_stop() -> bool {
    // SAFETY: This is a plain variable, which signal handlers set.
    let is_dying = unsafe { (&raw const pg_sys::ProcDiePending).read_volatile() != 0 };
    is_dying || IS_TERMINATED.load(Ordering::Relaxed)
}

/// Reads the configuration again after a SIGHUP. Returns whether it did.
///
/// Must be called outside of a transaction.
pub fn reload() -> bool {
    // SAFETY: This is called outside of a transaction, as in the server's own processes.
    unsafe {
        let is_pending = (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0;
        if is_pending {
            (&raw mut pg_sys::ConfigReloadPending).write_volatile(0);
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        is_pending
    }
}

/// The longest time that a process sleeps at once: one hour.
const MAX_SLEEP_MS: u128 = 3_600_000;

/// Sleeps until the latch of the process is set, but not longer than `time` or one hour.
///
/// The process ends when the postmaster does.
pub fn sleep(time: Duration) {
    let milliseconds = time.as_micros().div_ceil(1000).min(MAX_SLEEP_MS) as std::ffi::c_long;
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: The process has a latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            milliseconds,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    // Besides the end of the process, barriers and requests to log memory contexts can be
    // pending.
    if !should_stop() {
        pgrx::check_for_interrupts!();
    }
}

/// Sleeps in a session of a client, as [`sleep`] does.
///
/// Raises the ERROR of a cancel, or of the end of the session.
pub fn sleep_in_session(time: Duration) {
    sleep(time);
    check_for_interrupts();
}

/// Raises the ERROR of a cancel, or of the end of the session, if one is pending, and that of memory
/// that was used up. Long loops that read no rows call it.
pub fn check_for_interrupts() {
    memory::check_for_interrupts();
}

/// Ends the process. With `again`, the postmaster starts a launcher again.
pub fn end(again: bool) -> ! {
    // SAFETY: The function runs the exit callbacks and does not return.
    unsafe { pg_sys::proc_exit(i32::from(again)) };
    // The bindings of PostgreSQL 18 do not declare that it does not return.
    #[allow(unreachable_code)]
    {
        unreachable!("proc_exit does not return")
    }
}

/// Reports what the process has read and written, for autovacuum and the statistics views.
///
/// Sessions do so when they wait for a client. Without `all`, the server skips a report
/// that follows another one within about a second. Must be called outside of a transaction.
pub fn report_statistics(all: bool) {
    // SAFETY: A session calls this function when it is idle.
    unsafe {
        pg_sys::pgstat_report_stat(all);
    }
}

/// Runs `work` in a transaction of its own.
///
/// When an ERROR or a panic rolls the transaction back, returns its message. A FATAL error, such
/// as the one of a process that was asked to end, ends the process.
///
/// Where the library does not fit the catalog, does nothing and returns that error.
pub fn transaction<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    transaction_with_any_catalog(|| {
        // The launcher has no database.
        if session::database() != 0 {
            error::raise(version::require_fit());
        }
        work()
    })
}

/// Runs `work`, which reads no table of fetchq, as [`transaction`] does.
pub fn transaction_with_any_catalog<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    if is_ending() {
        return Err("the process was asked to end".into());
    }
    memory::watch(|| transaction_watched(work))
}

fn transaction_watched<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    let _work = memory::Work::begin();
    // SAFETY: This is what PostgreSQL's own background processes do: they begin a transaction
    // and take a snapshot, and after an ERROR they abort the transaction.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        PgTryBuilder::new(AssertUnwindSafe(|| {
            error::raise(memory::require());
            // The launcher has no database.
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
        .inspect(|_| release_session_locks())
        .inspect_err(|_| release_session_locks())
    }
}

/// The advisory locks of SQL.
const USER_LOCKS: u16 = 2;

/// Releases the advisory locks that code of an owner has taken for the session: they would last as
/// long as this process.
fn release_session_locks() {
    // SAFETY: No transaction runs. This reads and changes the locks of this process.
    unsafe { pg_sys::LockReleaseSession(USER_LOCKS) };
}

/// Shows in `pg_stat_activity` what the process is doing. None shows that it is idle.
pub fn show_activity(activity: Option<&str>) {
    let (state, text) = match activity {
        Some(text) => (pg_sys::BackendState::STATE_RUNNING, text),
        None => (pg_sys::BackendState::STATE_IDLE, ""),
    };
    // The text is not palloc'ed, because outside of a transaction nothing would free it.
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: The function copies the text.
    unsafe { pg_sys::pgstat_report_activity(state, text.as_ptr()) };
}

/// Returns whether a session has, or waits for, a lock that prevents connections to this database.
///
/// Sessions that drop, rename or copy a database have such a lock. Must be called in a
/// transaction.
pub fn is_database_wanted() -> bool {
    // SAFETY: This is a plain variable of this process.
    is_database_locked(unsafe { pg_sys::MyDatabaseId }.to_u32())
}

/// Returns what [`is_database_wanted`] does, for the database with this OID. A process that
/// connects to such a database waits.
pub fn is_database_locked(database: u32) -> bool {
    // SAFETY: This is the lock of a session that connects. It is taken only if that is possible
    // without waiting, and is released at the end of the transaction.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: 0,
            locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
            locktag_field3: database,
            locktag_field4: 0,
            locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
            locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        };
        let mode = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
        let result = pg_sys::LockAcquire(&tag, mode, false, true);
        result == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}
