//! Waiting: for documents, and until a document is settled.

use std::collections::BTreeMap;

use pgrx::prelude::*;

use crate::api::entry::{opt_queue_name, queue_name, respond, respond_write, subject, worker_name};
use crate::api::named_leases::{Element, LEASES};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{procedure, time};
use crate::store::documents::lease_check::NamedLease;
use crate::store::documents::stop_requests;
use crate::waiting::{News, Worker};

/// How many queues a session can wait for.
const MAX_QUEUES: usize = 1000;

/// How long a wait lasts where the caller says NULL: as the declarations say, 30 seconds.
const DEFAULT_TIMEOUT: (i32, i32, i64) = (0, 0, 30_000_000);

/// `queue_wait(queues, timeout, INOUT ready, version, queue)`: a procedure that waits until a document of
/// one of the queues can be picked, at most `timeout`. It holds neither a snapshot nor a lock
/// meanwhile. `queue` is one more queue, for callers that wait for one. `ready` is the queue that has a
/// document, or NULL.
///
/// Fails with `InTransaction` in a transaction block or in a function, with `UnknownQueue`, with
/// `NoRight` when the caller may not read the documents, with `NumberOfQueues` when the list is empty or too long, with `NullElement` for a NULL in it, and
/// with `BadDuration` for a timeout that is negative or infinite.
#[pg_extern(sql = false)]
fn queue_wait(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        require_no_transaction(call)?;
        let names = queue_names(call, opt_queue_name(call, 4)?)?;
        require_number(call, names.len(), 1)?;
        let until = end_of_wait(call, 1)?;
        let version = call.int(3, "version")?;
        let found = procedure::run(|transactions| {
            crate::waiting::wait(transactions, &names, version, until)
        })?;
        let name = found.map(|at| names[at].as_str());
        Ok(call.record(&[Arg::from(name)]))
    })
}

/// `worker_wait(queues, worker, timeout, leases, version, INOUT event, INOUT queue, INOUT subjects, INOUT
/// mark)`: a procedure that waits until a worker has to know something, at most `timeout`. It holds
/// neither a snapshot nor a lock meanwhile. `queues`: whose documents the worker can take; NULL or an
/// empty list: none. `leases`: the leases that it has, as for `docs_extend`; NULL: none. `event` is
/// ready, resumed, stop, cancelled or lost, or NULL; `queue` and `subjects` say of what. `mark`: the
/// requests to stop that the worker knows, by their numbers, as the call before has given them; NULL: those
/// that are committed by now.
///
/// Fails as `queue_wait` does, with `NoRight` when the caller may not work on the documents; with
/// `Invalid` for leases that are not valid; and with `NumberOfQueues` without a queue and a lease.
#[pg_extern(sql = false)]
fn worker_wait(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        require_no_transaction(call)?;
        let queues = queue_names(call, None)?;
        let leases = named_leases(call, &queues)?;
        require_number(call, queues.len(), usize::from(leases.is_empty()))?;
        let name = worker_name(call, 1, "worker")?.to_owned();
        let until = end_of_wait(call, 2)?;
        let known = known_stops(call)?;
        let version = call.opt_int(4).unwrap_or(0);
        let (news, mut mark) = procedure::run(|transactions| -> Result<_> {
            let known = known
                .unwrap_or_else(|| transactions.statement(|| stop_requests::known(Some(&name))));
            let worker = Worker {
                name: &name,
                queues: &queues,
                version,
                leases: &leases,
                known_stops: &known,
            };
            let news = crate::waiting::worker(transactions, &worker, until)?;
            Ok((news, known))
        })?;
        let queue_at = |at: usize| queues.get(at).map(|name| name.to_string());
        let (event, queue, subjects) = match news {
            None => (None, None, None),
            Some(News::Ready(at)) => (Some("ready"), queue_at(at), None),
            Some(News::Resumed(at)) => (Some("resumed"), queue_at(at), None),
            Some(News::Stop(stop)) => {
                mark.push(stop.number);
                (Some("stop"), stop.queue, None)
            }
            Some(News::Cancelled(queue, subjects)) => {
                (Some("cancelled"), Some(queue.to_string()), Some(subjects))
            }
            Some(News::Lost(queue, subjects)) => {
                (Some("lost"), Some(queue.to_string()), Some(subjects))
            }
        };
        Ok(call.record(&[
            Arg::from(event),
            Arg::from(queue.as_deref()),
            Arg::from(subjects),
            Arg::from(mark),
        ]))
    })
}

