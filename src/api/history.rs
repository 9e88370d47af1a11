//! Dead letters, and what becomes of settled documents.

use pgrx::prelude::*;

use super::{queue_name, respond, respond_write, subject};
use crate::domain::filter;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::pg::spi::{self, Arg};
use crate::pg::time::Interval;
use crate::store::admin::Request;
use crate::store::plans::{self, Queue};
use crate::store::{dead_letters, history, queue_tables, registry};

/// `queue_set_dead_letter(queue, target)`
#[pg_extern(sql = false)]
fn queue_set_dead_letter(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let target = call.opt_text(1).map(QueueName::parse).transpose()?;
        dead_letters::set(&name, target.as_ref()).map(Reply::int)
    })
}

/// `doc_revive(queue, subject, next_iteration)`
#[pg_extern(sql = false)]
fn doc_revive(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        let next_iteration = call.timestamp(2, "next_iteration")?;
        let queue = Queue::open(&name)?;
        dead_letters::revive(&queue, subject, next_iteration).map(Reply::int)
    })
}

/// `queue_redrive(queue, max_docs, filter)`
#[pg_extern(sql = false)]
fn queue_redrive(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let limit = call.limit(1, "max_docs")?;
        let json = call.json(2, "filter")?;
        let filter = filter::parse(&json.to_text())?;
        let request = Request {
            filter: &filter,
            json,
            limit,
            dry_run: false,
        };
        dead_letters::redrive(&*Queue::open(&name)?, &request).map(Reply::int)
    })
}

/// `queue_set_history(queue, completed, killed, dropped)`
#[pg_extern(sql = false)]
fn queue_set_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let kept = [
            kept(call, 1, "completed")?,
            kept(call, 2, "killed")?,
            kept(call, 3, "dropped")?,
        ];
        registry::lock_now(&name)?;
        if kept.iter().any(|(_, in_history)| *in_history) {
            queue_tables::create_history(&name);
        }
        registry::set_history(&name, kept.map(|(arg, _)| arg)).map(Reply::int)
    })
}

/// How long an outcome is kept, and whether that is in the history.
fn kept(call: &Call, at: usize, name: &'static str) -> Result<(Arg, bool)> {
    match call.opt_interval(at) {
        None => Ok((Interval::none(), false)),
        Some(age) => {
            let age = age.as_duration(name)?;
            Ok((age.arg(), age.parts() != (0, 0, 0)))
        }
    }
}

/// `queue_trim_history(queue, max_docs)`
#[pg_extern(sql = false)]
fn queue_trim_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let limit = call.limit(1, "max_docs")?;
        Ok(Reply::int(history::trim(&*Queue::open(&name)?, limit)))
    })
}

/// `queue_history(queue)`
#[pg_extern(sql = false)]
fn queue_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let names = match call.opt_text(0) {
            Some(name) => {
                let name = QueueName::parse(name)?;
                registry::id(&name)?;
                match queue_tables::has_history(&name) {
                    true => vec![name],
                    false => Vec::new(),
                }
            }
            None => history::readable(),
        };
        let mut out = call.rows();
        for name in names {
            let sql = plans::render(history::ROWS, &name);
            spi::connect(|spi| out.extend(&spi.once(&sql, &[Arg::from(name.as_str())])));
        }
        Ok(out.done())
    })
}
