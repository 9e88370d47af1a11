//! The ready floors: the trigger that notes rows, and what can be seen of them.

use crate::store::status as store;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::domain::jobs::Task;
use crate::domain::names::QueueName;
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::pg::{relation, session, time};
use crate::ready::floors;
use crate::ready::key::{Index, Key};
use crate::settings;
use crate::signals::{board, commit};
use crate::store::open_queue::Queue;
use crate::store::status::Known;

/// `ready_stats()`
#[pg_extern(sql = false)]
fn ready_stats(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let stats = floors::stats();
        Ok(call.record(&[
            Arg::from(stats.slots),
            Arg::from(stats.slots_used),
            Arg::from(stats.advances),
            Arg::from(stats.advances_discarded),
            Arg::from(stats.polls_answered),
            Arg::from(stats.full_scans),
            Arg::from(stats.floor_misses),
        ]))
    })
}

/// `ready_floors(queue)`
#[pg_extern(sql = false)]
fn ready_floors(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
            return Err(Error::UnknownQueue(name.to_string()));
        };
        let mut out = call.rows();
        for (index, version, view) in floors::describe(table) {
            let is_empty = view.floor == Key::LAST;
            let index = match index {
                Index::Pick => "pick",
                Index::Due => "due",
            };
            // The ends of the index are shown as infinities.
            out.push(&[
                Arg::from(index),
                Arg::from(version),
                Arg::from(view.id),
                Arg::timestamp(view.floor.next_iteration),
                Arg::from(view.floor.attempts),
                Arg::from(view.floor.seq),
                Arg::from(is_empty),
            ]);
        }
        Ok(out.done())
    })
}

/// `background_worker_wake()`
#[pg_extern(sql = false)]
fn background_worker_wake(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| Ok(Reply::bool(commit::extension_changed())))
}

/// In how many queues `status()` looks: each takes locks until the transaction ends.
const LOOKS: usize = 300;

/// Advances the floors that are before a time as far as they go: a floor says that there
/// is nothing before it, not that there is something at it.
fn advance_floors(now: i64) {
    for table in floors::tables_behind(now).into_iter().take(LOOKS) {
        let name = relation::queue_of_table(table.to_u32());
        let Some(name) = name.and_then(|name| QueueName::parse(&name).ok()) else {
            // It was dropped, and nothing of it is late.
            floors::forget(table);
            continue;
        };
        // (busy, or dropped meanwhile: then as far as they are)
        let Ok(Some(queue)) = Queue::try_open(&name) else {
            continue;
        };
        let Some(floors) = queue.floors() else {
            continue;
        };
        for (index, version, view) in floors::describe(table) {
            match index {
                Index::Pick => floors.advance_level(version, view.id, Key::LAST),
                Index::Due => {
                    floors.due(view.id, now);
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
            advance_floors(now);
        }
        let first = |level: i32| floors::first_before(Index::Due, Some(level), i64::MAX);
        let board = board::board();
        let worker = board.and_then(|board| board.background_worker_of(session::database()));
        let known = Known {
            is_preloaded: session::is_preloaded(),
            is_standby: session::is_standby(),
            has_memory: floors::is_available(),
            wants_worker: settings::worker(),
            launcher: board
                .and_then(|board| board.launcher.process())
                .map(|(_, since)| since),
            worker: worker.and_then(|worker| worker.slot.process()),
            last: Task::ALL.map(|task| worker.and_then(|worker| worker.last[task as usize].read())),
            stats: floors::stats(),
            ready_since: floors::first_before(Index::Pick, None, now),
            next_due: first(0),
            next_end: first(2),
        };
        let mut out = call.rows();
        store::status(env!("CARGO_PKG_VERSION"), &known, &mut out);
        Ok(out.done())
    })
}
