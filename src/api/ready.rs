//! The ready floors: the trigger that notes rows, and what can be seen of them.

use pgrx::prelude::*;

use super::{queue_name, respond};
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::relation;
use crate::pg::spi::Arg;
use crate::pg::trigger::{self, Row};
use crate::ready::{self, Index, Key};
use crate::worker::waiters::{self, Documents};

/// The trigger `fetchq_ready` of the documents of every queue.
#[pg_extern(sql = false)]
fn trigger_docs_ready(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        match trigger::written(call) {
            Row::NoTrigger => return Err(Error::BadTrigger(call.function_name())),
            Row::Foreign => {}
            // Completed or killed: in neither index.
            Row::Written(row) if !(0..=2).contains(&row.status) => {}
            Row::Written(row) if row.status == 1 => {
                let key = Key::new(row.next_iteration, row.attempts, row.seq);
                ready::note(row.table, Index::Pick, row.version, row.priority, key);
                let (table, version) = (row.table.to_u32(), row.version);
                waiters::came(Documents { table, version }, 1);
            }
            Row::Written(row) => {
                let key = Key::new(row.next_iteration, 0, row.seq);
                ready::note(row.table, Index::Due, 0, row.status, key);
            }
        }
        Ok(Reply::trigger())
    })
}

/// `ready_stats()`
#[pg_extern(sql = false)]
fn ready_stats(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let stats = ready::stats();
        Ok(call.record(&[
            Arg::from(stats.slots),
            Arg::from(stats.slots_used),
            Arg::from(stats.raises),
            Arg::from(stats.raises_discarded),
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
        for (index, version, view) in ready::describe(table) {
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
