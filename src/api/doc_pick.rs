//! Picking from one queue: leasing documents, and popping them.

use pgrx::prelude::*;

use crate::api::entry::{lenient, limit_or, queue_name, respond_write};
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::relation;
use crate::pg::row_sink::RowSink;
use crate::pg::time::{self, Interval};
use crate::settings::Binding;
use crate::store::documents::doc_pick as store;
use crate::store::documents::doc_pick::{Pick, PickMode};
use crate::store::documents::leases::{GivenWorker, Lease, NAME_MAX};
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

/// `doc_lease(queue, max_docs, duration, version, worker, binding) → documents`: leases due
/// documents of a version, at most `max_docs`, by priority and time. `duration` is an interval;
/// NULL: the setting `lease` of the queue. `worker` and `binding` take the place of
/// `fetchq.worker` and `fetchq.session_leases`; NULL: as these are set.
///
/// Fails with `UnknownQueue`, `NegativeLimit`, `BadDuration`, and with `BadValue` for a `worker`
/// or a `binding` that is not valid.
#[pg_extern(sql = false)]
fn doc_lease(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let wanted = Wanted::read(call, 1)?;
        let mut out = call.rows();
        // A transaction that has picked before may not have noticed yet that the queue was paused.
        relation::accept_invalidations();
        Queue::with(&name, Right::Work, |queue| {
            wanted.lease(queue, time::now(), &mut out);
            Ok(())
        })?;
        Ok(out.done())
    })
}

/// The arguments of `doc_lease` after the queue.
pub struct Wanted {
    limit: i32,
    duration: Option<Interval>,
    version: i32,
    lease: Lease,
}

impl Wanted {
    /// Reads the arguments `max_docs`, `duration`, `version`, `worker` and `binding`, of which
    /// `first` is the position of the first. NULL means the default of each. Fails with `NegativeLimit`, `BadDuration` and
    /// `BadValue`.
    pub fn read(call: &Call, first: usize) -> Result<Self> {
        Ok(Self {
            limit: limit_or(call, first, "max_docs", 1)?,
            duration: opt_duration(call, first + 1)?,
            version: call.opt_int(first + 2).unwrap_or(0),
            lease: Lease::of(given_worker(call, first + 3, first + 4)?),
        })
    }

    /// Leases documents from `now` on, which become rows of the result.
    pub fn lease(&self, queue: &Queue, now: i64, out: &mut RowSink) {
        if self.limit > 0 {
            let pick = Pick {
                version: self.version,
                limit: self.limit,
                duration: self.duration.unwrap_or_else(|| queue.lease_duration()),
                now,
                mode: PickMode::Lease(&self.lease),
                columns: Columns::Leased,
                out,
                is_over: false,
            };
            store::pick(queue, pick);
        }
    }
}

/// The lease duration that the caller wants; None: that of the queue. Fails with `BadDuration`.
pub fn opt_duration(call: &Call, at: usize) -> Result<Option<Interval>> {
    call.opt_interval(at)
        .map(|duration| duration.as_duration("duration"))
        .transpose()
}

/// What the caller says about its worker, in the arguments `worker` and `binding` at these
/// positions. Fails with `BadValue`.
pub fn given_worker(call: &Call, worker: usize, binding: usize) -> Result<GivenWorker> {
    let name = call.opt_text(worker).map(str::to_owned);
    if let Some(name) = &name
        && !(1..=NAME_MAX).contains(&name.chars().count())
    {
        return Err(Error::BadValue {
            argument: "worker",
            value: format!("a name of {} characters", name.chars().count()),
            rule: "a name of 1 to 200 characters, or NULL for the setting fetchq.worker",
        });
    }
    let binding = match call.opt_text(binding) {
        None => None,
        Some(word) => match Binding::parse(word) {
            Some(binding) => Some(binding),
            None => {
                return Err(Error::BadValue {
                    argument: "binding",
                    value: format!("{word:?}"),
                    rule: "'off', 'return', 'keep' or 'call', or NULL for the setting fetchq.session_leases",
                });
            }
        },
    };
    Ok(GivenWorker { name, binding })
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
                mode: PickMode::Lease(&Lease::new()),
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

/// `doc_pop(queue, version, max_docs) → documents`: removes due documents and returns them. A
/// rollback brings them back.
///
/// Fails with `NegativeLimit`. A queue that does not exist raises a warning and returns no rows.
#[pg_extern(sql = false)]
fn doc_pop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let limit = call.limit(2, "max_docs")?;
        let mut out = call.rows();
        let popped = Queue::with(&queue, Right::Work, |queue| {
            if limit > 0 {
                let out = &mut out;
                let pick = Pick {
                    version,
                    limit,
                    duration: Interval::parse("0"),
                    now: time::now(),
                    mode: PickMode::Remove,
                    columns: Columns::Picked,
                    out,
                    is_over: false,
                };
                store::pick(queue, pick);
            }
            Ok(())
        });
        lenient(popped, ())?;
        Ok(out.done())
    })
}
