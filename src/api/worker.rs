//! The background processes.

use pgrx::prelude::*;

use super::{respond, respond_write};
use crate::domain::jobs::Task;
use crate::domain::names::QueueName;
use crate::pg::call::Reply;
use crate::pg::spi::Arg;
use crate::pg::{relation, session, time};
use crate::ready::{self, Index, Key};
use crate::store::plans::Queue;
use crate::store::status::{self, Known};
use crate::{gucs, worker};

/// `worker_wake()`
#[pg_extern(sql = false)]
fn worker_wake(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| Ok(Reply::bool(worker::look_again())))
}

/// `maintenance_progress()`
#[pg_extern(sql = false)]
fn maintenance_progress(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let mut out = call.rows();
        let board = worker::board();
        let running = board.map(|board| board.progress.read(session::database(), time::clock()));
        for one in running.unwrap_or_default() {
            out.push(&[
                Arg::from(one.pid),
                Arg::from(one.task.map(Task::word)),
                Arg::from(relation::queue_of(one.table).as_deref()),
                Arg::timestamp(one.since),
                Arg::from(one.done),
            ]);
        }
        Ok(out.done())
    })
}

/// In how many queues `status()` looks: each takes locks until the transaction ends.
const LOOKS: usize = 300;

/// Raises the floors that are before a time as far as they go: a floor says that there
/// is nothing before it, not that there is something at it.
fn raise_floors(now: i64) {
    for table in ready::behind(now).into_iter().take(LOOKS) {
        let name = relation::queue_of(table.to_u32());
        let Some(name) = name.and_then(|name| QueueName::parse(&name).ok()) else {
            // It was dropped, and nothing of it is late.
            ready::forget(table);
            continue;
        };
        // (busy, or dropped meanwhile: then as far as they are)
        let Ok(Some(queue)) = Queue::try_open(&name) else {
            continue;
        };
        let Some(source) = queue.source() else {
            continue;
        };
        for (index, version, view) in ready::describe(table) {
            match index {
                Index::Pick => source.raise_level(version, view.id, Key::LAST),
                Index::Due => {
                    source.due(view.id, now);
                }
            }
        }
    }
}

/// `status()`
#[pg_extern(sql = false)]
fn fetchq_status(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let now = time::clock();
        if !session::is_standby() {
            raise_floors(now);
        }
        let first = |level: i32| ready::first_before(Index::Due, Some(level), i64::MAX);
        let board = worker::board();
        let worker = board.and_then(|board| board.worker_of(session::database()));
        let known = Known {
            is_preloaded: crate::is_preloaded(),
            is_standby: session::is_standby(),
            has_memory: ready::is_available(),
            wants_worker: gucs::worker(),
            launcher: board
                .and_then(|board| board.launcher.occupant())
                .map(|(_, since)| since),
            worker: worker.and_then(|worker| worker.seat.occupant()),
            last: Task::ALL.map(|task| worker.and_then(|worker| worker.last[task as usize].read())),
            stats: ready::stats(),
            ready_since: ready::first_before(Index::Pick, None, now),
            next_due: first(0),
            next_end: first(2),
        };
        let mut out = call.rows();
        status::status(env!("CARGO_PKG_VERSION"), &known, &mut out);
        Ok(out.done())
    })
}
