//! `doc_upsert`: adds a document, or changes the one that has its subject.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::fetchq4::api::doc_push::read_document;
use crate::fetchq4::store::doc_upsert as store;
use crate::fetchq4::store::doc_upsert::Upserted;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_upsert(queue, subject, version, priority, next_iteration, payload) → (queued_docs,
/// updated_docs)`: adds a document, or changes priority, payload and time of the one that exists,
/// unless it is active. A queue that does not exist raises a warning and returns `(0, 0)`.
#[pg_extern(sql = false)]
fn doc_upsert(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let doc = read_document(call)?;
        let upserted = Queue::with(&queue, Right::Push, |queue| store::upsert(queue, &doc));
        let none = Upserted {
            queued: 0,
            updated: 0,
        };
        let done = lenient(upserted, none)?;
        Ok(call.record(&[Arg::from(done.queued), Arg::from(done.updated)]))
    })
}
