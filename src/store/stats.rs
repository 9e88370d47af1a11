//! The statistics of queues (`queue_stats`, `metric_export`): from the counters, the histograms, and a bounded look
//! at the indexes. It only reads, and waits for no lock.

use std::cell::Cell;
use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::timing::{Histogram, PERCENTILES};
use crate::error::{Error, Result};
use crate::pg::index_look::{Look, PickLook, PickScan, ReadLock, first_visible, look_at_picks};
use crate::pg::index_walk::Column;
use crate::pg::row_sink::RowSink;
use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{planner, session, time};
use crate::ready::floors::{self, KnownFloor};
use crate::ready::key::Index;
use crate::store::lateness::{CHUNK_QUEUES, Indexes, indexes};
use crate::store::rights::{self, Right, Scope};
use crate::store::stats_counted::{Counted, Period, counted, try_lock};

/// How many retried documents of a queue are counted, and how many ready ones where others are
/// blocked.
const MAX_COUNTED: u32 = 10_000;

/// Entries of the indexes that one call may read, so that it stays cheap. Not measured: some tens of
/// milliseconds.
const MAX_ENTRIES: u32 = 200_000;

/// Of how many tables a session remembers the indexes.
const MAX_KNOWN_INDEXES: usize = 20_000;

thread_local! {
    // The indexes of tables that were found to be as fetchq made them. An index never gets another
    // definition, only another OID.
    static KNOWN_INDEXES: Cell<HashMap<Oid, Indexes>> = Cell::default();
}

// The queues, what the ready floors need of each, and the permits that are free. $1: all of them,
// else $2: their names. $3: the time.
const QUEUES: &str = "select q.name::text, q.is_active, q.max_active,
        case when q.rate_limit is not null then (
            select count(*) from (
                select from fetchq.rate_permits r
                where r.queue_id {=} q.id and r.free_at {<=} $3
                limit q.rate_limit) free) end,
        q.is_ordered or q.max_active_per_key is not null, c.oid, c.relfilenode, t.xmin
    from fetchq.queues q
    left join lateral (
        select c.oid, c.relfilenode from pg_class c
        where c.relname {=} ((q.name::text) {||} '__docs')::name
            and c.relnamespace {=} 'fetchq_data'::regnamespace
        limit 1) c on true
    left join lateral (
        select t.xmin from pg_trigger t
        where t.tgrelid {=} c.oid and t.tgname {=} 'fetchq_ready' and t.tgenabled {=} 'A'
        limit 1) t on true
    where $1 or q.name {=} any ($2)
    order by q.name";

/// A queue as `QUEUES` returns it.
struct Queue {
    name: String,
    is_active: bool,
    max_active: Option<i32>,
    /// The permits that are free, where the queue has a rate.
    permits: Option<i64>,
    /// Documents wait for others of their key.
    has_key_order: bool,
    table: Option<Oid>,
    /// The epoch in which the floors must be known. None when they prove nothing.
    epoch: Option<u64>,
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
    let queues = queues(scope, now);
    let counted = counted(scope, period, now);
    let has_times = counted.as_ref().is_some_and(|all| all.has_times);
    let mut counted = counted.map(|all| all.queues);
    let looks = looks(&queues, counted.as_ref(), now);
    let stats = queues.into_iter().zip(looks).map(|(queue, look)| {
        let of_queue = counted
            .as_mut()
            .map(|all| all.remove(&queue.name).unwrap_or_default());
        stats(queue, of_queue, &look, now)
    });
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
    let scope = match name {
        Some(name) => {
            rights::require_existing(name, Right::Any)?;
            Scope::only(name)
        }
        None => Scope::of(Right::Any),
    };
    let all = read(&scope, Period::LastMinutes, time::clock());
    if let (true, Some(name)) = (all.queues.is_empty(), name) {
        return Err(Error::UnknownQueue(name.to_string()));
    }
    for queue in &all.queues {
        out.push(&row(queue));
    }
    Ok(())
}

