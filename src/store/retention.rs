//! Snapshots of metrics over time, and their retention.

use crate::domain::names::QueueName;
use crate::domain::retention::Rule;
use crate::error::{Error, Result};
use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::open_queue::Queue;
use crate::store::statement::render;

// The newest row of each metric and unit stays. Rows that another session is
// removing are skipped.
const RETAIN: &str = "delete from {metrics} where ctid = any (array(
    select m.ctid from {metrics} m
    where m.id in (
        select id from (
            select id, row_number() over (
                partition by metric, date_trunc($1, created_at)
                order by created_at desc, id desc) as n
            from {metrics} where created_at between now() - $2 and now() - $3) ranked
        where n > 1)
    for update skip locked))";

/// Applies a retention policy to the snapshots of a queue; says how many it removed.
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

const METRICS_RETENTION: &str =
    "select coalesce(metrics_retention, '[]')::text from fetchq.queues where name = $1";

/// The queue's own policy, as JSON text.
pub fn metrics_retention(name: &QueueName) -> Result<String> {
    spi::connect(|spi| {
        let rows = spi.once(METRICS_RETENTION, &[Arg::from(name.as_str())]);
        if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        }
    })
    .ok_or_else(|| Error::UnknownQueue(name.to_string()))
}

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

/// Refuses what date_trunc() does not know.
pub fn check_unit(unit: &str) -> Result<()> {
    if UNITS.contains(&unit.to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        Err(Error::BadUnit(unit.to_owned()))
    }
}

// $1 is a regclass and prints itself quoted and qualified; the field is quoted here.
const TABLE_AND_FIELD: &str = "select c.oid::regclass::text, quote_ident($2)
    from pg_class c where c.oid = $1::regclass";

/// Both names come quoted from the server.
fn retain_any_sql(table: &str, field: &str) -> String {
    format!(
        "delete from {table} where ctid = any (array(
            select ctid from (
                select ctid, row_number() over (
                    partition by date_trunc($1, {field}) order by {field} desc, ctid desc) as n
                from {table} where {field} between $2 and $3
            ) ranked where n > 1))"
    )
}

/// Keeps the newest row of any table for every unit of time between two moments.
pub fn retain_any(table: &str, field: &str, unit: &str, from: i64, to: i64) -> Result<i64> {
    check_unit(unit)?;
    spi::connect(|spi| {
        let rows = spi.once(TABLE_AND_FIELD, &[Arg::from(table), Arg::from(field)]);
        let (Some(table), Some(field)) = (rows.get::<String>(0, 1), rows.get::<String>(0, 2))
        else {
            return Err(Error::BadValue {
                argument: "table",
                value: table.to_owned(),
                rule: "the name of a table",
            });
        };
        let sql = retain_any_sql(&table, &field);
        let args = [Arg::from(unit), Arg::timestamp(from), Arg::timestamp(to)];
        Ok(i64::from(spi.once(&sql, &args).affected()))
    })
}

/// Removes the lines that are older than a point in time. Lines that another session
/// is removing are skipped.
const DROP_BEFORE: &str = "delete from {logs} where ctid = any (array(
    select ctid from {logs} where created_at < $1 for update skip locked))";

pub fn drop_logs_before(queue: &Queue, before: Arg) -> i32 {
    spi::connect(|spi| queue.once(spi, DROP_BEFORE, &[before]).affected())
}

const DROP_OLDER_THAN: &str = "delete from {logs} where ctid = any (array(
    select ctid from {logs} where created_at < now() - $1
    order by created_at limit $2
    for update skip locked))";

/// Removes the lines that are older than that, the oldest first; with a limit not more
/// than so many.
pub fn drop_logs_older_than(queue: &Queue, age: Arg, limit: Option<i64>) -> i32 {
    let args = [age, Arg::from(limit)];
    spi::connect(|spi| queue.once(spi, DROP_OLDER_THAN, &args).affected())
}

const LOGS_RETENTION: &str = "select logs_retention::text from fetchq.queues where id = $1";

/// The queue's own retention; the default of fetchq 4 where it has none.
pub fn logs_retention(queue: &Queue) -> String {
    spi::connect(|spi| {
        let rows = spi.once(LOGS_RETENTION, &[Arg::from(queue.id)]);
        let own = if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        };
        own.unwrap_or_else(|| "24h".to_owned())
    })
}
