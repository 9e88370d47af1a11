//! The board: the shared memory by which the launcher, the background workers and the sessions
//! signal to each other. It consists of atomics, so that it can be read and written anywhere,
//! also during a commit.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::pg::session;
use crate::pg::shared::{Area, Content, Place};
use crate::signals::activity::{LastRun, Progress, SERVICES};
use crate::signals::announcements::Announcements;
use crate::signals::due_changes::DueChanges;
use crate::signals::interrupted::Interrupted;
use crate::signals::process_slot::ProcessSlot;
use crate::signals::waiters::Waiters;

/// Databases that can have a background worker at a time. `max_worker_processes` is usually the
/// lower limit.
pub const BACKGROUND_WORKERS: usize = 64;

/// Why a background worker exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ExitReason {
    /// It crashed, so it could not record a reason.
    Crash = 0,
    /// It was terminated.
    Terminated = 1,
    /// The database does not have the extension.
    NoExtension = 2,
    /// A session needs the database without other sessions: to drop, rename or copy it.
    DatabaseNeeded = 3,
    /// The settings do not want a background worker in this database.
    Disabled = 4,
}

impl ExitReason {
    fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Terminated,
            2 => Self::NoExtension,
            3 => Self::DatabaseNeeded,
            4 => Self::Disabled,
            _ => Self::Crash,
        }
    }
}

/// The background worker of one database.
pub struct BackgroundWorker {
    pub slot: ProcessSlot,
    /// 0 when this entry of the board is free.
    database: AtomicU32,
    /// The number of the launcher that has assigned the entry.
    launcher_number: AtomicU32,
    /// An `ExitReason`.
    exit_reason: AtomicU32,
    /// Until when it sleeps, unless something becomes due earlier: microseconds since 2000.
    wakes_at: AtomicI64,
    pub due_changes: DueChanges,
    /// The number of changes of schedules.
    schedule_changes: AtomicU32,
    pub announcements: Announcements,
    /// The last run of each service, in the order of `Task::ALL`.
    pub last: [LastRun; SERVICES],
}

impl BackgroundWorker {
    const fn empty() -> Self {
        Self {
            slot: ProcessSlot::empty(),
            database: AtomicU32::new(0),
            launcher_number: AtomicU32::new(0),
            exit_reason: AtomicU32::new(0),
            wakes_at: AtomicI64::new(i64::MIN),
            due_changes: DueChanges::new(),
            schedule_changes: AtomicU32::new(0),
            announcements: Announcements::new(),
            last: [const { LastRun::never() }; SERVICES],
        }
    }

    /// Returns the OID of its database; 0 when the entry is free.
    pub fn database(&self) -> u32 {
        self.database.load(Ordering::Acquire)
    }

    /// Assigns the entry to a database. The launcher calls it before it starts the process.
    pub fn assign(&self, database: u32, launcher_number: u32) {
        self.exit_reason
            .store(ExitReason::Crash as u32, Ordering::Relaxed);
        self.launcher_number
            .store(launcher_number, Ordering::Relaxed);
        self.last.iter().for_each(LastRun::forget);
        self.database.store(database, Ordering::Release);
    }

    /// Returns whether the entry is assigned, by the launcher of this number.
    pub fn is_assigned_by(&self, launcher_number: u32) -> bool {
        self.database() != 0 && self.launcher_number.load(Ordering::Relaxed) == launcher_number
    }

    /// Frees the entry, and returns why the process exited. The launcher calls it when the
    /// process is gone.
    pub fn release(&self) -> ExitReason {
        let reason = ExitReason::from_code(self.exit_reason.load(Ordering::Acquire));
        self.slot.release();
        self.database.store(0, Ordering::Release);
        reason
    }

    /// Records why the process is about to exit.
    pub fn set_exit_reason(&self, reason: ExitReason) {
        self.exit_reason.store(reason as u32, Ordering::Release);
    }

