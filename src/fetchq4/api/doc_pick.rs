//! `doc_pick`, in all forms of fetchq 4: leases documents as `doc_lease` does.

use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::pg::relation;
use crate::pg::time::{self, Interval};
use crate::store::documents::doc_lease as store;
use crate::store::documents::doc_lease::{Pick, PickMode};
use crate::store::documents::leases::Lease;
use crate::store::documents::pick_columns::Columns;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_pick(queue, max_docs, duration text) → documents`: leases due documents of version 0,
/// at most `max_docs`, by priority and time. The lease lasts for `duration`, the text of an
/// interval.
///
/// Fails with `NegativeLimit` or `BadDuration`. A queue that does not exist raises a warning and
/// returns no rows.
#[pg_extern(sql = false)]
fn doc_pick(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_docs")?;
        pick(call, 0, limit, Interval::parse(call.text(2, "duration")?))
    })
}

/// `doc_pick(queue, duration text) → document`: leases one due document of version 0.
#[pg_extern(sql = false)]
fn doc_pick_text(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        pick(call, 0, 1, Interval::parse(call.text(1, "duration")?))
    })
}

/// `doc_pick(queue, duration interval) → document`: leases one due document of version 0.
#[pg_extern(sql = false)]
fn doc_pick_interval(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        pick(call, 0, 1, call.interval(1, "duration")?)
    })
}

/// `doc_pick(queue, version, max_docs, duration text) → documents`: leases due documents of a
/// version.
#[pg_extern(sql = false)]
fn doc_pick_full_text(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        pick(
            call,
            version,
            limit,
            Interval::parse(call.text(3, "duration")?),
        )
    })
}

/// `doc_pick(queue, version, max_docs, duration interval) → documents`: leases due documents of
/// a version.
#[pg_extern(sql = false)]
fn doc_pick_full_interval(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        pick(call, version, limit, call.interval(3, "duration")?)
    })
}

/// Leases due documents of the queue that is the first argument, at most `limit`, for `duration`.
fn pick(call: &Call, version: i32, limit: i32, duration: Interval) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let duration = duration.as_duration("duration")?;
    let mut out = call.rows();
    // A transaction that has picked before may not have noticed yet that the queue was paused.
    relation::accept_invalidations();
    let picked = Queue::with(&name, Right::Work, |queue| {
        if limit > 0 {
            let out = &mut out;
            let pick = Pick {
                version,
                limit,
                duration,
                now: time::now(),
                mode: PickMode::Lease(&Lease::of_pick()),
                columns: Columns::Picked,
                out,
                is_over: false,
            };
            store::pick(queue, pick);
        }
        Ok(())
    });
    lenient(picked, ())?;
    Ok(out.done())
}
