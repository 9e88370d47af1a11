//! `lgp`: packs counter events and pending writes into `fetchq.metrics`.

use crate::store::metrics;

/// Rows packed, over all queues.
pub fn run() -> i32 {
    i32::try_from(metrics::pack()).unwrap_or(i32::MAX)
}
