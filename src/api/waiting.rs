//! Waiting: for documents, and until a document is settled.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write, subject};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{procedure, time};
use crate::store::documents::stop_requests;

/// How many queues a session can wait for.
const MAX_QUEUES: usize = 1000;

/// How long a wait lasts where the caller says NULL: as the declarations say, 30 seconds.
const DEFAULT_TIMEOUT: (i32, i32, i64) = (0, 0, 30_000_000);

/// `queue_wait(queues, timeout, INOUT ready, version)`: a procedure that waits until a document of
/// one of the queues can be picked, at most `timeout`. It holds neither a snapshot nor a lock
/// meanwhile. `ready` is the queue that has a document, or NULL.
///
/// Fails with `InTransaction` in a transaction block or in a function, with `UnknownQueue`, with
/// `NoRight` when the caller may not read the documents, with `NumberOfQueues` when the list is empty or too long, with `NullElement` for a NULL in it, and
/// with `BadDuration` for a timeout that is negative or infinite.
#[pg_extern(sql = false)]
fn queue_wait(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        require_no_transaction(call)?;
        let names = queue_names(call)?;
        let until = end_of_wait(call, 1)?;
        let version = call.int(3, "version")?;
        let found = procedure::run(|transactions| {
            crate::waiting::wait(transactions, &names, version, until)
        })?;
        let name = found.map(|at| names[at].as_str());
        Ok(call.record(&[Arg::from(name)]))
    })
}

/// `doc_await(queue, subject, timeout, INOUT status, INOUT result, INOUT message)`: a procedure that
/// waits until a document is settled, at most `timeout`. It holds neither a snapshot nor a lock
/// meanwhile.
///
/// Fails with `InTransaction` in a transaction block or in a function, with `UnknownQueue`, with
/// `NoRight` when the caller may not read the documents, with `NoDocument`, and with `BadDuration`
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

/// The queues of the first argument, each once.
fn queue_names(call: &Call) -> Result<Vec<QueueName>> {
    let names = call.texts(0, "queues")?;
    if names.is_empty() || names.len() > MAX_QUEUES {
        return Err(Error::NumberOfQueues {
            function: call.function_name(),
            max: MAX_QUEUES,
            got: names.len(),
        });
    }
    let mut queues: Vec<QueueName> = Vec::with_capacity(names.len());
    for name in names {
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
    Ok(queues)
}
