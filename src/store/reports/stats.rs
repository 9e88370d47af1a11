//! The statistics of queues (`queue_stats`, `metric_export`): from the counters, the histograms, and a bounded look
//! at the indexes. It only reads, and waits for no lock.

use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::timing::{Histogram, PERCENTILES};
use crate::error::{Error, Result};
use crate::pg::index_look::{Look, PickLook, PickScan, ReadLock, first_visible, look_at_picks};
use crate::pg::index_walk::Column;
use crate::pg::row_sink::RowSink;
use crate::pg::snapshot::Snapshot;
use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{relation, session, time};
use crate::ready::floors::{self, KnownFloor};
use crate::ready::key::Index;
use crate::store::bounds::lateness::CHUNK_QUEUES;
use crate::store::counters::stats_counted::{Counted, Period, Reading, try_lock};
use crate::store::queues::known_tables::{Facts, Indexes, KnownTables};
use crate::store::queues::plans::run_in;
use crate::store::queues::queue_places;
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::queues::statement::Statement;

/// How many retried documents of a queue are counted, and how many ready ones where others are
/// blocked.
const MAX_COUNTED: u32 = 10_000;

/// Entries of the indexes that one call may read, so that it stays cheap. Not measured: some tens of
/// milliseconds.
const MAX_ENTRIES: u32 = 200_000;

// The queues, and the permits of each that are free: all queues, or those that fulfil a condition. $1: the time. $2: their names.
macro_rules! queues {
    ($some:literal) => {
        concat!(
            "select q.name::pg_catalog.text, q.is_active, q.max_active,
                case when q.rate_limit is not null then (
                    select pg_catalog.count(*) from (
                        select from fetchq.rate_permits r
                        where r.queue_id {=} q.id and r.free_at {<=} $1
                        limit q.rate_limit) free) end,
                q.is_ordered or q.max_active_per_key is not null, q.id
            from fetchq.queues q ",
            $some,
            " order by q.name"
        )
    };
}

static ALL_QUEUES: Statement = Statement::new(queues!(""));

static SOME_QUEUES: Statement = Statement::new(queues!("where q.name {=} any ($2)"));

/// A queue as these statements return it.
struct Queue {
    id: i32,
    name: String,
    is_active: bool,
    max_active: Option<i32>,
    /// The permits that are free, where the queue has a rate.
    permits: Option<i64>,
    /// Documents wait for others of their key.
    has_key_order: bool,
    table: Option<Oid>,
    /// What is known of the table.
    facts: Facts,
    /// The caller may read its documents.
    is_readable: bool,
}

/// Tables without which nothing can be told.
const NEEDED: [&str; 2] = ["queues", "rate_permits"];

/// What is known of a queue.
pub struct QueueStats {
    /// Its name.
    pub name: String,
    /// Nothing is picked from it.
    pub is_paused: bool,
    /// What is counted. None where that could not be read without waiting.
    pub counted: Option<Counted>,
    /// How many documents are pending in which way. None where it is not known.
    pub pending: Option<Pending>,
    /// For how long the oldest ready document has been ready: microseconds. None when there is none,
    /// or it is not known.
    pub oldest_ready: Option<i64>,
    /// When the first planned document is due. In it None when there is none; None where it is not
    /// known.
    pub planned: Option<Option<i64>>,
    /// When the next planned or retried document is due.
    pub next_due: Option<i64>,
}

/// The statistics of several queues.
pub struct AllStats {
    /// In the order of their names.
    pub queues: Vec<QueueStats>,
    /// The histograms are complete. Otherwise they lack what is packed.
    pub has_times: bool,
}

/// Locks what the statistics cannot do without, as a reader does.
///
/// Fails with `Error::RegistryBusy` when that must wait.
pub fn lock_registry() -> Result<()> {
    match NEEDED.into_iter().find(|table| !try_lock(table)) {
        Some(table) => Err(Error::RegistryBusy(format!("fetchq.{table}"))),
        None => Ok(()),
    }
}

