//! What is counted of the queues for `queue_stats` and `metric_export`: the counters and the
//! histograms, in one snapshot and without waiting for a lock.

use std::collections::HashMap;
use std::hash::Hash;

use pgrx::pg_sys::Oid;

use crate::domain::settled_pages::Sums;
use crate::domain::timing::{Histogram, Timing};
use crate::pg::relation::{self, LockMode};
use crate::pg::snapshot::Snapshot;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::counters::counter_segments::{self, SEGMENTS};
use crate::store::counters::counter_tail;
use crate::store::queues::plans::run_in;
use crate::store::queues::statement::Statement;

/// How often the counters are read again when a segment was truncated meanwhile.
const MAX_TRIES: usize = 10;

/// The counters that are read, in this order.
pub const METRICS: [&str; 13] = [
    "pnd", "pln", "act", "cpl", "kll", "ent", "pkd", "suc", "fai", "orp", "res", "rej", "ded",
];

// The packed counters. $1: the names of the queues.
static METRICS_OF_ALL: Statement = Statement::new(
    "select m.queue::pg_catalog.text, m.metric::pg_catalog.text, m.value from fetchq.metrics m",
);

static METRICS_OF: Statement = Statement::new(
    "select m.queue::pg_catalog.text, m.metric::pg_catalog.text, m.value from fetchq.metrics m
     where m.queue {=} any ($1)",
);

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
static PACKED: Statement =
    Statement::new("select s.segment from fetchq.counter_segments s where s.is_packed");

// What each event adds to the counters.
static EFFECTS: Statement = Statement::new(
    "select e.event::pg_catalog.int4, e.metric::pg_catalog.text, e.sign::pg_catalog.int4
     from fetchq.counter_events e",
);

/// Tables without which the counters, or the histograms, are not known.
const COUNTING: [&str; 4] = [
    "metrics",
    "counter_events",
    "counter_log",
    "counter_segments",
];

/// Locks a table of fetchq as a reader does, unless that must wait. Returns whether it has the lock.
pub fn try_lock(table: &str) -> bool {
    relation::lookup("fetchq", table)
        .is_some_and(|table| relation::try_lock(table, LockMode::Readers))
}

/// What is counted of a queue.
#[derive(Default)]
pub struct Counted {
    /// The counters, in the order of `METRICS`.
    pub counters: [i64; METRICS.len()],
    /// The waits of the period.
    pub wait: Histogram,
    /// The runs of the period.
    pub run: Histogram,
}

/// Which documents the histograms have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Those that were picked and settled in the last minutes.
    LastMinutes,
    /// Those that were picked and settled since the queue was created, or its metrics were reset.
    Ever,
}

/// What is counted of several queues.
pub struct AllCounted {
    /// In the order in which the queues were given.
    pub queues: Vec<Counted>,
    /// The histograms are complete. Otherwise they lack what is packed.
    pub has_times: bool,
}

impl Counted {
    /// Returns a counter of `METRICS`; 0 for another one. A client may have set it below 0, which
    /// counts as 0.
    pub fn counter(&self, metric: &str) -> i64 {
        place_of(metric).map_or(0, |at| self.counters[at].max(0))
    }

    fn add_times(&mut self, timing: Option<Timing>, bucket: i32, n: i64) {
        match timing {
            Some(Timing::Wait) => self.wait.add(bucket, n),
            Some(Timing::Run) => self.run.add(bucket, n),
            None => {}
        }
    }
}

/// The snapshot of a report, and the tables of the counters that are locked for it.
pub struct Reading {
    /// With which everything is read.
    pub snapshot: Snapshot,
    /// None where the counters cannot be read without waiting.
    counters: Option<Counters>,
}

/// The tables from which the counters are read.
struct Counters {
    /// Those of the counter log that have events that are not packed.
    tail: Vec<Oid>,
    /// The packed histograms can be read.
    has_times: bool,
}

impl Reading {
    /// Locks the tables of the counters as a reader does, unless that must wait, and takes the
    /// snapshot by `take`.
    ///
    /// A segment that is locked is being truncated. It is left out, which is right if the snapshot
    /// sees that it is packed. Otherwise it was truncated and used again meanwhile, and another
    /// snapshot is needed.
    pub fn begin(take: fn() -> Snapshot) -> Self {
        if !COUNTING.into_iter().all(try_lock) {
            return Self::without_counters(take());
        }
        let has_times = try_lock("timings");
        for _ in 0..MAX_TRIES {
            let (locked, left_out): (Vec<_>, Vec<_>) = (1..=SEGMENTS)
                .map(|segment| (segment, counter_segments::table(segment)))
                .partition(|(_, table)| {
                    table.is_some_and(|table| relation::try_lock(table, LockMode::Readers))
                });
            let snapshot = take();
            let packed: Vec<i32> = spi::connect(|spi| {
                let rows = run_in(spi, &PACKED, &[], &snapshot);
                (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
            });
            if left_out.iter().all(|(segment, _)| packed.contains(segment)) {
                let locked = locked
                    .iter()
                    .filter(|(segment, _)| !packed.contains(segment));
                let mut tail: Vec<Oid> = locked.filter_map(|(_, table)| *table).collect();
                tail.extend(relation::lookup("fetchq", "counter_log"));
                return Self {
                    snapshot,
                    counters: Some(Counters { tail, has_times }),
                };
            }
        }
        Self::without_counters(take())
    }

    fn without_counters(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            counters: None,
        }
    }