    /// Records until when the process sleeps, in microseconds since 2000. A due change before
    /// this time wakes it; `i64::MIN` says that nothing has to wake it.
    pub fn set_wake_time(&self, time: i64) {
        self.wakes_at.store(time, Ordering::SeqCst);
    }

    fn note_due_change(&self, table: u32, time: i64) {
        self.due_changes.add(table, time);
        if time < self.wakes_at.load(Ordering::SeqCst) {
            self.slot.wake();
        }
    }

    /// Returns how often the schedules of the database have changed.
    pub fn schedule_changes(&self) -> u32 {
        self.schedule_changes.load(Ordering::SeqCst)
    }

    fn note_schedule_change(&self) {
        self.schedule_changes.fetch_add(1, Ordering::SeqCst);
        self.slot.wake();
    }
}

/// The shared state of all processes.
pub struct Board {
    pub launcher: ProcessSlot,
    /// The number of launchers that were started.
    launchers: AtomicU32,
    /// How often a database got or lost the extension.
    generation: AtomicU32,
    background_workers: [BackgroundWorker; BACKGROUND_WORKERS],
    pub waiters: Waiters,
    pub progress: Progress,
    pub interrupted: Interrupted,
}

impl Board {
    /// Returns a board without processes.
    pub const fn new() -> Self {
        Self {
            launcher: ProcessSlot::empty(),
            launchers: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            background_workers: [const { BackgroundWorker::empty() }; BACKGROUND_WORKERS],
            waiters: Waiters::new(),
            progress: Progress::new(),
            interrupted: Interrupted::new(),
        }
    }

    /// Returns the number of a launcher that starts. No earlier launcher had it.
    pub fn next_launcher_number(&self) -> u32 {
        self.launchers
            .fetch_add(1, Ordering::AcqRel)
            .wrapping_add(1)
    }

    /// Returns how often a database got or lost the extension.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Records that a database got or lost the extension, and wakes the launcher.
    pub fn extension_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.launcher.wake();
    }

    /// Returns an entry by its position, which must be below `BACKGROUND_WORKERS`.
    pub fn background_worker(&self, position: usize) -> &BackgroundWorker {
        &self.background_workers[position]
    }

    /// Returns the position of a free entry; None when all are assigned.
    pub fn free_position(&self) -> Option<usize> {
        self.background_workers
            .iter()
            .position(|worker| worker.database() == 0)
    }

    /// Returns the entries that were assigned by other launchers than the one of this number.
    pub fn orphans(&self, launcher_number: u32) -> impl Iterator<Item = &BackgroundWorker> {
        self.background_workers
            .iter()
            .filter(move |worker| worker.database() != 0 && !worker.is_assigned_by(launcher_number))
    }

    /// Returns the background worker of a database; None when none runs.
    pub fn background_worker_of(&self, database: u32) -> Option<&BackgroundWorker> {
        self.background_workers
            .iter()
            .find(|worker| worker.database() == database && worker.slot.process().is_some())
    }

    /// Adds a due change: something of a table may be due at a time in microseconds since 2000,
    /// because it is planned for that time or leased until then. Wakes the background worker
    /// when that is earlier than it expects.
    pub fn note_due_change(&self, database: u32, table: u32, time: i64) {
        if let Some(worker) = self.background_worker_of(database) {
            worker.note_due_change(table, time);
        }
    }

    /// Wakes the background worker of a database, because a schedule may be due earlier than it
    /// expects.
    pub fn schedules_changed(&self, database: u32) {
        if let Some(worker) = self.background_worker_of(database) {
            worker.note_schedule_change();
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

/// Requests the shared memory. Called from `_PG_init` while libraries are preloaded.
pub fn install() {
    Area::<Memory>::install();
}

/// Returns the board; None without shared memory.
pub fn board() -> Option<&'static Board> {
    Area::<Memory>::header()
}

/// Returns whether a background worker runs for this database.
pub fn has_background_worker() -> bool {
    board().is_some_and(|board| board.background_worker_of(session::database()).is_some())
}
