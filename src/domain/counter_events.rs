//! Counter events: what a call writes, once, into `fetchq.counter_log`. What each
//! event adds to which metric is data, in `fetchq.counter_events`
//! (`src/sql/bootstrap.sql`), so that a pack and a read are plain SQL.

use crate::domain::status::Status;

/// Code of an event in `fetchq.counter_log`. Stored: never renumber.
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
    /// Handed back without having been processed: the attempt does not count.
    ReturnPending = 16,
    ReturnPlanned = 17,
    /// Picked and removed at once.
    Pop = 18,
    CancelPlanned = 19,
    CancelPending = 20,
    CancelActive = 21,
    /// A completed or killed document is to be processed again.
    ReviveKilledPending = 22,
    ReviveCompletedPending = 23,
    ReviveKilledPlanned = 24,
    ReviveCompletedPlanned = 25,
    /// Removed by whoever looks after the queue, not by a worker.
    RemovePlanned = 26,
    RemovePending = 27,
    RemoveCompleted = 28,
    RemoveKilled = 29,
    /// Rejected, or not given back, for the last time; and removed.
    RejectRemoved = 30,
    DeadRemoved = 31,
    /// Became a dead letter in another queue; besides the event that removed it.
    DeadLetter = 32,
    RemoveActive = 33,
    /// Came from another queue as what it is.
    PlaceKilled = 34,
    PlaceCompleted = 35,
}

impl Event {
    pub fn code(self) -> i16 {
        self as i16
    }

    pub fn push(to: Status) -> Self {
        match to {
            Status::Pending => Self::PushPending,
            _ => Self::PushPlanned,
        }
    }

    pub fn reschedule(to: Status) -> Self {
        match to {
            Status::Pending => Self::ReschedulePending,
            _ => Self::ReschedulePlanned,
        }
    }

    pub fn reject(to: Status) -> Self {
        match to {
            Status::Killed => Self::RejectKilled,
            _ => Self::RejectPending,
        }
    }

    /// The state that documents enter by it.
    pub fn enters(self) -> Option<Status> {
        Some(match self {
            Self::PushPlanned | Self::ReschedulePlanned | Self::UpsertToPlanned => Status::Planned,
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
            | Self::DeadLetter => return None,
        })
    }

    /// What cancels a document of that status; None where there is nothing to cancel.
    pub fn cancel(from: Status) -> Option<Self> {
        match from {
            Status::Planned => Some(Self::CancelPlanned),
            Status::Pending => Some(Self::CancelPending),
            Status::Active => Some(Self::CancelActive),
            Status::Completed | Status::Killed => None,
        }
    }

    /// What removes a document of that status.
    pub fn remove(from: Status) -> Self {
        match from {
            Status::Planned => Self::RemovePlanned,
            Status::Pending => Self::RemovePending,
            Status::Active => Self::RemoveActive,
            Status::Completed => Self::RemoveCompleted,
            Status::Killed => Self::RemoveKilled,
        }
    }

    /// What adds a document that came from another queue as what it is.
    pub fn place(status: Status) -> Self {
        match status {
            Status::Killed => Self::PlaceKilled,
            Status::Completed => Self::PlaceCompleted,
            other => Self::push(other),
        }
    }

    /// What brings a completed or killed document back.
    pub fn revive(from: Status, to: Status) -> Option<Self> {
        match (from, to) {
            (Status::Killed, Status::Pending) => Some(Self::ReviveKilledPending),
            (Status::Killed, Status::Planned) => Some(Self::ReviveKilledPlanned),
            (Status::Completed, Status::Pending) => Some(Self::ReviveCompletedPending),
            (Status::Completed, Status::Planned) => Some(Self::ReviveCompletedPlanned),
            _ => None,
        }
    }

    /// The event of an update that changes when a document runs; none when its
    /// status stays as it is.
    pub fn upsert(from: Status, to: Status) -> Option<Self> {
        match (from, to) {
            (Status::Planned, Status::Pending) => Some(Self::UpsertToPending),
            (Status::Pending, Status::Planned) => Some(Self::UpsertToPlanned),
            _ => None,
        }
    }
}

/// The metrics that say how many documents are in which state now; a recount can
/// repair them. The documents of each version, `v<version>`, count as well.
pub const GAUGES: [&str; 6] = ["cnt", "pln", "pnd", "act", "cpl", "kll"];

/// The columns of `metric_get_common`, in the order of the contract.
pub const COMMON: [&str; 14] = [
    "cnt", "pnd", "pln", "act", "cpl", "kll", "ent", "drp", "pkd", "prc", "res", "rej", "orp",
    "err",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of deltas lives in SQL: every code must have its line there.
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
        assert_eq!(codes, (1..=35).collect::<Vec<i16>>());
        assert_eq!(Event::PlaceCompleted.code(), 35);
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
