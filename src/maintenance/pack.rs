//! `lgp`: packs the counter log and pending writes into `fetchq.metrics`.

use pgrx::{PgSqlErrorCode, notice};

use crate::domain::jobs::Ran;
use crate::error;
use crate::pg::{lock_wait, session, subtransaction};
use crate::signals::progress;
use crate::store::counters::metrics;

/// Packs the counter log of all queues, and returns how many rows it has packed. Busy while another
/// session packs. `truncate_packed` must follow, as late in the transaction as possible.
pub fn run() -> (i32, Ran<()>) {
    let (packed, ran) = metrics::pack();
    let packed = i32::try_from(packed).unwrap_or(i32::MAX);
    progress::add_rows(packed);
    (packed, ran)
}

/// Packs the counters for a caller, and truncates the packed segments. Waits a moment for another pack.
/// Returns how many rows it has packed, and says so in a NOTICE while another session packs.
pub fn run_for_caller() -> i32 {
    let (packed, ran) = lock_wait::allow(run);
    if ran == Ran::Busy {
        notice!("counter events were not packed, because another session packs them");
    }
    truncate_packed();
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
