//! What is late in the queues of a database: planned documents that should be pending, leases that
//! should have been taken back, and since when documents are ready. `status.rs` prints it.
//!
//! A ready floor in the future proves that nothing is due before it. Where there is no such floor,
//! the index itself is read. What could not be read is reported as unknown.

use crate::domain::status::Status;
use crate::ready::floors::KnownFloor;
use crate::ready::key::Index;
use crate::store::reports::read::{Budget, Found, Sight, State};

/// A document counts as late when it has been due for this time: microseconds. The background
/// worker runs within milliseconds; a second is what a loaded machine may take.
const LATE_US: i64 = 1_000_000;

/// What a look at one index costs besides its entries, in entries. Not measured. It bounds the
/// number of queues that one report looks at to 20,000.
const LOOK_COST: u32 = 10;

/// Queues that a report names; the others are counted.
const MAX_NAMES: usize = 3;

/// What is known of the documents of one status in all queues. Times are in microseconds since
/// 2000.
#[derive(Debug, Default)]
pub struct Lateness {
    /// When the oldest late document was due. None when none is late, as far as is known.
    pub since: Option<i64>,
    /// The queues with late documents, with the one that was late first at the front.
    late: Vec<(i64, String)>,
    /// The queues of which it is not known whether something is late.
    unknown: Vec<String>,
    /// How many others there are, late ones included.
    pub known_queues: i64,
    /// The time before which nothing else is due. None when nothing is due.
    pub next: Option<i64>,
}

impl Lateness {
    fn add(&mut self, queue: &str, found: Option<Found>, now: i64) {
        self.known_queues += i64::from(found.is_some());
        match found {
            None => self.unknown.push(queue.to_owned()),
            Some(Found::At(at)) if at < now - LATE_US => self.late.push((at, queue.to_owned())),
            Some(Found::At(at) | Found::NotBefore(at)) => self.next = earlier(self.next, at),
            Some(Found::Nothing) => {}
        }
    }

    fn finish(&mut self) {
        self.late.sort();
        self.since = self.late.first().map(|(at, _)| *at);
    }

    /// Names the queues with late documents; None when there are none.
    pub fn late_queues(&self) -> Option<String> {
        list(self.late.iter().map(|(_, name)| name.as_str()))
    }

    /// Names the queues of which it is not known whether something is late; None when there are
    /// none.
    pub fn unknown_queues(&self) -> Option<String> {
        list(self.unknown.iter().map(String::as_str))
    }
}

fn earlier(time: Option<i64>, other: i64) -> Option<i64> {
    Some(time.map_or(other, |time| time.min(other)))
}

/// Lists names for a report: `"a", "b", "c" and 4 more`.
fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let count = names.len();
    let named: Vec<String> = names
        .take(MAX_NAMES)
        .map(|name| format!("\"{name}\""))
        .collect();
    match count.saturating_sub(MAX_NAMES) {
        _ if count == 0 => None,
        0 => Some(named.join(", ")),
        more => Some(format!("{} and {more} more", named.join(", "))),
    }
}

/// What is late in the queues of this database, and since when documents are ready.
#[derive(Debug, Default)]
pub struct Report {
    pub planned: Lateness,
    pub leased: Lateness,
    /// When the oldest document that is known to be ready became ready, in microseconds since
    /// 2000. Only queues whose floors are known are looked at.
    pub ready_since: Option<i64>,
    /// The queues whose first ready document is due at -infinity. They say nothing about the age of
    /// the others.
    always_ready: Vec<String>,
    /// All queues with ready documents were looked at.
    pub is_ready_known: bool,
}

impl Report {
    /// Names the queues whose first ready document is due at -infinity; None when there are none.
    pub fn always_ready_queues(&self) -> Option<String> {
        list(self.always_ready.iter().map(String::as_str))
    }
}

/// Looks for what is late, as of `now` (microseconds since 2000).
pub fn report(state: &State, now: i64) -> Report {
    let mut report = Report {
        is_ready_known: true,
        ..Report::default()
    };
    state.look(
        LOOK_COST,
        |_| true,
        |sight| !is_settled(sight, now),
        |sight, budget| {
            let name = &sight.queue.name;
            let planned = first_due(sight, Status::Planned, now, budget);
            report.planned.add(name, planned, now);
            let leased = first_due(sight, Status::Active, now, budget);
            report.leased.add(name, leased, now);
            let ready = first_ready(sight, now, budget);
            report.is_ready_known &= ready.is_some();
            match ready {
                Some(Found::At(i64::MIN)) => report.always_ready.push(name.clone()),
                Some(Found::At(at)) => report.ready_since = earlier(report.ready_since, at),
                _ => {}
            }
        },
    );
    report.planned.finish();
    report.leased.finish();
    report
}

fn due_floor(sight: &Sight, status: Status) -> Option<i64> {
    sight.floor(Index::Due, 0, status.code())
}

fn ready_floors<'a>(sight: &'a Sight, now: i64) -> impl Iterator<Item = &'a KnownFloor> {
    let picks = sight
        .floors
        .iter()
        .filter(|floor| floor.index == Index::Pick);
    picks.filter(move |floor| floor.view.floor.next_iteration() < now)
}

/// Returns whether the floors prove that nothing is due and nothing is ready.
fn is_settled(sight: &Sight, now: i64) -> bool {
    let is_future = |status| due_floor(sight, status).is_some_and(|time| time >= now);
    [Status::Planned, Status::Active].into_iter().all(is_future)
        && ready_floors(sight, now).next().is_none()
}

/// Returns what is known of the first document of a status in the due index; None when nothing is.
fn first_due(sight: &mut Sight, status: Status, now: i64, budget: &mut Budget) -> Option<Found> {
    match due_floor(sight, status) {
        Some(i64::MAX) => Some(Found::Nothing),
        Some(time) if time >= now => Some(Found::NotBefore(time)),
        floor => sight.first_due(status, floor.unwrap_or(i64::MIN), Some(now), budget),
    }
}

/// Returns what is known of the first ready document of a queue, of all versions and priorities
/// that have floors; None when something is not known.
fn first_ready(sight: &mut Sight, now: i64, budget: &mut Budget) -> Option<Found> {
    sight
        .floors
        .iter()
        .find(|floor| floor.index == Index::Pick)?;
    let levels = ready_floors(sight, now);
    let levels: Vec<_> = levels.map(|floor| (floor.version, floor.view)).collect();
    let mut first = None;
    for (version, view) in levels {
        let from = view.floor.next_iteration();
        if let Found::At(at) = sight.first_ready([version, view.id], from, Some(now), budget)? {
            first = earlier(first, at);
        }
    }
    Some(first.map_or(Found::Nothing, Found::At))
}
