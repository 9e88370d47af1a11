//! Settings, indexes and triggers of a queue that need the other rooms, and the upgrade from fetchq 4.

pub mod queue_configure;
pub mod queue_indexes;
pub mod queue_settings;
pub mod queue_truncate;
pub mod trigger_events;
pub mod upgrade;
