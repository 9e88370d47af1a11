//! Adding many documents in one call.

use pgrx::prelude::*;

use crate::api::entry::{
    generated_subject, lenient, payloads, queue_name, respond_write, subjects,
};
use crate::pg::call::Reply;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::doc_push_many as store;
use crate::store::doc_push_many::Batch;
use crate::store::open_queue::Queue;
use crate::store::rights::Right;

/// `doc_push_many(queue, docs) → queued_docs`: adds a JSON array of documents. Returns the number
/// of those that are new. A queue that does not exist raises a warning and returns 0.
///
/// Fails with `NoList` or `BadDocument` for an array that is not valid.
#[pg_extern(sql = false)]
fn doc_push_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let docs = call.json(1, "docs")?;
        let pushed = Queue::with(&queue, Right::Push, |queue| store::push_docs(queue, docs));
        lenient(pushed, 0).map(Reply::int)
    })
}

/// `doc_push_many(queue, subjects, payloads, version, priority, next_iteration) → queued_docs`:
/// adds documents that share version, priority and time. `payloads` is as long as `subjects`,
/// or NULL.
///
/// Fails with `ListLengths`, `NullElement` or `ManyDimensions` for a list that is not valid. A
/// queue that does not exist raises a warning and returns 0.
#[pg_extern(sql = false)]
fn doc_push_many_arrays(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let subjects = subjects(call, 1)?;
        let mut batch = Batch {
            payloads: payloads(call, 2, subjects.len())?,
            subjects: Arg::from(Vec::<&str>::new()),
            version: call.int(3, "version")?,
            priority: call.int(4, "priority")?,
            next_iteration: call.timestamp(5, "next_iteration")?,
        };
        let pushed = Queue::with(&queue, Right::Push, |queue| {
            Ok(store::push(queue, &mut batch, &subjects))
        });
        lenient(pushed, 0).map(Reply::int)
    })
}

/// `doc_append_many(queue, payloads, version, priority) → subjects`: adds documents that are
/// due now, in their order, and returns the subjects that were generated for them. A queue that
/// does not exist raises a warning and returns no rows. Fails with `ManyDimensions`.
#[pg_extern(sql = false)]
fn doc_append_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let Some((payloads, n)) = call.json_array(1, "payloads")? else {
            return Err(call.missing("payloads"));
        };
        let mut subjects: Vec<String> = (0..n).map(|_| generated_subject()).collect();
        let mut batch = Batch {
            payloads,
            subjects: Arg::from(Vec::<&str>::new()),
            version: call.int(2, "version")?,
            priority: call.int(3, "priority")?,
            next_iteration: time::now(),
        };
        let mut out = call.rows();
        let appended = Queue::with(&queue, Right::Push, |queue| {
            store::append(queue, &mut batch, &mut subjects, generated_subject);
            for subject in &subjects {
                out.push(&[Arg::from(subject.as_str())]);
            }
            Ok(())
        });
        lenient(appended, ())?;
        Ok(out.done())
    })
}
