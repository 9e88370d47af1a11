//! The counters of documents: the log of what happened, its segments, and reading them exactly.

pub mod counter_log;
pub mod counter_rows;
pub mod counter_segments;
pub mod metrics;
pub mod metrics_exact;
pub mod recount;
