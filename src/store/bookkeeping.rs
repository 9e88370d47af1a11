//! WaitKey: push, pick, settle. All statements here are hot.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).

use std::collections::HashMap;

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::pg::spi::Rows;
use crate::ready::floors;
use crate::ready::key::{Index, Key};
use crate::signals::{waiters, wakeups};
use crate::store::counter_log;
use crate::store::open_queue::Queue;

/// Tells the ready floors of a document that was planned or made pending.
pub fn note_entry(queue: &Queue, version: i32, priority: i32, status: Status, key: Key) {
    match status {
        Status::Pending => floors::note_entry(queue.table, Index::Pick, version, priority, key),
        status => floors::note_entry(queue.table, Index::Due, 0, status.code(), key),
    }
}

/// Tells those who wait, when the transaction commits, that documents came.
pub fn documents_ready(queue: &Queue, version: i32, status: Status, n: i32) {
    if status == Status::Pending {
        wakeups::documents_ready(waiter_key(queue, version), n.unsigned_abs());
    }
}

/// A document that is locked until the transaction ends, and can not be picked meanwhile:
/// who has looked for one, and has not seen it, is told when it is free.
pub fn document_locked(queue: &Queue, version: i32, status: Status) {
    if status == Status::Pending {
        wakeups::documents_ready(waiter_key(queue, version), 1);
        wakeups::documents_claimed(waiter_key(queue, version), 1);
    }
}

pub fn waiter_key(queue: &Queue, version: i32) -> waiters::WaitKey {
    waiters::WaitKey {
        table: queue.table.to_u32(),
        version,
    }
}

/// What a statement planned or made pending: the first place of each level, for the
/// ready floors, and how many documents, for the counters.
#[derive(Default)]
pub struct PlannedEntries {
    first: HashMap<(i32, i32, i32), Key>,
    counts: HashMap<(i32, i32), i32>,
}

impl PlannedEntries {
    pub fn add(&mut self, version: i32, priority: i32, status: Status, key: Key) {
        let first = self
            .first
            .entry((version, priority, status.code()))
            .or_insert(key);
        *first = key.min(*first);
        *self.counts.entry((version, status.code())).or_default() += 1;
    }

    pub fn signal(&self, queue: &Queue) {
        for ((version, priority, status), key) in &self.first {
            if let Some(status) = Status::from_code(*status) {
                note_entry(queue, *version, *priority, status, *key);
            }
        }
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                documents_ready(queue, *version, status, *n);
            }
        }
    }

    pub fn count(&self, queue: &Queue, event: impl Fn(Status) -> Event) {
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                counter_log::record_event(queue, *version, *n, event(status));
            }
        }
    }
}

/// Reads version, priority, status, next_iteration and seq, from a column on.
pub fn planned_entries(rows: &Rows, column: i32) -> PlannedEntries {
    let mut planned = PlannedEntries::default();
    for row in 0..rows.len() {
        let int = |at| rows.get(row, column + at).unwrap_or(0);
        if let Some(status @ (Status::Planned | Status::Pending)) = Status::from_code(int(2)) {
            let key = Key::new(
                rows.timestamp(row, column + 3).unwrap_or(i64::MIN),
                0,
                rows.get(row, column + 4).unwrap_or(i64::MIN),
            );
            planned.add(int(0), int(1), status, key);
        }
    }
    planned
}