/// Reads the statistics of queues, with the histograms of a period, after [`lock_registry`].
pub fn read(scope: &Scope, period: Period, now: i64) -> AllStats {
    let reading = Reading::begin(Snapshot::take);
    let mut queues = queues(scope, now, &reading);
    let names: Vec<(i32, &str)> = queues.iter().map(|q| (q.id, q.name.as_str())).collect();
    let counted = reading.counted(&names, scope.is_everything(), Some(period), now);
    drop(reading);
    let has_times = counted.as_ref().is_some_and(|all| all.has_times);
    let counted: Vec<Option<Counted>> = match counted {
        Some(all) => all.queues.into_iter().map(Some).collect(),
        None => queues.iter().map(|_| None).collect(),
    };
    let looks = looks(&mut queues, &counted, now);
    let stats = queues.into_iter().zip(counted).zip(looks);
    let stats = stats.map(|((queue, counted), look)| stats_of(queue, counted, &look, now));
    AllStats {
        queues: stats.collect(),
        has_times,
    }
}

/// Adds a row for each queue to a result: for one queue, or for all on which the caller has a right.
///
/// Fails with `Error::RegistryBusy` when the registry is locked, and for a queue that is named with
/// `Error::UnknownQueue` and `Error::NoRight`.
pub fn list(name: Option<&QueueName>, out: &mut RowSink) -> Result<()> {
    lock_registry()?;
    if let Some(name) = name {
        rights::require_existing(name, Right::Any)?;
    }
    let all = rights::over(name, Right::Any, |queues| {
        Ok(read(queues, Period::LastMinutes, time::clock()))
    })?;
    if let (true, Some(name)) = (all.queues.is_empty(), name) {
        return Err(queue_places::unknown(name));
    }
    for queue in &all.queues {
        out.push(&row(queue));
    }
    Ok(())
}

fn queues(scope: &Scope, now: i64, reading: &Reading) -> Vec<Queue> {
    let [_, names] = scope.args();
    let now = Arg::timestamp(now);
    let mut queues: Vec<Queue> = spi::connect(|spi| {
        let rows = match scope.is_everything() {
            true => run_in(spi, &ALL_QUEUES, &[now], &reading.snapshot),
            false => run_in(spi, &SOME_QUEUES, &[now, names], &reading.snapshot),
        };
        let queue = |row| Queue {
            id: rows.get(row, 6).unwrap_or(0),
            name: rows.get(row, 1).unwrap_or_default(),
            is_active: rows.get(row, 2).unwrap_or(false),
            max_active: rows.get(row, 3),
            permits: rows.get(row, 4),
            has_key_order: rows.get(row, 5).unwrap_or(false),
            table: None,
            facts: Facts::default(),
            is_readable: false,
        };
        (0..rows.len()).map(queue).collect()
    });
    for queue in &mut queues {
        let name = QueueName::parse(&queue.name).ok();
        queue.table = name.and_then(|name| relation::lookup_data_table(&name.relation("docs")));
        queue.is_readable = queue
            .table
            .is_some_and(|table| rights::has_on(table, Right::Read));
    }
    queues
}

/// Counts the pending documents of all queues, and those of paused queues, as of now. None when the
/// counters are locked.
pub fn pending_of_all(now: i64) -> Option<(i64, i64)> {
    let reading = Reading::begin(Snapshot::latest);
    let queues = queues(&Scope::everything(), now, &reading);
    let names: Vec<(i32, &str)> = queues.iter().map(|q| (q.id, q.name.as_str())).collect();
    let counted = reading.counted(&names, true, None, now)?;
    let (mut all, mut paused) = (0, 0);
    for (queue, counted) in queues.iter().zip(&counted.queues) {
        // A manager may have written any number into the counter of its queue.
        let pending = counted.counters[0].max(0);
        all += pending;
        paused += if queue.is_active { 0 } else { pending };
    }
    Some((all, paused))
}

/// What the indexes of a queue say. A part that is None is not known.
#[derive(Default)]
struct LookOf {
    picks: Option<PickLook>,
    /// When the first planned document is due; in it None when there is none.
    planned: Option<Option<i64>>,
}