/// `doc_await(queue, subject, timeout, INOUT status, INOUT result, INOUT message)`: a procedure that
/// waits until a document is settled, at most `timeout`. It holds neither a snapshot nor a lock
/// meanwhile.
///
/// Fails with `InTransaction` in a transaction block or in a function, with `UnknownQueue`, with
/// `NoRight` when the caller has no right on the queue, with `NoDocument`, and with `BadDuration`
/// for a timeout that is negative or infinite.
#[pg_extern(sql = false)]
fn doc_await(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        require_no_transaction(call)?;
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?.to_owned();
        let until = end_of_wait(call, 2)?;
        let outcome = procedure::run(|transactions| {
            crate::waiting::settlement(transactions, &name, &subject, until)
        })?;
        let result = outcome.result.as_deref().map(Jsonb::parse);
        Ok(call.record(&[
            Arg::from(outcome.status),
            Jsonb::arg(result),
            Arg::from(outcome.message.as_deref()),
        ]))
    })
}

/// `work_check()`: a procedure with which `fetchq.work()` finds out whether it can end transactions. It
/// also remembers the beginning of the work, for `worker_stop_requested`.
///
/// Fails with `InTransaction`, which names `fetchq.work()`.
#[pg_extern(sql = false)]
fn work_check(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| match procedure::is_atomic(call) {
        true => Err(Error::InTransaction("fetchq.work".to_owned())),
        false => {
            stop_requests::work_begins();
            Ok(Reply::null())
        }
    })
}

fn require_no_transaction(call: &Call) -> Result<()> {
    match procedure::is_atomic(call) {
        true => Err(Error::InTransaction(call.function_name())),
        false => Ok(()),
    }
}

/// Until when the caller wants to wait, in microseconds since 2000. A time that is out of the range
/// of PostgreSQL is an error of its own.
fn end_of_wait(call: &Call, at: usize) -> Result<i64> {
    let timeout = match call.is_null(at) {
        true => Interval::from_parts(DEFAULT_TIMEOUT),
        false => call.interval(at, "timeout")?.as_duration("timeout")?,
    };
    Ok(timeout.after(time::clock()))
}

/// The leases of the argument of `worker_wait`, by queue. Where it names one queue, those that name none
/// are of that.
fn named_leases(call: &Call, queues: &[QueueName]) -> Result<BTreeMap<QueueName, Vec<NamedLease>>> {
    let mut leases: BTreeMap<QueueName, Vec<NamedLease>> = BTreeMap::new();
    let Some(list) = call.opt_json(3) else {
        return Ok(leases);
    };
    let only = match queues {
        [only] => Some(only),
        _ => None,
    };
    for Element {
        queue,
        subject,
        lease,
        ..
    } in LEASES.read(list, only)?
    {
        let of_queue = leases.entry(queue).or_default();
        of_queue.push(NamedLease { subject, lease });
    }
    Ok(leases)
}

/// The argument `mark` of `worker_wait`. Fails with `NullElement` for a NULL in it.
fn known_stops(call: &Call) -> Result<Option<Vec<i64>>> {
    let Some(numbers) = call.opt_bigints(8, "mark")? else {
        return Ok(None);
    };
    let numbers: Option<Vec<i64>> = numbers.into_iter().collect();
    match numbers {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(Error::NullElement {
            function: call.function_name(),
            argument: "mark",
        }),
    }
}

/// Fails with `NumberOfQueues` for too few queues or too many.
fn require_number(call: &Call, got: usize, min: usize) -> Result<()> {
    match (min..=MAX_QUEUES).contains(&got) {
        true => Ok(()),
        false => Err(Error::NumberOfQueues {
            function: call.function_name(),
            max: MAX_QUEUES,
            got,
        }),
    }
}

/// The queues of the first argument, which may be NULL, and one more, each once.
fn queue_names(call: &Call, more: Option<QueueName>) -> Result<Vec<QueueName>> {
    let listed = match call.is_null(0) {
        true => Vec::new(),
        false => call.texts(0, "queues")?,
    };
    require_number(call, listed.len(), 0)?;
    let mut queues: Vec<QueueName> = Vec::with_capacity(listed.len() + 1);
    for name in listed {
        let Some(name) = name else {
            return Err(Error::NullElement {
                function: call.function_name(),
                argument: "queues",
            });
        };
        let name = QueueName::parse(&name)?;
        if !queues.contains(&name) {
            queues.push(name);
        }
    }
    queues.extend(more.filter(|more| !queues.contains(more)));
    Ok(queues)
}
