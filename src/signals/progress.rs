//! Shows the maintenance that this process runs, in shared memory, and records the last run of
//! each service.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::domain::jobs::Task;
use crate::pg::{session, time};
use crate::signals::activity::{Activity, MAX_PAUSE_US};
use crate::signals::board::board;

thread_local! {
    /// The activity of this process while a batch runs.
    static ACTIVITY: Cell<Option<&'static Activity>> = const { Cell::new(None) };
}

/// A batch of maintenance. It is shown until this is dropped.
pub struct Batch {
    activity: &'static Activity,
    task: Task,
    /// Microseconds since 2000.
    began: i64,
    rows_before: i64,
}

/// Shows that this process begins a batch of a service. `table` is the documents table of the
/// queue, 0 for a service of all queues. A batch that follows another one of the same service
/// and queue continues its run. Returns None when there is no free slot, and without shared
/// memory.
pub fn begin_batch(task: Task, table: u32) -> Option<Batch> {
    let activity = board()?.progress.claim_slot(session::pid())?;
    let began = time::clock();
    let ended = activity.ended.load(Ordering::Relaxed);
    let continues_run = activity.service.load(Ordering::Relaxed) == task as u32
        && activity.table.load(Ordering::Relaxed) == table
        && activity.database.load(Ordering::Relaxed) == session::database()
        && ended + MAX_PAUSE_US > began;
    if !continues_run {
        activity
            .database
            .store(session::database(), Ordering::Relaxed);
        activity.service.store(task as u32, Ordering::Relaxed);
        activity.table.store(table, Ordering::Relaxed);
        activity.since.store(began, Ordering::Relaxed);
        activity.rows.store(0, Ordering::Relaxed);
    }
    activity.ended.store(0, Ordering::Release);
    ACTIVITY.with(|current| current.set(Some(activity)));
    Some(Batch {
        activity,
        task,
        began,
        rows_before: activity.rows.load(Ordering::Relaxed),
    })
}

/// Adds rows to the batch that this process runs, if there is one.
pub fn add_rows(rows: i32) {
    if let Some(activity) = ACTIVITY.with(Cell::get) {
        activity.rows.fetch_add(i64::from(rows), Ordering::Relaxed);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let now = time::clock();
        ACTIVITY.with(|current| current.set(None));
        self.activity.ended.store(now, Ordering::Release);
        if let Some(database) = board().and_then(|board| board.databases.find(session::database()))
        {
            let rows = self.activity.rows.load(Ordering::Relaxed) - self.rows_before;
            // The background worker often looks at documents that are not due yet. Such a batch
            // must not replace one that did something.
            if rows == 0 && self.task == Task::Maintain {
                return;
            }
            let last = &database.last[self.task as usize];
            last.duration.store(now - self.began, Ordering::Relaxed);
            last.rows.store(rows, Ordering::Relaxed);
            last.ended.store(now, Ordering::Release);
        }
    }
}
