//! Leases: extending, cancelling, handing back; and who holds what.

use crate::store::worker_sessions;
use pgrx::prelude::*;

use crate::api::entry::{respond, respond_write};
use crate::error::{self, Error};
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::pg::{relation, spi};
use crate::store::open_queue::Queue;
use crate::store::{queue, statement};

/// `worker_release(name)`
#[pg_extern(sql = false)]
fn worker_release(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let worker = call.text(0, "name")?;
        let queues = worker_sessions::queues_of(worker);
        if queues.is_empty() {
            error::warn(
                PgSqlErrorCode::ERRCODE_NO_DATA,
                format!("no worker \"{worker}\" has picked anything"),
                "See fetchq.workers.",
            );
        }
        let mut released = 0;
        for name in queues {
            match Queue::open(&name) {
                Ok(queue) => released += worker_sessions::release(&queue, worker),
                // Dropped since.
                Err(Error::UnknownQueue(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(Reply::int(released))
    })
}

/// `worker_stop(name)`
#[pg_extern(sql = false)]
fn worker_stop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        worker_sessions::request_stop(call.text(0, "name")?);
        Ok(Reply::bool(true))
    })
}

/// `lease_list()`
#[pg_extern(sql = false)]
fn lease_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        for name in queue::all() {
            let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
                continue;
            };
            if !relation::may_read(table) {
                continue;
            }
            let sql = statement::render(worker_sessions::LEASED, &name);
            spi::connect(|spi| out.extend(&spi.once(&sql, &[Arg::from(name.as_str())])));
        }
        Ok(out.done())
    })
}
