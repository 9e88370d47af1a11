//! What the launcher, the workers and the sessions tell each other, in shared memory.
//! Atomics only, so that it may be read and written anywhere, also in a commit.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::pg::session;
use crate::pg::shared::{Area, Content, Place};
use crate::signals::activity::{Last, Progress, SERVICES};
use crate::signals::announcements::Announcements;
use crate::signals::due_changes::DueChanges;
use crate::signals::process_slot::ProcessSlot;
use crate::signals::waiters::Waiters;

/// How many databases can have a worker at a time (`max_worker_processes` is usually
/// the lower limit).
pub const BACKGROUND_WORKERS: usize = 64;

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

/// The worker of a database.
pub struct BackgroundWorker {
    pub slot: ProcessSlot,
    /// 0: nobody's.
    database: AtomicU32,
    /// Which launcher has started it.
    launch: AtomicU32,
    end: AtomicU32,
    /// Until when it sleeps, unless something becomes due earlier.
    wakes_at: AtomicI64,
    pub due_changes: DueChanges,
    /// Counts the changes of schedules.
    schedules: AtomicU32,
    pub announcements: Announcements,
    /// What each service did last.
    pub last: [Last; SERVICES],
}

impl BackgroundWorker {
    const fn empty() -> Self {
        Self {
            slot: ProcessSlot::empty(),
            database: AtomicU32::new(0),
            launch: AtomicU32::new(0),
            end: AtomicU32::new(0),
            wakes_at: AtomicI64::new(i64::MIN),
            due_changes: DueChanges::none(),
            schedules: AtomicU32::new(0),
            announcements: Announcements::new(),
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
        self.slot.leave();
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
        self.due_changes.add(table, time);
        if time < self.wakes_at.load(Ordering::SeqCst) {
            self.slot.wake();
        }
    }

    /// How often schedules have changed.
    pub fn schedule_changes(&self) -> u32 {
        self.schedules.load(Ordering::SeqCst)
    }

    fn schedules_changed(&self) {
        self.schedules.fetch_add(1, Ordering::SeqCst);
        self.slot.wake();
    }
}

pub struct Board {
    pub launcher: ProcessSlot,
    /// Counts the launchers that there were.
    launches: AtomicU32,
    /// Counts the times that a database got or lost the extension.
    generation: AtomicU32,
    workers: [BackgroundWorker; BACKGROUND_WORKERS],
    pub waiters: Waiters,
    pub progress: Progress,
}

impl Board {
    pub const fn new() -> Self {
        Self {
            launcher: ProcessSlot::empty(),
            launches: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            workers: [const { BackgroundWorker::empty() }; BACKGROUND_WORKERS],
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

    pub fn worker(&self, number: usize) -> &BackgroundWorker {
        &self.workers[number]
    }

    pub fn free(&self) -> Option<usize> {
        self.workers.iter().position(|w| w.database() == 0)
    }

    /// The workers of earlier launchers.
    pub fn orphans(&self, launch: u32) -> impl Iterator<Item = &BackgroundWorker> {
        self.workers
            .iter()
            .filter(move |w| w.database() != 0 && !w.is_of(launch))
    }

    /// The worker of a database that is there.
    pub fn background_worker_of(&self, database: u32) -> Option<&BackgroundWorker> {
        self.workers
            .iter()
            .find(|w| w.database() == database && w.slot.process().is_some())
    }

    /// Something of a table may be due at a time: planned, or leased until then.
    pub fn note_due_change(&self, database: u32, table: u32, time: i64) {
        if let Some(worker) = self.background_worker_of(database) {
            worker.tell(table, time);
        }
    }

    /// A schedule of a database may be due earlier than its worker knows.
    pub fn schedules_changed(&self, database: u32) {
        if let Some(worker) = self.background_worker_of(database) {
            worker.schedules_changed();
        }
    }
}

/// The board as an area of shared memory that has no items.
struct Memory;

impl Content for Memory {
    const NAME: &std::ffi::CStr = c"fetchq board";
    type Header = Board;
    type Item = ();

    fn header() -> Board {
        Board::new()
    }

    fn item() {}

    fn items() -> usize {
        0
    }

    fn place() -> &'static Place {
        static PLACE: Place = Place::unknown();
        &PLACE
    }
}

/// Asks for the shared memory. Called while libraries are preloaded.
pub fn install() {
    Area::<Memory>::install();
}

/// The board; None without shared memory.
pub fn board() -> Option<&'static Board> {
    Area::<Memory>::header()
}

/// Whether this database has a background worker that runs.
pub fn has_background_worker() -> bool {
    board().is_some_and(|board| board.background_worker_of(session::database()).is_some())
}
