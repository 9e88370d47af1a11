//! What is late in the queues of a database: planned documents that should be pending, leases that
//! should have been taken back, and since when documents are ready. `status.rs` reports it.
//!
//! A ready floor in the future proves that nothing is due before it. Where there is no such floor,
//! the index itself is read. What could not be read is reported as unknown.

use std::collections::{HashMap, HashSet};

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::pg::index_look::{Look, ReadLock, first_visible};
use crate::pg::index_walk::Column;
use crate::pg::spi;
use crate::pg::{relation, session};
use crate::ready::floors::{self, KnownFloor};
use crate::ready::key::Index;
use crate::store::queues::known_tables::{Facts, Indexes, KnownTables};
use crate::store::queues::plans::run_latest;
use crate::store::queues::statement::Statement;

/// A document counts as late when it has been due for this time: microseconds. The background
/// worker runs within milliseconds; a second is what a loaded machine may take.
const LATE_US: i64 = 1_000_000;

/// Entries of the indexes that one report may read, so that it stays cheap. Not measured: some
/// tens of milliseconds.
const MAX_ENTRIES: u32 = 200_000;

/// What a look at one index costs besides its entries, in entries. Not measured. It bounds the
/// number of queues that one report looks at to 20,000.
const LOOK_COST: u32 = 10;

/// Queues whose tables are locked at a time. Not measured: the locks of a session are cheap up to a
/// few dozen.
pub(in crate::store) const CHUNK_QUEUES: usize = 32;

/// Queues that a report names; the others are counted.
const MAX_NAMES: usize = 3;

static NAMES: Statement =
    Statement::new("select q.name::pg_catalog.text from fetchq.queues q order by q.name");

