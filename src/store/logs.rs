//! The error log of a queue.

use super::plans::{Queue, Statement};
use crate::domain::names;
use crate::error;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg};
use pgrx::PgSqlErrorCode;

/// Width of `__logs.message`, in characters (fetchq 4 contract).
const MESSAGE_MAX: usize = 255;

/// What is logged about a document.
pub struct Entry<'a> {
    pub subject: &'a str,
    pub message: &'a str,
    pub details: Option<Jsonb>,
    pub ref_id: Option<&'a str>,
    /// Which attempt at the document failed.
    pub attempt: Option<i32>,
}

static LOG: Statement = Statement::new(
    "insert into {logs} (subject, message, details, ref_id, attempt)
     values ($1, $2, $3, $4, $5)",
);

/// Adds a line. A message that is too long is cut, with a warning: losing its end is
/// better than failing to reject the document.
pub fn append(queue: &Queue, entry: &Entry) {
    let (message, was_cut) = names::cut(entry.message, MESSAGE_MAX);
    if was_cut {
        error::warn(
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            format!(
                "the message for document \"{}\" was cut to {MESSAGE_MAX} characters",
                entry.subject
            ),
            "Put long texts into the details.",
        );
    }
    spi::connect(|spi| {
        queue.run(
            spi,
            &LOG,
            &[
                Arg::from(entry.subject),
                Arg::from(message),
                Jsonb::arg(entry.details),
                Arg::from(entry.ref_id),
                Arg::from(entry.attempt),
            ],
        );
    });
}

/// Removes the lines that are older than a point in time. Lines that another session
/// is removing are skipped.
const DROP_BEFORE: &str = "delete from {logs} where ctid = any (array(
    select ctid from {logs} where created_at < $1 for update skip locked))";

pub fn drop_before(queue: &Queue, before: Arg) -> i32 {
    spi::connect(|spi| queue.once(spi, DROP_BEFORE, &[before]).affected())
}

const DROP_OLDER_THAN: &str = "delete from {logs} where ctid = any (array(
    select ctid from {logs} where created_at < now() - $1
    order by created_at limit $2
    for update skip locked))";

/// Removes the lines that are older than that, the oldest first; with a limit not more
/// than so many.
pub fn drop_older_than(queue: &Queue, age: Arg, limit: Option<i64>) -> i32 {
    let args = [age, Arg::from(limit)];
    spi::connect(|spi| queue.once(spi, DROP_OLDER_THAN, &args).affected())
}

const RETENTION: &str = "select logs_retention::text from fetchq.queues where id = $1";

/// The queue's own retention; the default of fetchq 4 where it has none.
pub fn retention(queue: &Queue) -> String {
    spi::connect(|spi| {
        let rows = spi.once(RETENTION, &[Arg::from(queue.id)]);
        let own = if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        };
        own.unwrap_or_else(|| "24h".to_owned())
    })
}
