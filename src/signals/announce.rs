//! Announcements of a transaction: the statuses that its documents have entered, in queues
//! that have notifications enabled.
//!
//! A transaction that notifies holds a lock of the whole server while it commits, so all
//! transactions that notify commit one after the other. Therefore sessions leave announcements
//! for the background worker, which notifies once for all documents that entered a status
//! within a short time.

use std::cell::Cell;

use crate::pg::lasting::{Lasting, lasting};

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::pg::notify::notify;
use crate::pg::relation;
use crate::settings::{self, Notify};
use crate::signals::board::{Board, has_background_worker};

/// The payload of each notification. Any payload means "look now"; clients of fetchq send this
/// one themselves.
const PAYLOAD: &str = "true";

thread_local! {
    /// What the first look of this transaction has found.
    static IS_COLLECTING: Cell<Option<bool>> = const { Cell::new(None) };
    /// Tables, and the bits of the statuses that their documents have entered in this
    /// transaction.
    static ENTERED_STATUSES: Lasting<Vec<(u32, u32)>> = const { lasting(Vec::new()) };
}

/// Returns whether the background worker sends the notifications of this session. Within a transaction
/// that stays as it was: who has passed over a trigger for that reason announces the document later.
pub fn is_collecting() -> bool {
    let is_collecting =
        || settings::notify() == Notify::BackgroundWorker && has_background_worker();
    IS_COLLECTING.get().unwrap_or_else(|| {
        let found = is_collecting();
        IS_COLLECTING.set(Some(found));
        found
    })
}

/// Announces that documents of a table have entered a status, when this transaction commits.
pub fn announce_status(table: u32, status: Status) {
    ENTERED_STATUSES.with(|entered| {
        let mut entered = entered.borrow_mut();
        match entered.iter_mut().find(|(other, _)| *other == table) {
            Some((_, statuses)) => *statuses |= status.bit(),
            None => entered.push((table, status.bit())),
        }
    });
}

/// Sends the notifications of this transaction when there is no background worker, which may
/// have exited since the announcement. To be called before the commit.
pub fn before_commit(board: Option<&Board>, database: u32) {
    if ENTERED_STATUSES.with(|entered| entered.borrow().is_empty())
        || board.is_some_and(|board| board.background_worker_of(database).is_some())
    {
        return;
    }
    let entered = ENTERED_STATUSES.with(|entered| std::mem::take(&mut *entered.borrow_mut()));
    for (table, statuses) in entered {
        notify_statuses(table, statuses);
    }
}

/// Leaves the announcements of this transaction for the background worker. To be called after
/// the commit.
pub fn after_commit(board: Option<&Board>, database: u32) {
    IS_COLLECTING.set(None);
    ENTERED_STATUSES.with(|entered| {
        let mut entered = entered.borrow_mut();
        if entered.is_empty() {
            return;
        }
        if let Some(board) = board {
            board.announce(database, &entered);
        }
        entered.clear();
    });
}

/// Discards the announcements of this transaction. To be called after a rollback.
pub fn after_rollback() {
    IS_COLLECTING.set(None);
    ENTERED_STATUSES.with(|entered| entered.borrow_mut().clear());
}

/// Notifies of the statuses that documents of a table have entered; `statuses` is a set of
/// `Status::bit`. To be called in a transaction. It does nothing for a table that was dropped.
pub fn notify_statuses(table: u32, statuses: u32) {
    let name = relation::queue_of_table(table);
    if let Some(name) = name.and_then(|name| QueueName::parse(&name).ok()) {
        for status in Status::ALL {
            if statuses & status.bit() != 0 {
                notify(&name.channel(status.gauge()), PAYLOAD);
            }
        }
    }
}
