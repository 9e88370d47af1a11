//! What follows from a document that was planned, made pending or picked: index entries are
//! noted for the ready floors, waiters are woken, and events are counted.

use std::collections::HashMap;
use std::iter;

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::pg::documents::{Column, Row};
use crate::pg::relation;
use crate::pg::spi::Rows;
use crate::ready::floors;
use crate::ready::key::{DueKey, PickKey};
use crate::signals::commit;
use crate::signals::waiters::Key;
use crate::signals::wakeups;
use crate::store::counters::counter_log;
use crate::store::queues::open_queue::Queue;

/// Notes the index entry of a document for the ready floors: in the pick index if `status`
/// is pending, else in the due index, where version, priority and attempts do not matter.
pub fn note_entry(queue: &Queue, version: i32, priority: i32, status: Status, key: PickKey) {
    match status {
        Status::Pending => floors::note_pick_entry(queue.table, version, priority, key),
        status => floors::note_due_entry(queue.table, status.code(), key.due()),
    }
}

/// Notes the index entries of documents that are leased until a time in microseconds since 2000.
pub fn note_lease(queue: &Queue, expires_at: i64) {
    floors::note_due_entry(queue.table, Status::Active.code(), DueKey::at(expires_at));
}

/// Has the background worker look at a time, in microseconds since 2000, for documents that have
/// expired. None: they do not.
pub fn note_expiry(queue: &Queue, at: Option<i64>) {
    if let Some(at) = at {
        commit::documents_expire(queue.table.to_u32(), at);
    }
}

/// The same for documents that wait again, at whatever time they expire.
pub fn note_waiting_again(queue: &Queue) {
    if queue.expiry_index.is_some_and(relation::may_have_entries) {
        commit::documents_wait_again(queue.table.to_u32());
    }
}

/// Wakes waiters when the transaction commits, because `n` documents became ready. Does
/// nothing if `status` is not pending.
pub fn documents_ready(queue: &Queue, version: i32, status: Status, n: i32) {
    if status == Status::Pending {
        wakeups::documents_ready(waiter_key(queue, version), n.unsigned_abs());
    }
}

/// Handles a document that is locked until the transaction ends, and cannot be picked
/// meanwhile. A waiter that looked for a document and did not see this one is woken when the
/// lock is released, by a commit or by a rollback.
pub fn document_locked(queue: &Queue, version: i32, status: Status) {
    if status == Status::Pending {
        wakeups::documents_ready(waiter_key(queue, version), 1);
        wakeups::documents_claimed(waiter_key(queue, version), 1);
    }
}

/// Says which documents are settled when the transaction commits, beside the counter event that
/// says how many. Without this, all who wait for documents of the queue are woken.
pub fn subjects_settled(queue: &Queue, subjects: impl IntoIterator<Item = impl AsRef<str>>) {
    wakeups::subjects_settled(queue.table.to_u32(), subjects);
}

/// Says whose leases end when the transaction commits, beside the counter event that says how many: the
/// worker session of each document. Without this, all workers that wait with leases of the queue look.
pub fn leases_taken(queue: &Queue, rows: &Rows, column: i32) {
    let sessions = (0..rows.len()).filter_map(|row| rows.get::<i64>(row, column));
    wakeups::sessions_lose_leases(queue.table.to_u32(), sessions);
}

/// As [`subjects_settled`], for rows whose first column is the subject.
pub fn rows_settled(queue: &Queue, rows: &Rows) {
    let subjects = (0..rows.len()).filter_map(|row| rows.get::<String>(row, 1));
    subjects_settled(queue, subjects);
}

/// As [`subjects_settled`], for a row that was read without a statement.
pub fn row_settled(queue: &Queue, row: &Row) {
    let subject = iter::once_with(|| row.arg(Column::Subject).text());
    subjects_settled(queue, subject.flatten());
}

/// The key under which waiters wait for documents of a version.
pub fn waiter_key(queue: &Queue, version: i32) -> Key {
    Key::ready(queue.table.to_u32(), version)
}

/// The key under which a worker waits that has leases of a worker session.
pub fn lease_key(queue: &Queue, worker_session: i64) -> Key {
    Key::lease(queue.table.to_u32(), worker_session)
}

/// The documents that a statement planned or made pending: the first index key of each level
/// for the ready floors, and the number of documents for the counters.
#[derive(Default)]
pub struct PlannedEntries {
    /// Of pending documents, by version and priority.
    first_pick_keys: HashMap<(i32, i32), PickKey>,
    /// Of other documents, by status code.
    first_due_keys: HashMap<i32, DueKey>,
    /// By version and status code.
    counts: HashMap<(i32, i32), i32>,
}

impl PlannedEntries {
    /// Adds one document.
    pub fn add(&mut self, version: i32, priority: i32, status: Status, key: PickKey) {
        // The two indexes have different orders, so each has its own first key.
        if status == Status::Pending {
            let level = (version, priority);
            let first = self.first_pick_keys.entry(level).or_insert(key);
            *first = key.min(*first);
        } else {
            let level = status.code();
            let first = self.first_due_keys.entry(level).or_insert(key.due());
            *first = key.due().min(*first);
        }
        *self.counts.entry((version, status.code())).or_default() += 1;
    }

    /// Notes the index entries for the ready floors, and wakes waiters when the transaction
    /// commits.
    pub fn signal(&self, queue: &Queue) {
        for ((version, priority), key) in &self.first_pick_keys {
            floors::note_pick_entry(queue.table, *version, *priority, *key);
        }
        for (status, key) in &self.first_due_keys {
            floors::note_due_entry(queue.table, *status, *key);
        }
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                documents_ready(queue, *version, status, *n);
            }
        }
    }

    /// Records the events for the counters. `event` returns the event for a status.
    pub fn count(&self, queue: &Queue, event: impl Fn(Status) -> Event) {
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                counter_log::record_event(queue, *version, *n, event(status));
            }
        }
    }
}
