//! What is late in the queues of a database: planned documents that should be pending, leases that
//! should have been taken back, since when documents are ready, and which queues have ready documents and
//! no worker. `status.rs` prints it.
//!
//! A ready floor in the future proves that nothing is due before it. Where there is no such floor,
//! the index itself is read. What could not be read is reported as unknown.

use crate::domain::status::Status;
use crate::pg::index_look::PickLook;
use crate::pg::session;
use crate::ready::floors::KnownFloor;
use crate::ready::key::Index;
use crate::settings;
use crate::signals::waiters::waiters;
use crate::store::counters::metrics_exact::try_lock;
use crate::store::reports::read::{Budget, Found, Queue, Sight, State};
use crate::store::upkeep::worker_sessions;

/// A document counts as late when it has been due for this time: microseconds. The background
/// worker runs within milliseconds; a second is what a loaded machine may take.
const LATE_US: i64 = 1_000_000;

/// What a look at one index costs besides its entries, in entries. Not measured. It bounds the
/// number of queues that one report looks at to 20,000.
const LOOK_COST: u32 = 10;

/// Queues that a report names; the others are counted.
pub const MAX_NAMES: usize = 3;

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

/// Documents that are ready, and that no worker takes.
#[derive(Debug)]
pub struct Unattended {
    id: i32,
    pub queue: String,
    /// The version of the document that has waited longest.
    pub version: i32,
    /// How many documents of the queue are pending.
    pub pending: i64,
    /// Since when the first one waits for a worker.
    pub since: i64,
    /// When a document of the queue was leased last. None: never.
    pub picked_at: Option<i64>,
    /// The other versions that workers wait for.
    pub awaited: Vec<i32>,
}

/// The documents in a dead-letter queue.
#[derive(Debug)]
pub struct DeadLetters {
    pub queue: String,
    /// How many there are.
    pub number: i64,
    /// Since when the oldest one is there. None where that is not known.
    pub since: Option<i64>,
}

/// What is known of the workers of all queues.
#[derive(Debug, Default)]
pub struct Workers {
    /// What no worker takes, with what has waited longest at the front.
    pub unattended: Vec<Unattended>,
    /// The queues of which it is not known.
    unknown: Vec<String>,
}

impl Workers {
    /// Names the queues of which it is not known whether they have a worker; None when there are none.
    pub fn unknown_queues(&self) -> Option<String> {
        list(self.unknown.iter().map(String::as_str))
    }

    /// Leaves out what a worker may have leased in a transaction that is open.
    fn finish(&mut self) {
        if self.unattended.is_empty() {
            return;
        }
        if !try_lock("worker_sessions") {
            let unknown = self.unattended.drain(..).map(|found| found.queue);
            self.unknown.extend(unknown);
            return;
        }
        let ids = self.unattended.iter().map(|found| found.id).collect();
        let busy = worker_sessions::with_open_transactions(ids);
        self.unattended.retain(|found| !busy.contains(&found.id));
        self.unattended.sort_by_key(|found| found.since);
    }
}

/// What is late in the queues of this database, since when documents are ready, and who takes them.
#[derive(Debug, Default)]
pub struct Report {
    pub planned: Lateness,
    pub leased: Lateness,
    /// When the oldest document that is known to be ready became ready, in microseconds since
    /// 2000. Those in dead-letter queues do not count.
    pub ready_since: Option<i64>,
    /// The queues whose first ready document is due at -infinity. They say nothing about the age of
    /// the others.
    always_ready: Vec<String>,
    /// All queues with ready documents were looked at.
    pub is_ready_known: bool,
    /// None where they are not looked for: on a standby, which does not see them, and without
    /// `fetchq.no_worker_after`.
    pub workers: Option<Workers>,
    /// The dead-letter queues that have documents, in the order of their names. None where the counters are
    /// locked.
    pub dead_letters: Option<Vec<DeadLetters>>,
}

impl Report {
    /// Names the queues whose first ready document is due at -infinity; None when there are none.
    pub fn always_ready_queues(&self) -> Option<String> {
        list(self.always_ready.iter().map(String::as_str))
    }
}

