//! Adding documents whose subject may exist, with a mode that decides what happens then.

use pgrx::prelude::*;

use crate::api::entry::{payload, queue_name, respond_write, subject};
use crate::domain::put_mode::{MODES, Mode};
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::store::doc_push::NewDoc;
use crate::store::doc_put as store;
use crate::store::doc_put::Put;
use crate::store::open_queue::Queue;
use crate::store::rights::Right;

/// The mode of an argument. Fails with `BadValue` for an unknown one.
pub fn mode(call: &Call, at: usize) -> Result<Mode> {
    let text = call.text(at, "mode")?;
    Mode::parse(text).ok_or_else(|| Error::BadValue {
        argument: "mode",
        value: format!("{text:?}"),
        rule: MODES,
    })
}

/// `doc_put(queue, subject, payload, next_iteration, version, priority, mode, ordering_key, max_attempts)
/// → action`:
/// adds a document. When its subject exists, `mode` decides: ignore, replace, merge, earliest,
/// debounce or reset. `ordering_key` and `max_attempts` may be NULL.
///
/// Fails with `UnknownQueue`, with `BadValue` for an unknown mode or `max_attempts` below 1,
/// with `NotMergeable` when a payload to be merged is not a JSON object.
#[pg_extern(sql = false)]
fn doc_put(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let max_attempts = call.opt_int(8);
        if let Some(n) = max_attempts.filter(|n| *n < 1) {
            return Err(Error::BadValue {
                argument: "max_attempts",
                value: n.to_string(),
                rule: "1 or more, or NULL for what the queue is set to",
            });
        }
        let put = Put {
            doc: NewDoc {
                subject: subject(call, 1)?,
                payload: payload(call, 2)?,
                next_iteration: call.timestamp(3, "next_iteration")?,
                version: call.int(4, "version")?,
                priority: call.int(5, "priority")?,
                ordering_key: call.opt_text(7),
                max_attempts,
                headers: None,
            },
            mode: mode(call, 6)?,
        };
        let action = Queue::with(&queue, Right::Push, |queue| store::put(queue, &put))?;
        Ok(Reply::text(action.word()))
    })
}
