//! Adding documents whose subject may exist, with a mode that decides what happens then.

use pgrx::prelude::*;

use crate::api::entry::{opt_payload, queue_name, respond_write};
use crate::domain::names;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::store::documents::doc_options;
use crate::store::documents::doc_push::NewDoc;
use crate::store::documents::doc_put as store;
use crate::store::documents::doc_put::Put;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// A payload; NULL: the empty object.
pub fn payload_or_empty(call: &Call, at: usize) -> Jsonb {
    opt_payload(call, at).unwrap_or_else(|| Jsonb::parse("{}"))
}

/// The document of `doc_put`: the arguments from 3 on, without the mode.
fn new_doc<'a>(call: &'a Call, subject: &'a str, payload: Jsonb) -> Result<NewDoc<'a>> {
    Ok(NewDoc {
        subject: names::check_put_subject(subject)?,
        payload,
        next_iteration: doc_options::due(call.opt_timestamp(3), call.opt_interval(9))?,
        version: call.opt_int(4).unwrap_or(0),
        priority: call.opt_int(5).unwrap_or(0),
        ordering_key: doc_options::ordering_key(call.opt_text(7))?,
        max_attempts: doc_options::max_attempts(call.opt_int(8))?,
        headers: doc_options::headers(call.opt_json(10))?,
        expires: doc_options::expires_in(call.opt_interval(11))?.into(),
    })
}

/// `doc_put(queue, subject, payload, due_at, version, priority, mode, ordering_key,
/// max_attempts, delay, headers, expires_in, unique_by, unique_per) → action`: adds a document. When its
/// subject exists, `mode` decides: ignore, replace, merge, earliest, debounce, reset or once. It is due at
/// `due_at`, or `delay`, an interval, after the start of the transaction. With `unique_by`, the
/// subject is made of these fields of the payload, and of the current period `unique_per`. NULL is the
/// default of every argument but queue.
///
/// Fails with `UnknownQueue`; with `NeitherGiven` without a subject; as `doc_options::unique_subject` does;
/// with `BothGiven` for a delay beside a time, with `BadDuration` or
/// `LongDuration` for a delay that is negative, infinite or too long; with `BadValue` for an
/// unknown mode, for `max_attempts` below 1 and for headers that are no JSON object; with
/// `NotMergeable` when a payload to be merged is not a JSON object; with `Invalid` for an ordering key
/// that is too long.
#[pg_extern(sql = false)]
fn doc_put(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let payload = payload_or_empty(call, 2);
        let given = call.opt_text(1);
        let unique_by = call.opt_texts(12, "unique_by")?;
        let per = call.opt_interval(13);
        let unique = doc_options::unique_subject(given, unique_by.as_deref(), per, payload)?;
        let Some(subject) = given.or(unique.as_deref()) else {
            return Err(Error::NeitherGiven {
                one: "subject",
                other: "unique_by",
            });
        };
        let mode = doc_options::mode(call.opt_text(6))?;
        let put = Put {
            doc: new_doc(call, subject, payload)?,
            mode: mode.unwrap_or_else(|| doc_options::default_mode(unique.is_some())),
        };
        let action = Queue::with(&queue, Right::Push, |queue| store::put(queue, &put))?;
        Ok(Reply::text(action.word()))
    })
}
