//! `doc_put` for a list of documents.

use pgrx::prelude::*;

use crate::api::entry::{opt_queue_name, respond_write};
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::store::documents::doc_options;
use crate::store::documents::doc_put_many as store;

/// `doc_put_many(queue, docs, mode) → (subject, action)`: as `doc_put`, for a JSON array of
/// documents. A document may name a mode and a queue of its own; `queue` NULL: each names one. One
/// without a subject gets one that is unique among all servers.
///
/// Fails with `UnknownQueue`, with `NoList` or `BadDocument` for an array that is not valid, with
/// `InList` where `doc_put` refuses a document, with `BadValue` for an unknown mode.
#[pg_extern(sql = false)]
fn doc_put_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = opt_queue_name(call, 0)?;
        let docs = call.json(1, "docs")?;
        let mode = doc_options::mode(call.opt_text(2))?;
        let mut out = call.rows();
        for (subject, action) in store::put_docs(queue.as_ref(), docs, mode)? {
            out.push(&[Arg::from(subject.as_str()), Arg::from(action.word())]);
        }
        Ok(out.done())
    })
}
