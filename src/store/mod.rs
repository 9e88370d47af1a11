//! Every SQL statement of fetchq, and every call that runs one. A file has the name of the
//! family of functions that it serves, as in `api`. The other files are what these build on:
//!
//! - preparing and caching: `statement`, `plans`, `open_queue`, `queue_catalog`, `policy`;
//! - what follows from a change: `bookkeeping`, `counter_log`, `counter_segments`, `counter_tail`, `recount`;
//! - picking: `pick_columns`; leases: `lease_check`, `leases`;
//! - the safety net of the due index: `floor_check`; what reports know of tables: `known_tables`;
//! - what may be picked: `limits`, `cap`, `rate`, `readiness`, `ordering`, `ordering_setup`;
//! - options, lists and selections of documents: `doc_options`, `doc_list`, `doc_selection`;
//! - rights: `rights`, `grants`;
//! - triggers: `triggers`, `trigger_events`;
//! - tables of a queue: `queue_tables`, `queue_indexes`, `queue_truncate`.
//!
//! The only names that are written into a statement are those of a `QueueName`, and names that the
//! server has quoted. Every value is a bound parameter.

pub mod blocking;
pub mod bookkeeping;
pub mod cap;
pub mod counter_log;
pub mod counter_segments;
mod counter_tail;
pub mod dead_letters;
pub mod doc_append_many;
pub mod doc_await;
pub mod doc_lease;
pub mod doc_lease_any;
pub mod doc_list;
pub mod doc_options;
pub mod doc_pick;
pub mod doc_push;
pub mod doc_put;
pub mod doc_put_many;
pub mod doc_reject;
pub mod doc_selection;
pub mod doc_settle;
pub mod doc_settle_many;
pub mod doc_upsert;
pub mod docs_admin;
pub mod docs_settle;
pub mod floor_check;
pub mod grants;
pub mod history;
pub mod history_list;
pub mod history_worker;
pub mod info;
pub mod jobs;
pub mod key_places;
mod known_tables;
pub mod lateness;
pub mod lease_check;
mod lease_durability;
pub mod leases;
pub mod limits;
pub mod maintenance;
pub mod metric_export;
pub mod metrics;
pub mod metrics_exact;
pub mod open_queue;
pub mod ordering;
pub mod ordering_setup;
pub mod owned_queue;
pub mod pick_columns;
pub mod plans;
pub mod policy;
pub mod queue;
pub mod queue_catalog;
pub mod queue_configure;
pub mod queue_indexes;
pub mod queue_places;
pub mod queue_settings;
pub mod queue_tables;
pub mod queue_truncate;
pub mod rate;
pub mod readiness;
pub mod reading;
pub mod recount;
pub mod redrive;
pub mod retention;
pub mod rights;
pub mod schedules;
pub mod statement;
pub mod stats;
mod stats_counted;
pub mod status;
pub mod trigger_events;
pub mod triggers;
pub mod upgrade;
pub mod worker_sessions;
