//! Every SQL statement of fetchq, and every call that runs one, in rooms; what only calls of fetchq 4 run is
//! in `fetchq4/store/`. A room imports only those that stand before it here:
//!
//! - `queues`: what a queue is: its registry, its tables, their shape, who may use them, and how a session opens it.
//! - `counters`: the counters of documents: the log of what happened, its segments, and reading them exactly.
//! - `bounds`: what may be picked: the bounds of calls, caps, rates and ordering keys.
//! - `documents`: documents until they are settled: put, changed, leased, extended, awaited and read, and what the history keeps of them.
//! - `settle`: what becomes of documents: settled one by one or in lists, moved, dead letters, and bulk actions.
//! - `upkeep`: what the server does by itself: jobs, schedules, maintenance of documents, retention, and sessions of workers.
//! - `reports`: what operators read: statistics, the status, and metrics for export.
//! - `setup`: settings and triggers of a queue that need the other rooms.
//!
//! A file has the name of the family of functions that it serves, as in `api`, or of what these build on.
//!
//! The only names that are written into a statement are those of a `QueueName`, and names that the
//! server has quoted. Every value is a bound parameter.

pub mod bounds;
pub mod counters;
pub mod documents;
pub mod queues;
pub mod reports;
pub mod settle;
pub mod setup;
pub mod upkeep;

use crate::settings;

/// Has statements see leases that are not written yet, if the server can have any. Called from `_PG_init`
/// while libraries are preloaded.
pub fn install() {
    if settings::late_lease_slots() > 0 {
        queues::open_queue::install_barrier(documents::late_leases::before);
    }
}
