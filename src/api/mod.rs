//! The entry points: what PostgreSQL calls, one file for each family of functions. The SQL
//! declarations are in `src/sql/functions/`, in a file of the same name. Each entry point
//! reads its arguments, makes one call into `store`, `maintenance` or `waiting`, and shapes
//! the result.

mod dead_letters;
mod doc_append_many;
mod doc_lease;
mod doc_lease_any;
mod doc_pick;
mod doc_push;
mod doc_put;
mod doc_put_many;
mod doc_settle;
mod doc_upsert;
mod docs_admin;
mod docs_settle;
mod entry;
mod history;
mod info;
mod maintenance;
mod metric_export;
mod metrics;
mod queue;
mod queue_configure;
mod queue_places;
mod queue_settings;
mod reading;
mod retention;
mod rights;
mod schedules;
mod stats;
mod status;
mod triggers;
mod upgrade;
mod waiting;
mod worker_sessions;
