//! What fetchq's triggers do. The triggers themselves are created in `triggers`, which cannot
//! hold this: the caps and the order create triggers too, and what happens here calls both.

use std::rc::Rc;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::notify;
use crate::pg::relation;
use crate::pg::trigger::{StatusChange, TriggerDocument, TriggerEvent, WrittenDocument};
use crate::ready::floors;
use crate::ready::key::PickKey;
use crate::signals::waiters::Key;
use crate::signals::{announce, commit, wakeups};
use crate::store::bounds::cap;
use crate::store::bounds::keys;
use crate::store::queues::open_queue::Queue;

/// Notes a document that was inserted or updated in the ready floors, and wakes a waiter when
/// it is pending. Completed and killed documents are in neither index.
pub fn document_written(row: &WrittenDocument) {
    let key = PickKey::new(row.next_iteration, row.attempts, row.seq);
    let status = Status::from_code(row.status);
    if let Some(expires_at) = row.expires_at
        && row.attempts == 0
        && matches!(status, Some(Status::Planned | Status::Pending))
    {
        commit::documents_expire(row.table.to_u32(), expires_at);
    }
    match status {
        Some(Status::Pending) => {
            floors::note_pick_entry(row.table, row.version, row.priority, key);
            wakeups::documents_ready(Key::ready(row.table.to_u32(), row.version), 1);
        }
        Some(Status::Planned | Status::Active) => {
            floors::note_due_entry(row.table, row.status, key.due());
        }
        Some(Status::Completed | Status::Killed) | None => {}
    }
}

/// Announces the new status of a document: through the background worker where announcements
/// are collected, else with a notification of its own.
///
/// Fails with `Invalid` when the argument of the trigger is not a queue name.
pub fn status_changed(change: &StatusChange) -> Result<()> {
    let Some(status) = Status::from_code(change.status) else {
        return Ok(());
    };
    if announce::is_collecting() {
        announce::announce_status(change.table, status);
    } else {
        let queue = QueueName::parse(&change.queue)?;
        notify::notify(&queue.channel(status.gauge()), &change.subject);
    }
    Ok(())
}

/// Has every session read the settings of a queue again, and wakes its waiters: the queue may
/// have been resumed, or a limit removed. A row whose name is invalid is not a queue.
///
/// The background worker looks at the documents and the schedules of the queue: the row may be that
/// of a queue whose tables were filled before, by a restore or by a move from another server.
pub fn queue_changed(name: &str) {
    let Ok(name) = QueueName::parse(name) else {
        return;
    };
    if let Some(table) = relation::lookup_data_table(&name.relation("docs")) {
        relation::invalidate(table);
        wakeups::capacity_freed(table.to_u32(), u32::MAX);
        commit::queue_created(&name);
        commit::schedules_changed();
    }
}

/// The queue whose documents fired a trigger. `None`: the queue is not registered, because a
/// restore fills its tables first, or because they were left behind.
///
/// Fails with `not_ours` when the table does not hold the documents of a queue.
fn queue_of(event: &TriggerEvent, not_ours: impl Fn() -> Error) -> Result<Option<Rc<Queue>>> {
    let name = relation::queue_of_table(event.table.to_u32()).ok_or_else(&not_ours)?;
    match Queue::open(&QueueName::parse(&name)?) {
        Ok(queue) if queue.table == event.table => Ok(Some(queue)),
        Ok(_) => Err(not_ours()),
        Err(e) if e.is_missing_queue() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Keeps the lease slots of a queue with `max_active`: a document that is active after the
/// event has one, and no other document has.
///
/// Fails with `not_ours` when the table does not hold the documents of a queue.
pub fn update_lease_slots(event: &TriggerEvent, not_ours: impl Fn() -> Error) -> Result<()> {
    let Some(queue) = queue_of(event, not_ours)? else {
        return Ok(());
    };
    let is_active = |doc: &&TriggerDocument| doc.status == Status::Active.code();
    if event.old.is_none() && event.new.is_none() {
        cap::documents_truncated(&queue)?;
    }
    if let Some(old) = event.old.as_ref().filter(is_active) {
        cap::document_released(&queue, &old.subject)?;
    }
    if let Some(new) = event.new.as_ref().filter(is_active) {
        cap::document_activated(&queue, &new.subject, new.seq);
    }
    Ok(())
}

/// Keeps the ordering keys of a queue with an order. Before an update it returns whether the row may
/// change. For every other event it returns `None`, because the result of the trigger is
/// ignored.
///
/// Fails with `not_ours` when the table does not hold the documents of a queue.
pub fn update_ordering_keys(
    event: &TriggerEvent,
    not_ours: impl Fn() -> Error,
) -> Result<Option<bool>> {
    let Some(queue) = queue_of(event, not_ours)? else {
        return Ok(event.is_before.then_some(true));
    };
    match (&event.old, &event.new) {
        (Some(_), Some(new)) if event.is_before => Ok(Some(keys::may_change(&queue, new))),
        (None, None) => keys::documents_truncated(&queue).map(|()| None),
        (old, new) => {
            keys::document_changed(&queue, old.as_ref(), new.as_ref())?;
            Ok(None)
        }
    }
}
