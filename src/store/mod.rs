//! Every SQL text of fetchq, and every call that runs one.
//!
//! Rules: only a `QueueName` is ever written into a statement, everything else is a
//! bound parameter. The hot statements (`docs.rs`, `maintenance.rs`, `counters.rs`)
//! name schemas and operators in full, so that no search_path can change what they
//! mean; the other functions are declared with `set search_path`.

pub mod admin;
pub mod bulk;
pub mod cancel;
pub mod counters;
pub mod dead_letters;
pub mod docs;
pub mod extend;
pub mod flow;
pub mod history;
pub mod holders;
pub mod jobs;
pub mod leases;
pub mod logs;
pub mod maintenance;
pub mod metrics;
pub mod ordering;
pub mod packing;
pub mod plans;
pub mod policy;
pub mod put;
pub mod queue_tables;
pub mod readiness;
pub mod registry;
pub mod returns;
pub mod schedules;
pub mod series;
pub mod settle;
pub mod status;
pub mod turns;
