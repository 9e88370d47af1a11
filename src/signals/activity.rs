//! What maintenance is doing now, and did last, in shared memory: also what a client
//! runs by `mnt_run()` and the like.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use crate::domain::jobs::Task;
use crate::pg::process;

/// How many processes can be shown.
const PLACES: usize = 64;

/// Batches of one service in one queue are one run, if no more time is between them.
pub const PAUSE: i64 = 100_000;

/// How many services there are.
pub const SERVICES: usize = Task::ALL.len();

/// What one process does.
pub struct Activity {
    /// 0: nobody's.
    pid: AtomicI32,
    pub database: AtomicU32,
    pub service: AtomicU32,
    pub table: AtomicU32,
    pub since: AtomicI64,
    /// When its last batch ended; 0 while there is one.
    pub ended: AtomicI64,
    pub done: AtomicI64,
}

/// What a service did last in a database.
pub struct Last {
    pub ended: AtomicI64,
    pub took: AtomicI64,
    pub done: AtomicI64,
}

impl Last {
    pub const fn never() -> Self {
        Self {
            ended: AtomicI64::new(0),
            took: AtomicI64::new(0),
            done: AtomicI64::new(0),
        }
    }

    pub fn forget(&self) {
        self.ended.store(0, Ordering::Release);
    }

    /// Microseconds it took, and rows; None when it did not run since the worker began.
    pub fn read(&self) -> Option<(i64, i64)> {
        let ended = self.ended.load(Ordering::Acquire);
        (ended != 0).then(|| {
            let took = self.took.load(Ordering::Relaxed);
            (took, self.done.load(Ordering::Relaxed))
        })
    }
}

pub struct Progress([Activity; PLACES]);

/// What a process does, for `fetchq.progress`.
pub struct Shown {
    pub pid: i32,
    pub task: Option<Task>,
    pub table: u32,
    pub since: i64,
    pub done: i64,
}

impl Progress {
    pub const fn new() -> Self {
        Self(
            [const {
                Activity {
                    pid: AtomicI32::new(0),
                    database: AtomicU32::new(0),
                    service: AtomicU32::new(0),
                    table: AtomicU32::new(0),
                    since: AtomicI64::new(0),
                    ended: AtomicI64::new(0),
                    done: AtomicI64::new(0),
                }
            }; PLACES],
        )
    }

    /// The place of a process: its own, a free one, or that of one that is no more.
    pub fn place(&self, pid: i32) -> Option<&Activity> {
        let mine = self.0.iter().find(|a| a.pid.load(Ordering::Acquire) == pid);
        mine.or_else(|| {
            self.0.iter().find(|a| {
                let other = a.pid.load(Ordering::Acquire);
                let is_free = other == 0 || !process::is_alive(other);
                is_free
                    && a.pid
                        .compare_exchange(other, pid, Ordering::AcqRel, Ordering::Acquire)
                        .is_ok()
            })
        })
    }

    /// What runs in a database.
    pub fn read(&self, database: u32, now: i64) -> Vec<Shown> {
        let running = self.0.iter().filter(|a| {
            let ended = a.ended.load(Ordering::Acquire);
            let pid = a.pid.load(Ordering::Acquire);
            pid != 0
                && process::is_alive(pid)
                && a.database.load(Ordering::Relaxed) == database
                && (ended == 0 || ended + PAUSE > now)
        });
        running
            .map(|a| Shown {
                pid: a.pid.load(Ordering::Relaxed),
                task: Task::ALL
                    .get(a.service.load(Ordering::Relaxed) as usize)
                    .copied(),
                table: a.table.load(Ordering::Relaxed),
                since: a.since.load(Ordering::Relaxed),
                done: a.done.load(Ordering::Relaxed),
            })
            .collect()
    }
}
