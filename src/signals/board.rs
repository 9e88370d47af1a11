//! The board: the shared memory by which the launcher, the background workers and the sessions
//! signal to each other. It consists of atomics, so that it can be read and written anywhere,
//! also during a commit.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use crate::pg::control_file;
use crate::pg::shared::{Area, Content, Place};
use crate::pg::{session, time};
use crate::settings;
use crate::signals::activity::Progress;
use crate::signals::background_worker::{BOUND_LEASES_LOOK_US, BackgroundWorker};
use crate::signals::databases::Databases;
use crate::signals::due_changes::Change;
use crate::signals::foreign_writes::ForeignWrites;
use crate::signals::jobs_processes::JobsProcesses;
use crate::signals::process_slot::ProcessSlot;

/// Background workers that can run at a time, which is the upper limit of `fetchq.max_workers`.
pub const BACKGROUND_WORKERS: usize = settings::MAX_WORKERS_LIMIT;

/// The shared state of all processes.
pub struct Board {
    pub launcher: ProcessSlot,
    /// The number of launchers that were started.
    launchers: AtomicU32,
    /// How often a database got or lost the extension that has no entry of its own.
    generation: AtomicU32,
    /// How often something was added that a database without a background worker needs one for.
    requests: AtomicU32,
    /// Until when the launcher sleeps, unless a database needs a background worker earlier:
    /// microseconds since 2000.
    launcher_wakes_at: AtomicI64,
    pub databases: Databases,
    pub jobs_processes: JobsProcesses,
    background_workers: [BackgroundWorker; BACKGROUND_WORKERS],
    pub progress: Progress,
    pub foreign_writes: ForeignWrites,
    /// The last lease number that was given.
    lease_number: AtomicI64,
    /// Until when a lease must not be lost: microseconds since 2000, or `FIRST_LEASE`. 0: any lease may
    /// be.
    leases_last_until: AtomicI64,
}

/// Of `leases_last_until`: for a while from the first lease on, which is still to come.
const FIRST_LEASE: i64 = i64::MAX;

/// How long no lease may be lost after a crash, from the commit of the first lease on: long enough for
/// workers to lease what the crash has left. A worker that finds no document does not begin this time,
/// or it could be over before the document that has caused the crash is leased. In microseconds: 10
/// minutes.
const AFTER_CRASH_US: i64 = 600_000_000;

impl Board {
    /// Returns a board without processes.
    pub const fn new() -> Self {
        Self {
            launcher: ProcessSlot::empty(),
            launchers: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            launcher_wakes_at: AtomicI64::new(i64::MIN),
            databases: Databases::new(),
            jobs_processes: JobsProcesses::new(),
            background_workers: [const { BackgroundWorker::empty() }; BACKGROUND_WORKERS],
            progress: Progress::new(),
            foreign_writes: ForeignWrites::new(),
            lease_number: AtomicI64::new(0),
            leases_last_until: AtomicI64::new(0),
        }
    }

    /// Has leases last for a while from the next one on.
    fn started_after_crash(&self) {
        self.leases_last_until.store(FIRST_LEASE, Ordering::Relaxed);
    }

    /// Returns whether a crash may lose a lease that begins now.
    ///
    /// Not soon after a crash: the work of a document may have caused it. If each crash lost the attempt
    /// that led to it, the document would never run out of attempts, and the server never come to rest.
    /// A standby that was promoted has mostly taken the place of a server that crashed.
    pub fn may_lose_leases(&self) -> bool {
        self.may_lose_leases_at(time::clock)
    }

    fn may_lose_leases_at(&self, clock: impl FnOnce() -> i64) -> bool {
        match self.leases_last_until.load(Ordering::Relaxed) {
            0 => true,
            FIRST_LEASE => false,
            until => {
                let may = clock() > until;
                if may {
                    self.leases_last_until.store(0, Ordering::Relaxed);
                }
                may
            }
        }
    }

    /// Returns whether no lease was committed yet since a crash.
    pub fn awaits_first_lease(&self) -> bool {
        self.leases_last_until.load(Ordering::Relaxed) == FIRST_LEASE
    }

