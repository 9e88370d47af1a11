//! The ready floors: the trigger that notes rows, and what can be seen of them.

use std::rc::Rc;

use pgrx::prelude::*;

use crate::api::entry::respond;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::notify::notify as send;
use crate::pg::relation;
use crate::pg::trigger::{self, TriggerEvent, WrittenRow};
use crate::ready::floors;
use crate::ready::key::{Index, Key};
use crate::signals::waiters::WaitKey;
use crate::signals::{announce, wakeups};
use crate::store::open_queue::Queue;
use crate::store::{cap, ordering};

/// The trigger `fetchq_ready` of the documents of every queue.
#[pg_extern(sql = false)]
fn trigger_docs_ready(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        match trigger::written_row(call) {
            WrittenRow::NotFromRowTrigger => return Err(Error::BadTrigger(call.function_name())),
            WrittenRow::OtherColumns => {}
            // Completed or killed: in neither index.
            WrittenRow::Document(row) if !(0..=2).contains(&row.status) => {}
            WrittenRow::Document(row) if row.status == 1 => {
                let key = Key::new(row.next_iteration, row.attempts, row.seq);
                floors::note_entry(row.table, Index::Pick, row.version, row.priority, key);
                let (table, version) = (row.table.to_u32(), row.version);
                wakeups::documents_ready(WaitKey { table, version }, 1);
            }
            WrittenRow::Document(row) => {
                let key = Key::new(row.next_iteration, 0, row.seq);
                floors::note_entry(row.table, Index::Due, 0, row.status, key);
            }
        }
        Ok(Reply::trigger())
    })
}

/// The trigger behind `queue_enable_notify`: announces the state a document entered.
#[pg_extern(sql = false)]
fn trigger_docs_notify(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let Some(entered) = trigger::status_change(call) else {
            return Err(Error::BadTrigger(call.function_name()));
        };
        if let Some(status) = Status::from_code(entered.status) {
            if announce::is_collecting() {
                announce::announce_status(entered.table, status);
            } else {
                let queue = QueueName::parse(&entered.queue)?;
                send(&queue.channel(status.gauge()), &entered.subject);
            }
        }
        Ok(Reply::trigger())
    })
}

/// The trigger `fetchq_queue_changed` of the registry.
#[pg_extern(sql = false)]
fn trigger_queue_changed(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let Some(name) = trigger::written_queue_name(call) else {
            return Err(Error::BadTrigger(call.function_name()));
        };
        // (a row with an impossible name is no queue)
        let table = QueueName::parse(&name)
            .ok()
            .and_then(|name| relation::lookup_data_table(&name.relation("docs")));
        if let Some(table) = table {
            relation::invalidate(table);
            // Perhaps it has been resumed, or a limit is gone.
            wakeups::capacity_freed(table.to_u32(), u32::MAX);
        }
        Ok(Reply::trigger())
    })
}

/// What fired a trigger of a queue's documents. No queue: the documents are restored
/// before it is, or were left behind.
fn fired(call: &Call) -> Result<(TriggerEvent, Option<Rc<Queue>>)> {
    let bad = || Error::BadTrigger(call.function_name());
    let fired = trigger::event(call).ok_or_else(bad)?;
    let name = relation::queue_of_table(fired.table.to_u32()).ok_or_else(bad)?;
    match Queue::open(&QueueName::parse(&name)?) {
        Ok(queue) if queue.table == fired.table => Ok((fired, Some(queue))),
        Ok(_) => Err(bad()),
        Err(Error::UnknownQueue(_)) => Ok((fired, None)),
        Err(e) => Err(e),
    }
}

/// The triggers `fetchq_cap_…` of a queue with `max_active`.
#[pg_extern(sql = false)]
fn trigger_docs_cap(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let (fired, Some(queue)) = fired(call)? else {
            return Ok(Reply::trigger());
        };
        let is_active = |doc: &&trigger::TriggerDocument| doc.status == 2;
        let old = fired.old.as_ref().filter(is_active);
        let new = fired.new.as_ref().filter(is_active);
        if fired.old.is_none() && fired.new.is_none() {
            cap::documents_truncated(&queue)?;
        }
        if let Some(old) = old {
            cap::document_released(&queue, &old.subject)?;
        }
        if let Some(new) = new {
            cap::document_activated(&queue, &new.subject, new.seq);
        }
        Ok(Reply::trigger())
    })
}

/// The triggers `fetchq_order_…` of an ordered queue.
#[pg_extern(sql = false)]
fn trigger_docs_order(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let (fired, queue) = fired(call)?;
        let Some(queue) = queue else {
            return Ok(match fired.is_before {
                true => trigger::before_row_result(call, true),
                false => Reply::trigger(),
            });
        };
        match (&fired.old, &fired.new) {
            (Some(_), Some(new)) if fired.is_before => {
                let may = ordering::may_change(&queue, new);
                return Ok(trigger::before_row_result(call, may));
            }
            (None, None) => ordering::documents_truncated(&queue)?,
            (old, new) => ordering::document_changed(&queue, old.as_ref(), new.as_ref())?,
        }
        Ok(Reply::trigger())
    })
}
