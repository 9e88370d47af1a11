//! The notifications of queues that have them enabled, sent by the worker: a transaction
//! that notifies holds a lock of the whole server while it commits, so that all those
//! that do commit one after the other. The worker does it for them, once for all that
//! entered a state in a moment.

use std::cell::RefCell;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::pg::notify::notify;
use crate::pg::relation;
use crate::settings::{self, Notify};
use crate::signals::board::{Board, has_background_worker};

/// What is sent with each: any message means "look now", as clients send it themselves.
const PAYLOAD: &str = "true";

thread_local! {
    /// States that documents entered in this transaction, by table.
    static ENTERED: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Whether the worker sends the notifications of this session.
pub fn is_collecting() -> bool {
    settings::notify() == Notify::Worker && has_background_worker()
}

/// Documents of a table enter a state when this transaction commits.
pub fn announce_status(table: u32, status: Status) {
    ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        match entered.iter_mut().find(|(other, _)| *other == table) {
            Some((_, states)) => *states |= status.bit(),
            None => entered.push((table, status.bit())),
        }
    });
}

/// Before the commit: without a worker, which may have ended since, the transaction
/// notifies by itself.
pub fn committing(board: Option<&Board>, database: u32) {
    if ENTERED.with(|entered| entered.borrow().is_empty())
        || board.is_some_and(|board| board.background_worker_of(database).is_some())
    {
        return;
    }
    for (table, states) in ENTERED.with(|entered| std::mem::take(&mut *entered.borrow_mut())) {
        send(table, states);
    }
}

/// After the commit: tells the worker.
pub fn committed(board: Option<&Board>, database: u32) {
    ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        if entered.is_empty() {
            return;
        }
        if let Some(worker) = board.and_then(|board| board.background_worker_of(database)) {
            let mut is_news = false;
            for (table, states) in entered.iter() {
                is_news |= worker.announcements.add(*table, *states);
            }
            if is_news {
                worker.slot.wake();
            }
        }
        entered.clear();
    });
}

/// After a rollback: nothing happened.
pub fn rolled_back() {
    let _ = ENTERED.try_with(|entered| entered.borrow_mut().clear());
}

/// Notifies of the states that documents of a table entered. In a transaction.
pub fn send(table: u32, states: u32) {
    let name = relation::queue_of_table(table);
    // None: it was dropped.
    if let Some(name) = name.and_then(|name| QueueName::parse(&name).ok()) {
        for status in Status::ALL {
            if states & status.bit() != 0 {
                notify(&name.channel(status.gauge()), PAYLOAD);
            }
        }
    }
}
