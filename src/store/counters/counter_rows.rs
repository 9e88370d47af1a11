//! Reads the rows of the counter log.

use pgrx::pg_sys::Oid;

use crate::pg::scan;
use crate::pg::snapshot::Snapshot;

/// The columns of the counter log, in their order.
const COLUMNS: [&str; 5] = ["queue_id", "version", "n", "event", "bucket"];

/// A row of the counter log.
#[derive(Debug, Clone, Copy)]
pub struct Events {
    /// The ID of the queue.
    pub queue: i32,
    /// The version of the documents.
    pub version: i32,
    /// The number of the event, see `domain::counter_events`.
    pub code: i16,
    /// The bucket of a wait, a run, or both. None: not known.
    pub bucket: Option<i32>,
    /// How often it has happened.
    pub n: i64,
}

/// Calls `visit` with each row of a table of the counter log that a snapshot shows.
pub fn read(table: Oid, snapshot: &Snapshot, mut visit: impl FnMut(Events)) {
    scan::integers_in(table, COLUMNS, snapshot, |row| {
        let [Some(queue), version, n, Some(code), bucket] = row else {
            return;
        };
        // NULL stands for the usual version and number.
        visit(Events {
            queue,
            version: version.unwrap_or(0),
            code: code as i16,
            bucket,
            n: n.unwrap_or(1).into(),
        });
    });
}
