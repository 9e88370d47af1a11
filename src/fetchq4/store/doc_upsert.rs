//! Upserts one document: adds it, or changes the one that exists. All statements here are hot.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::counters::counter_log;
use crate::store::documents::doc_push::{NewDoc, push};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

// Index of both: primary key.
static LOCK: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject {=} $1
     for update",
);

static UPDATE: Statement = Statement::new(
    "update only {docs} d set priority = $3, payload = $4, next_iteration = $2, status = $5,
         expires_at = coalesce($6, {moved_expiry}),
         origin = null, last_error = {own_error}
     where d.subject {=} $1
         and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')",
);

/// What an upsert did: the number of documents that were added, and that were changed. At
/// most one of them is 1.
pub struct Upserted {
    pub queued: i32,
    pub updated: i32,
}

/// How often an upsert starts again because the document was removed between its two
/// statements. After more retries, the document is assumed to exist and to be invisible.
const MAX_RETRIES: usize = 100;

/// Adds a document, or changes priority, payload and time of the one that has this subject.
/// An active document is left as it is. A completed or killed one keeps its status.
///
/// Fails with `Error::HiddenDocument` if the document can neither be added nor found.
pub fn upsert(queue: &Queue, doc: &NewDoc) -> Result<Upserted> {
    for _ in 0..MAX_RETRIES {
        if push(queue, doc) > 0 {
            return Ok(Upserted {
                queued: 1,
                updated: 0,
            });
        }
        let updated = spi::connect(|spi| {
            let subject = Arg::from(doc.subject);
            let rows = queue.run(spi, &LOCK, &[subject]);
            if rows.is_empty() {
                return None;
            }
            let from = rows.get(0, 1).and_then(Status::from_code);
            let to = match from {
                Some(Status::Active) => return Some(0),
                Some(Status::Planned | Status::Pending) => doc.status(),
                Some(other) => other,
                None => doc.status(),
            };
            let n = queue
                .run(
                    spi,
                    &UPDATE,
                    &[
                        subject,
                        Arg::timestamp(doc.next_iteration),
                        Arg::from(doc.priority),
                        Jsonb::arg(Some(doc.payload)),
                        Arg::from(to.code()),
                        Arg::opt_timestamp(doc.expires_at(queue)),
                    ],
                )
                .affected();
            if let Some(event) = from.and_then(|from| Event::upsert(from, to)) {
                counter_log::record_event(queue, doc.version, n, event);
            }
            Some(n)
        });
        // None: the document was removed between the two statements. Push it again.
        if let Some(updated) = updated {
            return Ok(Upserted { queued: 0, updated });
        }
    }
    Err(Error::HiddenDocument {
        queue: queue.name.to_string(),
        subject: doc.subject.to_owned(),
    })
}
