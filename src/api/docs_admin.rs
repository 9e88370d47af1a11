//! Bulk administration: acting on all documents that match a filter, the oldest first.

use pgrx::prelude::*;

use crate::api::entry::{limit_or, queue_name, respond_write, subject};
use crate::domain::filter;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::store::documents::doc_options;
use crate::store::documents::doc_selection::BulkRequest;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::settle::docs_admin;

/// What a filter without conditions means for an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EmptyFilter {
    /// The action applies to all documents.
    All,
    /// It has to say so with `"all": true`, because what the action does cannot be undone.
    Refused,
}

/// A filter; NULL: the one without conditions.
pub fn filter_or_empty(call: &Call, at: usize) -> Jsonb {
    call.opt_json(at).unwrap_or_else(|| Jsonb::parse("{}"))
}

/// Acts on the documents of a queue that match a filter. Reads `filter, max_docs, dry_run` from
/// argument `first` on (counted from 0), for which NULL is the default. With `dry_run` the documents
/// are only counted.
///
/// Fails with `UnknownQueue`, with `NegativeLimit` when `max_docs` is below 0, with `Invalid` for a
/// filter that is not valid, with `FilterOfAll` for one that has to have a condition.
fn administer(
    fcinfo: pg_sys::FunctionCallInfo,
    first: usize,
    empty: EmptyFilter,
    act: impl FnOnce(&Call, &Queue, &BulkRequest) -> Result<i32>,
) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let json = filter_or_empty(call, first);
        let filter = filter::parse(&json.to_short_text("filter")?)?;
        if empty == EmptyFilter::Refused && filter.is_empty && !filter.all {
            return Err(Error::FilterOfAll(call.function_name()));
        }
        let request = BulkRequest {
            filter: &filter,
            json,
            limit: limit_or(call, first + 1, "max_docs", 1000)?,
            dry_run: call.opt_bool(first + 2).unwrap_or(false),
        };
        Queue::with(&name, Right::Work, |queue| act(call, queue, &request)).map(Reply::count)
    })
}

/// `docs_retry(queue, filter, max_docs, dry_run) → affected`: makes documents due now that
/// are planned or killed, and completed ones where the filter names that status.
#[pg_extern(sql = false)]
fn docs_retry(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer(fcinfo, 1, EmptyFilter::All, |_, queue, request| {
        docs_admin::retry(queue, request)
    })
}

/// `docs_kill(queue, filter, max_docs, dry_run) → affected`: kills planned and pending
/// documents, and active ones where the filter names that status.
#[pg_extern(sql = false)]
fn docs_kill(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer(fcinfo, 1, EmptyFilter::Refused, |_, queue, request| {
        docs_admin::kill(queue, request)
    })
}

/// `docs_drop(queue, filter, max_docs, dry_run) → affected`: removes documents; active
/// ones only where the filter names that status.
#[pg_extern(sql = false)]
fn docs_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer(fcinfo, 1, EmptyFilter::Refused, |_, queue, request| {
        docs_admin::drop(queue, request)
    })
}

/// `docs_move(queue, target, filter, max_docs, dry_run) → affected`: moves documents that
/// are not active to another queue. Those whose subject exists there stay. Fails with
/// `UnknownQueue` for both.
#[pg_extern(sql = false)]
fn docs_move(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer(fcinfo, 2, EmptyFilter::Refused, |call, queue, request| {
        let target = QueueName::parse(call.text(1, "target")?)?;
        Queue::with(&target, Right::Push, |target| {
            docs_admin::move_to(queue, target, request)
        })
    })
}

/// `docs_set_priority(queue, priority, filter, max_docs, dry_run) → affected`: gives
/// planned and pending documents another priority.
#[pg_extern(sql = false)]
fn docs_set_priority(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer(fcinfo, 2, EmptyFilter::All, |call, queue, request| {
        docs_admin::set_priority(queue, call.int(1, "priority")?, request)
    })
}

/// When documents are to be due, from `due_at` and `delay`, in microseconds since 2000.
///
/// Fails as `doc_options::due` does, and with `NeitherGiven`.
fn due(call: &Call, first: usize) -> Result<i64> {
    let (at, delay) = (call.opt_timestamp(first), call.opt_interval(first + 1));
    if at.is_none() && delay.is_none() {
        return Err(Error::NeitherGiven {
            one: "due_at",
            other: "delay",
        });
    }
    doc_options::due(at, delay)
}

/// `docs_set_due(queue, due_at, delay, filter, max_docs, dry_run) → affected`: gives planned
/// and pending documents another time. Fails as [`due`] does.
#[pg_extern(sql = false)]
fn docs_set_due(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer(fcinfo, 3, EmptyFilter::Refused, |call, queue, request| {
        docs_admin::set_due(queue, due(call, 1)?, request)
    })
}

/// Acts on one document of a queue.
///
/// Fails with `UnknownQueue`, and with `NotWaiting` when the document is neither planned nor pending.
fn administer_one(
    fcinfo: pg_sys::FunctionCallInfo,
    act: impl FnOnce(&Call, &Queue, &str) -> Result<i32>,
) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        rights::require(&name, Right::Work)?;
        Queue::with(&name, Right::Work, |queue| act(call, queue, subject)).map(Reply::count)
    })
}

/// `doc_set_due(queue, subject, due_at, delay) → affected`: gives a planned or pending document
/// another time. Fails as [`due`] does, too.
#[pg_extern(sql = false)]
fn doc_set_due(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer_one(fcinfo, |call, queue, subject| {
        docs_admin::set_due_of_one(queue, subject, due(call, 2)?)
    })
}

/// `doc_set_priority(queue, subject, priority) → affected`: gives a planned or pending document another
/// priority.
#[pg_extern(sql = false)]
fn doc_set_priority(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    administer_one(fcinfo, |call, queue, subject| {
        docs_admin::set_priority_of_one(queue, subject, call.int(2, "priority")?)
    })
}
