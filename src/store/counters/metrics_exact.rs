//! The counters of queues, exact at one moment: what is packed in `fetchq.metrics` and `fetchq.timings`,
//! and the events of the counter log that are not packed yet, in one snapshot.
//!
//! The view `fetchq.metrics_exact` says the same in SQL.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use pgrx::pg_sys::Oid;

use crate::domain::counter_events::{self, Effects, METRICS};
use crate::domain::names::QueueName;
use crate::domain::timing::{Histogram, Timing};
use crate::pg::relation::{self, LockMode};
use crate::pg::snapshot::Snapshot;
use crate::pg::spi;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::counters::counter_rows::{self, Events};
use crate::store::counters::counter_segments::{self, SEGMENTS};
use crate::store::queues::plans::run_in;
use crate::store::queues::statement::Statement;

/// How often the counters are read again when a segment was truncated meanwhile.
const MAX_TRIES: usize = 10;

// The packed counters of all queues, or of some. $1: their names.
macro_rules! packed {
    ($some:literal) => {
        concat!(
            "select m.queue::pg_catalog.text, m.metric::pg_catalog.text, m.value, m.updated_at
             from fetchq.metrics m ",
            $some
        )
    };
}

static PACKED_OF_ALL: Statement = Statement::new(packed!(""));

static PACKED: Statement = Statement::new(packed!("where m.queue {=} any ($1)"));

// The packed histograms. $1: the first minute that counts. $2: all minutes count.
static TIMINGS_OF_ALL: Statement = Statement::new(
    "select t.queue_id, t.kind, t.buckets, t.counts from fetchq.timings t
     where $2 or t.slot {>} 0 and t.minute {>=} $1",
);

// $3: the IDs of the queues.
static TIMINGS_OF: Statement = Statement::new(
    "select t.queue_id, t.kind, t.buckets, t.counts from fetchq.timings t
     where t.queue_id {=} any ($3) and ($2 or t.slot {>} 0 and t.minute {>=} $1)",
);

// The segments whose events are in the metrics.
static PACKED_SEGMENTS: Statement =
    Statement::new("select s.segment from fetchq.counter_segments s where s.is_packed");

// The keys of queues in the counter log. $1: their names.
static IDS: Statement = Statement::new(
    "select q.id, q.name::pg_catalog.text from fetchq.queues q where q.name {=} any ($1)",
);

// Where the counters cannot be read without waiting. $1: the name of the queue.
const BY_STATEMENT: &str =
    "select metric::pg_catalog.text, value, updated_at from fetchq.metrics_exact
    where queue {=} $1";

/// Tables without which the counters are not known, beside the segments.
const COUNTING: [&str; 3] = ["metrics", "counter_log", "counter_segments"];

/// The metric of the versions that are not counted one by one. It exists once there are any.
const OTHER_VERSIONS: &str = "v_other";

/// The metric of documents that were picked.
const PICKED: &str = "pkd";

/// Locks a table of fetchq as a reader does, unless that must wait. Returns whether it has the lock.
pub fn try_lock(table: &str) -> bool {
    relation::lookup("fetchq", table)
        .is_some_and(|table| relation::try_lock(table, LockMode::Readers))
}

/// What is counted of a queue.
#[derive(Default)]
pub struct Counted {
    /// In the order of `METRICS`.
    counters: [i64; METRICS.len()],
    /// The waits of the period.
    pub wait: Histogram,
    /// The runs of the period.
    pub run: Histogram,
    /// When documents were picked last, in microseconds since 2000. What is packed counts as of its pack,
    /// seconds later. None: never.
    pub picked_at: Option<i64>,
}

impl Counted {
    /// Returns a counter of `METRICS`; 0 for another one. A client may have set it below 0, which
    /// counts as 0.
    pub fn counter(&self, metric: &str) -> i64 {
        self.raw(metric).max(0)
    }

    /// As [`Self::counter`], as it was set.
    pub fn raw(&self, metric: &str) -> i64 {
        place_of(metric).map_or(0, |at| self.counters[at])
    }

    fn add_times(&mut self, timing: Option<Timing>, bucket: i32, n: i64) {
        match timing {
            Some(Timing::Wait) => self.wait.add(bucket, n),
            Some(Timing::Run) => self.run.add(bucket, n),
            None => {}
        }
    }
}

/// Which documents the histograms have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Those that were picked and settled in the last minutes.
    LastMinutes,
    /// Those that were picked and settled since the queue was created, or its metrics were reset.
    Ever,
}

/// The value of a metric.
#[derive(Debug, Default, Clone, Copy)]
pub struct Metric {
    /// The value.
    pub value: i64,
    /// When it was last changed, in microseconds since 2000. The events that are not packed are of
    /// now.
    pub updated_at: Option<i64>,
}

/// The metrics of a queue by their names.
pub type Metrics = BTreeMap<String, Metric>;

