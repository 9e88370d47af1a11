//! Creating, changing, emptying and dropping queues.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::value::Arg;
use crate::pg::{session, spi};
use crate::store::{jobs, metrics, ordering_setup, queue_tables, statement, triggers};

/// `queue_create(queue)`
#[pg_extern(sql = false)]
fn queue_create(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let (was_created, id) = crate::store::queue::create(&name)?;
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
        let dropped = lenient(crate::store::queue::drop(&name).map(Some), None)?;
        let id = dropped.map(|dropped| {
            if !dropped.schedules.is_empty() {
                let names = dropped.schedules.join(", ");
                notice!("the schedules of queue \"{name}\" are dropped too: {names}");
            }
            if !dropped.letters_of.is_empty() {
                let names = dropped.letters_of.join(", ");
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
        let id = lenient(
            crate::store::queue::id(&queue_name(call, 0)?).map(Some),
            None,
        )?;
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
    let name = queue_name(call, 0)?;
    let created = crate::store::queue::lock_now(&name).map(|_| {
        spi::connect(|spi| {
            queue_tables::create_indexes(spi, &name);
            triggers::create_ready_trigger(spi, &name);
            ordering_setup::create_index(spi, &name);
        });
    });
    lenient(created.map(|()| true), false).map(Reply::bool)
}

/// `queue_drop_indexes(queue)`
#[pg_extern(sql = false)]
fn queue_drop_indexes(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let dropped =
            crate::store::queue::lock_now(&name).map(|_| queue_tables::drop_indexes(&name));
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
        let dropped = crate::store::queue::current_version(&name).map(|current| current != version);
        lenient(dropped, false).map(Reply::bool)
    })
}

/// `queue_status()`
#[pg_extern(sql = false)]
fn queue_status_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        spi::connect(|spi| out.extend(&spi.once(crate::store::queue::STATUS_ALL, &[])));
        Ok(out.done())
    })
}

/// `queue_status(queue)`
#[pg_extern(sql = false)]
fn queue_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let mut out = call.rows();
        let args = [Arg::from(name.as_str())];
        spi::connect(|spi| out.extend(&spi.once(crate::store::queue::STATUS_ONE, &args)));
        Ok(out.done())
    })
}

/// `queue_top(queue, version, max_docs, skip)`
#[pg_extern(sql = false)]
fn queue_top(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let limit = i64::from(call.limit(2, "max_docs")?);
        let skip = i64::from(call.limit(3, "skip")?);
        crate::store::queue::id(&name)?;
        let mut out = call.rows();
        let args = [Arg::from(version), Arg::from(limit), Arg::from(skip)];
        let sql = statement::render(crate::store::queue::TOP, &name);
        spi::connect(|spi| out.extend(&spi.once(&sql, &args)));
        Ok(out.done())
    })
}

/// `queue_truncate(queue, empty)`
#[pg_extern(sql = false)]
fn queue_truncate(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        truncate(&name, call.bool(1, "empty")?)?;
        Ok(Reply::bool(true))
    })
}

/// `queue_truncate_all(empty)`
#[pg_extern(sql = false)]
fn queue_truncate_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let empty = call.bool(0, "empty")?;
        for name in crate::store::queue::all() {
            truncate(&name, empty)?;
        }
        Ok(Reply::bool(true))
    })
}

fn truncate(name: &QueueName, empty: bool) -> Result<()> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_truncate"));
    }
    // Jobs before the registry, as maintenance locks them.
    if empty {
        jobs::restart(name.as_str());
    }
    crate::store::queue::lock_now(name)?;
    if empty {
        queue_tables::truncate_history(name);
    }
    queue_tables::truncate_docs(name);
    metrics::reset(name)?;
    Ok(())
}