    /// Records that a lease was committed, at a time in microseconds since 2000.
    pub fn lease_committed(&self, now: i64) {
        // Of several sessions, the first one counts.
        let _ = self.leases_last_until.compare_exchange(
            FIRST_LEASE,
            now + AFTER_CRASH_US,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Returns the lease number that `next` makes of the last one.
    pub fn next_lease_number(&self, next: impl Fn(i64) -> i64) -> i64 {
        let last = self
            .lease_number
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(next(last))
            });
        next(last.unwrap_or_default())
    }

    /// Returns the number of a launcher that starts. No earlier launcher had it.
    pub fn next_launcher_number(&self) -> u32 {
        self.launchers
            .fetch_add(1, Ordering::AcqRel)
            .wrapping_add(1)
    }

    /// Returns how often a database got or lost the extension that has no entry of its own.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Records that a database got or lost the extension, and wakes the launcher.
    pub fn extension_changed(&self, database: u32) {
        if self.databases.wake_at(database, i64::MIN).is_none() {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.launcher.wake();
    }

    /// Returns how often something was added that a database without a background worker needs one
    /// for.
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Records until when the launcher sleeps, in microseconds since 2000. A request for an earlier
    /// time wakes it; `i64::MIN` says that nothing has to wake it.
    pub fn set_launcher_wake_time(&self, time: i64) {
        self.launcher_wakes_at.store(time, Ordering::SeqCst);
    }

    /// Has a background worker serve a database at a time in microseconds since 2000, or earlier.
    /// To be called when none serves it now. A database without an entry is served in rotation.
    pub fn request_worker(&self, database: u32, time: i64) {
        if self.databases.wake_at(database, time) == Some(true) {
            self.requests.fetch_add(1, Ordering::SeqCst);
            if time < self.launcher_wakes_at.load(Ordering::SeqCst) {
                self.launcher.wake();
            }
        }
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
        if let Some(entry) = self.databases.find(database) {
            let worker = self.background_workers.get(entry.position())?;
            return worker.serves(database).then_some(worker);
        }
        let mut workers = self.background_workers.iter();
        workers.find(|worker| worker.serves(database))
    }

    /// Returns how many background workers run, in all databases.
    pub fn background_workers_running(&self) -> usize {
        let workers = self.background_workers.iter();
        workers
            .filter(|worker| worker.slot.process().is_some())
            .count()
    }

    /// Lets the background worker of a database know something by `signal`, and requests one for
    /// `time`, in microseconds since 2000, when none runs.
    fn signal(&self, database: u32, time: i64, signal: impl FnOnce(&BackgroundWorker)) {
        if let Some(worker) = self.background_worker_of(database) {
            signal(worker);
            // A background worker first leaves its slot and then looks for signals. So either it
            // finds this one, or it has left the slot here.
            if worker.serves(database) {
                return;
            }
        }
        self.request_worker(database, time);
    }

    /// Adds a due change: something of a table may be due at a time in microseconds since 2000,
    /// because it is planned for that time or leased until then. Wakes the background worker
    /// when that is earlier than it expects.
    pub fn note_due_change(&self, database: u32, table: u32, time: i64) {
        let is_kept = false;
        let change = Change {
            table,
            time,
            is_kept,
        };
        self.signal(database, time, |worker| worker.note_due_change(change));
    }

    /// The same, and the table is examined at that time whatever an earlier look has found. Returns for
    /// how long that holds: while `kept_changes` is the same. None: no background worker runs.
    pub fn keep_due_change(&self, database: u32, table: u32, time: i64) -> Option<(u64, u32)> {
        let memory = self.kept_changes(database);
        let change = Change {
            table,
            time,
            is_kept: true,
        };
        self.signal(database, time, |worker| worker.note_due_change(change));
        memory
    }

    /// Has the background worker of a database examine a table whose due floors this process has begun anew:
    /// they are lower than those until which it sleeps. When this process is the background worker, it examines
    /// the table now.
    pub fn due_floors_begun(&self, database: u32, table: u32) {
        let worker = self.background_worker_of(database);
        let process = worker.and_then(|worker| worker.slot.process());
        if process.is_none_or(|(pid, _)| pid != session::pid()) {
            self.note_due_change(database, table, i64::MIN);
        }
    }

    /// Returns what changes when the kept due changes of a database are known no longer; None when no
    /// background worker runs.
    pub fn kept_changes(&self, database: u32) -> Option<(u64, u32)> {
        self.background_worker_of(database)
            .map(BackgroundWorker::memory)
    }

    /// Wakes the background worker of a database, because a schedule may be due earlier than it
    /// expects.
    pub fn schedules_changed(&self, database: u32) {
        self.signal(database, i64::MIN, BackgroundWorker::note_schedule_change);
    }

    /// Has a background worker look at the sessions with bound leases of a database soon. One that
    /// serves the database looks anyway.
    pub fn lease_bound(&self, database: u32) {
        let time = time::clock() + BOUND_LEASES_LOOK_US;
        self.signal(database, time, BackgroundWorker::note_bound_lease);
    }

    /// Adds announcements of a database: tables, and the statuses that documents have entered in
    /// them. The background worker sends them.
    pub fn announce(&self, database: u32, entered: &[(u32, u32)]) {
        if let Some(worker) = self.background_worker_of(database) {
            let assignment = worker.announcements.assignment();
            // Meanwhile the entry may have been assigned to another database.
            if worker.database() == database {
                let mut has_changed = false;
                for (table, statuses) in entered {
                    has_changed |= worker.announcements.add(assignment, *table, *statuses);
                }
                if has_changed {
                    worker.slot.wake();
                }
            }
            if worker.serves(database) {
                return;
            }
        }
        // The background worker has left its database since this transaction relied on it. The
        // next one announces the statuses for all queues.
        if let Some(entry) = self.databases.find(database) {
            let statuses = entered.iter().fold(0, |all, (_, statuses)| all | statuses);
            entry.add_unannounced(statuses);
            // A background worker that came meanwhile may have asked for them already.
            if let Some(worker) = self.background_worker_of(database) {
                let assignment = worker.announcements.assignment();
                if worker.database() == database
                    && worker.announcements.add_to_all(assignment, statuses)
                {
                    worker.slot.wake();
                }
            }
        }
        self.request_worker(database, i64::MIN);
    }

    /// Returns whether background workers serve a database: one runs, or starts when something is
    /// due.
    pub fn is_served(&self, database: u32) -> bool {
        if self.background_worker_of(database).is_some() {
            return true;
        }
        let is_served = match self.databases.find(database) {
            Some(entry) => entry.is_served(),
            None => self.databases.unlisted() > 0 && settings::background_worker(),
        };
        is_served && self.launcher.process().is_some()
    }
}

/// The board as an area of shared memory that has no items.
struct Memory;

impl Content for Memory {
    const NAME: &std::ffi::CStr = c"fetchq board";
    type Header = Board;
    type Item = ();

