//! Documents: push, pick, settle. All statements here are hot.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::counter_log;
use crate::store::doc_push::{NewDoc, push};
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;

// Index: primary key.
static UPSERT_LOCK: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject {=} $1
     for update",
);

static UPSERT_UPDATE: Statement = Statement::new(
    "update only {docs} d set priority = $2, payload = $3, next_iteration = $4, status = $5
     where d.subject {=} $1
         and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')",
);

/// What an upsert did.
pub struct Upserted {
    pub queued: i32,
    pub updated: i32,
}

/// How often an upsert starts again because the document was removed between its two
/// statements. More means that it is there and can not be seen.
const UPSERT_TURNS: usize = 100;

/// Plans a document, or changes priority, payload and time of the one that has this
/// subject. An active document is left alone; a completed or killed one stays so.
pub fn upsert(queue: &Queue, doc: &NewDoc) -> Result<Upserted> {
    for _ in 0..UPSERT_TURNS {
        if push(queue, doc) > 0 {
            return Ok(Upserted {
                queued: 1,
                updated: 0,
            });
        }
        let updated = spi::connect(|spi| {
            let subject = Arg::from(doc.subject);
            let rows = queue.run(spi, &UPSERT_LOCK, &[subject]);
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
                    &UPSERT_UPDATE,
                    &[
                        subject,
                        Arg::from(doc.priority),
                        Jsonb::arg(Some(doc.payload)),
                        Arg::timestamp(doc.next_iteration),
                        Arg::from(to.code()),
                    ],
                )
                .affected();
            if let Some(event) = from.and_then(|from| Event::upsert(from, to)) {
                counter_log::record_event(queue, doc.version, n, event);
            }
            Some(n)
        });
        // None: it was removed between the two statements; push it again.
        if let Some(updated) = updated {
            return Ok(Upserted { queued: 0, updated });
        }
    }
    Err(Error::HiddenDocument {
        queue: queue.name.to_string(),
        subject: doc.subject.to_owned(),
    })
}
