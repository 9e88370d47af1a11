//! Counter events, which calls write into `fetchq.counter_log`.
//!
//! The table `fetchq.counter_events`, filled in `src/sql/bootstrap.sql`, says what each event
//! adds to which metric. So the counter log can be packed and read with plain SQL.

use crate::domain::status::Status;
use crate::domain::timing::Timing;

/// A counter event. Its number is stored in `fetchq.counter_log`, so it must never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum Event {
    PushPending = 1,
    PushPlanned = 2,
    Pick = 3,
    Complete = 4,
    Kill = 5,
    ReschedulePending = 6,
    ReschedulePlanned = 7,
    RejectPending = 8,
    RejectKilled = 9,
    Drop = 10,
    MakePending = 11,
    Orphan = 12,
    Dead = 13,
    UpsertToPlanned = 14,
    UpsertToPending = 15,
    /// The document was returned without having been processed. The attempt does not count.
    ReturnPending = 16,
    ReturnPlanned = 17,
    /// The document was picked and removed at once.
    Pop = 18,
    CancelPlanned = 19,
    CancelPending = 20,
    CancelActive = 21,
    /// A killed or completed document will be processed again.
    ReviveKilledPending = 22,
    ReviveCompletedPending = 23,
    ReviveKilledPlanned = 24,
    ReviveCompletedPlanned = 25,
    /// The document was removed by an administrator, and not by a worker.
    RemovePlanned = 26,
    RemovePending = 27,
    RemoveCompleted = 28,
    RemoveKilled = 29,
    /// The document was rejected at its last attempt, and removed.
    RejectRemoved = 30,
    /// The lease of the document expired at its last attempt, and the document was removed.
    DeadRemoved = 31,
    /// The document was moved to the dead-letter queue. This event is written besides the event
    /// of its removal.
    DeadLetter = 32,
    RemoveActive = 33,
    /// The document was moved from another queue, with its status.
    PlaceKilled = 34,
    PlaceCompleted = 35,
    /// The document was killed by its worker, and removed.
    KillRemoved = 36,
    /// The document was rejected, and is planned until its retry is due.
    RejectPlanned = 37,
}

impl Event {
    /// Returns the number that is stored.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// Returns what the bucket of a row with this event counts, or None when it has none.
    ///
    /// A document that is returned without having been processed has no run.
    pub fn timing(self) -> Option<Timing> {
        match self {
            Self::Pick | Self::Pop => Some(Timing::Wait),
            Self::Complete
            | Self::Kill
            | Self::KillRemoved
            | Self::ReschedulePending
            | Self::ReschedulePlanned
            | Self::RejectPending
            | Self::RejectPlanned
            | Self::RejectKilled
            | Self::RejectRemoved
            | Self::Drop => Some(Timing::Run),
            _ => None,
        }
    }

    /// Returns the event of a document that is added with the status `to`.
    pub fn push(to: Status) -> Self {
        match to {
            Status::Pending => Self::PushPending,
            _ => Self::PushPlanned,
        }
    }

    /// Returns the event of a document that is rescheduled and gets the status `to`.
    pub fn reschedule(to: Status) -> Self {
        match to {
            Status::Pending => Self::ReschedulePending,
            _ => Self::ReschedulePlanned,
        }
    }

    /// Returns the event of a document that is given back without a failure, and gets the status `to`.
    pub fn put_back(to: Status) -> Self {
        match to {
            Status::Pending => Self::ReturnPending,
            _ => Self::ReturnPlanned,
        }
    }

    /// Returns the event of a document that is rejected and gets the status `to`.
    pub fn reject(to: Status) -> Self {
        match to {
            Status::Killed => Self::RejectKilled,
            Status::Planned => Self::RejectPlanned,
            _ => Self::RejectPending,
        }
    }

    /// Returns whether the document is settled with this event: it was neither completed nor killed
    /// before, and now it is, or it has left the queue.
    ///
    /// [`Self::DeadLetter`] is not counted, because the event of the removal is written besides it.
    pub fn settles(self) -> bool {
        matches!(
            self,
            Self::Complete
                | Self::Kill
                | Self::RejectKilled
                | Self::Dead
                | Self::CancelPlanned
                | Self::CancelPending
                | Self::CancelActive
                | Self::Drop
                | Self::Pop
                | Self::RemovePlanned
                | Self::RemovePending
                | Self::RemoveActive
                | Self::RejectRemoved
                | Self::DeadRemoved
                | Self::KillRemoved
        )
    }

