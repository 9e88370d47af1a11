//! Adding or changing many documents in one call. Lists are answered in their order.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::store::doc_upsert_many;
use crate::store::open_queue::Queue;
use crate::store::rights::Right;

/// `doc_upsert_many(queue, docs) → (subject, action)`: as `doc_upsert`, for a JSON array of
/// documents. A queue that does not exist raises a warning and returns no rows.
///
/// Fails with `NoList` or `BadDocument` for an array that is not valid.
#[pg_extern(sql = false)]
fn doc_upsert_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let docs = call.json(1, "docs")?;
        let mut out = call.rows();
        let upserted = Queue::with(&queue, Right::Push, |queue| {
            doc_upsert_many::upsert_docs(queue, docs)
        });
        for (subject, action) in lenient(upserted, Vec::new())? {
            out.push(&[Arg::from(subject.as_str()), Arg::from(action.word())]);
        }
        Ok(out.done())
    })
}
