//! fetchq's own processes: a launcher for the server, and a worker for each database
//! that has the extension. Nobody has to call maintenance then.

pub mod board;
mod calendar;
mod database;
mod jobs;
mod launcher;
pub mod notifications;
pub mod progress;
mod schedules;
mod sessions;
pub mod wait;
pub mod waiters;

use pgrx::prelude::*;

use crate::domain::names::QueueName;
use crate::error;
use crate::gucs;
use crate::pg::transaction::{self, End};
use crate::pg::worker as process;
use crate::pg::{catalog, relation, session};
use crate::ready;
use crate::store::registry;
use board::Board;

/// Asks for the processes; while libraries are preloaded.
pub fn install() {
    process::register_launcher();
}

/// Has commits wake who waits for documents, and tell of those that are announced; in every process, if there is shared memory.
pub fn watch_commits() {
    transaction::on_end(|end| {
        let (board, database) = (board(), session::database());
        let waiters = board.map(|board| &board.waiters);
        match end {
            End::Committing => notifications::committing(board, database),
            End::Committed => {
                waiters::committed(waiters, database);
                notifications::committed(board, database);
            }
            // A prepared one is committed by another session, which knows nothing of it.
            End::RolledBack | End::Prepared => {
                waiters::rolled_back(waiters.filter(|_| end == End::RolledBack), database);
                notifications::rolled_back();
            }
        }
    });
}

/// The shared memory of the processes; None where there is none.
pub fn board() -> Option<&'static Board> {
    ready::board()
}

/// Whether this database has a worker that runs.
pub fn is_running() -> bool {
    board().is_some_and(|board| board.worker_of(session::database()).is_some())
}

/// Has the launcher look for databases that need a worker, when this transaction
/// commits. False when there is no launcher.
pub fn look_again() -> bool {
    let Some(board) = board() else {
        return false;
    };
    pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, move || {
        board.extension_changed();
    });
    board.launcher.occupant().is_some()
}

/// Tells of a failure, unless it is what becomes of the work when the extension goes.
fn complain(message: String) {
    // Whoever drops it has locked the registry: this waits until it is decided, and ends
    // in an error if there is none any more.
    let _ = process::transaction(registry::all);
    if process::transaction(catalog::has_extension) != Ok(false) {
        error::log(format!("fetchq worker: {message}"));
    }
}

/// Has the worker of this database look into a new queue, when this transaction commits:
/// what was told of its documents before was of a table that nobody could see.
pub fn queue_created(name: &QueueName) {
    let table = relation::lookup_data_table(&name.relation("docs"));
    if let (Some(board), Some(table)) = (board(), table) {
        let database = session::database();
        pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, move || {
            board.tell(database, table.to_u32(), i64::MIN);
        });
    }
}

/// Has the worker of this database look at the schedules, when this transaction commits.
pub fn schedules_changed() {
    if let Some(board) = board() {
        let database = session::database();
        pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, move || {
            board.schedules_changed(database);
        });
    }
}

/// Whether the settings want a worker in a database.
fn is_wanted(database: &str) -> bool {
    if !gucs::worker() {
        return false;
    }
    let wanted = gucs::databases();
    let mut names = wanted
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .peekable();
    names.peek().is_none() || names.any(|name| name == database)
}

/// Which place on the board a worker has, and who has given it: a worker may start when
/// its launcher is no more.
struct Place {
    number: usize,
    launch: u32,
}

impl Place {
    fn new(number: usize, launch: u32) -> Self {
        Self { number, launch }
    }

    fn argument(&self) -> usize {
        ((self.launch as usize) << 16) | self.number
    }

    fn of(argument: usize) -> Self {
        Self {
            number: argument & 0xffff,
            launch: (argument >> 16) as u32,
        }
    }
}

/// The launcher: what the postmaster starts.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fetchq_launcher_main(_argument: pg_sys::Datum) {
    launcher::main();
}

/// What a worker starts for its slow jobs. The argument is the worker's place.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fetchq_jobs_main(place: pg_sys::Datum) {
    jobs::main(&Place::of(place.value()));
}

/// A worker: what the launcher starts. The argument is its place.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn fetchq_worker_main(place: pg_sys::Datum) {
    database::main(&Place::of(place.value()));
}
