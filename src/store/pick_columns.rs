//! The columns that a pick returns, of a row that was read without a statement and of the rows of
//! the locking statements.

use crate::pg::documents::Column;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::Rows;
use crate::pg::value::Arg;
use crate::ready::key::PickKey;
use crate::store::open_queue::Queue;

/// Columns of the locking statements in `doc_pick.rs`, by number.
pub mod column {
    /// The subject of the document.
    pub const SUBJECT: i32 = 1;
    /// Its payload.
    pub const PAYLOAD: i32 = 2;
    /// Its version.
    pub const VERSION: i32 = 3;
    /// Its priority.
    pub const PRIORITY: i32 = 4;
    /// The number of its attempts, this one included.
    pub const ATTEMPTS: i32 = 5;
    /// The number of its iterations.
    pub const ITERATIONS: i32 = 6;
    /// When it was added.
    pub const CREATED_AT: i32 = 7;
    /// When the lease expires.
    pub const NEXT_ITERATION: i32 = 9;
    /// The physical position of the row.
    pub const CTID: i32 = 12;
    /// The key in the pick index, before the pick.
    pub const INDEX_NEXT_ITERATION: i32 = 13;
    /// The second part of that key.
    pub const INDEX_ATTEMPTS: i32 = 14;
    /// The third part of that key.
    pub const INDEX_SEQ: i32 = 15;
    /// The number of the last lease that the document had.
    pub const PREVIOUS_LEASE: i32 = 16;
    /// What else `doc_lease` returns, with the columns above.
    pub const HEADERS: i32 = 17;
    /// NULL for that of the queue.
    pub const MAX_ATTEMPTS: i32 = 18;
    /// Why the document failed last.
    pub const LAST_ERROR: i32 = 19;
}

/// The key that a row of the locking statements had in the pick index.
pub fn index_key(rows: &Rows, row: usize) -> PickKey {
    PickKey::new(
        rows.timestamp(row, column::INDEX_NEXT_ITERATION)
            .unwrap_or(i64::MIN),
        rows.get(row, column::INDEX_ATTEMPTS).unwrap_or(i32::MIN),
        rows.get(row, column::INDEX_SEQ).unwrap_or(i64::MIN),
    )
}

/// The columns of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// Those of fetchq 4, and the lease number: `doc_pick` and the functions like it.
    Picked,
    /// The type `fetchq.leased`: `doc_lease` and the functions like it.
    Leased,
}

/// The columns of a picked document, in the order of the result of `doc_pick`.
pub const PICKED: [Column; 11] = [
    Column::Subject,
    Column::Payload,
    Column::Version,
    Column::Priority,
    Column::Attempts,
    Column::Iterations,
    Column::CreatedAt,
    Column::LastIteration,
    Column::NextIteration,
    Column::LockUpgrade,
    Column::Lease,
];

/// The columns of the type `fetchq.leased`, in its order.
pub const LEASED: [Column; 14] = [
    Column::Subject,
    Column::Payload,
    Column::Headers,
    Column::Version,
    Column::Priority,
    Column::Attempts,
    Column::MaxAttempts,
    Column::Iterations,
    Column::CreatedAt,
    Column::DueAt,
    Column::PickedAt,
    Column::NextIteration,
    Column::Lease,
    Column::LastError,
];

/// Adds the rows of a locking statement to the result as the type `fetchq.leased`, with this
/// lease number. `now` is the time of the pick, in microseconds since 2000.
pub fn push_leased(queue: &Queue, rows: &Rows, now: i64, number: i64, out: &mut RowSink) {
    for row in 0..rows.len() {
        let all = rows.args(row);
        let at = |column: i32| all[(column - 1) as usize];
        let max_attempts = rows.get(row, column::MAX_ATTEMPTS);
        let columns = [
            at(column::SUBJECT),
            at(column::PAYLOAD),
            at(column::HEADERS),
            at(column::VERSION),
            at(column::PRIORITY),
            at(column::ATTEMPTS),
            Arg::from(max_attempts.unwrap_or(queue.policy.max_attempts)),
            at(column::ITERATIONS),
            at(column::CREATED_AT),
            at(column::INDEX_NEXT_ITERATION),
            Arg::timestamp(now),
            at(column::NEXT_ITERATION),
            Arg::from(number),
            at(column::LAST_ERROR),
        ];
        out.push(&columns);
    }
}
