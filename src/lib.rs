//! fetchq: a queue and a calendar inside PostgreSQL.
//!
//! - `api`: the functions that PostgreSQL calls
//! - `domain`: the rules, without PostgreSQL
//! - `store`: every SQL text
//! - `ready`: where the documents begin that are ready
//! - `maintenance`: what has to happen from time to time
//! - `worker`: the processes that do it
//! - `pg`: the server's C functions, and all `unsafe`
//!
//! docs/architecture.md has the whole picture.
#![cfg_attr(
    not(any(test, feature = "pg_test")),
    deny(clippy::unwrap_used, clippy::expect_used)
)]

use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::prelude::*;

mod api;
mod domain;
mod error;
mod gucs;
mod maintenance;
mod pg;
mod ready;
mod store;
mod worker;

::pgrx::pg_module_magic!();

extension_sql_file!("sql/bootstrap.sql", name = "bootstrap", bootstrap);
extension_sql_file!(
    "sql/functions.sql",
    name = "functions",
    requires = ["bootstrap"]
);
extension_sql_file!(
    "sql/grants.sql",
    name = "grants",
    requires = ["functions"],
    finalize
);

static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Whether `shared_preload_libraries` loaded this library.
fn is_preloaded() -> bool {
    PRELOADED.load(Ordering::Relaxed)
}

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    PRELOADED.store(pg::session::is_preloading(), Ordering::Relaxed);
    gucs::register(is_preloaded());
    if is_preloaded() {
        ready::install();
        worker::install();
        worker::watch_commits();
    }
    pg::session::reserve_settings_prefix();
    pg::invalidation::register();
}

/// Needed by `cargo pgrx test`.
#[cfg(test)]
pub mod pg_test {
    pub fn setup(_options: Vec<&str>) {}

    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec!["shared_preload_libraries = 'fetchq'"]
    }
}
