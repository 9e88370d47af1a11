//! What operators read: statistics, the status, and metrics for export.

pub mod metric_export;
pub mod stats;
pub mod status;
