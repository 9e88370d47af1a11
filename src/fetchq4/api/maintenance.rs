//! The steps of the maintenance of a queue, and its jobs, one at a time.

use pgrx::prelude::*;

use crate::api::entry::{interval_text, queue_name, respond_write};
use crate::api::maintenance::duration;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::maintenance::{runner, schedules};
use crate::pg::call::{Call, Reply};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::queues::grants;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::upkeep::jobs;
use crate::store::upkeep::maintenance as store;

/// Runs one step of maintenance on a queue, for at most `max_docs` documents, with the rights of
/// the owner of the documents. Fails with `UnknownQueue`, with `NegativeLimit` when `max_docs` is
/// below 0, and with `NoRight`.
fn run_step(call: &Call, run: impl FnOnce(&Queue, i32) -> Result<i32>) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let limit = call.limit(1, "max_docs")?;
    Queue::with(&name, Right::Work, |queue| run(queue, limit)).map(Reply::int)
}

/// `mnt_make_pending(queue, max_docs) → affected_rows`: makes planned documents pending that
/// are due. Fails with `UnknownQueue`, and with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn mnt_make_pending(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        run_step(call, |queue, limit| Ok(store::make_pending(queue, limit)))
    })
}

/// `mnt_reschedule_orphans(queue, max_docs) → affected_rows`: returns documents whose lease
/// expired. Fails with `UnknownQueue`, and with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn mnt_reschedule_orphans(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        run_step(call, |queue, limit| {
            Ok(store::reschedule_orphans(queue, limit))
        })
    })
}

/// `mnt_mark_dead(queue, max_docs) → affected_rows`: kills documents whose lease expired at their
/// last attempt. Fails with `UnknownQueue`, and with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn mnt_mark_dead(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| run_step(call, store::mark_dead))
}

/// `mnt_job_pick(duration, max_jobs) → jobs`: claims jobs that are due for `duration`, the text
/// of an interval, at most `max_jobs`. Fails with `NegativeLimit` or `BadDuration`.
#[pg_extern(sql = false)]
fn mnt_job_pick(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_jobs")?;
        let duration = duration(call, 0)?;
        let mut out = call.rows();
        jobs::claim(duration, limit, |rows| out.extend(rows));
        Ok(out.done())
    })
}

/// `mnt_job_reschedule(id, delay) → success`: makes a job due after `delay`, the text of an
/// interval; false when there is no such job. Fails with `BadDuration`.
#[pg_extern(sql = false)]
fn mnt_job_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let id = call.int(0, "id")?;
        let delay = interval_text(call, 1, "delay")?.as_duration("delay")?;
        match jobs::queue_of(id).as_deref() {
            Some("*") if !grants::may_pack() => return Err(Error::NotPacker),
            Some("*") | None => {}
            Some(queue) => rights::require_existing(&QueueName::parse(queue)?, Right::Manage)?,
        }
        Ok(Reply::bool(jobs::reschedule(id, delay)))
    })
}

/// Runs jobs that are due, then schedules that are due, at most `limit` of each.
fn run_jobs(call: &Call, duration: Interval, limit: i32) -> Reply {
    let outcome = runner::run(duration, limit);
    schedules::run_beside_jobs(limit);
    call.record(&[Arg::from(outcome.failed == 0), Arg::from(outcome.processed)])
}

/// `mnt_job_run(max_jobs) → (success, processed)`: runs jobs that are due, at most `max_jobs`,
/// and schedules that are due. `success` is false when a job failed. Fails with
/// `NegativeLimit`.
#[pg_extern(sql = false)]
fn mnt_job_run(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(0, "max_jobs")?;
        Ok(run_jobs(call, runner::default_duration(), limit))
    })
}

/// `mnt_job_run(duration, max_jobs) → (success, processed)`: as above, and claims each job for
/// `duration`, the text of an interval. Fails with `NegativeLimit` or `BadDuration`.
#[pg_extern(sql = false)]
fn mnt_job_run_for(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_jobs")?;
        Ok(run_jobs(call, duration(call, 0)?, limit))
    })
}