    /// Returns the status that documents enter with this event, or None when they are removed.
    pub fn enters(self) -> Option<Status> {
        Some(match self {
            Self::PushPlanned
            | Self::ReschedulePlanned
            | Self::RejectPlanned
            | Self::UpsertToPlanned => Status::Planned,
            Self::PushPending
            | Self::ReschedulePending
            | Self::RejectPending
            | Self::MakePending
            | Self::Orphan
            | Self::UpsertToPending => Status::Pending,
            Self::Pick => Status::Active,
            Self::Complete => Status::Completed,
            Self::Kill | Self::RejectKilled | Self::Dead => Status::Killed,
            Self::ReturnPending | Self::ReviveKilledPending | Self::ReviveCompletedPending => {
                Status::Pending
            }
            Self::ReturnPlanned | Self::ReviveKilledPlanned | Self::ReviveCompletedPlanned => {
                Status::Planned
            }
            Self::CancelPlanned | Self::CancelPending | Self::CancelActive | Self::PlaceKilled => {
                Status::Killed
            }
            Self::PlaceCompleted => Status::Completed,
            Self::Drop
            | Self::Pop
            | Self::RemovePlanned
            | Self::RemovePending
            | Self::RemoveCompleted
            | Self::RemoveKilled
            | Self::RemoveActive
            | Self::RejectRemoved
            | Self::DeadRemoved
            | Self::KillRemoved
            | Self::DeadLetter => return None,
        })
    }

    /// Returns the event that cancels a document with this status. Returns None for a document
    /// that is completed or killed already.
    pub fn cancel(from: Status) -> Option<Self> {
        match from {
            Status::Planned => Some(Self::CancelPlanned),
            Status::Pending => Some(Self::CancelPending),
            Status::Active => Some(Self::CancelActive),
            Status::Completed | Status::Killed => None,
        }
    }

    /// Returns the event that removes a document with this status.
    pub fn remove(from: Status) -> Self {
        match from {
            Status::Planned => Self::RemovePlanned,
            Status::Pending => Self::RemovePending,
            Status::Active => Self::RemoveActive,
            Status::Completed => Self::RemoveCompleted,
            Status::Killed => Self::RemoveKilled,
        }
    }

    /// Returns the event of a document that was moved from another queue with its status.
    pub fn place(status: Status) -> Self {
        match status {
            Status::Killed => Self::PlaceKilled,
            Status::Completed => Self::PlaceCompleted,
            other => Self::push(other),
        }
    }

    /// Returns the event of a completed or killed document that gets the status `to`. Returns
    /// None for every other change.
    pub fn revive(from: Status, to: Status) -> Option<Self> {
        match (from, to) {
            (Status::Killed, Status::Pending) => Some(Self::ReviveKilledPending),
            (Status::Killed, Status::Planned) => Some(Self::ReviveKilledPlanned),
            (Status::Completed, Status::Pending) => Some(Self::ReviveCompletedPending),
            (Status::Completed, Status::Planned) => Some(Self::ReviveCompletedPlanned),
            _ => None,
        }
    }

    /// Returns the event of an update that changes when a document is due. Returns None when
    /// the status of the document stays the same.
    pub fn upsert(from: Status, to: Status) -> Option<Self> {
        match (from, to) {
            (Status::Planned, Status::Pending) => Some(Self::UpsertToPending),
            (Status::Pending, Status::Planned) => Some(Self::UpsertToPlanned),
            _ => None,
        }
    }
}

/// The metrics that say how many documents have which status now.
///
/// A recount can repair them. The metrics `v<version>`, which count the documents of each
/// version, and `v_other`, which counts those of all further ones, are gauges too.
pub const GAUGES: [&str; 6] = ["cnt", "pln", "pnd", "act", "cpl", "kll"];

/// How many versions of a queue have a metric of their own. A version is any number that a producer
/// passes, and reading all metrics must stay cheap. Not measured: some tens of versions are usual.
pub const MAX_VERSIONS: i64 = 1000;

/// The metrics in the columns of `metric_get_common`, in the order of the contract.
pub const COMMON: [&str; 14] = [
    "cnt", "pnd", "pln", "act", "cpl", "kll", "ent", "drp", "pkd", "prc", "res", "rej", "orp",
    "err",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of deltas is in SQL, and must have a line for every code.
    #[test]
    fn every_event_has_its_deltas() {
        let sql = include_str!("../sql/bootstrap.sql");
        let codes: Vec<i16> = sql
            .lines()
            .filter_map(|l| l.trim().strip_prefix('('))
            .filter(|l| l.contains("'+") || l.contains("'-"))
            .filter_map(|l| {
                l.split([',', ':'])
                    .next()
                    .and_then(|n| n.trim().parse().ok())
            })
            .collect();
        assert_eq!(codes, (1..=37).collect::<Vec<i16>>());
        assert_eq!(Event::RejectPlanned.code(), 37);
    }

    #[test]
    fn an_upsert_counts_only_a_change_of_state() {
        assert_eq!(Event::upsert(Status::Pending, Status::Pending), None);
        assert_eq!(Event::upsert(Status::Completed, Status::Pending), None);
        assert_eq!(
            Event::upsert(Status::Planned, Status::Pending),
            Some(Event::UpsertToPending)
        );
        assert_eq!(
            Event::upsert(Status::Pending, Status::Planned),
            Some(Event::UpsertToPlanned)
        );
    }
}