/// Looks at the indexes of the queues whose documents the caller may read and whose counters are
/// not 0.
fn looks(queues: &mut [Queue], counted: &[Option<Counted>], now: i64) -> Vec<LookOf> {
    let mut floors: HashMap<Oid, Vec<KnownFloor>> = HashMap::new();
    // On a hot standby the floors prove nothing, because nothing notes what is replayed.
    if !session::is_standby() {
        for floor in floors::all() {
            floors.entry(floor.table).or_default().push(floor);
        }
    }
    // Where the counters are not known, there may be any documents.
    let has = |counted: &Option<Counted>, metric: usize| {
        counted
            .as_ref()
            .is_none_or(|counted| counted.counters[metric] != 0)
    };
    let is_looked_at = |queue: &Queue, counted: &Option<Counted>| {
        queue.is_readable && (has(counted, 0) || has(counted, 1))
    };
    let looked_at = queues.iter().zip(counted);
    let looked_at = looked_at.filter(|(queue, counted)| is_looked_at(queue, counted));
    let mut known = KnownTables::of(looked_at.filter_map(|(queue, _)| queue.table));
    for queue in queues.iter_mut() {
        queue.facts = queue
            .table
            .map(|table| known.get(table))
            .unwrap_or_default();
    }
    let mut budget = MAX_ENTRIES;
    let mut looks = Vec::with_capacity(queues.len());
    let chunks = queues.chunks(CHUNK_QUEUES);
    for (queues, counted) in chunks.zip(counted.chunks(CHUNK_QUEUES)) {
        let queues = || queues.iter().zip(counted);
        let locks: Vec<(Oid, ReadLock)> = queues()
            .filter(|(queue, counted)| is_looked_at(queue, counted))
            .filter_map(|(queue, _)| Some((queue.table?, ReadLock::try_take(queue.table?)?)))
            .collect();
        let is_locked = |table| locks.iter().any(|(locked, _)| *locked == table);
        for (queue, counted) in queues() {
            let floors = queue.table.and_then(|table| floors.get(&table));
            let floors = floors.map_or(&[][..], Vec::as_slice);
            let mut look = LookOf::default();
            if let Some(table) = queue.table.filter(|_| queue.is_readable) {
                let indexes = match is_locked(table) {
                    true => queue.facts.indexes,
                    false => Indexes::default(),
                };
                look.picks = match has(counted, 0) {
                    false => Some(PickLook::default()),
                    true => look_at_pending(queue, table, indexes, floors, now, &mut budget),
                };
                look.planned = match has(counted, 1) {
                    false => Some(None),
                    true => first_planned(queue, table, indexes, floors, &mut budget),
                };
                if look.picks.is_none() || look.planned.is_none() {
                    // One of the indexes may have been made again.
                    known.forget(table);
                }
            }
            looks.push(look);
        }
    }
    looks
}

/// The time from which on a level of an index has documents.
fn floor(queue: &Queue, floors: &[KnownFloor], index: Index, version: i32, level: i32) -> i64 {
    let known = floors.iter().find(|floor| {
        Some(floor.epoch) == queue.facts.epoch
            && (floor.index, floor.version, floor.view.id) == (index, version, level)
    });
    known.map_or(i64::MIN, |floor| floor.view.floor.next_iteration())
}

fn look_at_pending(
    queue: &Queue,
    table: Oid,
    indexes: Indexes,
    floors: &[KnownFloor],
    now: i64,
    budget: &mut u32,
) -> Option<PickLook> {
    let scan = PickScan {
        now,
        floor: &|version, priority| floor(queue, floors, Index::Pick, version, priority),
        max_due: if queue.has_key_order { MAX_COUNTED } else { 1 },
        max_later: MAX_COUNTED,
    };
    look_at_picks(table, indexes.pick?, &scan, budget)
}

