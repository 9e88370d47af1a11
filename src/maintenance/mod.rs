//! Maintenance: one service in each file, and the runner of `fetchq.jobs`. Background workers and
//! clients call it. Every service does a bounded amount of work and skips what another session has
//! locked.

pub mod documents;
pub mod pack;
pub mod recount;
pub mod retention;
pub mod runner;
pub mod schedules;
pub mod schedules_sync;
pub mod snapshot;
