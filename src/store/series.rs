//! Snapshots of metrics over time, and their retention.

use crate::domain::names::QueueName;
use crate::domain::retention::Rule;
use crate::error::{Error, Result};
use crate::pg::spi::{self, Arg};
use crate::pg::time::Interval;

use super::plans::render;

const SNAP_ALL: &str = "insert into {metrics} (metric, value)
    select metric, value from fetchq.metrics_live where queue = $1 order by metric";
const SNAP_SOME: &str = "insert into {metrics} (metric, value)
    select metric, value from fetchq.metrics_live where queue = $1 and metric = any ($2) order by metric";
const SNAP_ONE: &str = "insert into {metrics} (metric, value)
    select $2, coalesce((select value from fetchq.metrics_live where queue = $1 and metric = $2), 0)";

/// Which metrics a snapshot takes.
pub enum Which<'a> {
    All,
    /// This one, as 0 when it does not exist.
    One(&'a str),
    /// Those of the list that exist.
    Some(Vec<String>),
}

/// Takes a snapshot; says how many rows it wrote.
pub fn snap(name: &QueueName, which: Which) -> i32 {
    let queue = Arg::from(name.as_str());
    spi::connect(|spi| {
        match which {
            Which::All => spi.once(&render(SNAP_ALL, name), &[queue]),
            Which::One(metric) => spi.once(&render(SNAP_ONE, name), &[queue, Arg::from(metric)]),
            Which::Some(metrics) => {
                spi.once(&render(SNAP_SOME, name), &[queue, Arg::from(metrics)])
            }
        }
        .affected()
    })
}

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

const RETENTION: &str =
    "select coalesce(metrics_retention, '[]')::text from fetchq.queues where name = $1";

/// The queue's own policy, as JSON text.
pub fn retention(name: &QueueName) -> Result<String> {
    spi::connect(|spi| {
        let rows = spi.once(RETENTION, &[Arg::from(name.as_str())]);
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
