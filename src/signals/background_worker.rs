//! An entry of the board for the background worker of a database, and the right to write into it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::pg::{process, time};
use crate::signals::announcements::Announcements;
use crate::signals::due_changes::{Change, DueChanges};
use crate::signals::process_slot::ProcessSlot;

/// How often a background worker visits a database in which leases are bound to sessions, when it
/// serves other databases too: microseconds.
pub const BOUND_LEASES_LOOK_US: i64 = 2_000_000;

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
    /// The launcher has asked it to leave its place to another database.
    Replaced = 5,
    /// The extension in the database is older than the library.
    OlderCatalog = 6,
    /// The extension in the database is newer than the library.
    NewerCatalog = 7,
}

impl ExitReason {
    fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Terminated,
            2 => Self::NoExtension,
            3 => Self::DatabaseNeeded,
            4 => Self::Disabled,
            5 => Self::Replaced,
            6 => Self::OlderCatalog,
            7 => Self::NewerCatalog,
            _ => Self::Crash,
        }
    }
}

/// The background worker of one database.
///
/// An entry serves one database after the other. What a process records of itself can be written
/// only by the process that holds the entry ([`Held`]), and the entry is assigned anew only when
/// no process holds it. So no process writes into an entry of another database.
pub struct BackgroundWorker {
    /// Occupied while the process serves its database. It leaves the slot before it has finished.
    pub slot: ProcessSlot,
    /// The generation of the assignment in the upper 32 bits, and below the process that holds the
    /// entry; 0 for none. 32 bits suffice: at five assignments a second they last 27 years.
    holder: AtomicU64,
    /// 0 when this entry of the board is free.
    database: AtomicU32,
    /// The number of the launcher that has assigned the entry.
    launcher_number: AtomicU32,
    /// An `ExitReason`.
    exit_reason: AtomicU32,
    /// Until when it sleeps, unless something becomes due earlier: microseconds since 2000.
    wakes_at: AtomicI64,
    /// When its database needs a background worker next, as far as this one knows: microseconds
    /// since 2000. `i64::MIN` in its first round.
    needed_at: AtomicI64,
    /// The launcher wants it to leave its place to another database.
    is_asked_to_leave: AtomicBool,
    pub due_changes: DueChanges,
    /// The number of changes of schedules.
    schedule_changes: AtomicU32,
    pub announcements: Announcements,
    /// A session has got a bound lease since the process started.
    has_bound_leases: AtomicBool,
    /// How often sessions wanted the late leases in the rows, and how many of these were done.
    leases_requested: AtomicU32,
    leases_written: AtomicU32,
}

impl BackgroundWorker {
    /// Returns an entry that is free.
    pub(super) const fn empty() -> Self {
        Self {
            slot: ProcessSlot::empty(),
            holder: AtomicU64::new(0),
            database: AtomicU32::new(0),
            launcher_number: AtomicU32::new(0),
            exit_reason: AtomicU32::new(0),
            wakes_at: AtomicI64::new(i64::MIN),
            needed_at: AtomicI64::new(i64::MIN),
            is_asked_to_leave: AtomicBool::new(false),
            due_changes: DueChanges::new(),
            schedule_changes: AtomicU32::new(0),
            announcements: Announcements::new(),
            has_bound_leases: AtomicBool::new(false),
            leases_requested: AtomicU32::new(0),
            leases_written: AtomicU32::new(0),
        }
    }

    /// Returns the OID of its database; 0 when the entry is free.
    pub fn database(&self) -> u32 {
        self.database.load(Ordering::Acquire)
    }

    /// Assigns the entry, which is free, to a database. Returns the generation with which the
    /// process is to hold it. The launcher calls it before it starts the process.
    pub fn assign(&self, database: u32, launcher_number: u32) -> u32 {
        self.exit_reason
            .store(ExitReason::Crash as u32, Ordering::Relaxed);
        self.launcher_number
            .store(launcher_number, Ordering::Relaxed);
        self.needed_at.store(i64::MIN, Ordering::SeqCst);
        self.is_asked_to_leave.store(false, Ordering::SeqCst);
        self.has_bound_leases.store(false, Ordering::SeqCst);
        // What the previous background worker has left belongs to another database.
        self.announcements.assign();
        self.database.store(database, Ordering::Release);
        generation_of(self.holder.load(Ordering::SeqCst))
    }

