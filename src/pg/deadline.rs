//! Bounds for the time that a background process spends on one piece of work.
//!
//! A session has `statement_timeout` and `lock_timeout`. The server arms the first one only in
//! sessions of clients, so a background process arms its timer itself.

use std::sync::OnceLock;
use std::time::Duration;

use pgrx::pg_sys;

/// The timer of `statement_timeout` in the enum TimeoutId of `utils/timeout.h`. It has this number
/// in PostgreSQL 13 to 18.
const STATEMENT_TIMEOUT: i32 = 3;

/// A number above those of all timers that the server has. `RegisterTimeout` assigns a free timer
/// for it.
const ANY_USER_TIMEOUT: i32 = 1000;

unsafe extern "C-unwind" {
    // From `utils/timeout.h`, for which pgrx has no binding.
    fn RegisterTimeout(id: i32, handler: Option<unsafe extern "C-unwind" fn()>) -> i32;
    fn enable_timeout_after(id: i32, milliseconds: i32);
    fn disable_timeout(id: i32, keeps_indicator: bool);
}

/// Handles the last timer as SIGTERM: the process ends at the next point at which it can be
/// interrupted. An exception handler of a user's function cannot prevent that.
unsafe extern "C-unwind" fn on_last_timeout() {
    // SAFETY: These are plain variables of this process, which signal handlers may set.
    unsafe {
        (&raw mut pg_sys::InterruptPending).write_volatile(1);
        (&raw mut pg_sys::ProcDiePending).write_volatile(1);
        pg_sys::SetLatch(pg_sys::MyLatch);
    }
}

fn last_timer() -> i32 {
    static TIMER: OnceLock<i32> = OnceLock::new();
    // SAFETY: This is called once in each process, which the server has initialized.
    *TIMER.get_or_init(|| unsafe { RegisterTimeout(ANY_USER_TIMEOUT, Some(on_last_timeout)) })
}

/// How long the work may go on after it was cancelled: a function of a user can catch the cancel.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `work` in a background process. No lock is waited for longer than `lock_wait`, and after
/// `total` the work is cancelled. The process ends when the cancel has no effect for two seconds.
///
/// `work` must contain the whole transaction. The server's messages name a statement timeout and a
/// lock timeout.
pub fn run<R>(lock_wait: Duration, total: Duration, work: impl FnOnce() -> R) -> R {
    struct Restore(i32);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: The timers of this process are stopped. A cancel that came too late must
            // not hit other work.
            unsafe {
                disable_timeout(STATEMENT_TIMEOUT, false);
                disable_timeout(last_timer(), false);
                (&raw mut pg_sys::QueryCancelPending).write_volatile(0);
                pg_sys::LockTimeout = self.0;
            }
        }
    }
    let milliseconds = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1);
    // SAFETY: The server has initialized its timers in this process. The setting is a plain
    // variable; a change of it by a function of a user is undone before this ends.
    let _restored_on_drop = unsafe {
        let saved = Restore(pg_sys::LockTimeout);
        pg_sys::LockTimeout = milliseconds(lock_wait);
        enable_timeout_after(STATEMENT_TIMEOUT, milliseconds(total));
        enable_timeout_after(last_timer(), milliseconds(total + GRACE));
        saved
    };
    work()
}
