//! Dead letters, and what becomes of settled documents.

use crate::store::dead_letters;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond_write, subject};
use crate::domain::filter;
use crate::pg::call::Reply;
use crate::store::doc_selection::BulkRequest;
use crate::store::open_queue::Queue;

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
        let request = BulkRequest {
            filter: &filter,
            json,
            limit,
            dry_run: false,
        };
        dead_letters::redrive(&*Queue::open(&name)?, &request).map(Reply::int)
    })
}
