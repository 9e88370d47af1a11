//! Waiting for documents.

use pgrx::prelude::*;

use crate::api::entry::respond_write;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::value::Arg;
use crate::pg::{procedure, time};
use crate::signals::waiters::QUEUES;

/// `queue_wait(queue, timeout, INOUT ready, version)`: a procedure that waits until a document
/// can be picked, at most `timeout`. It holds neither a snapshot nor a lock meanwhile. `ready`
/// says whether there is one.
///
/// Fails with `InTransaction` in a transaction block or in a function, with `UnknownQueue`, and
/// with `BadDuration` for a timeout that is negative or infinite.
#[pg_extern(sql = false)]
fn queue_wait(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = call.text(0, "queue")?.to_owned();
        let found = wait_for(call, &[Some(name)])?;
        Ok(call.record(&[Arg::from(found.is_some())]))
    })
}

/// `queue_wait(queues, timeout, INOUT ready, version)`: as above, for a list of queues. `ready`
/// is the queue that has a document, or NULL.
///
/// Fails with `NumberOfQueues` when the list is empty or too long, with `NullElement` for a
/// NULL in it.
#[pg_extern(sql = false)]
fn queue_wait_any(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let names = call.texts(0, "queues")?;
        let found = wait_for(call, &names)?;
        let name = found.and_then(|at| names[at].as_deref());
        Ok(call.record(&[Arg::from(name)]))
    })
}

/// Waits for a document of one of the queues, and returns the position of that queue; `None` when
/// the time is over.
fn wait_for(call: &Call, names: &[Option<String>]) -> Result<Option<usize>> {
    if procedure::is_atomic(call) {
        return Err(Error::InTransaction(call.function_name()));
    }
    if names.is_empty() || names.len() > QUEUES {
        return Err(Error::NumberOfQueues {
            function: call.function_name(),
            max: QUEUES,
            got: names.len(),
        });
    }
    let mut queues = Vec::with_capacity(names.len());
    for name in names {
        let Some(name) = name else {
            return Err(Error::NullElement {
                function: call.function_name(),
                argument: "queues",
            });
        };
        queues.push(QueueName::parse(name)?);
    }
    let timeout = call.interval(1, "timeout")?.as_duration("timeout")?;
    let until = timeout.after(time::clock());
    let version = call.int(3, "version")?;
    procedure::run(|transactions| crate::waiting::wait(transactions, &queues, version, until))
}
