//! Leases: extending, cancelling, handing back; and who holds what.

use crate::domain::status;
use crate::store::doc_lease;
use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond_write, subject};
use crate::error;
use crate::pg::call::Reply;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::lease_check::LeasedDoc;
use crate::store::open_queue::Queue;

/// `doc_extend(queue, subject, duration, lease)`
#[pg_extern(sql = false)]
fn doc_extend(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let duration = call.interval(2, "duration")?.as_duration("duration")?;
        let doc = LeasedDoc {
            subject: subject(call, 1)?,
            lease: call.opt_bigint(3),
        };
        // (the transaction may have begun long ago)
        let until = duration.after(time::clock());
        let extended = doc_lease::extend(&*Queue::open(&queue)?, doc, until)?;
        let until = match extended.until {
            Some(until) => Arg::timestamp(until),
            None => Arg::no_timestamp(),
        };
        Ok(call.record(&[until, Arg::from(extended.stop)]))
    })
}

/// `doc_cancel(queue, subject)`
#[pg_extern(sql = false)]
fn doc_cancel(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = Queue::open(&queue_name(call, 0)?)?;
        let subject = subject(call, 1)?;
        let (was_cancelled, status) = match doc_lease::cancel(&queue, subject) {
            Ok(from) => (true, Some(from)),
            Err(Some(other)) => (false, Some(other)),
            Err(None) => {
                error::warn(
                    PgSqlErrorCode::ERRCODE_NO_DATA,
                    format!(
                        "queue \"{}\" has no document \"{subject}\" to cancel",
                        queue.name
                    ),
                    "It was dropped, or never pushed.",
                );
                (false, None)
            }
        };
        let status = status.map(status::Status::word);
        Ok(call.record(&[Arg::from(was_cancelled), Arg::from(status)]))
    })
}
