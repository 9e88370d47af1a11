//! Appending documents: one, or a list.

use pgrx::prelude::*;

use crate::api::doc_put::payload_or_empty;
use crate::api::entry::{generated_subject, lenient, queue_name, respond_write};
use crate::error::Result;
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::value::Arg;
use crate::settings;
use crate::store::documents::doc_append as store;
use crate::store::documents::doc_append::Batch;
use crate::store::documents::doc_options;
use crate::store::documents::doc_push::{NewDoc, not_added};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// The arguments of both calls from the third on. NULL is the default of each. Fails as `doc_put` does.
fn options(call: &Call, payload: Jsonb) -> Result<NewDoc<'_>> {
    Ok(NewDoc {
        subject: "",
        payload,
        version: call.opt_int(2).unwrap_or(0),
        priority: call.opt_int(3).unwrap_or(0),
        ordering_key: doc_options::ordering_key(call.opt_text(4))?,
        max_attempts: doc_options::max_attempts(call.opt_int(5))?,
        next_iteration: doc_options::due(None, call.opt_interval(6))?,
        headers: doc_options::headers(call.opt_json(7))?,
        expires: doc_options::expires_in(call.opt_interval(8))?.into(),
    })
}

/// `doc_append(queue, payload, version, priority, ordering_key, max_attempts, delay, headers, expires_in) →
/// subject`: adds a document that is due now or after `delay`, an interval, and returns the subject
/// that was generated for it. It is picked after the documents of its priority that are due before.
/// NULL is the default of every argument but queue. A queue that does not exist raises a warning and
/// returns NULL.
///
/// Fails as `doc_put` does for `ordering_key`, `max_attempts`, `delay` and `headers`, and with
/// `NotAdded` when a trigger of the user suppresses the document; without `fetchq.strict` it returns
/// NULL then.
#[pg_extern(sql = false)]
fn doc_append(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let doc = options(call, payload_or_empty(call, 1))?;
        let appended = Queue::with(&queue, Right::Push, |queue| {
            match store::append(queue, &doc, generated_subject) {
                Some(subject) => Ok(Reply::text(&subject)),
                None if settings::strict() => Err(not_added(queue, 1, 1)),
                None => Ok(Reply::null()),
            }
        });
        lenient(appended, Reply::null())
    })
}

/// `doc_append_many(queue, payloads, version, priority, ordering_key, max_attempts, delay, headers,
/// expires_in) → subjects`: adds documents that are due now or after `delay`, in their order, and returns the subjects
/// that were generated for them. All have the same options. A queue that does not exist raises a warning
/// and returns no rows.
///
/// Fails as `doc_append` does, with `ManyDimensions`, and with `NotAdded` when a trigger of the user suppresses a document;
/// without `fetchq.strict` its subject is NULL then. Where a trigger also changes subjects, those that it
/// has changed are NULL with it, because they cannot be told from it.
#[pg_extern(sql = false)]
fn doc_append_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let Some((payloads, n)) = call.json_array(1, "payloads")? else {
            return Err(call.missing("payloads"));
        };
        let mut subjects: Vec<String> = (0..n).map(|_| generated_subject()).collect();
        let mut batch = Batch {
            payloads,
            subjects: Arg::from(Vec::<&str>::new()),
            doc: options(call, Jsonb::parse("{}"))?,
        };
        let mut out = call.rows();
        let appended = Queue::with(&queue, Right::Push, |queue| {
            let missing = store::append_many(queue, &mut batch, &mut subjects, generated_subject);
            if missing.n > 0 && settings::strict() {
                return Err(not_added(queue, missing.n, subjects.len()));
            }
            for (at, subject) in subjects.iter().enumerate() {
                let added = (!missing.positions.contains(&at)).then_some(subject.as_str());
                out.push(&[Arg::from(added)]);
            }
            Ok(())
        });
        lenient(appended, ())?;
        Ok(out.done())
    })
}
