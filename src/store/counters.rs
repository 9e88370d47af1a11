//! The one narrow row that a call writes for all its counters.

use super::plans::{self, Statement};
use crate::domain::counters::Event;
use crate::pg::spi::{Arg, Spi};

static COUNT: Statement = Statement::new(
    "insert into fetchq.counter_log (queue_id, version, n, event) values ($1, $2, $3, $4)",
);

/// Notes an event that happened to `n` documents; nothing when there were none.
/// `version` matters to events that add or remove documents, 0 for the others.
pub fn note(spi: &Spi, queue_id: i32, version: i32, n: i32, event: Event) {
    if n > 0 {
        plans::run(
            spi,
            &COUNT,
            &[
                Arg::from(queue_id),
                Arg::from(version),
                Arg::from(n),
                Arg::from(event.code()),
            ],
        );
    }
}
