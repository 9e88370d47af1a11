//! What maintenance is doing now, and did last, in shared memory: also what a client
//! runs by `mnt_run()` and the like.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use super::board;
use crate::domain::jobs::Task;
use crate::pg::{session, time, worker as process};

/// How many processes can be shown.
const PLACES: usize = 64;
/// Batches of one service in one queue are one run, if no more time is between them.
const PAUSE: i64 = 100_000;

/// How many services there are.
pub const SERVICES: usize = Task::ALL.len();

/// What one process does.
pub struct Activity {
    /// 0: nobody's.
    pid: AtomicI32,
    database: AtomicU32,
    service: AtomicU32,
    table: AtomicU32,
    since: AtomicI64,
    /// When its last batch ended; 0 while there is one.
    ended: AtomicI64,
    done: AtomicI64,
}

/// What a service did last in a database.
pub struct Last {
    ended: AtomicI64,
    took: AtomicI64,
    done: AtomicI64,
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
    fn place(&self, pid: i32) -> Option<&Activity> {
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

thread_local! {
    static MINE: Cell<Option<&'static Activity>> = const { Cell::new(None) };
}

/// A batch of maintenance that is shown until this is dropped.
pub struct Running {
    activity: &'static Activity,
    task: Task,
    began: i64,
    done_before: i64,
}

/// Shows what this process begins to do; None where there is no room, or no memory.
pub fn begin(task: Task, table: u32) -> Option<Running> {
    let activity = board()?.progress.place(session::pid())?;
    let began = time::clock();
    let ended = activity.ended.load(Ordering::Relaxed);
    let goes_on = activity.service.load(Ordering::Relaxed) == task as u32
        && activity.table.load(Ordering::Relaxed) == table
        && activity.database.load(Ordering::Relaxed) == session::database()
        && ended + PAUSE > began;
    if !goes_on {
        activity
            .database
            .store(session::database(), Ordering::Relaxed);
        activity.service.store(task as u32, Ordering::Relaxed);
        activity.table.store(table, Ordering::Relaxed);
        activity.since.store(began, Ordering::Relaxed);
        activity.done.store(0, Ordering::Relaxed);
    }
    activity.ended.store(0, Ordering::Release);
    MINE.with(|mine| mine.set(Some(activity)));
    Some(Running {
        activity,
        task,
        began,
        done_before: activity.done.load(Ordering::Relaxed),
    })
}

/// Counts rows of what this process does.
pub fn add(rows: i32) {
    if let Some(activity) = MINE.with(Cell::get) {
        activity.done.fetch_add(i64::from(rows), Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = time::clock();
        MINE.with(|mine| mine.set(None));
        self.activity.ended.store(now, Ordering::Release);
        if let Some(worker) = board().and_then(|board| board.worker_of(session::database())) {
            let done = self.activity.done.load(Ordering::Relaxed) - self.done_before;
            // The worker often looks at documents that are not due yet.
            if done == 0 && self.task == Task::Maintain {
                return;
            }
            let last = &worker.last[self.task as usize];
            last.took.store(now - self.began, Ordering::Relaxed);
            last.done.store(done, Ordering::Relaxed);
            last.ended.store(now, Ordering::Release);
        }
    }
}
