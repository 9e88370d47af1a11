//! Thinning out rows of any table by time (`utils_ts_retain`), and removing the log of errors before a
//! time.

use crate::error::{Error, Result};
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::upkeep::retention::check_unit;

// $1 is read as a regclass, whose text is quoted and qualified. The field is quoted here.
const GET_TABLE_AND_FIELD: &str =
    "select c.oid::pg_catalog.regclass::pg_catalog.text, pg_catalog.quote_ident($2)
    from pg_catalog.pg_class c
    where c.oid operator(pg_catalog.=) $1::pg_catalog.regclass";

/// The statement of `retain_any`. The server has quoted both names. Operators are not written as
/// markers, because the names may contain the text of a marker.
fn retain_any_sql(table: &str, field: &str) -> String {
    format!(
        "delete from {table} where ctid operator(pg_catalog.=) any (array(
            select ranked.ctid from (
                select ctid, pg_catalog.row_number() over (
                    partition by pg_catalog.date_trunc($1, {field}) order by {field} desc, ctid desc) as n
                from {table}
                where {field} operator(pg_catalog.>=) $2 and {field} operator(pg_catalog.<=) $3
            ) ranked where ranked.n operator(pg_catalog.>) 1))"
    )
}

/// Keeps the newest row of a table for each unit of time between two moments, in microseconds
/// since 2000, and removes the others. `field`: the column that has the time. Returns how many
/// rows it removed. Fails with `Error::BadUnit`, and with `Error::BadValue` when the table does
/// not exist.
pub fn retain_any(table: &str, field: &str, unit: &str, from: i64, to: i64) -> Result<i64> {
    check_unit(unit)?;
    spi::connect(|spi| {
        let rows = spi.once_as_caller(GET_TABLE_AND_FIELD, &[Arg::from(table), Arg::from(field)]);
        let (Some(table), Some(field)) = (rows.get::<String>(0, 1), rows.get::<String>(0, 2))
        else {
            return Err(Error::BadValue {
                argument: "table_name",
                value: table.to_owned(),
                rule: "the name of a table",
            });
        };
        let sql = retain_any_sql(&table, &field);
        let args = [Arg::from(unit), Arg::timestamp(from), Arg::timestamp(to)];
        Ok(i64::from(spi.once_as_caller(&sql, &args).affected()))
    })
}

// Rows that another session is removing are skipped.
const DROP_LOGS_BEFORE: &str = "delete from {logs} where ctid {=} any (array(
    select ctid from {logs} where created_at {<} $1 for update skip locked))";

/// Removes the rows of a queue's log of errors that are older than a point in time, a
/// `timestamptz`. Returns how many.
pub fn drop_logs_before(queue: &Queue, before: Arg) -> i32 {
    spi::connect(|spi| queue.once(spi, DROP_LOGS_BEFORE, &[before]).affected())
}