    /// Gives the entry to this process, which was started for an assignment of this generation.
    /// None when that assignment has ended.
    pub fn hold(&self, generation: u32, pid: i32) -> Option<Held<'_>> {
        let (free, held) = (holder(generation, 0), holder(generation, pid));
        self.holder
            .compare_exchange(free, held, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        Some(Held(self))
    }

    /// Gives the entry back, if this process holds it. To be called when it exits.
    pub fn let_go(&self, pid: i32) {
        self.slot.release_if_occupied_by(pid);
        let held = self.holder.load(Ordering::SeqCst);
        if pid_of(held) == pid {
            self.holder
                .store(holder(generation_of(held), 0), Ordering::SeqCst);
        }
    }

    /// Returns the process that holds the entry, whether it still serves the database or not.
    pub fn held_by(&self) -> Option<i32> {
        let pid = pid_of(self.holder.load(Ordering::SeqCst));
        (pid != 0).then_some(pid)
    }

    /// Returns whether the entry is assigned, by the launcher of this number.
    pub(super) fn is_assigned_by(&self, launcher_number: u32) -> bool {
        self.database() != 0 && self.launcher_number.load(Ordering::Relaxed) == launcher_number
    }

    /// Ends the assignment and frees the entry. Returns why its process exited. None when a process
    /// holds the entry: nothing was changed then. A process of this assignment that has not begun
    /// yet will not hold the entry.
    pub fn release(&self) -> Option<ExitReason> {
        let held = self.holder.load(Ordering::SeqCst);
        if pid_of(held) != 0 && process::is_alive(pid_of(held)) {
            return None;
        }
        let next = holder(generation_of(held).wrapping_add(1), 0);
        self.holder
            .compare_exchange(held, next, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        let reason = ExitReason::from_code(self.exit_reason.load(Ordering::Acquire));
        self.slot.release();
        self.database.store(0, Ordering::Release);
        Some(reason)
    }

    /// Returns whether a process runs here for a database. A session that has left something for
    /// this background worker asks afterwards, because the process may have exited meanwhile.
    pub fn serves(&self, database: u32) -> bool {
        self.database() == database && self.slot.process().is_some()
    }

    /// Returns what `Held::set_needed_at` has recorded; `i64::MIN` in the first round of the process.
    pub fn needed_at(&self) -> i64 {
        self.needed_at.load(Ordering::SeqCst)
    }

    /// Asks the process to leave its place to another database.
    pub fn ask_to_leave(&self) {
        self.is_asked_to_leave.store(true, Ordering::SeqCst);
        self.slot.wake();
    }

    /// Returns whether the process was asked to leave.
    pub fn is_asked_to_leave(&self) -> bool {
        self.is_asked_to_leave.load(Ordering::SeqCst)
    }

    /// Adds a due change, and wakes the process when it would sleep longer.
    pub(super) fn note_due_change(&self, change: Change) {
        self.due_changes.add(change);
        if change.time < self.wakes_at.load(Ordering::SeqCst) {
            self.slot.wake();
        }
    }

    /// Returns what changes when the process no longer knows the kept changes from before.
    pub fn memory(&self) -> (u64, u32) {
        (
            self.holder.load(Ordering::SeqCst),
            self.due_changes.losses(),
        )
    }

    /// Returns how often the schedules of the database have changed.
    pub fn schedule_changes(&self) -> u32 {
        self.schedule_changes.load(Ordering::SeqCst)
    }

    /// Returns when the sessions with bound leases need a background worker at the latest, if
    /// this one leaves: microseconds since 2000. It may have looked at them before a session got
    /// its lease.
    pub fn bound_leases_at(&self) -> i64 {
        match self.has_bound_leases.load(Ordering::SeqCst) {
            true => time::clock() + BOUND_LEASES_LOOK_US,
            false => i64::MAX,
        }
    }

    /// Records that a session has got a bound lease.
    pub(super) fn note_bound_lease(&self) {
        self.has_bound_leases.store(true, Ordering::SeqCst);
    }

    /// Has the process write all late leases. Returns the number of the request.
    pub fn request_leases(&self) -> u32 {
        let request = self
            .leases_requested
            .fetch_add(1, Ordering::SeqCst)
            .wrapping_add(1);
        self.slot.wake();
        request
    }

    /// Returns the last request that was not done.
    pub fn leases_requested(&self) -> Option<u32> {
        let last = self.leases_requested.load(Ordering::SeqCst);
        (last != self.leases_written.load(Ordering::SeqCst)).then_some(last)
    }

    /// Records that a request, and those before, were done.
    pub fn leases_written(&self, request: u32) {
        self.leases_written.store(request, Ordering::SeqCst);
    }

    /// Returns whether a request was done.
    pub fn has_written_leases(&self, request: u32) -> bool {
        let written = self.leases_written.load(Ordering::SeqCst);
        written.wrapping_sub(request) as i32 >= 0
    }

    /// Records that schedules have changed, and wakes the process.
    pub(super) fn note_schedule_change(&self) {
        self.schedule_changes.fetch_add(1, Ordering::SeqCst);
        self.slot.wake();
    }
}

fn holder(generation: u32, pid: i32) -> u64 {
    u64::from(generation) << 32 | u64::from(pid.unsigned_abs())
}

fn generation_of(holder: u64) -> u32 {
    (holder >> 32) as u32
}

fn pid_of(holder: u64) -> i32 {
    holder as u32 as i32
}

/// An entry of the board that this process holds, until it exits.
#[derive(Clone, Copy)]
pub struct Held<'a>(&'a BackgroundWorker);

