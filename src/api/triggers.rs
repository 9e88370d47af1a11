//! The functions of fetchq's triggers. Each reads the row that fired it; what it does is in
//! `store::trigger_events`.

use pgrx::prelude::*;

use crate::api::entry::respond;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::trigger::{self, TriggerEvent, WrittenRow};
use crate::signals::foreign_writes;
use crate::store::setup::trigger_events as store;

/// `trigger_docs_ready()`: the trigger `fetchq_ready` on the documents of every queue, after
/// insert, update or delete of a row. It notes the row in the ready floors and wakes a waiter, and it notes
/// that somebody else than fetchq has written.
///
/// Fails with `BadTrigger` when it is not called by such a trigger. A table with other columns
/// is ignored: no floor refers to its index.
#[pg_extern(sql = false)]
fn trigger_docs_ready(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        match trigger::written_row(call) {
            WrittenRow::NotFromRowTrigger => return Err(bad_trigger(call)),
            WrittenRow::OtherColumns(table) | WrittenRow::Deleted(table) => {
                foreign_writes::row_written(table.to_u32());
            }
            WrittenRow::Document(row) => {
                foreign_writes::row_written(row.table.to_u32());
                store::document_written(&row);
            }
        }
        Ok(Reply::trigger())
    })
}

/// `trigger_docs_notify('queue')`: the trigger that `queue_enable_notify` creates, after insert
/// of a row or update of its status. It announces the new status of the document.
///
/// Fails with `BadTrigger` when it is not called by such a trigger, with `Invalid` when its
/// argument is not a queue name.
#[pg_extern(sql = false)]
fn trigger_docs_notify(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let change = trigger::status_change(call).ok_or_else(|| bad_trigger(call))?;
        store::status_changed(&change)?;
        Ok(Reply::trigger())
    })
}

/// `trigger_queue_changed()`: the trigger `fetchq_queue_changed` on the registry, after insert or
/// update of a row. It has all sessions read the settings of the queue again.
///
/// Fails with `BadTrigger` when it is not called by such a trigger.
#[pg_extern(sql = false)]
fn trigger_queue_changed(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = trigger::written_queue_name(call).ok_or_else(|| bad_trigger(call))?;
        store::queue_changed(&name);
        Ok(Reply::trigger())
    })
}

/// `trigger_docs_cap()`: the triggers `fetchq_cap_…` on the documents of a queue with
/// `max_active`. They keep its lease slots.
///
/// Fails with `BadTrigger` when it is not called by a trigger on the documents of a queue.
#[pg_extern(sql = false)]
fn trigger_docs_cap(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        store::update_lease_slots(&event(call)?, || bad_trigger(call))?;
        Ok(Reply::trigger())
    })
}

/// `trigger_docs_order()`: the triggers `fetchq_order_…` on the documents of an ordered queue.
/// They keep its ordering keys, and before an update they decide whether the row may change.
///
/// Fails with `BadTrigger` when it is not called by a trigger on the documents of a queue.
#[pg_extern(sql = false)]
fn trigger_docs_order(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let may_change = store::update_ordering_keys(&event(call)?, || bad_trigger(call))?;
        Ok(match may_change {
            Some(may_change) => trigger::before_row_result(call, may_change),
            None => Reply::trigger(),
        })
    })
}

/// The rows behind a trigger on the documents of a queue.
fn event(call: &Call) -> Result<TriggerEvent> {
    trigger::event(call).ok_or_else(|| bad_trigger(call))
}

fn bad_trigger(call: &Call) -> Error {
    Error::BadTrigger(call.function_name())
}
