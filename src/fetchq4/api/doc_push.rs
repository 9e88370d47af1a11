//! `doc_push`, in all forms of fetchq 4.

use pgrx::prelude::*;

use crate::api::entry::{lenient, payload, queue_name, respond_write, subject, undouble_payload};
use crate::domain::names::{self, QueueName};
use crate::domain::push_list;
use crate::error::{Error, Result};
use crate::fetchq4::store::doc_push::{push_or_find_value_list, push_value_list};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::{memory, time};
use crate::settings;
use crate::store::documents::doc_push as store;
use crate::store::documents::doc_push::NewDoc;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// Pushes a document. With `fetchq.strict` it fails with `HiddenDocument` when a trigger of the user
/// suppresses the document.
fn push(queue: &QueueName, doc: &NewDoc) -> Result<Reply> {
    let pushed = Queue::with(queue, Right::Push, |queue| match settings::strict() {
        true => store::push_or_find(queue, doc),
        false => Ok(store::push(queue, doc)),
    });
    lenient(pushed, 0).map(Reply::int)
}

/// `doc_push(queue, subject, payload, next_iteration) → queued_docs`: adds a document of
/// version 0 and priority 0; 0 when the subject exists. A queue that does not exist raises a
/// warning and returns 0.
///
/// Fails with `HiddenDocument` as [`push`] does, as all forms for one document.
#[pg_extern(sql = false)]
fn doc_push(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let (subject, payload) = (subject(call, 1)?, payload(call, 2)?);
        let next_iteration = call.timestamp(3, "next_iteration")?;
        push(&queue, &NewDoc::new(subject, payload, next_iteration))
    })
}

/// `doc_push(queue, subject, version, priority, next_iteration, payload) → queued_docs`: adds a
/// document; 0 when the subject exists. A queue that does not exist raises a warning and returns 0.
#[pg_extern(sql = false)]
fn doc_push_full(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        push(&queue, &read_document(call)?)
    })
}

/// The document of the forms with six arguments, of `doc_push` and `doc_upsert`.
pub fn read_document(call: &Call) -> Result<NewDoc<'_>> {
    let subject = subject(call, 1)?;
    let (version, priority) = (call.int(2, "version")?, call.int(3, "priority")?);
    let next_iteration = call.timestamp(4, "next_iteration")?;
    Ok(NewDoc {
        version,
        priority,
        ..NewDoc::new(subject, payload(call, 5)?, next_iteration)
    })
}

/// `doc_push(queue, version, next_iteration, documents) → queued_docs`: adds a list of
/// documents that share version and time, written as the VALUES of fetchq 4. Returns the number
/// of those that are new.
///
/// Fails with `Invalid` when the list cannot be parsed.
#[pg_extern(sql = false)]
fn doc_push_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let next_iteration = call.timestamp(2, "next_iteration")?;
        push_list(&queue, version, next_iteration, call.text(3, "documents")?)
    })
}

/// Pushes a list of documents that share version and time (microseconds since 2000). The list
/// doubles its apostrophes, as every SQL literal does, and the parser undoes that:
/// `fetchq.legacy_quotes` does not apply.
///
/// Fails with `Invalid` when the list cannot be parsed or is too long, or a subject is too long; with
/// `fetchq.strict` also with `NotAdded` when a trigger of the user suppresses documents.
fn push_list(
    queue: &QueueName,
    version: i32,
    next_iteration: i64,
    documents: &str,
) -> Result<Reply> {
    memory::provide(push_list::max_items(documents), documents.len())?;
    let items = push_list::parse(documents)?;
    for item in &items {
        names::check_subject(&item.subject)?;
    }
    let pushed = Queue::with(queue, Right::Push, |queue| match settings::strict() {
        true => push_or_find_value_list(queue, version, next_iteration, &items),
        false => Ok(push_value_list(queue, version, next_iteration, &items)),
    });
    lenient(pushed, 0).map(Reply::int)
}

/// `doc_push(queue, text, text, text) → queued_docs`: four arguments without types, as literals
/// or from a driver that sends no types. Two forms fit, and only a list of documents starts
/// with a parenthesis.
///
/// Fails with `BadValue` when the version of a list is not an integer.
#[pg_extern(sql = false)]
fn doc_push_untyped(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let last = call.text(3, "next_iteration")?;
        if last.trim_start().starts_with('(') {
            let version = call.text(1, "version")?;
            let version = version.trim().parse().map_err(|_| Error::BadValue {
                argument: "version",
                value: version.to_owned(),
                rule: "an integer",
            })?;
            let next_iteration = time::parse_timestamp(call.text(2, "next_iteration")?);
            return push_list(&queue, version, next_iteration, last);
        }
        let subject = subject(call, 1)?;
        let payload = undouble_payload(Jsonb::parse(call.text(2, "payload")?));
        push(
            &queue,
            &NewDoc::new(subject, payload, time::parse_timestamp(last)),
        )
    })
}
