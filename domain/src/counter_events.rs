//! Counter events, which calls write into `fetchq.counter_log`.
//!
//! What each event adds to which metric stands in `src/sql/counter_events.sql` alone. It fills the table
//! `fetchq.counter_events`, so that the counter log can be packed and read with plain SQL, and it is read
//! here when this is compiled. What else is known of an event follows from it.

use crate::status::Status;
use crate::timing::{LAST_BUCKET, Timing};

/// The metrics that events change. The first ones count the documents of a status, in the order of
/// `Status::ALL`. `v` stands for the metric of a version.
pub const METRICS: [&str; 21] = [
    "kll", "pln", "pnd", "act", "cpl", "cnt", "v", "ent", "pkd", "prc", "suc", "fai", "err", "rej",
    "res", "orp", "drp", "can", "rev", "ded", "exp",
];

/// The place of a metric in [`METRICS`]: of the name that begins at a place of a text.
const fn place_at(text: &[u8], from: usize) -> usize {
    let mut place = 0;
    while place < METRICS.len() {
        let name = METRICS[place].as_bytes();
        let mut n = 0;
        while n < name.len() && from + n < text.len() && text[from + n] == name[n] {
            n += 1;
        }
        if n == name.len() && !(from + n < text.len() && text[from + n].is_ascii_lowercase()) {
            return place;
        }
        place += 1;
    }
    panic!("this is no metric that events change")
}

/// The place of a metric in [`METRICS`], for a constant.
const fn place(metric: &str) -> usize {
    place_at(metric.as_bytes(), 0)
}

/// What an event adds to the metrics: sets of their places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects {
    plus: u32,
    minus: u32,
}

impl Effects {
    /// What the event with this number adds. Nothing, where there is no such event.
    pub fn of(code: i16) -> Self {
        if code > LATE {
            return Self::of(Event::Pick.code()).and(Self::of(code - LATE));
        }
        let known = usize::try_from(code)
            .ok()
            .and_then(|code| EFFECTS.get(code));
        known.copied().unwrap_or_default()
    }

    /// What two events add.
    fn and(self, other: Self) -> Self {
        let (plus, minus) = (self.plus | other.plus, self.minus | other.minus);
        Self {
            plus: plus & !minus,
            minus: minus & !plus,
        }
    }

    /// The places of the metrics, each with 1 or -1.
    pub fn signs(self) -> impl Iterator<Item = (usize, i64)> {
        let mut left = self.plus | self.minus;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let place = left.trailing_zeros();
                left &= left - 1;
                let is_plus = self.plus >> place & 1 == 1;
                (place as usize, if is_plus { 1 } else { -1 })
            })
        })
    }

    /// What the bucket of a row with this event counts.
    pub fn timing(self) -> Option<Timing> {
        let has = |metric| self.plus >> metric & 1 == 1;
        match (has(const { place("pkd") }), has(const { place("prc") })) {
            (true, _) => Some(Timing::Wait),
            (false, true) => Some(Timing::Run),
            (false, false) => None,
        }
    }
}

/// The statuses of documents that are settled, and of those that are not, as places in [`METRICS`].
const SETTLED: u32 = 1 << place("kll") | 1 << place("cpl");
const UNSETTLED: u32 = 1 << place("pln") | 1 << place("pnd") | 1 << place("act");

/// The metrics that count what is done to a document, as places in [`METRICS`]: an expired lease, a
/// cancelled and a removed document.
const TAKEN: u32 = 1 << place("orp") | 1 << place("can") | 1 << place("drp");

/// The numbers of all events.
pub fn codes() -> impl Iterator<Item = i16> {
    1..EFFECTS.len() as i16
}

/// What each event adds, by its number.
const EFFECTS: [Effects; 40] = effects(include_bytes!("../../src/sql/counter_events.sql"));

/// Reads rows such as `(4, 'complete', '+prc +suc +cpl -act')`. No other digit of the script follows a
/// parenthesis, and no other letter a sign.
const fn effects(sql: &[u8]) -> [Effects; 40] {
    let mut all = [Effects { plus: 0, minus: 0 }; 40];
    let (mut at, mut code) = (0, 0);
    while at + 1 < sql.len() {
        if sql[at] == b'(' && sql[at + 1].is_ascii_digit() {
            code = 0;
            while sql[at + 1].is_ascii_digit() {
                code = code * 10 + (sql[at + 1] - b'0') as usize;
                at += 1;
            }
        } else if sql[at] == b'+' && sql[at + 1].is_ascii_lowercase() {
            all[code].plus |= 1 << place_at(sql, at + 1);
        } else if sql[at] == b'-' && sql[at + 1].is_ascii_lowercase() {
            all[code].minus |= 1 << place_at(sql, at + 1);
        }
        at += 1;
    }
    all
}

/// What is added to the number of an event that ends a lease, for a document whose pick was not counted
/// before: the row counts the pick, too. Its bucket is that of [`late_bucket`].
pub const LATE: i16 = 64;

/// As a run in [`late_bucket`]: it is not known.
const NO_RUN: i16 = LAST_BUCKET + 1;

/// The bucket of a row that counts a pick as well: that of the wait, and that of the run if it is known.
pub fn late_bucket(wait: i16, run: Option<i16>) -> i16 {
    wait * (NO_RUN + 1) + run.unwrap_or(NO_RUN)
}

