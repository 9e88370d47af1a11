//! Maintenance that any client may run.

use crate::store::maintenance as store;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::domain::jobs::Task;
use crate::error::{Error, Result};
use crate::maintenance::{documents, pack, runner, schedules};
use crate::pg::call::{Call, Reply};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{relation, session};
use crate::signals::board;
use crate::store::open_queue::Queue;
use crate::store::{jobs, queue};

fn counts(outcome: documents::Outcome) -> [Arg; 3] {
    [
        Arg::from(outcome.activated),
        Arg::from(outcome.rescheduled),
        Arg::from(outcome.killed),
    ]
}

/// `mnt_run(queue, max_docs)`
#[pg_extern(sql = false)]
fn mnt_run(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_docs")?;
        let outcome = documents::run(&queue_name(call, 0)?, limit)?;
        Ok(call.record(&counts(outcome)))
    })
}

/// `mnt_run_all(max_docs)`
#[pg_extern(sql = false)]
fn mnt_run_all(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(0, "max_docs")?;
        let mut out = call.rows();
        for name in queue::all() {
            let outcome = match documents::run(&name, limit) {
                // Dropped by another session since the list was read.
                Err(Error::UnknownQueue(_)) => continue,
                other => counts(other?),
            };
            out.push(&[Arg::from(name.as_str()), outcome[0], outcome[1], outcome[2]]);
        }
        Ok(out.done())
    })
}

fn one(call: &Call, run: impl FnOnce(&Queue, i32) -> Result<i32>) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let limit = call.limit(1, "max_docs")?;
    let queue = Queue::open(&name)?;
    run(&queue, limit).map(Reply::int)
}

/// `mnt_make_pending(queue, max_docs)`
#[pg_extern(sql = false)]
fn mnt_make_pending(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        one(call, |queue, limit| Ok(store::make_pending(queue, limit)))
    })
}

/// `mnt_reschedule_orphans(queue, max_docs)`
#[pg_extern(sql = false)]
fn mnt_reschedule_orphans(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        one(call, |queue, limit| {
            Ok(store::reschedule_orphans(queue, limit))
        })
    })
}

/// `mnt_mark_dead(queue, max_docs)`
#[pg_extern(sql = false)]
fn mnt_mark_dead(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| one(call, store::mark_dead))
}

fn duration(call: &Call, at: usize) -> Result<Interval> {
    Interval::parse(call.text(at, "duration")?).as_duration("duration")
}

/// `mnt_job_pick(duration, max_jobs)`
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

/// `mnt_job_reschedule(id, delay)`
#[pg_extern(sql = false)]
fn mnt_job_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let id = call.int(0, "id")?;
        let delay = Interval::parse(call.text(1, "delay")?).as_duration("delay")?;
        Ok(Reply::bool(jobs::reschedule(id, delay)))
    })
}

fn run_jobs(call: &Call, duration: Interval, limit: i32) -> Reply {
    let outcome = runner::run(duration, limit);
    schedules::run_beside_jobs(limit);
    call.record(&[Arg::from(outcome.failed == 0), Arg::from(outcome.processed)])
}

/// `mnt_job_run(max_jobs)`
#[pg_extern(sql = false)]
fn mnt_job_run(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(0, "max_jobs")?;
        Ok(run_jobs(call, runner::default_duration(), limit))
    })
}

/// `mnt_job_run(duration, max_jobs)`
#[pg_extern(sql = false)]
fn mnt_job_run_for(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let limit = call.limit(1, "max_jobs")?;
        Ok(run_jobs(call, duration(call, 0)?, limit))
    })
}

/// `mnt(duration)`
#[pg_extern(sql = false)]
fn mnt(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let duration = duration(call, 0)?;
        let due = jobs::make_due();
        // One more than the queues' own: the job that belongs to none may be due too.
        let outcome = runner::run(duration, due.saturating_add(1));
        schedules::run_beside_jobs(i32::MAX);
        let packed = outcome.packed.saturating_add(pack::run());
        pack::tidy();
        Ok(call.record(&[Arg::from(outcome.processed), Arg::from(packed)]))
    })
}

/// `maintenance_progress()`
#[pg_extern(sql = false)]
fn maintenance_progress(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        let board = board::board();
        let running = board.map(|board| board.progress.read(session::database(), time::clock()));
        for one in running.unwrap_or_default() {
            out.push(&[
                Arg::from(one.pid),
                Arg::from(one.task.map(Task::word)),
                Arg::from(relation::queue_of_table(one.table).as_deref()),
                Arg::timestamp(one.since),
                Arg::from(one.done),
            ]);
        }
        Ok(out.done())
    })
}
