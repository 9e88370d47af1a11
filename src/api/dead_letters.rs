//! Dead-letter queues: reviving one document, and redriving many.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond_write, subject};
use crate::domain::filter;
use crate::pg::call::Reply;
use crate::store::documents::doc_selection::BulkRequest;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::settle::dead_letters;
use crate::store::settle::redrive;

/// `doc_revive(queue, subject, due_at) → affected`: plans a killed or completed
/// document again, with all its attempts.
///
/// Fails with `UnknownQueue`, and with `NotSettled` when the document is neither killed nor
/// completed.
#[pg_extern(sql = false)]
fn doc_revive(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        let due_at = call.timestamp(2, "due_at")?;
        rights::require(&name, Right::Work)?;
        let revive = |queue: &Queue| dead_letters::revive(queue, subject, due_at);
        Queue::with(&name, Right::Work, revive).map(Reply::count)
    })
}

/// `queue_redrive(queue, max_docs, filter, dry_run) → affected`: brings back documents that failed,
/// the oldest first, at most `max_docs`: killed documents of the queue, its dead letters in
/// other queues, and the dead letters of other queues in this one. `filter` is a JSON object. With
/// `dry_run` the documents are only counted.
///
/// Fails with `UnknownQueue`, `NegativeLimit`, and with `Invalid` for a filter that is not
/// valid.
#[pg_extern(sql = false)]
fn queue_redrive(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let limit = call.limit(1, "max_docs")?;
        let json = call.json(2, "filter")?;
        let filter = filter::parse(&json.to_short_text("filter")?)?;
        let request = BulkRequest {
            filter: &filter,
            json,
            limit,
            dry_run: call.opt_bool(3).unwrap_or(false),
        };
        redrive::redrive(&Queue::open_for(&name, Right::Work)?, &request).map(Reply::count)
    })
}
