//! Removing snapshots of metrics and the log of errors when they are old.

use crate::domain::names::QueueName;
use crate::domain::retention::Rule;
use crate::error::{Error, Result};
use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue_places;
use crate::store::queues::statement::render;

// The newest row of each metric and unit of time stays. Rows that another session is removing
// are skipped.
const RETAIN: &str = "delete from {metrics} where ctid {=} any (array(
    select m.ctid from {metrics} m
    where m.id {=} any (
        select ranked.id from (
            select id, pg_catalog.row_number() over (
                partition by metric, pg_catalog.date_trunc($1, created_at)
                order by created_at desc, id desc) as n
            from {metrics}
            where created_at {>=} (pg_catalog.now() {-} $2) and created_at {<=} (pg_catalog.now() {-} $3)) ranked
        where ranked.n {>} 1)
    for update skip locked))";

/// Applies a retention policy to the snapshots of a queue. Returns how many rows it removed.
/// Fails with `Error::BadUnit` and `Error::BadDuration` for a rule that cannot be applied.
pub fn retain(name: &QueueName, rules: &[Rule]) -> Result<i32> {
    let mut removed = 0;
    for rule in rules {
        check_unit(&rule.retain)?;
        let from = Interval::parse(&rule.from).as_duration("from")?.arg();
        let to = Interval::parse(&rule.to).as_duration("to")?.arg();
        removed += spi::connect(|spi| {
            spi.once(
                &render(RETAIN, name),
                &[Arg::from(rule.retain.as_str()), from, to],
            )
            .affected()
        });
    }
    Ok(removed)
}

const GET_METRICS_RETENTION: &str = "select coalesce(metrics_retention, '[]')::pg_catalog.text from fetchq.queues where name {=} $1";

/// The retention policy of a queue, as JSON text. Fails with `Error::UnknownQueue`.
pub fn metrics_retention(name: &QueueName) -> Result<String> {
    spi::connect(|spi| {
        let rows = spi.once(GET_METRICS_RETENTION, &[Arg::from(name.as_str())]);
        if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        }
    })
    .ok_or_else(|| queue_places::unknown(name))
}

/// The units of time of date_trunc().
const UNITS: [&str; 13] = [
    "microseconds",
    "milliseconds",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
    "decade",
    "century",
    "millennium",
];

/// Fails with `Error::BadUnit` for a unit of time that date_trunc() does not know.
pub fn check_unit(unit: &str) -> Result<()> {
    if UNITS.contains(&unit.to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        Err(Error::BadUnit(unit.to_owned()))
    }
}

// Rows that another session is removing are skipped.
const DROP_LOGS_OLDER_THAN: &str = "delete from {logs} where ctid {=} any (array(
    select ctid from {logs} where created_at {<} (pg_catalog.now() {-} $1)
    order by created_at limit $2
    for update skip locked))";

/// Removes the rows of a queue's log of errors that are older than `age`, an interval, the
/// oldest first; with a limit at most as many. Returns how many.
pub fn drop_logs_older_than(queue: &Queue, age: Arg, limit: Option<i64>) -> i32 {
    let args = [age, Arg::from(limit)];
    spi::connect(|spi| queue.once(spi, DROP_LOGS_OLDER_THAN, &args).affected())
}

const GET_LOGS_RETENTION: &str =
    "select logs_retention::pg_catalog.text from fetchq.queues where id {=} $1";

/// How long a queue keeps its log of errors: the text of an interval. 24 hours where the queue
/// has no setting, as in fetchq 4.
pub fn logs_retention(queue: &Queue) -> String {
    spi::connect(|spi| {
        let rows = spi.once(GET_LOGS_RETENTION, &[Arg::from(queue.id)]);
        let own = if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        };
        own.unwrap_or_else(|| "24h".to_owned())
    })
}
