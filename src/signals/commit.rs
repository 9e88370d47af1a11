//! What happens when a transaction of this session ends: waiters are woken, statuses are
//! announced, and the background worker learns of new queues and schedules.

use crate::domain::names::QueueName;
use crate::pg::transaction::{self, End};
use crate::pg::{relation, session};
use crate::signals::board::board;
use crate::signals::{announce, wakeups};

/// Has the end of every transaction of this process send its signals. Called from
/// `_PG_init`; without shared memory there is nobody to signal to.
pub fn watch() {
    transaction::on_end(|end| {
        let (board, database) = (board(), session::database());
        let waiters = board.map(|board| &board.waiters);
        match end {
            End::Committing => announce::committing(board, database),
            End::Committed => {
                wakeups::committed(waiters, database);
                announce::committed(board, database);
            }
            // Another session commits a prepared transaction, and knows nothing of it.
            End::RolledBack | End::Prepared => {
                wakeups::rolled_back(waiters.filter(|_| end == End::RolledBack), database);
                announce::rolled_back();
            }
        }
    });
}

/// Has the launcher look for databases that need a worker, when this transaction
/// commits. False when there is no launcher.
pub fn extension_changed() -> bool {
    let Some(board) = board() else {
        return false;
    };
    pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, move || {
        board.extension_changed();
    });
    board.launcher.process().is_some()
}

/// Has the worker of this database look into a new queue, when this transaction commits:
/// what was told of its documents before was of a table that nobody could see.
pub fn queue_created(name: &QueueName) {
    let table = relation::lookup_data_table(&name.relation("docs"));
    if let (Some(board), Some(table)) = (board(), table) {
        let database = session::database();
        pgrx::register_xact_callback(pgrx::PgXactCallbackEvent::Commit, move || {
            board.note_due_change(database, table.to_u32(), i64::MIN);
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