fn queues(scope: &Scope, now: i64) -> Vec<Queue> {
    let [is_everything, names] = scope.args();
    let mut queues: Vec<Queue> = spi::connect(|spi| {
        let rows = spi.once(QUEUES, &[is_everything, names, Arg::timestamp(now)]);
        let number = |row, column| rows.datum(row, column).map(|datum| datum.value() as u32);
        let queue = |row| Queue {
            name: rows.get(row, 1).unwrap_or_default(),
            is_active: rows.get(row, 2).unwrap_or(false),
            max_active: rows.get(row, 3),
            permits: rows.get(row, 4),
            has_key_order: rows.get(row, 5).unwrap_or(false),
            table: number(row, 6).map(Oid::from),
            epoch: number(row, 7)
                .zip(number(row, 8))
                .map(|(file, trigger)| floors::epoch_of(file, trigger)),
            is_readable: false,
        };
        (0..rows.len()).map(queue).collect()
    });
    for queue in &mut queues {
        queue.is_readable =
            QueueName::parse(&queue.name).is_ok_and(|name| rights::has(&name, Right::Read));
    }
    queues
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
fn looks(queues: &[Queue], counted: Option<&HashMap<String, Counted>>, now: i64) -> Vec<LookOf> {
    let mut floors: HashMap<Oid, Vec<KnownFloor>> = HashMap::new();
    // On a hot standby the floors prove nothing, because nothing notes what is replayed.
    if !session::is_standby() {
        for floor in floors::all() {
            floors.entry(floor.table).or_default().push(floor);
        }
    }
    let has = |queue: &Queue, metric: usize| {
        let of_queue = counted.and_then(|all| all.get(&queue.name));
        counted.is_none() || of_queue.is_some_and(|counted| counted.counters[metric] != 0)
    };
    let mut budget = MAX_ENTRIES;
    let mut looks = Vec::with_capacity(queues.len());
    let mut known_indexes = KNOWN_INDEXES.take();
    if known_indexes.len() > MAX_KNOWN_INDEXES {
        known_indexes.clear();
    }
    for queues in queues.chunks(CHUNK_QUEUES) {
        let locks: Vec<(Oid, ReadLock)> = queues
            .iter()
            .filter(|queue| queue.is_readable && (has(queue, 0) || has(queue, 1)))
            .filter_map(|queue| Some((queue.table?, ReadLock::try_take(queue.table?)?)))
            .collect();
        let tables = locks.iter().map(|(table, _)| *table);
        let unknown: Vec<Oid> = tables
            .filter(|table| !known_indexes.contains_key(table))
            .collect();
        if !unknown.is_empty() {
            let found = planner::with_plain_search_path(|| indexes(unknown.into_iter()));
            known_indexes.extend(found);
        }
        let is_locked = |table| locks.iter().any(|(locked, _)| *locked == table);
        for queue in queues {
            let known = queue.table.and_then(|table| floors.get(&table));
            let known = known.map_or(&[][..], Vec::as_slice);
            let mut look = LookOf::default();
            if let Some(table) = queue.table.filter(|_| queue.is_readable) {
                let of_queue = known_indexes.get(&table).filter(|_| is_locked(table));
                let of_queue = of_queue.copied().unwrap_or_default();
                look.picks = match has(queue, 0) {
                    false => Some(PickLook::default()),
                    true => look_at_pending(queue, table, of_queue, known, now, &mut budget),
                };
                look.planned = match has(queue, 1) {
                    false => Some(None),
                    true => first_planned(queue, table, of_queue, known, &mut budget),
                };
                if look.picks.is_none() || look.planned.is_none() {
                    // One of the indexes may have been made again.
                    known_indexes.remove(&table);
                }
            }
            looks.push(look);
        }
    }
    KNOWN_INDEXES.set(known_indexes);
    looks
}

/// The time from which on a level of an index has documents.
fn floor(queue: &Queue, floors: &[KnownFloor], index: Index, version: i32, level: i32) -> i64 {
    let known = floors.iter().find(|floor| {
        Some(floor.epoch) == queue.epoch
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

fn stats(queue: Queue, counted: Option<Counted>, look: &LookOf, now: i64) -> QueueStats {
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
        .map(|since| now.saturating_sub(since));
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
