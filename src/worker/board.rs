//! What the launcher, the workers and the sessions tell each other, in shared memory.
//! Atomics only, so that it may be read and written anywhere, also in a commit.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::notifications::Announced;
use super::progress::{Last, Progress, SERVICES};
use super::waiters::Waiters;
use crate::pg::worker::Latch;

/// How many databases can have a worker at a time (`max_worker_processes` is usually
/// the lower limit).
pub const WORKERS: usize = 64;
/// How many changes of a calendar are kept until its worker reads them. When there are
/// more, it looks at all queues.
const RING: usize = 512;

/// Where a process of ours can be reached.
pub struct Seat {
    latch: Latch,
    pid: AtomicI32,
    since: AtomicI64,
}

impl Seat {
    const fn empty() -> Self {
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
    pub fn occupant(&self) -> Option<(i32, i64)> {
        let pid = self.pid.load(Ordering::Acquire);
        (pid != 0).then(|| (pid, self.since.load(Ordering::Relaxed)))
    }

    pub fn wake(&self) {
        self.latch.set();
    }
}

/// How the life of a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum End {
    /// It had no time to say so.
    Crash = 0,
    Asked = 1,
    NoExtension = 2,
    /// Somebody wants the database for himself: to drop or to rename it, or to copy it.
    DatabaseWanted = 3,
    NotWanted = 4,
}

impl End {
    fn of(code: u32) -> Self {
        match code {
            1 => Self::Asked,
            2 => Self::NoExtension,
            3 => Self::DatabaseWanted,
            4 => Self::NotWanted,
            _ => Self::Crash,
        }
    }
}

/// One of the changes. The mark is written last and changes with each, so that a reader
/// sees whether what it has read belongs together.
struct Change {
    /// Its number, and below it the table; 0 while it is written.
    mark: AtomicU64,
    time: AtomicI64,
}

fn mark(number: u32, table: u32) -> u64 {
    u64::from(number) << 32 | u64::from(table)
}

/// Changes of the calendar of a database, until its worker reads them.
pub struct News {
    changes: [Change; RING],
    written: AtomicU32,
}

impl News {
    const fn none() -> Self {
        Self {
            changes: [const {
                Change {
                    mark: AtomicU64::new(0),
                    time: AtomicI64::new(0),
                }
            }; RING],
            written: AtomicU32::new(0),
        }
    }

    fn add(&self, table: u32, time: i64) {
        let number = self.written.fetch_add(1, Ordering::SeqCst);
        let change = &self.changes[number as usize % RING];
        change.mark.store(0, Ordering::SeqCst);
        change.time.store(time, Ordering::SeqCst);
        change.mark.store(mark(number, table), Ordering::SeqCst);
    }

    /// Where reading starts for a worker that will look at everything.
    pub fn written(&self) -> u32 {
        self.written.load(Ordering::SeqCst)
    }

    /// Reads what was told since `read`; None when that is not all there any more.
    pub fn since(&self, read: &mut u32) -> Option<Vec<(u32, i64)>> {
        let written = self.written();
        let mut news = Vec::new();
        let mut is_all = written.wrapping_sub(*read) as usize <= RING;
        if is_all {
            while *read != written {
                let change = &self.changes[*read as usize % RING];
                let before = change.mark.load(Ordering::SeqCst);
                let time = change.time.load(Ordering::SeqCst);
                let table = before as u32;
                // Else its writer is not ready yet, or another one was faster than this.
                is_all &= table != 0
                    && before == mark(*read, table)
                    && before == change.mark.load(Ordering::SeqCst);
                news.push((table, time));
                *read = read.wrapping_add(1);
            }
        }
        *read = written;
        is_all.then_some(news)
    }
}

/// The worker of a database.
pub struct Worker {
    pub seat: Seat,
    /// 0: nobody's.
    database: AtomicU32,
    /// Which launcher has started it.
    launch: AtomicU32,
    end: AtomicU32,
    /// Until when it sleeps, unless something becomes due earlier.
    wakes_at: AtomicI64,
    pub news: News,
    /// Counts the changes of schedules.
    schedules: AtomicU32,
    pub announced: Announced,
    /// What each service did last.
    pub last: [Last; SERVICES],
}

impl Worker {
    const fn empty() -> Self {
        Self {
            seat: Seat::empty(),
            database: AtomicU32::new(0),
            launch: AtomicU32::new(0),
            end: AtomicU32::new(0),
            wakes_at: AtomicI64::new(i64::MIN),
            news: News::none(),
            schedules: AtomicU32::new(0),
            announced: Announced::new(),
            last: [const { Last::never() }; SERVICES],
        }
    }

