//! Maintenance: one service a file, and the runner of `fetchq.jobs`, which any client
//! may call. Every service is bounded and skips what another session holds.

pub mod documents;
pub mod pack;
pub mod recount;
pub mod retention;
pub mod runner;
pub mod schedules;
pub mod snapshot;
