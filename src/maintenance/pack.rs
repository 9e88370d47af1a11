//! `lgp`: packs the counter log and pending writes into `fetchq.metrics`.

use pgrx::PgSqlErrorCode;

use crate::error;
use crate::pg::{session, subtransaction};
use crate::signals::progress;
use crate::store::metrics;

/// Packs the counter log of all queues, and returns how many rows it has packed. `truncate_packed`
/// must follow, as late in the transaction as possible.
pub fn run() -> i32 {
    let packed = i32::try_from(metrics::pack()).unwrap_or(i32::MAX);
    progress::add_rows(packed);
    packed
}

/// Truncates the packed segments of the counter log. Sessions that read counters wait until the
/// transaction ends. A failure is reported as a WARNING.
pub fn truncate_packed() {
    // This is asked before the subtransaction, in which every statement is in a block.
    let is_in_block = session::is_in_block();
    if let Err(message) = subtransaction::attempt(|| metrics::truncate_packed(is_in_block)) {
        error::warn(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!("packed counter events could not be removed: {message}"),
            "The next pack tries again.",
        );
    }
}
