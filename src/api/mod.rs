//! The entry points: what PostgreSQL calls, one file for each family of functions. The SQL
//! declarations are in `src/sql/functions/`, in a file of the same name. Each entry point
//! reads its arguments, makes one call into `store`, `maintenance` or `waiting`, and shapes
//! the result.

mod dead_letters;
mod doc_append;
mod doc_cancel;
mod doc_explain;
mod doc_extend;
mod doc_lease;
mod doc_put;
mod doc_put_many;
mod doc_settle;
mod docs_admin;
mod docs_settle;
pub mod entry;
mod history;
mod info;
pub mod maintenance;
mod metric_export;
pub mod metrics;
mod named_leases;
mod queue;
mod queue_configure;
mod queue_places;
mod reading;
mod rights;
mod schedules;
mod schedules_sync;
mod stats;
mod status;
mod triggers;
mod waiting;
mod worker_sessions;
