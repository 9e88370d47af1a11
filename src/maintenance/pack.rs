//! `lgp`: packs counter events and pending writes into `fetchq.metrics`.

use pgrx::PgSqlErrorCode;

use crate::error;
use crate::pg::{session, subtransaction};
use crate::signals::progress;
use crate::store::metrics;

/// Rows packed, over all queues. `tidy` is to follow, as late as possible.
pub fn run() -> i32 {
    let packed = i32::try_from(metrics::pack()).unwrap_or(i32::MAX);
    progress::add(packed);
    packed
}

/// Truncates what is packed; readers of counters wait until the transaction ends.
pub fn tidy() {
    // (asked first: within a subtransaction everything is in a block)
    let is_in_block = session::is_in_block();
    if let Err(message) = subtransaction::attempt(|| metrics::tidy(is_in_block)) {
        error::warn(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!("packed counter events could not be removed: {message}"),
            "It is tried again with the next pack.",
        );
    }
}
