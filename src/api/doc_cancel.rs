//! Cancelling a document.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond_write, subject};
use crate::error;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::store::documents::doc_cancel;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_cancel(queue, subject) → (was_cancelled, status)`: kills a document that is planned,
/// pending or active, and returns the status that it had. The worker of an active document loses
/// its lease, and `doc_extend` reports that.
///
/// Fails with `UnknownQueue`. A document that does not exist raises a warning and returns
/// `(false, NULL)`.
#[pg_extern(sql = false)]
fn doc_cancel(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        let cancel = |queue: &Queue| Ok(doc_cancel::cancel(queue, subject));
        let (was_cancelled, status) = match Queue::with(&queue, Right::Work, cancel)? {
            Ok(from) => (true, Some(from.word())),
            Err(Some(other)) => (false, Some(other)),
            Err(None) => {
                error::warn(
                    PgSqlErrorCode::ERRCODE_NO_DATA,
                    format!(
                        "queue \"{}\" has no document \"{subject}\" to cancel",
                        queue
                    ),
                    "The document was dropped, or it was never pushed.",
                );
                (false, None)
            }
        };
        Ok(call.record(&[Arg::from(was_cancelled), Arg::from(status)]))
    })
}
