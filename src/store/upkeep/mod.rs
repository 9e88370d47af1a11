//! What the server does by itself: jobs, schedules, maintenance of documents, retention, and sessions of workers.

pub mod deferred_triggers;
pub mod floor_check;
pub mod jobs;
pub mod maintenance;
pub mod retention;
pub mod schedules;
pub mod schedules_sync;
pub mod worker_sessions;
