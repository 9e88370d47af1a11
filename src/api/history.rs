//! Dead letters, and what becomes of settled documents.

use crate::store::history;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::pg::call::Reply;
use crate::store::open_queue::Queue;

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
        let name = call.opt_text(0).map(QueueName::parse).transpose()?;
        let mut out = call.rows();
        history::list(name.as_ref(), &mut out)?;
        Ok(out.done())
    })
}
