//! The columns that a pick returns, of a row that was read without a statement and of the rows of
//! the locking statements, and these statements.

use crate::pg::documents::Column;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::Rows;
use crate::pg::value::Arg;
use crate::ready::key::PickKey;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::{Scope, Statement};

// A batch is claimed in two steps, because RETURNING does not keep the order: rows are locked
// and read in order, with the values that they will have, and then updated by a Tid Scan. Used
// only where `doc_lease.rs` cannot do it.
// Index: pick, from the floor of one priority on.
// $1 version, $2 lease duration, $3 limit, $4 priority, $5 to $7 the floor, $8 the time of the
// pick, $9 lease number. The first eleven columns are those of `doc_pick`; see `column`.
pub static LOCK_LEVEL: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) {+} 1 as attempts,
         c.iterations, c.created_at, c.last_iteration,
         $8 {+} $2 as next_iteration,
         c.lock_upgrade, $9 as lease,
         c.ctid,
         c.next_iteration as index_next_iteration, c.attempts as index_attempts, c.seq as index_seq,
         c.lease as previous_lease,
         c.headers, c.max_attempts, c.last_error, c.progress
     from only {docs} c
     where c.version {=} $1
         and c.priority {=} $4
         and (c.next_iteration, c.attempts, c.seq) {>=} ($5, $6, $7)
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $8
         and (c.expires_at is null or c.expires_at {>} pg_catalog.clock_timestamp() or c.attempts {>} 0)
         {not_late c}
     order by c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
)
.in_scope(Scope::Nothing);

// The same for all priorities at once, where the floors are not known.
// Index: pick.
// $1 version, $2 lease duration, $3 limit, $4 the time of the pick, $5 lease number.
pub static LOCK_ALL_LEVELS: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) {+} 1 as attempts,
         c.iterations, c.created_at, c.last_iteration,
         $4 {+} $2 as next_iteration,
         c.lock_upgrade, $5 as lease,
         c.ctid,
         c.next_iteration as index_next_iteration, c.attempts as index_attempts, c.seq as index_seq,
         c.lease as previous_lease,
         c.headers, c.max_attempts, c.last_error, c.progress
     from only {docs} c
     where c.version {=} $1
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $4
         and (c.expires_at is null or c.expires_at {>} pg_catalog.clock_timestamp() or c.attempts {>} 0)
         {not_late c}
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
)
.in_scope(Scope::Nothing);

/// Columns of the locking statements, by number.
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
    /// How far the workers of its earlier attempts have come.
    pub const PROGRESS: i32 = 20;
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
pub const LEASED: [Column; 15] = [
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
    Column::Progress,
];

/// Adds those rows of a locking statement that `own` lists to the result as the type `fetchq.leased`, with this
/// lease number. `now` is the time of the pick, in microseconds since 2000.
pub fn push_leased(
    queue: &Queue,
    rows: &Rows,
    own: &[usize],
    now: i64,
    number: i64,
    out: &mut RowSink,
) {
    for row in own.iter().copied() {
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
            at(column::PROGRESS),
        ];
        out.push(&columns);
    }
}
