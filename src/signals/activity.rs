//! The maintenance that each process runs, and the last run of each service, in shared memory.
//! It includes what a client runs by `mnt_job_run()` and `mnt()`.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use crate::domain::jobs::Task;
use crate::pg::process;

/// Processes that can be shown at a time. Each background worker needs at
/// most two, for itself and its jobs process, and clients that run maintenance one each.
const SLOTS: usize = 64;

/// Batches of one service in one queue count as one run when the time between two of them is
/// at most this: microseconds.
pub const MAX_PAUSE_US: i64 = 100_000;

/// The number of services.
pub const SERVICES: usize = Task::ALL.len();

/// The maintenance of one process.
pub struct Activity {
    /// 0 when the slot is free.
    pid: AtomicI32,
    pub database: AtomicU32,
    /// The position of the service in `Task::ALL`.
    pub service: AtomicU32,
    /// The documents table of the queue; 0 for a service of all queues.
    pub table: AtomicU32,
    /// When the run began, in microseconds since 2000.
    pub since: AtomicI64,
    /// When the last batch ended, in microseconds since 2000; 0 while a batch runs.
    pub ended: AtomicI64,
    /// Rows that the run has processed.
    pub rows: AtomicI64,
}

/// The last run of a service in a database.
pub struct LastRun {
    /// When it ended, in microseconds since 2000; 0 when there was no run.
    pub ended: AtomicI64,
    /// Microseconds.
    pub duration: AtomicI64,
    pub rows: AtomicI64,
}

impl LastRun {
    /// Returns the state of a service that did not run yet.
    pub const fn never() -> Self {
        Self {
            ended: AtomicI64::new(0),
            duration: AtomicI64::new(0),
            rows: AtomicI64::new(0),
        }
    }

    /// Forgets the run.
    pub fn forget(&self) {
        self.ended.store(0, Ordering::Release);
    }

    /// Returns the duration of the run in microseconds, and its rows. None when the service did
    /// not run since the server started.
    pub fn read(&self) -> Option<(i64, i64)> {
        let ended = self.ended.load(Ordering::Acquire);
        (ended != 0).then(|| {
            let duration = self.duration.load(Ordering::Relaxed);
            (duration, self.rows.load(Ordering::Relaxed))
        })
    }
}

/// The activities of all processes of the server.
pub struct Progress([Activity; SLOTS]);

/// A run of a service that goes on, for the view `fetchq.progress`.
pub struct RunningService {
    pub pid: i32,
    /// None for a service that this version of the code does not know.
    pub task: Option<Task>,
    /// The documents table of the queue; 0 for a service of all queues.
    pub table: u32,
    /// When the run began, in microseconds since 2000.
    pub since: i64,
    /// Rows that the run has processed.
    pub done: i64,
}

impl Progress {
    /// Returns the state of a server in which no process does maintenance.
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
                    rows: AtomicI64::new(0),
                }
            }; SLOTS],
        )
    }

    /// Returns the slot of a process: the one that it has, a free one, or the slot of a process
    /// that has exited. None when all slots are used.
    pub fn claim_slot(&self, pid: i32) -> Option<&Activity> {
        let own = self.0.iter().find(|a| a.pid.load(Ordering::Acquire) == pid);
        own.or_else(|| {
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

    /// Returns the services that run in a database. `now` is in microseconds since 2000.
    pub fn read(&self, database: u32, now: i64) -> Vec<RunningService> {
        let running = self.0.iter().filter(|a| {
            let ended = a.ended.load(Ordering::Acquire);
            let pid = a.pid.load(Ordering::Acquire);
            pid != 0
                && process::is_alive(pid)
                && a.database.load(Ordering::Relaxed) == database
                && (ended == 0 || ended + MAX_PAUSE_US > now)
        });
        running
            .map(|a| RunningService {
                pid: a.pid.load(Ordering::Relaxed),
                task: Task::ALL
                    .get(a.service.load(Ordering::Relaxed) as usize)
                    .copied(),
                table: a.table.load(Ordering::Relaxed),
                since: a.since.load(Ordering::Relaxed),
                done: a.rows.load(Ordering::Relaxed),
            })
            .collect()
    }
}
