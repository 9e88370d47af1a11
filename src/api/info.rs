//! What is installed, traces, and the calls that old clients make.

use crate::pg::session;
use crate::ready::floors;
use crate::signals::board;
use crate::store::info;
use pgrx::prelude::*;

use crate::api::entry::{respond, respond_write, subject};
use crate::domain::names::QueueName;
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::settings;
use crate::store::queue;

/// `info()`: `version` is what fetchq 4 clients compare with their own.
#[pg_extern(sql = false)]
fn info(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let compat = settings::compat_version();
        let installed = info::extension_version();
        Ok(call.record(&[
            Arg::from(compat.as_str()),
            Arg::from(installed.as_deref()),
            Arg::from(env!("CARGO_PKG_VERSION")),
            Arg::from(session::is_preloaded()),
            Arg::from(board::has_background_worker()),
            Arg::from(floors::is_available()),
        ]))
    })
}

/// `init()`: nothing is left to do once the extension exists.
#[pg_extern(sql = false)]
fn init(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |_| Ok(Reply::bool(true)))
}

/// The upgrades of fetchq 3, which old clients may call: nothing to do.
#[pg_extern(sql = false)]
fn upgrade_nothing(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |_| Ok(Reply::bool(true)))
}

/// `destroy_with_terrible_consequences()`
#[pg_extern(sql = false)]
fn destroy(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| {
        if !info::owns_extension() {
            return Err(Error::NotOwner);
        }
        info::destroy();
        Ok(Reply::bool(true))
    })
}

/// `trace(subject, direction)`
#[pg_extern(sql = false)]
fn trace(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let subject = subject(call, 0)?;
        let direction = call.text(1, "direction")?;
        let descending = match direction.to_ascii_uppercase().as_str() {
            "ASC" => false,
            "DESC" => true,
            _ => return Err(Error::BadDirection(direction.to_owned())),
        };
        let queues = queue::all();
        spi::connect(|spi| {
            let mut steps: Vec<(&QueueName, spi::Rows)> = queues
                .iter()
                .map(|name| {
                    (
                        name,
                        spi.once(&info::trace_sql(name), &[Arg::from(subject)]),
                    )
                })
                .collect();
            let mut places: Vec<(usize, usize)> = steps
                .iter()
                .enumerate()
                .flat_map(|(q, (_, rows))| (0..rows.len()).map(move |row| (q, row)))
                .collect();
            let mut out = call.rows();
            let mut numbered: Vec<(i32, (usize, usize))> = (1..).zip(places.drain(..)).collect();
            if descending {
                numbered.reverse();
            }
            for (step, (q, row)) in numbered {
                let (name, rows) = &mut steps[q];
                let column = |at, oid| Arg::new(oid, rows.datum(row, at));
                out.push(&[
                    Arg::from(step),
                    column(1, pg_sys::TIMESTAMPTZOID),
                    Arg::from(name.as_str()),
                    column(2, pg_sys::VARCHAROID),
                    column(3, pg_sys::VARCHAROID),
                    column(4, pg_sys::JSONBOID),
                ]);
            }
            Ok(out.done())
        })
    })
}