/// What the bucket of a row with the event of this number counts: a wait and a run.
pub fn times(code: i16, bucket: i16) -> [Option<i16>; 2] {
    if code > LATE {
        let run = bucket % (NO_RUN + 1);
        return [Some(bucket / (NO_RUN + 1)), (run != NO_RUN).then_some(run)];
    }
    match Effects::of(code).timing() {
        Some(Timing::Wait) => [Some(bucket), None],
        Some(Timing::Run) => [None, Some(bucket)],
        None => [None, None],
    }
}

/// What divides the bucket of a row that counts a pick as well, and a run that is not known.
pub const LATE_BUCKETS: [i16; 2] = [NO_RUN + 1, NO_RUN];

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
    /// The document did not begin in time.
    ExpirePlanned = 38,
    ExpirePending = 39,
}

impl Event {
    /// Returns the number that is stored.
    pub fn code(self) -> i16 {
        self as i16
    }

    const fn effects(self) -> Effects {
        EFFECTS[self as usize]
    }

    /// Returns what the bucket of a row with this event counts, or None when it has none.
    ///
    /// A document that is returned without having been processed has no run.
    pub fn timing(self) -> Option<Timing> {
        self.effects().timing()
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
        let Effects { plus, minus } = self.effects();
        minus & UNSETTLED != 0 && (plus & SETTLED != 0 || minus >> place("cnt") & 1 == 1)
    }

    /// Returns whether somebody else than its worker ends the lease of the document with this event: the
    /// lease ran out, or the document was cancelled or removed. A document that is returned without having
    /// been processed is not counted, because its worker may do that too.
    pub fn takes_lease(self) -> bool {
        let Effects { plus, minus } = self.effects();
        let has = |metrics: u32, place: usize| metrics >> place & 1 == 1;
        has(minus, const { place("act") })
            && !has(plus, const { place("prc") })
            && plus & TAKEN != 0
    }

    /// Returns the status that documents enter with this event, or None when they are removed.
    pub fn enters(self) -> Option<Status> {
        let entered = self.effects().plus.trailing_zeros() as usize;
        Status::ALL.get(entered).copied()
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

    /// Returns the event of a document with this status that expires. Returns None for one that has begun.
    pub fn expire(from: Status) -> Option<Self> {
        match from {
            Status::Planned => Some(Self::ExpirePlanned),
            Status::Pending => Some(Self::ExpirePending),
            _ => None,
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

    #[test]
    fn every_number_of_an_event_has_its_effects() {
        assert_eq!(Effects::of(0), Effects::default());
        for code in codes() {
            assert_ne!(Effects::of(code), Effects::default(), "{code}");
        }
        assert_eq!(Event::ExpirePending.code(), 39);
        assert_eq!(Effects::of(40), Effects::default());
        let complete: Vec<_> = Effects::of(4).signs().collect();
        let expected = [("act", -1), ("cpl", 1), ("prc", 1), ("suc", 1)];
        assert_eq!(
            complete,
            expected.map(|(metric, sign)| (place(metric), sign))
        );
    }

    /// A document of a queue is in one status, and is counted once.
    #[test]
    fn events_keep_the_sum_of_the_statuses() {
        for code in codes() {
            let effects = Effects::of(code);
            let sum = |metrics: &[&str]| -> i64 {
                let of = |metric: &&str| effects.signs().find(|(at, _)| *at == place(metric));
                metrics.iter().filter_map(of).map(|(_, sign)| sign).sum()
            };
            let n = sum(&["cnt"]);
            assert_eq!(sum(&["kll", "pln", "pnd", "act", "cpl"]), n, "{code}");
            assert_eq!(sum(&["v"]), n, "{code}");
        }
    }

    #[test]
    fn what_an_event_does_follows_from_its_effects() {
        use Status::{Active, Completed, Killed, Pending, Planned};
        use Timing::{Run, Wait};
        for (event, enters, settles, timing) in [
            (Event::PushPlanned, Some(Planned), false, None),
            (Event::Pick, Some(Active), false, Some(Wait)),
            (Event::Complete, Some(Completed), true, Some(Run)),
            (Event::RejectPending, Some(Pending), false, Some(Run)),
            (Event::Dead, Some(Killed), true, None),
            (Event::ReturnPending, Some(Pending), false, None),
            (Event::Pop, None, true, Some(Wait)),
            (Event::Drop, None, true, Some(Run)),
            (Event::RemovePending, None, true, None),
            (Event::RemoveKilled, None, false, None),
            (Event::PlaceKilled, Some(Killed), false, None),
            (Event::DeadLetter, None, false, None),
        ] {
            let found = (event.enters(), event.settles(), event.timing());
            assert_eq!(found, (enters, settles, timing), "{event:?}");
        }
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

    #[test]
    fn a_lease_is_taken_by_expiry_cancelling_and_removal_only() {
        use Event::*;
        for event in [Orphan, Dead, DeadRemoved, CancelActive, RemoveActive] {
            assert!(event.takes_lease(), "{event:?}");
        }
        for event in [
            Complete,
            Drop,
            RejectPending,
            RejectRemoved,
            KillRemoved,
            ReturnPending,
            ReturnPlanned,
            ReschedulePending,
            CancelPending,
            RemovePending,
            Pop,
        ] {
            assert!(!event.takes_lease(), "{event:?}");
        }
    }
}
