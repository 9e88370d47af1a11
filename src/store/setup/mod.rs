//! Settings and triggers of a queue that need the other rooms.

pub mod queue_configure;
pub mod queue_truncate;
pub mod trigger_events;
