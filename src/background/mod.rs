//! The server's own processes. A launcher starts background workers for the databases that
//! have the extension; a background worker starts a jobs process for slow maintenance. With
//! them, no client has to call maintenance.

mod calendar;
mod database;
mod jobs;
mod late_leases;
mod launcher;
mod lifecycle;
mod limits;
mod notifier;
mod pool;
mod schedules;
mod served_database;
mod sessions;

use lifecycle::Assignment;
use pgrx::prelude::*;

use crate::pg::process;

/// Registers the launcher with the postmaster. Called while libraries are preloaded.
pub fn install() {
    process::register_launcher();
}

// The postmaster finds the main functions by their names in the library.

/// The launcher, which the postmaster starts.
#[pg_guard]
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fetchq_launcher_main(_argument: pg_sys::Datum) {
    launcher::main();
}

/// The jobs process, which a background worker starts. The argument is the OID of its database,
/// because that background worker may have left its entry of the board by now.
#[pg_guard]
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fetchq_jobs_main(database: pg_sys::Datum) {
    jobs::main(database.value() as u32);
}

/// A background worker, which the launcher starts. The argument is its assignment.
#[pg_guard]
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fetchq_background_worker_main(assignment: pg_sys::Datum) {
    database::main(&Assignment::from_argument(assignment.value()));
}
