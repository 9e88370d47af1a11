//! What is counted of the queues for `queue_stats` and `metric_export`: the counters and the
//! histograms, in one snapshot and without waiting for a lock.

use std::collections::HashMap;

use crate::domain::timing::{Histogram, Timing};
use crate::pg::relation::{self, LockMode};
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::counter_segments::{self, SEGMENTS};
use crate::store::rights::Scope;

/// How often the counters are read again when a segment was truncated meanwhile.
const MAX_TRIES: usize = 10;

/// The counters that are read, in this order.
pub const METRICS: [&str; 13] = [
    "pnd", "pln", "act", "cpl", "kll", "ent", "pkd", "suc", "fai", "orp", "res", "rej", "ded",
];

// Everything that is counted, in one snapshot: how many of the segments that are left out are packed;
// the packed counters; the histograms; and the events that are not packed yet.
// {tail}: the events of the segments that could be locked. {timings}: `TIMINGS`, or nothing where
// that table is locked. $1, $2: as above. $3: the metrics. $4: the segments that are left out. $5:
// the first minute that counts. $6: all minutes count.
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
    where $6 or t.slot {>} 0 and t.minute {>=} $5";

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
    /// By the name of the queue. One that is not here has counted nothing.
    pub queues: HashMap<String, Counted>,
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

/// Reads what is counted of the queues. None where that is not possible without
/// waiting.
///
/// A segment that is locked is being truncated. It is left out, which is right if the snapshot sees
/// that it is packed. Otherwise it was truncated and used again meanwhile, and all is read again.
pub fn counted(scope: &Scope, period: Period, now: i64) -> Option<AllCounted> {
    if !COUNTING.into_iter().all(try_lock) {
        return None;
    }
    let has_times = try_lock("timings");
    let timings = if has_times { TIMINGS } else { "" };
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
            Arg::from(period == Period::Ever),
        ];
        let counted = spi::connect(|spi| {
            let rows = spi.once(&sql, &args);
            let is_exact = (0..rows.len()).any(|row| {
                rows.get(row, column::SOURCE) == Some(0)
                    && rows.get(row, column::N) == Some(n_left_out)
            });
            is_exact.then(|| add_up(&rows, &effects))
        });
        if let Some(queues) = counted {
            return Some(AllCounted { queues, has_times });
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