    pub fn database(&self) -> u32 {
        self.database.load(Ordering::Acquire)
    }

    /// For the launcher, before it starts the worker.
    pub fn assign(&self, database: u32, launch: u32) {
        self.end.store(End::Crash as u32, Ordering::Relaxed);
        self.launch.store(launch, Ordering::Relaxed);
        self.last.iter().for_each(Last::forget);
        self.database.store(database, Ordering::Release);
    }

    /// Whether the place was given by this launcher.
    pub fn is_of(&self, launch: u32) -> bool {
        self.database() != 0 && self.launch.load(Ordering::Relaxed) == launch
    }

    /// For the launcher, when the worker is gone.
    pub fn release(&self) -> End {
        let end = End::of(self.end.load(Ordering::Acquire));
        self.seat.leave();
        self.database.store(0, Ordering::Release);
        end
    }

    pub fn ends(&self, end: End) {
        self.end.store(end as u32, Ordering::Release);
    }

    pub fn sleeps_until(&self, time: i64) {
        self.wakes_at.store(time, Ordering::SeqCst);
    }

    /// Tells the worker that something of a table may be due at a time.
    fn tell(&self, table: u32, time: i64) {
        self.news.add(table, time);
        if time < self.wakes_at.load(Ordering::SeqCst) {
            self.seat.wake();
        }
    }

    /// How often schedules have changed.
    pub fn schedule_changes(&self) -> u32 {
        self.schedules.load(Ordering::SeqCst)
    }

    fn schedules_changed(&self) {
        self.schedules.fetch_add(1, Ordering::SeqCst);
        self.seat.wake();
    }
}

pub struct Board {
    pub launcher: Seat,
    /// Counts the launchers that there were.
    launches: AtomicU32,
    /// Counts the times that a database got or lost the extension.
    generation: AtomicU32,
    workers: [Worker; WORKERS],
    pub waiters: Waiters,
    pub progress: Progress,
}

impl Board {
    pub const fn new() -> Self {
        Self {
            launcher: Seat::empty(),
            launches: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            workers: [const { Worker::empty() }; WORKERS],
            waiters: Waiters::new(),
            progress: Progress::new(),
        }
    }

    /// The number of a launcher that begins.
    pub fn launch(&self) -> u32 {
        self.launches.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// A database got the extension, or lost it.
    pub fn extension_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.launcher.wake();
    }

    pub fn worker(&self, number: usize) -> &Worker {
        &self.workers[number]
    }

    pub fn free(&self) -> Option<usize> {
        self.workers.iter().position(|w| w.database() == 0)
    }

    /// The workers of earlier launchers.
    pub fn orphans(&self, launch: u32) -> impl Iterator<Item = &Worker> {
        self.workers
            .iter()
            .filter(move |w| w.database() != 0 && !w.is_of(launch))
    }

    /// The worker of a database that is there.
    pub fn worker_of(&self, database: u32) -> Option<&Worker> {
        self.workers
            .iter()
            .find(|w| w.database() == database && w.seat.occupant().is_some())
    }

    /// Something of a table may be due at a time: planned, or leased until then.
    pub fn tell(&self, database: u32, table: u32, time: i64) {
        if let Some(worker) = self.worker_of(database) {
            worker.tell(table, time);
        }
    }

    /// A schedule of a database may be due earlier than its worker knows.
    pub fn schedules_changed(&self, database: u32) {
        if let Some(worker) = self.worker_of(database) {
            worker.schedules_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_once_and_in_order() {
        let news = News::none();
        let mut read = news.written();
        assert_eq!(news.since(&mut read), Some(vec![]));
        news.add(7, 100);
        news.add(8, 50);
        assert_ne!(news.written(), read);
        assert_eq!(news.since(&mut read), Some(vec![(7, 100), (8, 50)]));
        assert_eq!(news.written(), read);
        assert_eq!(news.since(&mut read), Some(vec![]));
    }

    #[test]
    fn too_many_news_are_told_as_such() {
        let news = News::none();
        let mut read = news.written();
        for n in 0..RING {
            news.add(1, n as i64);
        }
        assert_eq!(news.since(&mut read).map(|n| n.len()), Some(RING));
        for n in 0..=RING {
            news.add(1, n as i64);
        }
        assert_eq!(news.since(&mut read), None);
        news.add(9, 9);
        assert_eq!(news.since(&mut read), Some(vec![(9, 9)]));
    }
}
