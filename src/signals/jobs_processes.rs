//! The jobs processes of the server, in shared memory. Their number is bounded, and a database
//! has at most one.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::pg::process;

/// Jobs processes that can run at a time: half of the most background workers.
const SLOTS: usize = 32;

/// A jobs process.
struct JobsProcess {
    /// 0 when the slot is free.
    pid: AtomicI32,
    database: AtomicU32,
}

/// The jobs processes of the server.
pub struct JobsProcesses([JobsProcess; SLOTS]);

impl JobsProcesses {
    /// Returns the state in which no jobs process runs.
    pub const fn new() -> Self {
        Self(
            [const {
                JobsProcess {
                    pid: AtomicI32::new(0),
                    database: AtomicU32::new(0),
                }
            }; SLOTS],
        )
    }

    fn running(&self) -> impl Iterator<Item = (i32, u32)> {
        self.0.iter().filter_map(|slot| {
            let pid = slot.pid.load(Ordering::Acquire);
            let database = slot.database.load(Ordering::Acquire);
            (pid != 0 && process::is_alive(pid)).then_some((pid, database))
        })
    }

    /// Returns the process id of the jobs process of a database; None when none runs.
    pub fn of(&self, database: u32) -> Option<i32> {
        let mut running = self.running();
        running.find(|(_, of)| *of == database).map(|(pid, _)| pid)
    }

    /// Returns whether fewer than `limit` jobs processes run.
    pub fn has_room(&self, limit: usize) -> bool {
        self.running().count() < limit
    }

    /// Gives this process one of the first `limit` slots, as the jobs process of a database.
    /// Returns false when there is none, or the database has a jobs process already.
    pub fn claim(&self, pid: i32, database: u32, limit: usize) -> bool {
        if self.of(database).is_some() {
            return false;
        }
        self.0.iter().take(limit).any(|slot| {
            let other = slot.pid.load(Ordering::Acquire);
            let is_free = other == 0 || !process::is_alive(other);
            let has_claimed = is_free
                && slot
                    .pid
                    .compare_exchange(other, pid, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok();
            if has_claimed {
                slot.database.store(database, Ordering::Release);
            }
            has_claimed
        })
    }

    /// Gives the slot of a process back.
    pub fn release(&self, pid: i32) {
        for slot in &self.0 {
            let _ = slot
                .pid
                .compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}
