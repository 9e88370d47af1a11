//! Dead letters, and what becomes of settled documents.

use crate::store::history;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::pg::call::Reply;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::open_queue::Queue;
use crate::store::{queue, queue_tables, statement};

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
                queue::id(&name)?;
                match queue_tables::has_history(&name) {
                    true => vec![name],
                    false => Vec::new(),
                }
            }
            None => history::readable(),
        };
        let mut out = call.rows();
        for name in names {
            let sql = statement::render(history::ROWS, &name);
            spi::connect(|spi| out.extend(&spi.once(&sql, &[Arg::from(name.as_str())])));
        }
        Ok(out.done())
    })
}
