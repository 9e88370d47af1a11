//! What the launcher, the workers and the sessions tell each other, in shared memory.
//! Atomics only, so that it may be read and written anywhere, also in a commit.

use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

use crate::pg::process::Latch;

/// Where a process of ours can be reached.
pub struct ProcessSlot {
    latch: Latch,
    pid: AtomicI32,
    since: AtomicI64,
}

impl ProcessSlot {
    pub const fn empty() -> Self {
        Self {
            latch: Latch::none(),
            pid: AtomicI32::new(0),
            since: AtomicI64::new(0),
        }
    }

    /// This process sits here from now on.
    pub fn take(&self, pid: i32, now: i64) {
        self.latch.take();
        self.since.store(now, Ordering::Relaxed);
        self.pid.store(pid, Ordering::Release);
    }

    pub fn leave(&self) {
        self.pid.store(0, Ordering::Release);
        self.latch.leave();
    }

    /// The same, unless somebody else sits here by now.
    pub fn leave_as(&self, pid: i32) {
        if self.pid.load(Ordering::Acquire) == pid {
            self.leave();
        }
    }

    /// The process, and since when it sits here (microseconds since 2000).
    pub fn process(&self) -> Option<(i32, i64)> {
        let pid = self.pid.load(Ordering::Acquire);
        (pid != 0).then(|| (pid, self.since.load(Ordering::Relaxed)))
    }

    pub fn wake(&self) {
        self.latch.set();
    }
}
