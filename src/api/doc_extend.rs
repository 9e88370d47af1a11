//! Extending leases: of one document, and of a whole pick.

use pgrx::prelude::*;

use crate::api::doc_lease::opt_duration;
use crate::api::entry::{queue_name, respond_write, subject, subjects};
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::documents::doc_extend;
use crate::store::documents::lease_check::LeasedDoc;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_extend(queue, subject, duration, lease, progress) → (next_iteration, stop)`: has a lease
/// last for `duration`, an interval, from now. `progress` replaces that of the document; NULL leaves
/// it as it is. `stop` says whether the worker was asked to stop; with
/// `next_iteration` NULL the document was cancelled.
///
/// Fails with `UnknownQueue`, `BadDuration`, `NotActive`, with `LeaseLost` when the lease
/// was lost, or with `LeaseNeeded` without the number of a lease that needs it.
#[pg_extern(sql = false)]
fn doc_extend(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let duration = call.interval(2, "duration")?.as_duration("duration")?;
        let doc = LeasedDoc {
            subject: subject(call, 1)?,
            lease: call.opt_bigint(3),
            call: "extend",
        };
        // Not the time of the transaction, which may have begun long ago.
        let until = duration.after(time::clock());
        let extended = Queue::with(&queue, Right::Work, |queue| {
            doc_extend::extend(queue, doc, until, call.opt_json(4))
        })?;
        let until = match extended.until {
            Some(until) => Arg::timestamp(until),
            None => Arg::no_timestamp(),
        };
        Ok(call.record(&[until, Arg::from(extended.stop)]))
    })
}

/// `lease_extend(queue, lease, duration, subjects) → (affected, lease_ends, stop)`: has the lease of
/// a whole pick last for `duration`, an interval, from now; NULL: the setting `lease` of the queue.
/// `subjects`: only these documents; NULL: all that it still holds, for which all active documents
/// of the queue are read. `stop` says whether the worker was asked to stop.
///
/// Fails with `UnknownQueue`, `BadDuration`, with `NullElement` or `BadValue` for a list that is not
/// valid, and with `LeaseGone` when the lease holds none of the documents.
#[pg_extern(sql = false)]
fn lease_extend(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let lease = call.bigint(1, "lease")?;
        let duration = opt_duration(call, 2)?;
        let subjects = match call.is_null(3) {
            true => None,
            false => Some(subjects(call, 3)?),
        };
        if subjects.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::BadValue {
                argument: "subjects",
                value: "an empty list".into(),
                rule: "one subject or more, or NULL for all documents of the lease",
            });
        }
        let (until, extended) = Queue::with(&name, Right::Work, |queue| {
            let duration = duration.unwrap_or_else(|| queue.lease_duration());
            // Not the time of the transaction, which may have begun long ago.
            let until = duration.after(time::clock());
            let extended = doc_extend::extend_pick(queue, lease, until, subjects)?;
            Ok((until, extended))
        })?;
        Ok(call.record(&[
            Arg::from(extended.affected),
            Arg::timestamp(until),
            Arg::from(extended.stop),
        ]))
    })
}
