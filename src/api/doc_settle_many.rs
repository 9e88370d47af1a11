//! Settling many leased documents in one call. Lists are answered in their order.

use std::collections::HashSet;

use pgrx::prelude::*;

use crate::api::entry::{lenient, payloads, queue_name, respond_write, subjects, values_of};
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::doc_settle_many;

/// Settles a list of documents, and returns for each subject whether it was active. `lease` is the
/// position of the argument with the lease number, counted from 0. Where a lease is given and one
/// of them was lost, nothing is settled.
fn settle(
    call: &Call,
    lease: usize,
    settle: impl FnOnce(&Queue, &[String], Option<i64>) -> Result<HashSet<String>>,
) -> Result<Reply> {
    let lease = call.opt_bigint(lease);
    let name = queue_name(call, 0)?;
    let subjects = subjects(call, 1)?;
    let mut out = call.rows();
    let settled = Queue::with(&name, Right::Work, |queue| settle(queue, &subjects, lease));
    let is_queue = !matches!(settled, Err(Error::UnknownQueue(_)));
    let mut settled = lenient(settled, HashSet::new())?;
    let mut lost = None;
    let mut n = 0;
    for subject in &subjects {
        // A subject that is listed twice is no longer active the second time.
        let was_active = settled.remove(subject);
        if !was_active {
            lost.get_or_insert(subject);
            n += 1;
        }
        out.push(&[Arg::from(subject.as_str()), Arg::from(was_active)]);
    }
    if is_queue && let Some(subject) = lost {
        let (queue, first, of) = (name.to_string(), subject.to_owned(), subjects.len());
        let error = match lease {
            Some(lease) => Error::SomeLeasesLost {
                queue,
                first,
                lease,
                n,
                of,
            },
            None => Error::SomeNotActive {
                queue,
                first,
                n,
                of,
            },
        };
        lenient(Err(error), ())?;
    }
    Ok(out.done())
}

/// `doc_complete_many(queue, subjects, payloads, lease, results) → (subject, settled)`: settles
/// active documents as completed. `payloads` and `results` are as long as `subjects`, or NULL.
///
/// Fails with `SomeLeasesLost` when `lease` is given and one of them was lost, with
/// `ListLengths`, `NullElement` or `ManyDimensions` for a list that is not valid. Without
/// `lease`, documents that are not active raise a warning.
#[pg_extern(sql = false)]
fn doc_complete_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle(call, 3, |queue, subjects, lease| {
            let payloads = values_of(call, 2, subjects.len(), "payloads")?;
            let results = values_of(call, 4, subjects.len(), "results")?;
            Ok(doc_settle_many::complete(
                queue, subjects, lease, payloads, results,
            ))
        })
    })
}

/// `doc_reschedule_many(queue, subjects, next_iteration, payloads, lease) → (subject, settled)`:
/// plans the next iteration of active documents. Errors are those of `doc_complete_many`.
#[pg_extern(sql = false)]
fn doc_reschedule_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = call.timestamp(2, "next_iteration")?;
        settle(call, 4, |queue, subjects, lease| {
            let payloads = payloads(call, 3, subjects.len())?;
            let subjects = Arg::from(subjects.to_vec());
            Ok(doc_settle_many::reschedule(
                queue,
                subjects,
                lease,
                next_iteration,
                payloads,
            ))
        })
    })
}

/// `doc_drop_many(queue, subjects, lease) → (subject, settled)`: settles active documents by
/// removing them. Errors are those of `doc_complete_many`.
#[pg_extern(sql = false)]
fn doc_drop_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle(call, 2, |queue, subjects, lease| {
            Ok(doc_settle_many::drop(queue, subjects, lease))
        })
    })
}