    fn header() -> Board {
        let board = Board::new();
        if control_file::is_start_after_crash() || control_file::is_start_as_standby() {
            board.started_after_crash();
        }
        board
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

/// Returns whether background workers serve this database.
pub fn is_served() -> bool {
    board().is_some_and(|board| board.is_served(session::database()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_US: i64 = 60_000_000;

    #[test]
    fn any_lease_may_be_lost_where_there_was_no_crash() {
        // A board is too large for the stack.
        static BOARD: Board = Board::new();
        let board = &BOARD;
        assert!(!board.awaits_first_lease());
        assert!(board.may_lose_leases_at(|| 0));
        board.lease_committed(0);
        assert!(board.may_lose_leases_at(|| 0));
    }

    #[test]
    fn the_time_after_a_crash_begins_with_a_lease_and_not_with_a_worker_that_finds_none() {
        // A board is too large for the stack.
        static BOARD: Board = Board::new();
        let board = &BOARD;
        board.started_after_crash();
        for minute in [0, 20, 40] {
            assert!(!board.may_lose_leases_at(|| minute * MINUTE_US));
            assert!(board.awaits_first_lease());
        }
        board.lease_committed(40 * MINUTE_US);
        assert!(!board.awaits_first_lease());
        assert!(!board.may_lose_leases_at(|| 49 * MINUTE_US));
        // A later lease does not begin it anew.
        board.lease_committed(49 * MINUTE_US);
        assert!(!board.may_lose_leases_at(|| 50 * MINUTE_US));
        assert!(board.may_lose_leases_at(|| 51 * MINUTE_US));
        assert!(board.may_lose_leases_at(|| 51 * MINUTE_US));
    }
}
