//! What operators read: the state of all queues, and what prints it: statistics, the status, and metrics for
//! export.

pub mod doc_explain;
pub mod lateness;
pub mod metric_export;
pub mod read;
pub mod stats;
pub mod status;
