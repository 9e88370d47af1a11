//! `doc_append` for a list of payloads.

use pgrx::prelude::*;

use crate::api::entry::{generated_subject, lenient, queue_name, respond_write};
use crate::pg::call::Reply;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::settings;
use crate::store::documents::doc_append_many as store;
use crate::store::documents::doc_append_many::Batch;
use crate::store::documents::doc_push::not_added;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_append_many(queue, payloads, version, priority) → subjects`: adds documents that are
/// due now, in their order, and returns the subjects that were generated for them. A queue that does
/// not exist raises a warning and returns no rows.
///
/// Fails with `ManyDimensions`, and with `NotAdded` when a trigger of the user suppresses a document;
/// without `fetchq.strict` its subject is NULL then. Where a trigger also changes subjects, those that it
/// has changed are NULL with it, because they cannot be told from it.
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
            let missing = store::append(queue, &mut batch, &mut subjects, generated_subject);
            if missing.n > 0 && settings::strict() {
                return Err(not_added(queue, missing.n, subjects.len()));
            }
            for (at, subject) in subjects.iter().enumerate() {
                let added = (!missing.positions.contains(&at)).then_some(subject.as_str());
                out.push(&[Arg::from(added)]);
            }
            Ok(())
        });
        lenient(appended, ())?;
        Ok(out.done())
    })
}