/// A queue.
struct Queue {
    name: String,
    /// None when the table does not exist, or cannot be the one of the queue.
    table: Option<Oid>,
    /// What is known of the table.
    facts: Facts,
}

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
    fn add(&mut self, queue: &Queue, found: Option<Found>, now: i64) {
        self.known_queues += i64::from(found.is_some());
        match found {
            None => self.unknown.push(queue.name.clone()),
            Some(Found::At(at)) if at < now - LATE_US => self.late.push((at, queue.name.clone())),
            Some(Found::At(at) | Found::NotBefore(at)) => {
                self.next = Some(self.next.map_or(at, |next| next.min(at)));
            }
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

/// What is known of the first document of a level. Times are in microseconds since 2000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// There is one that is due at this time.
    At(i64),
    /// There is none before this time.
    NotBefore(i64),
    /// There is none.
    Nothing,
}

impl Found {
    fn from_look<const N: usize>(table: Oid, look: &Look<N>) -> Option<Self> {
        let time = |columns: &[Column; N]| match columns[0] {
            Column::Timestamptz(time) => time,
            _ => i64::MIN,
        };
        match look {
            Look::Found(columns) => Some(Self::At(time(columns))),
            Look::NothingBefore(Some(columns)) => Some(Self::NotBefore(time(columns))),
            Look::NothingBefore(None) => Some(Self::Nothing),
            // The queue was dropped meanwhile, so nothing of it is late.
            Look::Unknown if relation::queue_of_table(table.to_u32()).is_none() => {
                Some(Self::Nothing)
            }
            Look::Unknown => None,
        }
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

/// Reads what is late, as of `now` (microseconds since 2000).
pub fn report(now: i64) -> Report {
    let mut queues = queues();
    let mut known = KnownTables::of(queues.iter().filter_map(|queue| queue.table));
    for queue in &mut queues {
        queue.facts = queue
            .table
            .map(|table| known.get(table))
            .unwrap_or_default();
    }
    let mut floors: HashMap<Oid, Vec<KnownFloor>> = HashMap::new();
    // On a hot standby the floors prove nothing, because nothing notes what is replayed.
    if !session::is_standby() {
        for floor in floors::all() {
            floors.entry(floor.table).or_default().push(floor);
        }
    }
    for queue in &queues {
        // What is known of another epoch is void.
        if let Some(known) = queue.table.and_then(|table| floors.get_mut(&table)) {
            known.retain(|floor| Some(floor.epoch) == queue.facts.epoch);
        }
    }
    let of = |queue: &Queue| queue.table.and_then(|table| floors.get(&table));
    let is_settled = |queue: &Queue| {
        let floors = of(queue).map_or(&[][..], Vec::as_slice);
        let levels = [Status::Planned, Status::Active].map(|status| due_floor(floors, status));
        let are_future = levels
            .iter()
            .all(|floor| floor.is_some_and(|floor| floor.view.floor.next_iteration() >= now));
        let has_ready = floors.iter().any(|floor| is_ready(floor, now));
        are_future && !has_ready
    };
    let mut budget = MAX_ENTRIES;
    let mut report = Report {
        is_ready_known: true,
        ..Report::default()
    };
    for queues in queues.chunks(CHUNK_QUEUES) {
        // A table that is locked stays unknown.
        let to_read = queues.iter().filter(|queue| !is_settled(queue));
        let locks: Vec<(Oid, ReadLock)> = to_read
            .filter_map(|queue| Some((queue.table?, ReadLock::try_take(queue.table?)?)))
            .collect();
        let locked: HashSet<Oid> = locks.iter().map(|(table, _)| *table).collect();
        for queue in queues {
            let floors = of(queue).map_or(&[][..], Vec::as_slice);
            let is_locked = queue.table.is_some_and(|table| locked.contains(&table));
            let indexes = match is_locked {
                true => queue.facts.indexes,
                false => Indexes::default(),
            };
            let mut is_known = true;
            for (status, lateness) in [
                (Status::Planned, &mut report.planned),
                (Status::Active, &mut report.leased),
            ] {
                let floor = due_floor(floors, status);
                let found = first_due(queue, indexes, status, floor, now, &mut budget);
                is_known &= found.is_some();
                lateness.add(queue, found, now);
            }
            let ready = first_ready(queue, indexes, floors, now, &mut budget);
            report.is_ready_known &= ready.is_some();
            let has_levels = floors.iter().any(|floor| floor.index == Index::Pick);
            is_known &= ready.is_some() || !has_levels;
            if let Some(table) = queue.table.filter(|_| !is_known) {
                // One of the indexes may have been made again.
                known.forget(table);
            }
            match ready {
                Some(Found::At(i64::MIN)) => report.always_ready.push(queue.name.clone()),
                Some(Found::At(at)) => {
                    report.ready_since = Some(report.ready_since.map_or(at, |since| since.min(at)));
                }
                _ => {}
            }
        }
    }
    report.planned.finish();
    report.leased.finish();
    report
}

fn due_floor(floors: &[KnownFloor], status: Status) -> Option<&KnownFloor> {
    floors
        .iter()
        .find(|floor| floor.index == Index::Due && floor.view.id == status.code())
}

fn is_ready(floor: &KnownFloor, now: i64) -> bool {
    floor.index == Index::Pick && floor.view.floor.next_iteration() < now
}

/// Takes the cost of a look from the budget. Returns false when it is used up.
fn may_look(budget: &mut u32) -> bool {
    let left = budget.checked_sub(LOOK_COST);
    *budget = left.unwrap_or(0);
    left.is_some()
}

/// Returns what is known of the first document of a status in the due index; None when nothing is.
fn first_due(
    queue: &Queue,
    indexes: Indexes,
    status: Status,
    floor: Option<&KnownFloor>,
    now: i64,
    budget: &mut u32,
) -> Option<Found> {
    let mut from = [Column::Timestamptz(i64::MIN), Column::Int8(i64::MIN)];
    if let Some(KnownFloor { view, .. }) = floor {
        match view.floor.next_iteration() {
            i64::MAX => return Some(Found::Nothing),
            time if time >= now => return Some(Found::NotBefore(time)),
            time => from = [Column::Timestamptz(time), Column::Int8(i64::MIN)],
        }
    }
    let table = queue.table?;
    let Some(index) = indexes.due else {
        return Found::from_look(table, &Look::<2>::Unknown);
    };
    if !may_look(budget) {
        return None;
    }
    let is_beyond =
        |columns: &[Column; 2]| matches!(columns[0], Column::Timestamptz(t) if t >= now);
    let look = first_visible(table, index, &[status.code()], from, is_beyond, budget);
    Found::from_look(table, &look)
}

/// Returns what is known of the first ready document of a queue, of all versions and priorities
/// that have floors; None when something is not known.
fn first_ready(
    queue: &Queue,
    indexes: Indexes,
    floors: &[KnownFloor],
    now: i64,
    budget: &mut u32,
) -> Option<Found> {
    let mut levels = floors
        .iter()
        .filter(|floor| floor.index == Index::Pick)
        .peekable();
    levels.peek()?;
    let mut first = Found::Nothing;
    for floor in levels.filter(|floor| is_ready(floor, now)) {
        let table = queue.table?;
        let Some(index) = indexes.pick else {
            return Found::from_look(table, &Look::<3>::Unknown);
        };
        if !may_look(budget) {
            return None;
        }
        let from = [
            Column::Timestamptz(floor.view.floor.next_iteration()),
            Column::Int4(i32::MIN),
            Column::Int8(i64::MIN),
        ];
        let is_beyond =
            |columns: &[Column; 3]| matches!(columns[0], Column::Timestamptz(t) if t >= now);
        let prefix = [floor.version, floor.view.id];
        let look = first_visible(table, index, &prefix, from, is_beyond, budget);
        if let Found::At(at) = Found::from_look(table, &look)? {
            first = match first {
                Found::At(earlier) => Found::At(earlier.min(at)),
                _ => Found::At(at),
            };
        }
    }
    Some(first)
}

/// Reads the queues, as of now.
fn queues() -> Vec<Queue> {
    spi::connect(|spi| {
        let rows = run_latest(spi, &NAMES, &[]);
        let queue = |row| {
            let name: String = rows.get(row, 1).unwrap_or_default();
            let table = QueueName::parse(&name)
                .ok()
                .and_then(|name| relation::lookup_data_table(&name.relation("docs")));
            Queue {
                name,
                table,
                facts: Facts::default(),
            }
        };
        (0..rows.len()).map(queue).collect()
    })
}

/// Returns the epoch in which the ready floors of each documents table must be known, by table.
/// A table is missing when its floors prove nothing.
pub fn epochs() -> HashMap<u32, u64> {
    let tables: Vec<Oid> = queues()
        .into_iter()
        .filter_map(|queue| queue.table)
        .collect();
    let known = KnownTables::of(tables.iter().copied());
    let epochs = tables
        .into_iter()
        .map(|table| (table.to_u32(), known.get(table).epoch));
    epochs
        .filter_map(|(table, epoch)| Some((table, epoch?)))
        .collect()
}
