//! Maintenance that any client may run, and its progress.

use pgrx::prelude::*;

use crate::api::entry::{interval_text, or_notice, queue_name, respond, respond_write};
use crate::domain::jobs::Task;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::maintenance::{documents, pack, runner, schedules};
use crate::pg::call::{Call, Reply};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{lock_wait, relation, session};
use crate::signals::board;
use crate::store::queues::grants;
use crate::store::queues::rights::{self, Right};

/// The counts of `mnt_run`, as columns.
fn counts(outcome: documents::Outcome) -> [Arg; 3] {
    [
        Arg::from(outcome.activated),
        Arg::from(outcome.rescheduled),
        Arg::from(outcome.killed.saturating_add(outcome.expired)),
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

/// For how long jobs are claimed.
pub fn duration(call: &Call, at: usize) -> Result<Interval> {
    interval_text(call, at, "duration")?.as_duration("duration")
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
