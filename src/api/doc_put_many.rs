//! `doc_put` for a list of documents.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond_write};
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::store::documents::doc_options;
use crate::store::documents::doc_put_many as store;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_put_many(queue, docs, mode) → (subject, action)`: as `doc_put`, for a JSON array of
/// documents. A document may name a mode of its own.
///
/// Fails with `UnknownQueue`, with `NoList` or `BadDocument` for an array that is not valid, with
/// `InList` where `doc_put` refuses a document, with `BadValue` for an unknown mode.
#[pg_extern(sql = false)]
fn doc_put_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let docs = call.json(1, "docs")?;
        let mode = doc_options::mode(call.opt_text(2))?;
        let mut out = call.rows();
        for (subject, action) in Queue::with(&queue, Right::Push, |queue| {
            store::put_docs(queue, docs, mode)
        })? {
            out.push(&[Arg::from(subject.as_str()), Arg::from(action.word())]);
        }
        Ok(out.done())
    })
}
