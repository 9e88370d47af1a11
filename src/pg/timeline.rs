//! The timeline of the write-ahead log: its number grows with each promotion of a standby.

use pgrx::pg_sys;

/// Returns the timeline that this server writes; 0 on a standby, which writes none.
pub fn current() -> u32 {
    // SAFETY: Both may be called in every backend. A server that is not in recovery, or is no longer,
    // has a timeline.
    unsafe {
        match pg_sys::RecoveryInProgress() {
            true => 0,
            false => of_primary(),
        }
    }
}

#[cfg(not(any(feature = "pg13", feature = "pg14")))]
unsafe fn of_primary() -> u32 {
    // SAFETY: The caller knows that the server is not in recovery.
    unsafe { pg_sys::GetWALInsertionTimeLine() }
}

#[cfg(any(feature = "pg13", feature = "pg14"))]
unsafe fn of_primary() -> u32 {
    // SAFETY: This is a plain variable of this backend. RecoveryInProgress() has set it.
    unsafe { pg_sys::ThisTimeLineID }
}