/// Looks for what is late, as of `now` (microseconds since 2000).
pub fn report(state: &State, now: i64) -> Report {
    let patience = settings::no_worker_after_us().filter(|_| !session::is_standby());
    let mut report = Report {
        is_ready_known: true,
        workers: patience.map(|_| Workers::default()),
        dead_letters: state.is_counted.then(Vec::new),
        ..Report::default()
    };
    state.look(
        LOOK_COST,
        |_| true,
        |sight| !is_settled(sight, now),
        |sight, budget| {
            let queue = sight.queue;
            let planned = first_due(sight, Status::Planned, now, budget);
            report.planned.add(&queue.name, planned, now);
            let leased = first_due(sight, Status::Active, now, budget);
            report.leased.add(&queue.name, leased, now);
            let picks = ready(sight, now, budget);
            if queue.is_dead_letter_queue {
                if let Some(all) = &mut report.dead_letters {
                    all.extend(dead_letters(queue, picks.as_ref()));
                }
                return;
            }
            report.is_ready_known &= picks.is_some();
            match picks.as_ref().and_then(|picks| picks.first_due) {
                Some(i64::MIN) => report.always_ready.push(queue.name.clone()),
                Some(at) => report.ready_since = earlier(report.ready_since, at),
                None => {}
            }
            if let Some((patience, workers)) = patience.zip(report.workers.as_mut()) {
                match &picks {
                    _ if !queue.is_active => {}
                    Some(picks) if queue.counted.is_some() => {
                        let limit = now.saturating_sub(patience);
                        workers.unattended.extend(unattended(queue, picks, limit));
                    }
                    _ => workers.unknown.push(queue.name.clone()),
                }
            }
        },
    );
    report.planned.finish();
    report.leased.finish();
    if let Some(workers) = &mut report.workers {
        workers.finish();
    }
    report
}

/// The documents that no worker takes, and that have been ready since before `limit`. None where there
/// are none, where a document of the queue is leased or was leased since then, and where a worker waits
/// for their version.
///
/// A worker that polls has no sign but its leases. So this says nothing of a version that none takes as
/// long as the others are leased.
fn unattended(queue: &Queue, picks: &PickLook, limit: i64) -> Option<Unattended> {
    let counted = queue.counted.as_ref()?;
    if counted.counter("act") > 0 || queue.permits == Some(0) {
        return None;
    }
    let since = |due: i64| due.max(queue.usable_since);
    let is_old = |(_, due): &&(i32, i64)| since(*due) < limit;
    picks.due_versions.iter().find(is_old)?;
    let awaited = queue
        .table
        .zip(waiters())
        .map(|(table, waiters)| waiters.awaited_versions(session::database(), table.to_u32()));
    let awaited = awaited.unwrap_or_default();
    if awaited.is_empty() && counted.picked_at.is_some_and(|at| at >= limit) {
        return None;
    }
    let old = picks.due_versions.iter().filter(is_old);
    let alone = old.filter(|(version, _)| !awaited.contains(version));
    let (version, due) = *alone.min_by_key(|(_, due)| *due)?;
    Some(Unattended {
        id: queue.id,
        queue: queue.name.clone(),
        version,
        pending: counted.counter("pnd"),
        since: since(due),
        picked_at: counted.picked_at.filter(|_| counted.counter("pkd") > 0),
        awaited,
    })
}

/// What is in a dead-letter queue; None when there is nothing.
fn dead_letters(queue: &Queue, picks: Option<&PickLook>) -> Option<DeadLetters> {
    let counted = queue.counted.as_ref()?;
    let number = ["pnd", "pln", "act"].map(|metric| counted.counter(metric));
    let number: i64 = number.iter().sum();
    (number > 0).then(|| DeadLetters {
        queue: queue.name.clone(),
        number,
        since: picks
            .and_then(|picks| picks.first_due)
            .filter(|at| *at != i64::MIN),
    })
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

/// Returns whether the floors prove that nothing is due, and whether nothing is ready.
fn is_settled(sight: &Sight, now: i64) -> bool {
    let is_future = |status| due_floor(sight, status).is_some_and(|time| time >= now);
    [Status::Planned, Status::Active].into_iter().all(is_future) && !may_have_ready(sight, now)
}

/// Returns whether documents of a queue may be ready: by the counters, or by the floors of what plain SQL
/// has written.
fn may_have_ready(sight: &Sight, now: i64) -> bool {
    sight.queue.may_have("pnd") || ready_floors(sight, now).next().is_some()
}

/// Returns what is known of the first document of a status in the due index; None when nothing is.
fn first_due(sight: &mut Sight, status: Status, now: i64, budget: &mut Budget) -> Option<Found> {
    match due_floor(sight, status) {
        Some(i64::MAX) => Some(Found::Nothing),
        Some(time) if time >= now => Some(Found::NotBefore(time)),
        floor => sight.first_due(status, floor.unwrap_or(i64::MIN), Some(now), budget),
    }
}

/// Looks for the first ready document of each version and priority of a queue. None where that is not
/// known.
fn ready(sight: &mut Sight, now: i64, budget: &mut Budget) -> Option<PickLook> {
    match may_have_ready(sight, now) {
        false => Some(PickLook::default()),
        true => sight.picks(now, 1, 0, budget),
    }
}
