//! What maintenance is doing now, and did last, in shared memory: also what a client
//! runs by `mnt_run()` and the like.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::domain::jobs::Task;
use crate::pg::{session, time};
use crate::signals::activity::{Activity, PAUSE};
use crate::signals::board::board;

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
        if let Some(worker) =
            board().and_then(|board| board.background_worker_of(session::database()))
        {
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
