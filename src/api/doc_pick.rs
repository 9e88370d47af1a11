//! Leasing documents.

use crate::store::doc_pick as store;
use pgrx::prelude::*;

use crate::api::entry::{lenient, queue_name, respond_write};
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::time::{self, Interval};
use crate::pg::{relation, session};
use crate::store::doc_pick::{Pick, PickMode};
use crate::store::leases::Lease;
use crate::store::open_queue::Queue;
use crate::{settings, waiting};

/// `doc_pick(queue, max_docs, duration text)`
#[pg_extern(sql = false)]
fn doc_pick(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_docs")?;
        pick(call, 0, limit, Interval::parse(call.text(2, "duration")?))
    })
}

/// `doc_pick(queue, duration text)`
#[pg_extern(sql = false)]
fn doc_pick_text(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        pick(call, 0, 1, Interval::parse(call.text(1, "duration")?))
    })
}

/// `doc_pick(queue, duration interval)`
#[pg_extern(sql = false)]
fn doc_pick_interval(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        pick(call, 0, 1, call.interval(1, "duration")?)
    })
}

/// `doc_pick(queue, version, max_docs, duration text)`
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

/// `doc_pick(queue, version, max_docs, duration interval)`
#[pg_extern(sql = false)]
fn doc_pick_full_interval(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        pick(call, version, limit, call.interval(3, "duration")?)
    })
}

/// `doc_pick_wait(queue, version, max_docs, duration, timeout)`
#[pg_extern(sql = false)]
fn doc_pick_wait(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        let duration = call.interval(3, "duration")?.as_duration("duration")?;
        let timeout = call.interval(4, "timeout")?.as_duration("timeout")?;
        if session::keeps_snapshot() {
            return Err(Error::WaitsInSnapshot(call.function_name()));
        }
        let now = time::clock();
        let until = timeout
            .after(now)
            .min(now.saturating_add(settings::max_wait()));
        let lease = Lease::new();
        let mut out = call.rows();
        let picked = waiting::pick(&name, version, until, |queue, now| {
            let out = &mut out;
            let pick = Pick {
                version,
                limit,
                duration,
                now,
                mode: PickMode::Lease(&lease),
                out,
            };
            // (nothing is wanted: no need to wait for it)
            if limit > 0 {
                store::pick(queue, pick)
            } else {
                1
            }
        });
        lenient(picked, ())?;
        Ok(out.done())
    })
}

fn pick(call: &Call, version: i32, limit: i32, duration: Interval) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let duration = duration.as_duration("duration")?;
    let mut out = call.rows();
    // A transaction that has picked before may not know yet that the queue was paused.
    relation::accept_invalidations();
    let picked = Queue::open(&name).map(|queue| {
        if limit > 0 {
            let out = &mut out;
            let pick = Pick {
                version,
                limit,
                duration,
                now: time::now(),
                mode: PickMode::Lease(&Lease::new()),
                out,
            };
            store::pick(&queue, pick);
        }
    });
    lenient(picked, ())?;
    Ok(out.done())
}

/// `doc_pop(queue, version, max_docs)`
#[pg_extern(sql = false)]
fn doc_pop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        let mut out = call.rows();
        let popped = Queue::open(&queue).map(|queue| {
            if limit > 0 {
                let out = &mut out;
                let pick = Pick {
                    version,
                    limit,
                    duration: Interval::parse("0"),
                    now: time::now(),
                    mode: PickMode::Remove,
                    out,
                };
                store::pick(&queue, pick);
            }
        });
        lenient(popped, ())?;
        Ok(out.done())
    })
}
