//! The statistics of queues (`queue_stats`): from the counters, the histograms, and a bounded look
//! at the indexes. It only reads, and waits for no lock.

use std::cell::Cell;
use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::timing::{Histogram, PERCENTILES, Timing};
use crate::error::{Error, Result};
use crate::pg::call::RowSink;
use crate::pg::index_look::{Look, PickLook, PickScan, ReadLock, first_visible, look_at_picks};
use crate::pg::index_walk::Column;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{planner, session, time};
use crate::ready::floors::{self, KnownFloor};
use crate::ready::key::Index;
use crate::store::counter_segments::{self, SEGMENTS};
use crate::store::lateness::{CHUNK_QUEUES, Indexes, indexes};
use crate::store::rights::{self, Right, Scope};

/// How many retried documents of a queue are counted, and how many ready ones of an ordered queue.
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

/// How often the counters are read again when a segment was truncated meanwhile.
const MAX_TRIES: usize = 10;

// The queues, what the ready floors need of each, and the permits that are free. $1: all of them,
// else $2: their names. $3: the time.
const QUEUES: &str = "select q.name::text, q.is_active, q.max_active,
        case when q.rate_limit is not null then (
            select count(*) from (
                select from fetchq.rate_permits r
                where r.queue_id {=} q.id and r.free_at {<=} $3
                limit q.rate_limit) free) end,
        q.is_ordered, c.oid, c.relfilenode, t.xmin
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

/// The counters that are read, in this order.
const METRICS: [&str; 10] = [
    "pnd", "pln", "act", "cpl", "kll", "ent", "pkd", "suc", "fai", "orp",
];

// Everything that is counted, in one snapshot: how many of the segments that are left out are packed;
// the packed counters; the histograms of the last minutes; and the events that are not packed yet.
// {tail}: the events of the segments that could be locked. {timings}: `TIMINGS`, or nothing where
// that table is locked. $1, $2: as above. $3: the metrics. $4: the segments that are left out. $5:
// the first minute that counts.
const COUNTED: &str = "select 0, null::int, null::text, null::text, null::int,
        (select count(*) from fetchq.counter_segments s
            where s.segment {=} any ($4) and s.is_packed),
        null::int[], null::bigint[]
    union all
    select 1, null, m.queue, m.metric, null, m.value, null, null from fetchq.metrics m
    where m.metric {=} any ($3) and ($1 or m.queue {=} any ($2))
    {timings}
    union all
    select 3, l.event, q.name, null, l.bucket, l.n, null, null
    from (
        select t.queue_id, t.event, t.bucket, sum(coalesce(t.n, 1))::bigint as n from ({tail}) t
        group by t.queue_id, t.event, t.bucket) l
    join fetchq.queues q on q.id {=} l.queue_id and ($1 or q.name {=} any ($2))";

const TIMINGS: &str = "union all
    select 2, null, q.name, t.kind, null, null, t.buckets, t.counts
    from fetchq.timings t
    join fetchq.queues q on q.id {=} t.queue_id and ($1 or q.name {=} any ($2))
    where t.slot {>} 0 and t.minute {>=} $5";

/// The columns of `COUNTED`.
mod column {
    /// What the row is.
    pub const SOURCE: i32 = 1;
    /// The event of documents that are not packed yet.
    pub const EVENT: i32 = 2;
    /// The name of the queue.
    pub const QUEUE: i32 = 3;
    /// The metric of a counter, or the kind of a histogram.
    pub const NAME: i32 = 4;
    /// The bucket of these documents.
    pub const BUCKET: i32 = 5;
    /// A number of documents or of segments, or the value of a counter.
    pub const N: i32 = 6;
    /// The buckets of a histogram.
    pub const BUCKETS: i32 = 7;
    /// The numbers of documents in these buckets.
    pub const COUNTS: i32 = 8;
}

// What each event adds to the counters.
const EFFECTS: &str =
    "select e.event::int, e.metric::text, e.sign::int from fetchq.counter_events e
    where e.metric {=} any ($1)";

/// A queue as `QUEUES` returns it.
struct Queue {
    name: String,
    is_active: bool,
    max_active: Option<i32>,
    /// The permits that are free, where the queue has a rate.
    permits: Option<i64>,
    is_ordered: bool,
    table: Option<Oid>,
    /// The epoch in which the floors must be known. None when they prove nothing.
    epoch: Option<u64>,
    /// The caller may read its documents.
    is_readable: bool,
}

