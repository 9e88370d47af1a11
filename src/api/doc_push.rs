//! Adding documents.

use crate::pg::call as pg;
use crate::store::doc_push as store;
use pgrx::prelude::*;

use crate::api::entry::{
    generated_subject, lenient, meant, payload, queue_name, respond_write, subject,
};
use crate::domain::names::{self, QueueName};
use crate::domain::push_list;
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::json::Jsonb;
use crate::pg::time;
use crate::store::doc_push::NewDoc;
use crate::store::doc_push_many;
use crate::store::open_queue::Queue;

/// `doc_push(queue, subject, payload, next_iteration)`
#[pg_extern(sql = false)]
fn doc_push(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let doc = NewDoc {
            subject: subject(call, 1)?,
            version: 0,
            priority: 0,
            payload: payload(call, 2)?,
            next_iteration: call.timestamp(3, "next_iteration")?,
            ordering_key: None,
            max_attempts: None,
        };
        let pushed = Queue::open(&queue).map(|queue| store::push(&queue, &doc));
        lenient(pushed, 0).map(Reply::int)
    })
}

/// `doc_push(queue, subject, version, priority, next_iteration, payload)`
#[pg_extern(sql = false)]
fn doc_push_full(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let doc = full(call)?;
        let pushed = Queue::open(&queue).map(|queue| store::push(&queue, &doc));
        lenient(pushed, 0).map(Reply::int)
    })
}

/// The document of the six-argument forms.
pub fn full(call: &pg::Call) -> Result<NewDoc<'_>, Error> {
    Ok(NewDoc {
        subject: subject(call, 1)?,
        version: call.int(2, "version")?,
        priority: call.int(3, "priority")?,
        next_iteration: call.timestamp(4, "next_iteration")?,
        payload: payload(call, 5)?,
        ordering_key: None,
        max_attempts: None,
    })
}

/// `doc_push(queue, version, next_iteration, documents)`
#[pg_extern(sql = false)]
fn doc_push_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let version = call.int(1, "version")?;
        let next_iteration = call.timestamp(2, "next_iteration")?;
        push_list(&queue, version, next_iteration, call.text(3, "documents")?)
    })
}

/// Apostrophes are doubled once in the list, as in any SQL literal, and the parser
/// undoes that: `fetchq.legacy_quotes` does not apply.
fn push_list(
    queue: &QueueName,
    version: i32,
    next_iteration: i64,
    documents: &str,
) -> Result<Reply, Error> {
    let items = push_list::parse(documents)?;
    for item in &items {
        names::check_subject(&item.subject)?;
    }
    let pushed = Queue::open(queue)
        .map(|queue| doc_push_many::push_items(&queue, version, next_iteration, &items));
    lenient(pushed, 0).map(Reply::int)
}

/// Four arguments without types, as literals or from a driver that sends none: two
/// forms fit, and only a list of documents starts with a parenthesis.
#[pg_extern(sql = false)]
fn doc_push_untyped(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let last = call.text(3, "next_iteration")?;
        if last.trim_start().starts_with('(') {
            let version = call.text(1, "version")?;
            let version = version.trim().parse().map_err(|_| Error::BadValue {
                argument: "version",
                value: version.to_owned(),
                rule: "an integer",
            })?;
            let next_iteration = time::parse_timestamp(call.text(2, "next_iteration")?);
            return push_list(&queue, version, next_iteration, last);
        }
        let doc = NewDoc {
            subject: subject(call, 1)?,
            version: 0,
            priority: 0,
            payload: meant(Jsonb::parse(call.text(2, "payload")?)),
            next_iteration: time::parse_timestamp(last),
            ordering_key: None,
            max_attempts: None,
        };
        let pushed = Queue::open(&queue).map(|queue| store::push(&queue, &doc));
        lenient(pushed, 0).map(Reply::int)
    })
}

/// How many subjects are made up before a document is given up. One is enough, unless
/// somebody has pushed that very subject, or the server's clock was set back. A trigger
/// of the user's that lets nothing in turns all of them down.
const APPEND_TURNS: usize = 10;

/// `doc_append(queue, payload, version, priority)`
#[pg_extern(sql = false)]
fn doc_append(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let doc = NewDoc {
            subject: "",
            payload: payload(call, 1)?,
            version: call.int(2, "version")?,
            priority: call.int(3, "priority")?,
            next_iteration: time::now(),
            ordering_key: None,
            max_attempts: None,
        };
        let appended = Queue::open(&queue).map(|queue| {
            for _ in 0..APPEND_TURNS {
                let subject = generated_subject();
                let doc = NewDoc {
                    subject: &subject,
                    ..doc
                };
                if store::append(&queue, &doc) {
                    return Reply::text(&subject);
                }
            }
            Reply::null()
        });
        lenient(appended, Reply::null())
    })
}