    /// Reads what is counted of queues, which are given by their IDs and their names: of all, or of
    /// some. Without a period the histograms stay empty. None where it is not possible without waiting.
    pub fn counted(
        &self,
        queues: &[(i32, &str)],
        are_all: bool,
        period: Option<Period>,
        now: i64,
    ) -> Option<AllCounted> {
        let counters = self.counters.as_ref()?;
        let mut all: Vec<Counted> = queues.iter().map(|_| Counted::default()).collect();
        let (ids, names): (Vec<i32>, Vec<&str>) = queues.iter().copied().unzip();
        self.add_packed(&names, are_all, &mut all);
        if let Some(period) = period.filter(|_| counters.has_times) {
            self.add_times(&ids, are_all, period, now, &mut all);
        }
        self.add_tail(self.tail()?, &ids, &mut all);
        Some(AllCounted {
            queues: all,
            has_times: counters.has_times,
        })
    }

    fn add_packed(&self, names: &[&str], are_all: bool, all: &mut [Counted]) {
        let places = places_of(names);
        spi::connect(|spi| {
            let rows = match are_all {
                true => run_in(spi, &METRICS_OF_ALL, &[], &self.snapshot),
                false => run_in(
                    spi,
                    &METRICS_OF,
                    &[Arg::from(names.to_vec())],
                    &self.snapshot,
                ),
            };
            for row in 0..rows.len() {
                if let Some(metric) = rows.text(row, 2).and_then(place_of)
                    && let Some(at) = rows.text(row, 1).and_then(|queue| places.get(queue))
                {
                    all[*at].counters[metric] += rows.get(row, 3).unwrap_or(0);
                }
            }
        });
    }

    fn add_times(&self, ids: &[i32], are_all: bool, period: Period, now: i64, all: &mut [Counted]) {
        let places = places_of(ids);
        let mut args = vec![
            Arg::timestamp(counter_segments::first_minute(now)),
            Arg::from(period == Period::Ever),
        ];
        spi::connect(|spi| {
            let rows = match are_all {
                true => run_in(spi, &TIMINGS_OF_ALL, &args, &self.snapshot),
                false => {
                    args.push(Arg::from(ids.to_vec()));
                    run_in(spi, &TIMINGS_OF, &args, &self.snapshot)
                }
            };
            for row in 0..rows.len() {
                let Some(at) = rows.get(row, 1).and_then(|id: i32| places.get(&id)) else {
                    continue;
                };
                let kind: Option<String> = rows.get(row, 2);
                let timing = Timing::ALL
                    .into_iter()
                    .find(|timing| kind.as_deref() == Some(timing.word()));
                let buckets: Vec<i32> = rows.get(row, 3).unwrap_or_default();
                let counts: Vec<i64> = rows.get(row, 4).unwrap_or_default();
                for (bucket, n) in buckets.into_iter().zip(counts) {
                    all[*at].add_times(timing, bucket, n);
                }
            }
        });
    }

    /// Adds up the events that are not packed. None where it is not possible without waiting.
    pub fn tail(&self) -> Option<Sums> {
        let counters = self.counters.as_ref()?;
        let mut sums = Sums::default();
        for table in &counters.tail {
            counter_tail::add_events(*table, &self.snapshot, &mut sums);
        }
        Some(sums)
    }

    fn add_tail(&self, sums: Sums, ids: &[i32], all: &mut [Counted]) {
        if sums.is_empty() {
            return;
        }
        let places = places_of(ids);
        let effects = self.effects(place_of);
        let with_wait = counter_segments::events_with_wait();
        for (key, n) in sums {
            let Some(at) = places.get(&key.queue()) else {
                continue;
            };
            let event = i32::from(key.event());
            for (metric, sign) in effects.get(&event).into_iter().flatten() {
                all[*at].counters[*metric] += sign * n;
            }
            if let Some(bucket) = key.bucket() {
                let timing = match with_wait.contains(&event) {
                    true => Timing::Wait,
                    false => Timing::Run,
                };
                all[*at].add_times(Some(timing), i32::from(bucket), n);
            }
        }
    }

    /// Returns what each event adds to which metric: to those of which `metric_of` makes something.
    pub fn effects<T>(&self, metric_of: impl Fn(&str) -> Option<T>) -> Effects<T> {
        spi::connect(|spi| {
            let rows = run_in(spi, &EFFECTS, &[], &self.snapshot);
            let mut effects = Effects::new();
            for row in 0..rows.len() {
                if let (Some(event), Some(metric), Some(sign)) = (
                    rows.get(row, 1),
                    rows.text(row, 2).and_then(&metric_of),
                    rows.get::<i32>(row, 3),
                ) {
                    let of_event: &mut Vec<(T, i64)> = effects.entry(event).or_default();
                    of_event.push((metric, i64::from(sign)));
                }
            }
            effects
        })
    }
}

/// What each event adds: the metric, and the sign.
pub type Effects<T> = HashMap<i32, Vec<(T, i64)>>;

/// The place of each element.
fn places_of<T: Copy + Eq + Hash>(elements: &[T]) -> HashMap<T, usize> {
    let places = elements.iter().enumerate();
    places.map(|(at, element)| (*element, at)).collect()
}

fn place_of(metric: &str) -> Option<usize> {
    METRICS.iter().position(|known| *known == metric)
}
