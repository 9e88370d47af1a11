//! Many documents in one call. Lists are answered in their order.

use std::collections::HashSet;

use pgrx::prelude::*;

use super::{generated_subject, lenient, queue_name, respond_write};
use crate::domain::names;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::spi::Arg;
use crate::pg::time;
use crate::store::bulk::{self, Batch};
use crate::store::plans::Queue;

/// A list of subjects, checked.
fn subjects(call: &Call, at: usize) -> Result<Vec<String>> {
    let list = call.texts(at, "subjects")?;
    list.into_iter()
        .map(|subject| match subject {
            Some(subject) => {
                names::check_subject(&subject)?;
                Ok(subject)
            }
            None => Err(Error::NullElement {
                function: call.function_name(),
                argument: "subjects",
            }),
        })
        .collect()
}

/// The payloads that belong to `n` subjects; nothing where there are none.
fn payloads(call: &Call, at: usize, n: usize) -> Result<Arg> {
    match call.json_array(at)? {
        None => Ok(Arg::no_json_array()),
        Some((_, got)) if got != n => Err(Error::ListLengths {
            subjects: n,
            payloads: got,
        }),
        Some((array, _)) => Ok(array),
    }
}

/// `doc_push_many(queue, docs)`
#[pg_extern(sql = false)]
fn doc_push_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let docs = call.json(1, "docs")?;
        let pushed = Queue::open(&queue).and_then(|queue| bulk::push_docs(&queue, docs));
        lenient(pushed, 0).map(Reply::int)
    })
}

/// `doc_push_many(queue, subjects, payloads, version, priority, next_iteration)`
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
        let pushed = Queue::open(&queue).map(|queue| bulk::push(&queue, &mut batch, &subjects));
        lenient(pushed, 0).map(Reply::int)
    })
}

/// `doc_append_many(queue, payloads, version, priority)`
#[pg_extern(sql = false)]
fn doc_append_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let Some((payloads, n)) = call.json_array(1)? else {
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
        let appended = Queue::open(&queue).map(|queue| {
            bulk::append(&queue, &mut batch, &mut subjects, generated_subject);
            for subject in &subjects {
                out.push(&[Arg::from(subject.as_str())]);
            }
        });
        lenient(appended, ())?;
        Ok(out.done())
    })
}

/// `doc_upsert_many(queue, docs)`
#[pg_extern(sql = false)]
fn doc_upsert_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let docs = call.json(1, "docs")?;
        let mut out = call.rows();
        let upserted = Queue::open(&queue).and_then(|queue| bulk::upsert_docs(&queue, docs));
        for (subject, action) in lenient(upserted, Vec::new())? {
            out.push(&[Arg::from(subject.as_str()), Arg::from(action.word())]);
        }
        Ok(out.done())
    })
}

/// Settles a list, which `lease` (the number of that argument) holds; answers for each
/// subject whether it was active. Where a lease is given and lost, nothing is settled.
fn settle(
    call: &Call,
    lease: usize,
    settle: impl FnOnce(&Queue, &[String], Option<i64>) -> Result<HashSet<String>>,
) -> Result<Reply> {
    let lease = call.opt_bigint(lease);
    let name = queue_name(call, 0)?;
    let subjects = subjects(call, 1)?;
    let mut out = call.rows();
    let settled = Queue::open(&name).and_then(|queue| settle(&queue, &subjects, lease));
    let is_queue = !matches!(settled, Err(Error::UnknownQueue(_)));
    let mut settled = lenient(settled, HashSet::new())?;
    let mut lost = None;
    let mut n = 0;
    for subject in &subjects {
        // (the second time it is listed it is not active any more)
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

/// `doc_complete_many(queue, subjects, payloads)`
#[pg_extern(sql = false)]
fn doc_complete_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle(call, 3, |queue, subjects, lease| {
            let payloads = match call.is_null(2) {
                true => None,
                false => Some(payloads(call, 2, subjects.len())?),
            };
            Ok(bulk::complete(queue, subjects, lease, payloads))
        })
    })
}

/// `doc_reschedule_many(queue, subjects, next_iteration, payloads)`
#[pg_extern(sql = false)]
fn doc_reschedule_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let next_iteration = call.timestamp(2, "next_iteration")?;
        settle(call, 4, |queue, subjects, lease| {
            let payloads = payloads(call, 3, subjects.len())?;
            let subjects = Arg::from(subjects.to_vec());
            Ok(bulk::reschedule(
                queue,
                subjects,
                lease,
                next_iteration,
                payloads,
            ))
        })
    })
}

/// `doc_drop_many(queue, subjects)`
#[pg_extern(sql = false)]
fn doc_drop_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle(call, 2, |queue, subjects, lease| {
            Ok(bulk::drop(queue, subjects, lease))
        })
    })
}
