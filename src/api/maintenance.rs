//! Maintenance that any client may run, and its progress.

use pgrx::prelude::*;

use crate::api::entry::{interval_text, or_notice, queue_name, respond, respond_write};
use crate::domain::jobs::Task;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::maintenance::{documents, pack, runner, schedules};
use crate::pg::call::{Call, Reply};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{lock_wait, relation, session};
use crate::signals::board;
use crate::store::queues::grants;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::upkeep::jobs;
use crate::store::upkeep::maintenance as store;

/// The counts of `mnt_run`, as columns.
fn counts(outcome: documents::Outcome) -> [Arg; 3] {
    [
        Arg::from(outcome.activated),
        Arg::from(outcome.rescheduled),
        Arg::from(outcome.killed),
    ]
}

/// `mnt_run(queue, max_docs) → (activated_count, rescheduled_count, killed_count)`: makes planned
/// documents pending when they are due, and returns or kills documents whose lease expired, at most
/// `max_docs` of each.
///
/// Fails with `UnknownQueue`, and with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn mnt_run(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_docs")?;
        let name = queue_name(call, 0)?;
        let run = || lock_wait::allow(|| documents::run(&name, limit));
        let outcome = rights::with(&name, Right::Work, run)?;
        Ok(call.record(&counts(or_notice(outcome, &name).unwrap_or_default())))
    })
}

/// `mnt_run_all(max_docs)`: as `mnt_run`, for every queue, a row each. A queue that fails is left out,
/// with a WARNING, and one that is locked, with a NOTICE.
#[pg_extern(sql = false)]
fn mnt_run_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(0, "max_docs")?;
        let mut out = call.rows();
        lock_wait::allow(|| {
            for (name, outcome) in runner::run_documents(limit) {
                let Some(outcome) = or_notice(outcome, &name) else {
                    continue;
                };
                let [activated, rescheduled, killed] = counts(outcome);
                out.push(&[Arg::from(name.as_str()), activated, rescheduled, killed]);
            }
        });
        Ok(out.done())
    })
}

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

/// For how long jobs are claimed.
fn duration(call: &Call, at: usize) -> Result<Interval> {
    interval_text(call, at, "duration")?.as_duration("duration")
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

/// `mnt(duration) → (processed, packed)`: runs all jobs of all queues and the schedules now,
/// then packs the counters. Each job is claimed for `duration`, the text of an interval. Fails
/// with `BadDuration`.
#[pg_extern(sql = false)]
fn mnt(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let duration = duration(call, 0)?;
        let outcome = runner::run_all(duration);
        schedules::run_beside_jobs(i32::MAX);
        let mut packed = outcome.packed;
        // A role that does not own the extension leaves the counters of others alone.
        if grants::may_pack() {
            packed = packed.saturating_add(pack::run_for_caller());
        }
        Ok(call.record(&[Arg::from(outcome.processed), Arg::from(packed)]))
    })
}

/// `maintenance_progress() → (pid, service, queue, since, done)`: what maintenance does in this
/// database now, a row for each process. `done` is a number of rows.
#[pg_extern(sql = false)]
fn maintenance_progress(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        let board = board::board();
        let running = board.map(|board| board.progress.read(session::database(), time::clock()));
        for service in running.unwrap_or_default() {
            let queue = relation::queue_of_table(service.table);
            let parsed = queue.as_deref().map(QueueName::parse);
            if let Some(Ok(name)) = parsed
                && !rights::has(&name, Right::Any)
            {
                continue;
            }
            out.push(&[
                Arg::from(service.pid),
                Arg::from(service.task.map(Task::word)),
                Arg::from(queue.as_deref()),
                Arg::timestamp(service.since),
                Arg::from(service.done),
            ]);
        }
        Ok(out.done())
    })
}