fn first_planned(
    queue: &Queue,
    table: Oid,
    indexes: Indexes,
    floors: &[KnownFloor],
    budget: &mut u32,
) -> Option<Option<i64>> {
    let status = Status::Planned.code();
    let from = floor(queue, floors, Index::Due, 0, status);
    let from = [Column::Timestamptz(from), Column::Int8(i64::MIN)];
    match first_visible(table, indexes.due?, &[status], from, |_| false, budget) {
        Look::Found([Column::Timestamptz(time), _]) => Some(Some(time)),
        Look::NothingBefore(None) => Some(None),
        _ => None,
    }
}

/// How many pending documents can be picked, wait for a retry, and are held back.
pub struct Pending {
    /// Those that a pick would return now.
    pub ready: i64,
    /// Those that wait for their retry.
    pub retrying: i64,
    /// Those that are held back, by a pause, a limit or an order.
    pub blocked: i64,
}

fn pending(queue: &Queue, pending: i64, active: i64, look: &PickLook) -> Pending {
    let retrying = i64::from(look.later).min(pending);
    let due = match (look.first_due, queue.has_key_order) {
        (None, _) => 0,
        (Some(_), true) => i64::from(look.due).min(pending - retrying),
        (Some(_), false) => pending - retrying,
    };
    let mut ready = if queue.is_active { due } else { 0 };
    if let Some(max_active) = queue.max_active {
        ready = ready.min((i64::from(max_active) - active).max(0));
    }
    if let Some(permits) = queue.permits {
        ready = ready.min(permits);
    }
    Pending {
        ready,
        retrying,
        blocked: pending - retrying - ready,
    }
}

/// Returns how long ago a time was, in microseconds. None for -infinity, which is no time.
pub(in crate::store) fn age(since: i64, now: i64) -> Option<i64> {
    (since != i64::MIN).then(|| now.saturating_sub(since))
}

fn stats_of(queue: Queue, counted: Option<Counted>, look: &LookOf, now: i64) -> QueueStats {
    let state = match (&counted, &look.picks) {
        (Some(counted), Some(look)) => Some(pending(
            &queue,
            counted.counter("pnd"),
            counted.counter("act"),
            look,
        )),
        _ => None,
    };
    let first_due = look.picks.as_ref().and_then(|picks| picks.first_due);
    let oldest_ready = state
        .as_ref()
        .filter(|state| state.ready > 0)
        .and(first_due)
        .and_then(|since| age(since, now));
    let next_due = match (&look.picks, look.planned) {
        (Some(picks), Some(planned)) => match (picks.first_later, planned) {
            (Some(retry), Some(planned)) => Some(retry.min(planned)),
            (retry, planned) => retry.or(planned),
        },
        _ => None,
    };
    QueueStats {
        is_paused: !queue.is_active,
        name: queue.name,
        counted,
        pending: state,
        oldest_ready,
        planned: look.planned,
        next_due,
    }
}

/// The counters in a row of `queue_stats`, before and after the times.
const STATES: [&str; 4] = ["pln", "act", "cpl", "kll"];
const TOTALS: [&str; 5] = ["ent", "pkd", "suc", "fai", "orp"];

fn row(queue: &QueueStats) -> Vec<Arg> {
    let counted = queue.counted.as_ref();
    let count = |metric| Arg::from(counted.map(|counted| counted.counter(metric)));
    let state = queue.pending.as_ref();
    let percentile = |histogram: Option<&Histogram>, percent| {
        Interval::of(histogram.and_then(|histogram| histogram.percentile(percent)))
    };
    let mut row = vec![
        Arg::from(queue.name.as_str()),
        Arg::from(state.map(|state| state.ready)),
        Arg::from(state.map(|state| state.retrying)),
        Arg::from(state.map(|state| state.blocked)),
    ];
    row.extend(STATES.map(count));
    row.push(Interval::of(queue.oldest_ready));
    row.push(
        queue
            .next_due
            .map_or_else(Arg::no_timestamp, Arg::timestamp),
    );
    row.extend(TOTALS.map(count));
    row.extend(
        PERCENTILES.map(|percent| percentile(counted.map(|counted| &counted.wait), percent)),
    );
    row.extend(PERCENTILES.map(|percent| percentile(counted.map(|counted| &counted.run), percent)));
    row.push(Arg::from(queue.is_paused));
    row
}
