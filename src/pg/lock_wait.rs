//! How long maintenance waits for what another session has locked.
//!
//! A process of the server does not wait at all: it leaves out what is locked and comes back. A
//! session of a client has asked for the work, so it tries again for a moment. It does not enter
//! the queue of the lock, so it cannot be part of a deadlock.

use std::cell::Cell;
use std::time::Duration;

use crate::pg::process;

/// The longest time for one lock: microseconds. A pack of the counters, which is the most frequent
/// cause, holds its locks for milliseconds. What this session has locked itself is kept meanwhile,
/// so the time is well below `deadlock_timeout`, which is a second.
const LOCK_WAIT_US: u64 = 200_000;

/// The longest time for all locks of one call: microseconds. Every queue may be locked.
const CALL_WAIT_US: u64 = 1_000_000;

/// The time between two attempts: microseconds. Not measured.
const POLL_US: u64 = 5_000;

thread_local! {
    /// How long this session may still wait, in microseconds.
    static REMAINING_US: Cell<u64> = const { Cell::new(0) };
}

/// Runs `work`, which may wait a moment for the locks of other sessions.
pub fn allow<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            REMAINING_US.set(self.0);
        }
    }
    let _restored_on_drop = Restore(REMAINING_US.replace(CALL_WAIT_US));
    work()
}

/// Calls `attempt` until it has what it needs. It returns None while another session has locked
/// that, and must not keep a part of it. Returns None when this session may not wait, or not any
/// longer.
///
/// Fails as `attempt` does.
pub fn retry<R, E>(mut attempt: impl FnMut() -> Result<Option<R>, E>) -> Result<Option<R>, E> {
    let mut waited = 0;
    loop {
        if let Some(found) = attempt()? {
            return Ok(Some(found));
        }
        let pause = POLL_US
            .min(REMAINING_US.get())
            .min(LOCK_WAIT_US.saturating_sub(waited));
        if pause == 0 {
            return Ok(None);
        }
        process::sleep_in_session(Duration::from_micros(pause));
        waited += pause;
        REMAINING_US.set(REMAINING_US.get() - pause);
    }
}
