//! fetchq: a queue and a calendar inside PostgreSQL.
//!
//! - `api`: the functions that PostgreSQL calls; `sql` declares them
//! - `waiting`: sessions that wait for a document
//! - `store`: every SQL statement
//! - `maintenance`: the services that must run from time to time
//! - `background`: the processes of the server that run maintenance
//! - `ready`: the ready floors, a low-water mark for each priority of a queue
//! - `signals`: what a commit announces to other processes
//! - `pg`: calls of the server's C functions, and all unsafe code
//! - `domain`: the rules, without PostgreSQL
//!
//! docs/internals/architecture.md describes the whole.
#![cfg_attr(
    not(any(test, feature = "pg_test")),
    deny(clippy::unwrap_used, clippy::expect_used)
)]

use pgrx::prelude::*;

mod api;
mod background;
mod domain;
mod error;
mod maintenance;
mod pg;
mod ready;
mod settings;
mod signals;
mod store;
mod waiting;

::pgrx::pg_module_magic!();

extension_sql_file!("sql/bootstrap.sql", name = "bootstrap", bootstrap);
extension_sql_file!(
    "sql/functions/rights.sql",
    name = "rights",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/dead_letters.sql",
    name = "dead_letters",
    requires = ["bootstrap", "rights"]
);
extension_sql_file!(
    "sql/functions/doc_append_many.sql",
    name = "doc_append_many",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_lease.sql",
    name = "doc_lease",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_lease_any.sql",
    name = "doc_lease_any",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_pick.sql",
    name = "doc_pick",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_push.sql",
    name = "doc_push",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_put.sql",
    name = "doc_put",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_put_many.sql",
    name = "doc_put_many",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_reject.sql",
    name = "doc_reject",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_settle.sql",
    name = "doc_settle",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_settle_many.sql",
    name = "doc_settle_many",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/doc_upsert.sql",
    name = "doc_upsert",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/docs_admin.sql",
    name = "docs_admin",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/docs_settle.sql",
    name = "docs_settle",
    requires = ["bootstrap", "doc_pick"]
);
extension_sql_file!(
    "sql/functions/history.sql",
    name = "history",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/info.sql",
    name = "info",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/maintenance.sql",
    name = "maintenance",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/metric_export.sql",
    name = "metric_export",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/metrics.sql",
    name = "metrics",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/queue.sql",
    name = "queue",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/queue_configure.sql",
    name = "queue_configure",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/queue_places.sql",
    name = "queue_places",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/queue_settings.sql",
    name = "queue_settings",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/reading.sql",
    name = "reading",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/retention.sql",
    name = "retention",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/schedules.sql",
    name = "schedules",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/stats.sql",
    name = "stats",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/status.sql",
    name = "status",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/triggers.sql",
    name = "triggers",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/waiting.sql",
    name = "waiting",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/functions/worker_sessions.sql",
    name = "worker_sessions",
    requires = ["bootstrap", "rights"]
);
extension_sql_file!(
    "sql/work.sql",
    name = "work",
    requires = ["bootstrap", "doc_pick"]
);
extension_sql_file!("sql/grants.sql", name = "grants", finalize);

/// Called by the server when it loads the library: by the postmaster where the library is
/// preloaded, else by the first session that calls a function. Shared memory and background
/// processes are possible only in the first case.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::passing_error::prevent_backtraces();
    pg::session::remember_preloading();
    let is_preloaded = pg::session::is_preloaded();
    settings::register(is_preloaded);
    // While pg_upgrade runs the server, nothing of fetchq may run or write: no processes, no shared
    // memory to signal through, nothing at the end of a transaction.
    if is_preloaded && !pg::session::is_binary_upgrade() {
        if settings::ready_slots() > 0 {
            signals::board::install();
            signals::awaiters::install();
            ready::floors::install();
        }
        background::install();
        signals::commit::watch();
    }
    pg::session::reserve_settings_prefix();
    pg::invalidation::register();
}

/// The configuration of the server that `cargo pgrx test` starts.
#[cfg(test)]
pub mod pg_test {
    pub fn setup(_options: Vec<&str>) {}

    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec!["shared_preload_libraries = 'fetchq'"]
    }
}
