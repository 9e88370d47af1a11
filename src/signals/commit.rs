//! What happens when a transaction of this session ends: waiters are woken, statuses are announced, and due changes and changed schedules are sent to the background worker.
//!
//! A prepared transaction is ended by whatever session, perhaps after a restart, and nobody knows then
//! what it did. So its end has all sessions of the database that wait look, and the background worker.

use std::collections::HashMap;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::pg::lasting::{Lasting, lasting};
use crate::pg::transaction::{self, End};
use crate::pg::{durability, relation, session, time, utility};
use crate::signals::board::{Board, board};
use crate::signals::waiters::waiters;
use crate::signals::{announce, foreign_writes, wakeups};

/// Whether this transaction has written counter events.
static HAS_EVENTS: AtomicBool = AtomicBool::new(false);

/// What ends with a transaction before it tells others that it has ended.
static FIRST: OnceLock<fn(End)> = OnceLock::new();

/// Registers the function that sends the signals at the end of every transaction of this
/// process, after `first`. Called from `_PG_init`. Without shared memory there are no processes to signal to.
pub fn watch(first: fn(End)) {
    let _ = FIRST.set(first);
    utility::listen(utility::Listener {
        prepared_ended,
        documents_altered: documents_changed,
    });
    transaction::on_end(|end| {
        let (board, database) = (board(), session::database());
        if end != End::Committing {
            durability::transaction_ended();
        }
        let writes = board.map(|board| &board.foreign_writes);
        foreign_writes::transaction_ended(end, writes, database);
        if let Some(first) = FIRST.get() {
            first(end);
        }
        match end {
            End::Committing => {
                announce::before_commit(board, database);
                durability::before_commit();
            }
            End::Committed => {
                EXPIRIES.with(|expiries| expiries.borrow_mut().note(board, database));
                wakeups::transaction_ended(end, database);
                announce::after_commit(board, database);
                if HAS_EVENTS.swap(false, Ordering::Relaxed)
                    && let Some(entry) = board.and_then(|board| board.databases.find(database))
                {
                    entry.set_events(true);
                }
            }
            End::RolledBack | End::Prepared => {
                EXPIRIES.with(|expiries| match end {
                    // Whoever commits it does not know what it has put. A look in vain costs little.
                    End::Prepared => expiries.borrow_mut().note(board, database),
                    _ => expiries.borrow_mut().added.clear(),
                });
                wakeups::transaction_ended(end, database);
                announce::after_rollback();
                HAS_EVENTS.store(false, Ordering::Relaxed);
            }
        }
    });
}

/// How long after a document waits again it is looked at when it expires: microseconds. Many documents have
/// one look then.
const EXPIRY_LOOK_US: i64 = 500_000;

/// When documents expire, by their tables: in microseconds since 2000.
#[derive(Default)]
struct Expiries {
    /// The first time that this transaction has added for each table.
    added: Vec<(u32, i64)>,
    /// When the background worker reads when the next document of a table expires, as this session has
    /// told it.
    told: HashMap<u32, Told>,
}

/// A time of which this session has told the background worker.
struct Told {
    at: i64,
    /// It holds while this is what `Board::kept_changes` returns.
    memory: Option<(u64, u32)>,
}

impl Expiries {
    fn add(&mut self, table: u32, at: i64) {
        match self.added.iter_mut().find(|(other, _)| *other == table) {
            Some((_, first)) => *first = at.min(*first),
            None => {
                self.added.push((table, at));
                // Nothing is allocated after the commit.
                self.told.reserve(self.added.len());
            }
        }
    }

    /// Tells the background worker, unless it looks before anyway.
    fn note(&mut self, board: Option<&Board>, database: u32) {
        for (table, at) in self.added.drain(..) {
            let Some(board) = board else {
                continue;
            };
            let memory = board.kept_changes(database);
            let looks_before = self.told.get(&table).is_some_and(|told| {
                told.at <= at && told.at > time::clock() && told.memory == memory
            });
            if memory.is_some() && looks_before {
                continue;
            }
            let memory = board.keep_due_change(database, table, at);
            self.told.insert(table, Told { at, memory });
        }
    }
}

thread_local! {
    static EXPIRIES: Lasting<Expiries> = lasting(Expiries::default());
}

/// Has the background worker look for documents of a table that have expired at a time, in microseconds
/// since 2000, when this transaction commits.
pub fn documents_expire(table: u32, at: i64) {
    if board().is_some() {
        EXPIRIES.with(|expiries| expiries.borrow_mut().add(table, at));
    }
}

/// Has the background worker look soon when the next document of a table expires, because documents wait
/// again, at whatever time they expire.
pub fn documents_wait_again(table: u32) {
    documents_expire(table, time::clock() + EXPIRY_LOOK_US);
}

/// Has all who wait in this database look, because a prepared transaction was committed or rolled back.
fn prepared_ended() {
    let (Some(board), database) = (board(), session::database()) else {
        return;
    };
    if let Some(waiters) = waiters() {
        waiters.wake_database(database);
    }
    if let Some(entry) = board.databases.find(database) {
        entry.set_events(true);
    }
    board.schedules_changed(database);
    board.foreign_writes.add_unknown();
}

/// Records that this transaction writes counter events, so that they are packed after its commit.
pub fn event_recorded() {
    HAS_EVENTS.store(true, Ordering::Relaxed);
}

/// Sends a signal by the board when this transaction commits. `signal` gets the OID of this database.
fn on_commit(
    board: &'static Board,
    signal: impl FnOnce(&Board, u32) + Send + UnwindSafe + RefUnwindSafe + 'static,
) {
    let database = session::database();
    pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, move || {
        signal(board, database);
    });
}

/// Wakes the launcher when this transaction commits, so that it looks for databases that need a
/// background worker. Returns false when no launcher runs.
pub fn extension_changed() -> bool {
    board().is_some_and(|board| {
        on_commit(board, Board::extension_changed);
        board.launcher.process().is_some()
    })
}

/// Adds a due change for a new queue when this transaction commits. The due changes of its
/// documents came before the commit, when the background worker could not see the table yet.
pub fn queue_created(name: &QueueName) {
    if let Some(table) = relation::lookup_data_table(&name.relation("docs")) {
        documents_changed(table);
    }
}

/// Adds a due change for a table of documents when this transaction commits: documents may be due of
/// which no note says so.
///
/// It follows every ALTER TABLE. While the trigger that notes rows was disabled, rows may have been loaded
/// without a note, and to enable it again is an ALTER TABLE.
fn documents_changed(table: Oid) {
    if let Some(board) = board() {
        let table = table.to_u32();
        on_commit(board, move |board, database| {
            board.note_due_change(database, table, i64::MIN);
        });
    }
}

/// Has the background worker of this database look at the schedules when this transaction
/// commits.
pub fn schedules_changed() {
    if let Some(board) = board() {
        on_commit(board, Board::schedules_changed);
    }
}

/// Records when this transaction commits that a lease was given, where it is the first one after a crash.
/// One that is rolled back is none.
pub fn lease_given() {
    if let Some(board) = board().filter(|board| board.awaits_first_lease()) {
        on_commit(board, |board, _| board.lease_committed(time::clock()));
    }
}

/// Has a background worker look at the sessions with bound leases soon after this transaction
/// commits.
pub fn leases_bound() {
    if let Some(board) = board() {
        on_commit(board, Board::lease_bound);
    }
}
