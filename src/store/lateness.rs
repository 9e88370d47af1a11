//! What is late in the queues of a database: planned documents that should be pending, leases that
//! should have been taken back, and since when documents are ready. `status.rs` reports it.
//!
//! A ready floor in the future proves that nothing is due before it. Where there is no such floor,
//! the index itself is read. What could not be read is reported as unknown.

use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::status::Status;
use crate::pg::index_look::{Look, ReadLock, first_visible};
use crate::pg::index_walk::Column;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::pg::{planner, relation, session};
use crate::ready::floors::{self, KnownFloor};
use crate::ready::key::Index;
use crate::store::plans::run_latest;
use crate::store::statement::Statement;

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
pub(super) const CHUNK_QUEUES: usize = 32;

/// Queues that a report names; the others are counted.
const MAX_NAMES: usize = 3;

// The queues, and what the ready floors need of each: the table, the number of its file, and the
// transaction that last wrote the catalog row of the trigger, if it always runs.
static QUEUES: Statement = Statement::new(
    "select q.name::pg_catalog.text, c.oid, c.relfilenode, t.xmin
     from fetchq.queues q
     left join pg_catalog.pg_class c
         on c.relname {=} ((q.name::pg_catalog.text) {||} '__docs')::pg_catalog.name
         and c.relnamespace {=} (select n.oid from pg_catalog.pg_namespace n where n.nspname {=} 'fetchq_data')
     left join pg_catalog.pg_trigger t
         on t.tgrelid {=} c.oid and t.tgname {=} 'fetchq_ready' and t.tgenabled {=} 'A'
     order by q.name",
);

// The pick and due indexes of some queues, if they are as fetchq made them. $1: the tables.
static INDEXES: Statement = Statement::new(
    "select i.indrelid, i.indexrelid, i.indkey::pg_catalog.text {=} '4 7 16'
     from pg_catalog.pg_index i
     where i.indrelid {=} any ($1::pg_catalog.oid[])
         and i.indisvalid and i.indisready and not i.indisunique
         and (i.indkey::pg_catalog.text {=} '4 7 16'
                 and i.indoption::pg_catalog.text {=} '0 0 0'
                 and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                     {=} '((status = ANY (ARRAY[{planned}, {active}])) AND (lock_upgrade IS NULL))'
             or i.indkey::pg_catalog.text {=} '2 3 7 5 16'
                 and i.indoption::pg_catalog.text {=} '0 3 0 0 0'
                 and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                     {=} '((status = {pending}) AND (lock_upgrade IS NULL))')
         and (select pg_catalog.string_agg(a.atttypid::pg_catalog.text, ' ' order by a.attnum)
              from pg_catalog.pg_attribute a where a.attrelid {=} i.indexrelid)
             {=} any (array['23 1184 20', '23 23 1184 23 20'])",
);

/// A queue as `QUEUES` returns it.
struct Queue {
    name: String,
    /// None when the table does not exist, or cannot be the one of the queue.
    table: Option<Oid>,
    /// The epoch in which the floors must be known. None when they prove nothing.
    epoch: Option<u64>,
}

/// The pick index and the due index of a queue that are as fetchq made them.
#[derive(Default, Clone, Copy)]
pub(super) struct Indexes {
    pub pick: Option<Oid>,
    pub due: Option<Oid>,
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
    /// The time before which nothing else is due. None when nothing is due.
    pub next: Option<i64>,
}

impl Lateness {
    fn add(&mut self, queue: &Queue, found: Option<Found>, now: i64) {
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
    /// All queues with ready documents were looked at.
    pub is_ready_known: bool,
}

/// Reads what is late, as of `now` (microseconds since 2000).
pub fn report(now: i64) -> Report {
    let queues = planner::with_plain_search_path(queues);
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
            known.retain(|floor| Some(floor.epoch) == queue.epoch);
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
        // A table that is locked stays unknown. The lock also keeps the statement below from
        // waiting: the server locks the table whose predicates it writes out.
        let to_read = queues.iter().filter(|queue| !is_settled(queue));
        let locks: Vec<(Oid, ReadLock)> = to_read
            .filter_map(|queue| Some((queue.table?, ReadLock::try_take(queue.table?)?)))
            .collect();
        let tables = locks.iter().map(|(table, _)| *table);
        let indexes = planner::with_plain_search_path(|| indexes(tables));
        for queue in queues {
            let floors = of(queue).map_or(&[][..], Vec::as_slice);
            let indexes = queue.table.and_then(|table| indexes.get(&table));
            let indexes = indexes.copied().unwrap_or_default();
            for (status, lateness) in [
                (Status::Planned, &mut report.planned),
                (Status::Active, &mut report.leased),
            ] {
                let floor = due_floor(floors, status);
                let found = first_due(queue, indexes, status, floor, now, &mut budget);
                lateness.add(queue, found, now);
            }
            let ready = first_ready(queue, indexes, floors, now, &mut budget);
            report.is_ready_known &= ready.is_some();
            if let Some(Found::At(at)) = ready {
                report.ready_since = Some(report.ready_since.map_or(at, |since| since.min(at)));
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
        let rows = run_latest(spi, &QUEUES, &[]);
        let number = |row, column| rows.datum(row, column).map(|datum| datum.value() as u32);
        let queue = |row| Queue {
            name: rows.get(row, 1).unwrap_or_default(),
            table: number(row, 2).map(Oid::from),
            epoch: number(row, 3)
                .zip(number(row, 4))
                .map(|(file, trigger)| floors::epoch_of(file, trigger)),
        };
        (0..rows.len()).map(queue).collect()
    })
}

/// Returns the epoch in which the ready floors of each documents table must be known, by table.
/// A table is missing when its floors prove nothing.
pub fn epochs() -> HashMap<u32, u64> {
    let queues = planner::with_plain_search_path(queues).into_iter();
    let known = queues.filter_map(|queue| Some((queue.table?.to_u32(), queue.epoch?)));
    known.collect()
}

/// Reads the indexes of some tables, by table.
pub(super) fn indexes(tables: impl Iterator<Item = Oid>) -> HashMap<Oid, Indexes> {
    let tables: Vec<i64> = tables.map(|table| i64::from(table.to_u32())).collect();
    let mut found: HashMap<Oid, Indexes> = HashMap::new();
    if tables.is_empty() {
        return found;
    }
    spi::connect(|spi| {
        let rows = run_latest(spi, &INDEXES, &[Arg::from(tables)]);
        for row in 0..rows.len() {
            let oid = |column| rows.datum(row, column).map(|d| Oid::from(d.value() as u32));
            let (Some(table), index) = (oid(1), oid(2)) else {
                continue;
            };
            let indexes = found.entry(table).or_default();
            match rows.get(row, 3) {
                Some(true) => indexes.due = index,
                _ => indexes.pick = index,
            }
        }
    });
    found
}