/// What is known of a queue.
#[derive(Default)]
pub struct Known {
    /// The key of its row in `fetchq.queues`. None: it has no such row.
    pub id: Option<i32>,
    /// Its metrics.
    pub metrics: Metrics,
}

/// The snapshot of a report, and the tables of the counters that are locked for it.
pub struct Reading {
    /// With which everything is read.
    pub snapshot: Snapshot,
    /// The tables of the counter log that have events that are not packed. None where the counters
    /// cannot be read without waiting.
    tail: Option<Vec<Oid>>,
    /// The packed histograms can be read.
    pub has_times: bool,
}

impl Reading {
    /// Locks the tables of the counters as a reader does, unless that must wait, and takes the
    /// snapshot by `take`.
    ///
    /// A segment that is locked is being truncated. It is left out, which is right if the snapshot
    /// sees that it is packed. Otherwise it was truncated and used again meanwhile, and another
    /// snapshot is needed.
    pub fn begin(take: fn() -> Snapshot) -> Self {
        let can_count = COUNTING.into_iter().all(try_lock);
        let has_times = can_count && try_lock("timings");
        let tries = if can_count { MAX_TRIES } else { 0 };
        for _ in 0..tries {
            let (locked, left_out): (Vec<_>, Vec<_>) = (1..=SEGMENTS)
                .map(|segment| (segment, counter_segments::table(segment)))
                .partition(|(_, table)| {
                    table.is_some_and(|table| relation::try_lock(table, LockMode::Readers))
                });
            let snapshot = take();
            let packed: Vec<i32> = spi::connect(|spi| {
                let rows = run_in(spi, &PACKED_SEGMENTS, &[], &snapshot);
                (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
            });
            if left_out.iter().all(|(segment, _)| packed.contains(segment)) {
                let locked = locked
                    .iter()
                    .filter(|(segment, _)| !packed.contains(segment));
                let segments = locked.filter_map(|(_, table)| *table);
                let tail = segments.chain(relation::lookup("fetchq", "counter_log"));
                return Self {
                    snapshot,
                    tail: Some(tail.collect()),
                    has_times,
                };
            }
        }
        Self {
            snapshot: take(),
            tail: None,
            has_times: false,
        }
    }

    /// Reads what is counted of queues, which are given by their IDs and their names: of all, or of
    /// some. Without a period the histograms stay empty. None where it is not possible without waiting.
    pub fn counted(
        &self,
        ids: &[i32],
        names: &[&str],
        are_all: bool,
        period: Option<Period>,
        now: i64,
    ) -> Option<Vec<Counted>> {
        let tail = self.tail.as_deref()?;
        let mut all: Vec<Counted> = ids.iter().map(|_| Counted::default()).collect();
        let places = places_of(names);
        self.each_packed(Some(names).filter(|_| !are_all), |queue, metric, packed| {
            if let (Some(place), Some(at)) = (place_of(metric), places.get(queue)) {
                let counted = &mut all[*at];
                counted.counters[place] += packed.value;
                if metric == PICKED {
                    counted.picked_at = packed.updated_at;
                }
            }
        });
        let picked = place_of(PICKED);
        let places = places_of(ids);
        if let Some(period) = period.filter(|_| self.has_times) {
            let some = Some(ids).filter(|_| !are_all);
            self.each_time(some, period, now, |queue, timing, bucket, n| {
                if let Some(at) = places.get(&queue) {
                    all[*at].add_times(timing, bucket, n);
                }
            });
        }
        self.each_event(tail, |events| {
            let Some(at) = places.get(&events.queue) else {
                return;
            };
            let effects = Effects::of(events.code);
            for (metric, sign) in effects.signs() {
                all[*at].counters[metric] += sign * events.n;
                if Some(metric) == picked {
                    all[*at].picked_at = Some(now);
                }
            }
            if let (Some(bucket), Some(_)) = (events.bucket, period) {
                let times = counter_events::times(events.code, bucket as i16);
                for (timing, bucket) in [Timing::Wait, Timing::Run].into_iter().zip(times) {
                    if let Some(bucket) = bucket {
                        all[*at].add_times(Some(timing), bucket.into(), events.n);
                    }
                }
            }
        });
        Some(all)
    }

    /// Calls `visit` with the queue, the name and the packed value of each metric, of all queues or of some.
    fn each_packed(&self, some: Option<&[&str]>, mut visit: impl FnMut(&str, &str, Metric)) {
        spi::connect(|spi| {
            let rows = match some {
                None => run_in(spi, &PACKED_OF_ALL, &[], &self.snapshot),
                Some(names) => run_in(spi, &PACKED, &[Arg::from(names.to_vec())], &self.snapshot),
            };
            for row in 0..rows.len() {
                if let (Some(queue), Some(metric)) = (rows.text(row, 1), rows.text(row, 2)) {
                    visit(queue, metric, metric_in(&rows, row, 3));
                }
            }
        });
    }

    /// Calls `visit` with the queue and a bucket of each packed histogram, of all queues or of some.
    fn each_time(
        &self,
        some: Option<&[i32]>,
        period: Period,
        now: i64,
        mut visit: impl FnMut(i32, Option<Timing>, i32, i64),
    ) {
        let mut args = vec![
            Arg::timestamp(counter_segments::first_minute(now)),
            Arg::from(period == Period::Ever),
        ];
        args.extend(some.map(|ids| Arg::from(ids.to_vec())));
        spi::connect(|spi| {
            let statement = match some {
                None => &TIMINGS_OF_ALL,
                Some(_) => &TIMINGS_OF,
            };
            let rows = run_in(spi, statement, &args, &self.snapshot);
            for row in 0..rows.len() {
                let (queue, kind) = (rows.get(row, 1).unwrap_or(0), rows.text(row, 2));
                let timing = Timing::ALL
                    .into_iter()
                    .find(|timing| kind == Some(timing.word()));
                let buckets: Vec<i32> = rows.get(row, 3).unwrap_or_default();
                let counts: Vec<i64> = rows.get(row, 4).unwrap_or_default();
                for (bucket, n) in buckets.into_iter().zip(counts) {
                    visit(queue, timing, bucket, n);
                }
            }
        });
    }

    /// Calls `visit` with the events that are not packed.
    fn each_event(&self, tail: &[Oid], mut visit: impl FnMut(Events)) {
        for table in tail {
            counter_rows::read(*table, &self.snapshot, &mut visit);
        }
    }

    /// What is counted of queues, which are given by their names. None where it is not possible without waiting.
    fn metrics(&self, names: &[&str]) -> Option<Vec<Known>> {
        let tail = self.tail.as_deref()?;
        let mut all: Vec<Known> = names.iter().map(|_| Known::default()).collect();
        let places = places_of(names);
        self.each_packed(Some(names), |queue, metric, packed| {
            if let Some(at) = places.get(queue) {
                all[*at].metrics.insert(metric.to_owned(), packed);
            }
        });
        let mut queues: HashMap<i32, usize> = HashMap::new();
        spi::connect(|spi| {
            let rows = run_in(spi, &IDS, &[Arg::from(names.to_vec())], &self.snapshot);
            for row in 0..rows.len() {
                let name = rows.text(row, 2);
                if let (Some(id), Some(at)) = (rows.get(row, 1), name.and_then(|n| places.get(n))) {
                    all[*at].id = Some(id);
                    queues.insert(id, *at);
                }
            }
        });
        let mut sums: HashMap<(usize, i32, i16), i64> = HashMap::new();
        self.each_event(tail, |events| {
            if let Some(at) = queues.get(&events.queue) {
                *sums.entry((*at, events.version, events.code)).or_default() += events.n;
            }
        });
        let now = Some(time::now());
        for ((at, version, code), n) in sums {
            let metrics = &mut all[at].metrics;
            for (place, sign) in Effects::of(code).signs() {
                let name = match METRICS[place] {
                    "v" => metric_of_version(metrics, version),
                    name => name.to_owned(),
                };
                let metric = metrics.entry(name).or_default();
                metric.value += sign * n;
                metric.updated_at = metric.updated_at.max(now);
            }
        }
        Some(all)
    }
}

/// Reads all metrics of a queue. Metrics need no queue: clients may set some for a name of their own.
pub fn read(queue: &QueueName) -> Metrics {
    let known = read_many(&[queue.as_str()]).pop();
    known.map(|known| known.metrics).unwrap_or_else(|| {
        spi::connect(|spi| {
            let rows = spi.once(BY_STATEMENT, &[Arg::from(queue.as_str())]);
            let metric = |row| Some((rows.get(row, 1)?, metric_in(&rows, row, 2)));
            (0..rows.len()).filter_map(metric).collect()
        })
    })
}

/// Reads all metrics of several queues, in the order of the list. What is not packed is read once for all of
/// them. Returns an empty list where it is not possible without waiting.
pub fn read_many(queues: &[&str]) -> Vec<Known> {
    let reading = Reading::begin(Snapshot::take);
    reading.metrics(queues).unwrap_or_default()
}

/// The value of a metric in a column of a row, and the time in the next one.
fn metric_in(rows: &spi::Rows, row: usize, column: i32) -> Metric {
    Metric {
        value: rows.get(row, column).unwrap_or(0),
        updated_at: rows.timestamp(row, column + 1),
    }
}

/// The metric in which a version is counted.
fn metric_of_version(metrics: &Metrics, version: i32) -> String {
    let own = format!("v{version}");
    match metrics.contains_key(OTHER_VERSIONS) && !metrics.contains_key(&own) {
        true => OTHER_VERSIONS.to_owned(),
        false => own,
    }
}

/// The place of each element.
fn places_of<T: Copy + Eq + Hash>(elements: &[T]) -> HashMap<T, usize> {
    let places = elements.iter().enumerate();
    places.map(|(at, element)| (*element, at)).collect()
}

fn place_of(metric: &str) -> Option<usize> {
    METRICS.iter().position(|known| *known == metric)
}
