//! Creating, changing, emptying and dropping queues.

use crate::store::queue;
use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond, respond_write};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::pg::value::Arg;
use crate::store::{queue_indexes, queue_truncate};

/// `queue_create(queue)`
#[pg_extern(sql = false)]
fn queue_create(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let (was_created, id) = queue::create(&name)?;
        // A client that compares names with those of the registry would find none.
        if was_created && call.opt_text(0) != Some(name.as_str()) {
            notice!("queue names are folded to lower case: this one is \"{name}\"");
        }
        Ok(call.record(&[Arg::from(was_created), Arg::from(id)]))
    })
}

/// `queue_drop(queue)`
#[pg_extern(sql = false)]
fn queue_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = lenient(queue::drop(&name).map(Some), None)?;
        let id = dropped.map(|dropped| {
            if !dropped.schedules.is_empty() {
                let names = dropped.schedules.join(", ");
                notice!("the schedules of queue \"{name}\" are dropped too: {names}");
            }
            if !dropped.dead_letter_sources.is_empty() {
                let names = dropped.dead_letter_sources.join(", ");
                notice!(
                    "queue \"{name}\" took the dead letters of others, which keep them now: {names}"
                );
            }
            dropped.id
        });
        Ok(call.record(&[Arg::from(id.is_some()), Arg::from(id)]))
    })
}

/// `queue_get_id(queue)`
#[pg_extern(sql = false)]
fn queue_get_id(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let id = lenient(queue::id(&queue_name(call, 0)?).map(Some), None)?;
        Ok(Reply::bigint(id.map(i64::from)))
    })
}

/// `queue_create_indexes(queue)`
#[pg_extern(sql = false)]
fn queue_create_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, create_indexes)
}

/// `queue_create_indexes(queue, version, attempts)`: the indexes serve every version
/// and any number of attempts, so the two are only checked.
#[pg_extern(sql = false)]
fn queue_create_indexes_for(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        call.int(1, "version")?;
        call.int(2, "attempts")?;
        create_indexes(call)
    })
}

fn create_indexes(call: &Call) -> Result<Reply> {
    let created = queue_indexes::create(&queue_name(call, 0)?);
    lenient(created.map(|()| true), false).map(Reply::bool)
}

/// `queue_drop_indexes(queue)`
#[pg_extern(sql = false)]
fn queue_drop_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped = queue_indexes::drop(&name);
        lenient(dropped.map(|()| true), false).map(Reply::bool)
    })
}

/// `queue_drop_version(queue, version)`: no version has an index of its own, so there
/// is nothing to drop but the question whether it may be.
#[pg_extern(sql = false)]
fn queue_drop_version(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let dropped = queue::current_version(&name).map(|current| current != version);
        lenient(dropped, false).map(Reply::bool)
    })
}

/// `queue_status()`
#[pg_extern(sql = false)]
fn queue_status_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        queue::status_of_all(&mut out);
        Ok(out.done())
    })
}

/// `queue_status(queue)`
#[pg_extern(sql = false)]
fn queue_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        queue::status_of(&queue_name(call, 0)?, &mut out);
        Ok(out.done())
    })
}

/// `queue_top(queue, version, max_docs, skip)`
#[pg_extern(sql = false)]
fn queue_top(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let (limit, skip) = (call.limit(2, "max_docs")?, call.limit(3, "skip")?);
        let mut out = call.rows();
        queue::top(&name, version, limit, skip, &mut out)?;
        Ok(out.done())
    })
}

/// `queue_truncate(queue, empty)`
#[pg_extern(sql = false)]
fn queue_truncate(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        queue_truncate::truncate(&name, call.bool(1, "empty")?)?;
        Ok(Reply::bool(true))
    })
}

/// `queue_truncate_all(empty)`
#[pg_extern(sql = false)]
fn queue_truncate_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        queue_truncate::truncate_all(call.bool(0, "empty")?)?;
        Ok(Reply::bool(true))
    })
}