/// Tables without which nothing can be told.
const NEEDED: [&str; 2] = ["queues", "rate_permits"];

/// Tables without which the counters, or the histograms, are not known.
const COUNTING: [&str; 4] = [
    "metrics",
    "counter_events",
    "counter_log",
    "counter_segments",
];

fn try_lock(table: &str) -> bool {
    relation::lookup("fetchq", table)
        .is_some_and(|table| relation::try_lock(table, LockMode::Readers))
}

/// Adds a row for each queue to a result: for one queue, or for all on which the caller has a right.
///
/// Fails with `Error::RegistryBusy` when the registry is locked, and for a queue that is named with
/// `Error::UnknownQueue` and `Error::NoRight`.
pub fn list(name: Option<&QueueName>, out: &mut RowSink) -> Result<()> {
    if let Some(table) = NEEDED.into_iter().find(|table| !try_lock(table)) {
        return Err(Error::RegistryBusy(format!("fetchq.{table}")));
    }
    let scope = match name {
        Some(name) => {
            rights::require_existing(name, Right::Any)?;
            Scope::only(name)
        }
        None => Scope::of(Right::Any),
    };
    let now = time::clock();
    let queues = queues(&scope, now);
    if let (true, Some(name)) = (queues.is_empty(), name) {
        return Err(Error::UnknownQueue(name.to_string()));
    }
    let counted = counted(&scope, now);
    let looks = looks(&queues, counted.as_ref(), now);
    let nothing = Counted::default();
    for (queue, look) in queues.iter().zip(looks) {
        let of_queue = counted
            .as_ref()
            .map(|all| all.get(&queue.name).unwrap_or(&nothing));
        out.push(&row(queue, of_queue, look, now));
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
            is_ordered: rows.get(row, 5).unwrap_or(false),
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

/// What is counted of a queue.
#[derive(Default)]
struct Counted {
    /// The counters, in the order of `METRICS`.
    counters: [i64; METRICS.len()],
    wait: Histogram,
    run: Histogram,
}

impl Counted {
    fn add_times(&mut self, timing: Option<Timing>, bucket: i32, n: i64) {
        match timing {
            Some(Timing::Wait) => self.wait.add(bucket, n),
            Some(Timing::Run) => self.run.add(bucket, n),
            None => {}
        }
    }
}

/// Reads what is counted of the queues, by their names. None where that is not possible without
/// waiting.
///
/// A segment that is locked is being truncated. It is left out, which is right if the snapshot sees
/// that it is packed. Otherwise it was truncated and used again meanwhile, and all is read again.
fn counted(scope: &Scope, now: i64) -> Option<HashMap<String, Counted>> {
    if !COUNTING.into_iter().all(try_lock) {
        return None;
    }
    let timings = if try_lock("timings") { TIMINGS } else { "" };
    let [is_everything, names] = scope.args();
    let metrics = Arg::from(METRICS.to_vec());
    let effects = effects(metrics);
    for _ in 0..MAX_TRIES {
        let (known, left_out): (Vec<i32>, Vec<i32>) = (1..=SEGMENTS).partition(|segment| {
            counter_segments::table(*segment)
                .is_some_and(|table| relation::try_lock(table, LockMode::Readers))
        });
        let mut tail = "select queue_id, event, bucket, n from only fetchq.counter_log".to_owned();
        for segment in known {
            tail += &format!(
                " union all select queue_id, event, bucket, n from fetchq.counter_log_{segment}
                where not coalesce((select s.is_packed from fetchq.counter_segments s
                    where s.segment {{=}} {segment}), false)"
            );
        }
        let sql = COUNTED
            .replace("{timings}", timings)
            .replace("{tail}", &tail);
        let n_left_out = left_out.len() as i64;
        let args = [
            is_everything,
            names,
            metrics,
            Arg::from(left_out),
            Arg::timestamp(counter_segments::first_minute(now)),
        ];
        let counted = spi::connect(|spi| {
            let rows = spi.once(&sql, &args);
            let is_exact = (0..rows.len()).any(|row| {
                rows.get(row, column::SOURCE) == Some(0)
                    && rows.get(row, column::N) == Some(n_left_out)
            });
            is_exact.then(|| add_up(&rows, &effects))
        });
        if counted.is_some() {
            return counted;
        }
    }
    None
}

/// What an event adds: the place of the metric in `METRICS`, and the sign.
type Effects = HashMap<i32, Vec<(usize, i64)>>;

fn effects(metrics: Arg) -> Effects {
    spi::connect(|spi| {
        let rows = spi.once(EFFECTS, &[metrics]);
        let mut effects = Effects::new();
        for row in 0..rows.len() {
            if let (Some(event), Some(at), Some(sign)) = (
                rows.get(row, 1),
                rows.get::<String>(row, 2)
                    .and_then(|metric| place_of(&metric)),
                rows.get::<i32>(row, 3),
            ) {
                effects
                    .entry(event)
                    .or_default()
                    .push((at, i64::from(sign)));
            }
        }
        effects
    })
}

fn place_of(metric: &str) -> Option<usize> {
    METRICS.iter().position(|known| *known == metric)
}

/// Adds up the rows of `COUNTED`.
fn add_up(rows: &spi::Rows, effects: &Effects) -> HashMap<String, Counted> {
    let mut all: HashMap<String, Counted> = HashMap::new();
    for row in 0..rows.len() {
        let Some(queue) = rows.get::<String>(row, column::QUEUE) else {
            continue;
        };
        let counted = all.entry(queue).or_default();
        let n: i64 = rows.get(row, column::N).unwrap_or(0);
        let name: Option<String> = rows.get(row, column::NAME);
        match rows.get(row, column::SOURCE) {
            Some(1) => {
                if let Some(at) = name.as_deref().and_then(place_of) {
                    counted.counters[at] += n;
                }
            }
            Some(2) => {
                let timing = Timing::ALL
                    .into_iter()
                    .find(|timing| name.as_deref() == Some(timing.word()));
                let buckets: Vec<i32> = rows.get(row, column::BUCKETS).unwrap_or_default();
                let counts: Vec<i64> = rows.get(row, column::COUNTS).unwrap_or_default();
                for (bucket, n) in buckets.into_iter().zip(counts) {
                    counted.add_times(timing, bucket, n);
                }
            }
            _ => {
                let event = rows.get(row, column::EVENT).unwrap_or(0);
                for (at, sign) in effects.get(&event).into_iter().flatten() {
                    counted.counters[*at] += sign * n;
                }
                if let Some(bucket) = rows.get(row, column::BUCKET) {
                    let has_wait = counter_segments::events_with_wait().contains(&event);
                    let timing = if has_wait { Timing::Wait } else { Timing::Run };
                    counted.add_times(Some(timing), bucket, n);
                }
            }
        }
    }
    all
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
        max_due: if queue.is_ordered { MAX_COUNTED } else { 1 },
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
struct Pending {
    ready: i64,
    retrying: i64,
    blocked: i64,
}

fn pending(queue: &Queue, pending: i64, active: i64, look: &PickLook) -> Pending {
    let retrying = i64::from(look.later).min(pending);
    let due = match (look.first_due, queue.is_ordered) {
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

fn row(queue: &Queue, counted: Option<&Counted>, look: LookOf, now: i64) -> Vec<Arg> {
    let count = |at: usize| counted.map(|counted| counted.counters[at].max(0));
    let state = match (count(0), count(2), &look.picks) {
        (Some(n), Some(active), Some(look)) => Some(pending(queue, n, active, look)),
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
    let percentile = |histogram: Option<&Histogram>, percent| {
        Interval::of(histogram.and_then(|histogram| histogram.percentile(percent)))
    };
    let mut row = vec![
        Arg::from(queue.name.as_str()),
        Arg::from(state.as_ref().map(|state| state.ready)),
        Arg::from(state.as_ref().map(|state| state.retrying)),
        Arg::from(state.as_ref().map(|state| state.blocked)),
        Arg::from(count(1)),
        Arg::from(count(2)),
        Arg::from(count(3)),
        Arg::from(count(4)),
        Interval::of(oldest_ready),
        next_due.map_or_else(Arg::no_timestamp, Arg::timestamp),
    ];
    row.extend((5..METRICS.len()).map(|at| Arg::from(count(at))));
    row.extend(
        PERCENTILES.map(|percent| percentile(counted.map(|counted| &counted.wait), percent)),
    );
    row.extend(PERCENTILES.map(|percent| percentile(counted.map(|counted| &counted.run), percent)));
    row.push(Arg::from(!queue.is_active));
    row
}
