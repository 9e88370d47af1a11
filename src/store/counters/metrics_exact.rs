//! The exact metrics of a queue at this moment: what is packed in `fetchq.metrics`, and the events of
//! the counter log that are not packed yet, in one snapshot.
//!
//! The view `fetchq.metrics_exact` says the same in SQL. It reads every event by the executor each
//! time, while a session that reads here remembers what it has added up (`store::counter_tail`).

use std::collections::BTreeMap;

use crate::domain::names::QueueName;
use crate::pg::snapshot::Snapshot;
use crate::pg::spi;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::counters::stats_counted::Reading;
use crate::store::queues::plans::run_in;
use crate::store::queues::statement::Statement;

// The packed metrics. $1: the name of the queue.
static PACKED: Statement = Statement::new(
    "select m.metric::pg_catalog.text, m.value, m.updated_at from fetchq.metrics m
     where m.queue {=} $1",
);

// The key of a queue in the counter log. $1: its name.
static ID: Statement = Statement::new("select q.id from fetchq.queues q where q.name {=} $1");

// Where the events cannot be read without waiting. $1: the name of the queue.
const BY_STATEMENT: &str =
    "select metric::pg_catalog.text, value, updated_at from fetchq.metrics_exact
    where queue {=} $1";

/// The metric of the events of a version: `v` and the version.
const VERSION: &str = "v";

/// The metric of the versions that are not counted one by one. It exists once there are any.
const OTHER_VERSIONS: &str = "v_other";

/// The metric in which a version is counted.
fn metric_of_version(metrics: &Metrics, version: i32) -> String {
    let own = format!("{VERSION}{version}");
    match metrics.contains_key(OTHER_VERSIONS) && !metrics.contains_key(&own) {
        true => OTHER_VERSIONS.to_owned(),
        false => own,
    }
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

/// Reads all metrics of a queue. Metrics need no queue: clients may set some for a name of their own.
pub fn read(queue: &QueueName) -> Metrics {
    let reading = Reading::begin(Snapshot::take);
    added_up(&reading, queue).unwrap_or_else(|| by_statement(queue))
}

fn by_statement(queue: &QueueName) -> Metrics {
    spi::connect(|spi| metrics_in(&spi.once(BY_STATEMENT, &[Arg::from(queue.as_str())])))
}

fn metrics_in(rows: &spi::Rows) -> Metrics {
    let metric = |row| {
        let value = Metric {
            value: rows.get(row, 2).unwrap_or(0),
            updated_at: rows.timestamp(row, 3),
        };
        Some((rows.get(row, 1)?, value))
    };
    (0..rows.len()).filter_map(metric).collect()
}

/// None where it is not possible without waiting.
fn added_up(reading: &Reading, queue: &QueueName) -> Option<Metrics> {
    let tail = reading.tail()?;
    let args = [Arg::from(queue.as_str())];
    let (mut metrics, id) = spi::connect(|spi| {
        let metrics = metrics_in(&run_in(spi, &PACKED, &args, &reading.snapshot));
        let rows = run_in(spi, &ID, &args, &reading.snapshot);
        let id: Option<i32> = (0..rows.len()).find_map(|row| rows.get(row, 1));
        (metrics, id)
    });
    let events: Vec<_> = tail
        .into_iter()
        .filter(|(key, _)| Some(key.queue()) == id)
        .collect();
    if events.is_empty() {
        return Some(metrics);
    }
    let effects = reading.effects(|metric| Some(metric.to_owned()));
    let now = Some(time::now());
    for (key, n) in events {
        for (metric, sign) in effects.get(&i32::from(key.event())).into_iter().flatten() {
            let name = match metric.as_str() {
                VERSION => metric_of_version(&metrics, key.version()),
                _ => metric.clone(),
            };
            let metric = metrics.entry(name).or_default();
            metric.value += sign * n;
            metric.updated_at = metric.updated_at.max(now);
        }
    }
    Some(metrics)
}
