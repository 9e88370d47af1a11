//! fetchq: a queue and a calendar inside PostgreSQL.
//!
//! - `api`: the functions that PostgreSQL calls; `sql` declares them
//! - `fetchq4`: what only clients of fetchq 4 call, with its statements and its SQL
//! - `waiting`: sessions that wait for a document
//! - `store`: every SQL statement
//! - `maintenance`: the services that must run from time to time
//! - `background`: the processes of the server that run maintenance
//! - `ready`: the ready floors, a low-water mark for each priority of a queue
//! - `signals`: what a commit announces to other processes
//! - `pg`: calls of the server's C functions, and all unsafe code
//! - `domain`: the rules, a crate without PostgreSQL
//!
//! docs/internals/architecture.md describes the whole.
#![cfg_attr(
    not(any(test, feature = "pg_test")),
    deny(clippy::unwrap_used, clippy::expect_used)
)]
#![deny(unsafe_code)]

use fetchq_domain as domain;
use pgrx::prelude::*;

mod api;
mod background;
mod error;
mod fetchq4;
mod late;
mod maintenance;
#[allow(unsafe_code)]
mod pg;
mod ready;
mod settings;
mod signals;
mod store;
mod waiting;

::pgrx::pg_module_magic!();

// Only `cargo pgrx` needs this, with which others may build; scripts/build.sh takes the file itself.
extension_sql_file!("../sql/install.sql", name = "install", bootstrap);

/// Called by the server when it loads the library: by the postmaster where the library is
/// preloaded, else by the first session that calls a function. Shared memory and background
/// processes are possible only in the first case.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::passing_error::prepare();
    pg::session::remember_preloading();
    let is_preloaded = pg::session::is_preloaded();
    settings::register(is_preloaded);
    // While pg_upgrade runs the server, nothing of fetchq may run or write: no processes, no shared
    // memory to signal through, nothing at the end of a transaction.
    if is_preloaded && !pg::session::is_binary_upgrade() {
        if settings::ready_slots() > 0 {
            signals::board::install();
            signals::waiters::install();
            late::install();
            store::install();
            ready::floors::install();
        }
        background::install();
        signals::commit::watch(late::changes::transaction_ended);
    }
    pg::session::reserve_settings_prefix();
    pg::invalidation::register();
}
