//! A slot of shared memory by which other processes find and wake a process of fetchq.

use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

use crate::pg::process::Latch;

/// The slot of one process: the launcher, or the background worker of a database.
pub struct ProcessSlot {
    latch: Latch,
    /// 0 when no process occupies the slot. A process that leaves the slot looks for signals
    /// afterwards, and who has sent a signal looks for the process afterwards, so all accesses are
    /// in one order.
    pid: AtomicI32,
    /// Microseconds since 2000.
    since: AtomicI64,
}

impl ProcessSlot {
    /// Returns a slot without a process.
    pub const fn empty() -> Self {
        Self {
            latch: Latch::none(),
            pid: AtomicI32::new(0),
            since: AtomicI64::new(0),
        }
    }

    /// Gives the slot to this process. `now` is in microseconds since 2000.
    pub fn occupy(&self, pid: i32, now: i64) {
        self.latch.take();
        self.since.store(now, Ordering::Relaxed);
        self.pid.store(pid, Ordering::SeqCst);
    }

    /// Empties the slot.
    pub fn release(&self) {
        self.pid.store(0, Ordering::SeqCst);
        self.latch.leave();
    }

    /// Empties the slot, unless another process has occupied it meanwhile.
    pub fn release_if_occupied_by(&self, pid: i32) {
        if self.pid.load(Ordering::SeqCst) == pid {
            self.release();
        }
    }

    /// Returns the process in the slot, and since when it is there, in microseconds since 2000.
    pub fn process(&self) -> Option<(i32, i64)> {
        let pid = self.pid.load(Ordering::SeqCst);
        (pid != 0).then(|| (pid, self.since.load(Ordering::Relaxed)))
    }

    /// Wakes the process in the slot, if there is one.
    pub fn wake(&self) {
        self.latch.set();
    }
}
