//! Adds lines to the error log of a queue.

use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

static LOG: Statement = Statement::new(
    "insert into {logs} (subject, message, details, ref_id, attempt)
     values ($1, $2, $3, $4, $5)",
);

/// Adds a line to the log. `attempt`: the number of the attempt that failed.
pub fn log_failure(
    queue: &Queue,
    subject: &str,
    message: &str,
    details: Option<Jsonb>,
    ref_id: Option<&str>,
    attempt: Option<i32>,
) {
    let args = [
        Arg::from(subject),
        Arg::from(message),
        Jsonb::arg(details),
        Arg::from(ref_id),
        Arg::from(attempt),
    ];
    spi::connect(|spi| {
        queue.run(spi, &LOG, &args);
    });
}