impl<'a> Held<'a> {
    /// Returns the entry.
    pub fn worker(self) -> &'a BackgroundWorker {
        self.0
    }

    /// Lets sessions find this process. `now` is in microseconds since 2000.
    pub fn serve(self, pid: i32, now: i64) {
        self.0.slot.occupy(pid, now);
    }

    /// Has sessions request another background worker from here on. The process still holds the
    /// entry.
    pub fn stop_serving(self) {
        self.0.slot.release();
    }

    /// Records why the process is about to exit.
    pub fn set_exit_reason(self, reason: ExitReason) {
        self.0.exit_reason.store(reason as u32, Ordering::Release);
    }

    /// Records until when the process sleeps, in microseconds since 2000. A due change before
    /// this time wakes it; `i64::MIN` says that nothing has to wake it.
    pub fn set_wake_time(self, time: i64) {
        self.0.wakes_at.store(time, Ordering::SeqCst);
    }

    /// Records when the database needs a background worker next, in microseconds since 2000.
    pub fn set_needed_at(self, time: i64) {
        self.0.needed_at.store(time, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The launcher restarts while a background worker is about to exit, and gives its entry to
    /// another database.
    #[test]
    fn an_old_process_writes_nothing_into_an_entry_that_was_assigned_anew() {
        // It is too large for the stack of a test.
        static ENTRY: BackgroundWorker = BackgroundWorker::empty();
        let worker = &ENTRY;
        let pid = std::process::id() as i32;
        let first = worker.assign(7, 1);
        let held = worker.hold(first, pid).unwrap();
        // It has left its slot, and still records when it is needed.
        held.stop_serving();
        assert_eq!(worker.held_by(), Some(pid));
        assert_eq!(worker.release(), None);
        assert_eq!(worker.database(), 7);
        held.set_needed_at(100);
        held.set_exit_reason(ExitReason::Replaced);
        worker.let_go(pid);
        assert_eq!(worker.release(), Some(ExitReason::Replaced));
        let second = worker.assign(8, 2);
        assert_eq!((worker.needed_at(), worker.database()), (i64::MIN, 8));
        // A process that was started for the first assignment has come too late.
        assert!(worker.hold(first, pid).is_none());
        assert!(worker.hold(second, pid).is_some());
        worker.let_go(pid);
        assert_eq!(worker.release(), Some(ExitReason::Crash));
    }

    #[test]
    fn a_process_that_begins_after_its_assignment_has_ended_holds_nothing() {
        static ENTRY: BackgroundWorker = BackgroundWorker::empty();
        let worker = &ENTRY;
        let generation = worker.assign(7, 1);
        assert!(worker.release().is_some());
        assert!(worker.hold(generation, 1).is_none());
        assert_eq!(worker.held_by(), None);
    }
}
