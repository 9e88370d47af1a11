//! Documents that shall not be processed any more.

use super::counters;
use super::history;
use super::plans::{Queue, Statement};
use crate::domain::counters::Event;
use crate::domain::status::Status;
use crate::pg::spi::{self, Arg};

// Index of both: primary key. An active document keeps the number of its lease, by which
// its worker learns of it: doc_extend().
static LOCK: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject operator(pg_catalog.=) $1
     for update",
);
static CANCEL: Statement = Statement::new(
    "update only {docs} d set
         status = -1, attempts = 0, holder = null, last_error = 'cancelled'
     where d.subject operator(pg_catalog.=) $1",
);

/// Kills a document that is planned, pending or active, and says which of them it was.
/// The error is what it is instead; None: there is no such document.
pub fn cancel(queue: &Queue, subject: &str) -> Result<Status, Option<Status>> {
    spi::connect(|spi| {
        let name = subject;
        let subject = Arg::from(name);
        let rows = queue.run(spi, &LOCK, &[subject]);
        if rows.is_empty() {
            return Err(None);
        }
        let from = rows.get(0, 1).and_then(Status::from_code);
        match from.and_then(|from| Some((from, Event::cancel(from)?))) {
            None => Err(from),
            Some((from, event)) => {
                queue.run_noting(spi, &CANCEL, &[subject]);
                counters::note(queue, 0, 1, event);
                // An active one stays for its worker to learn of it.
                if from != Status::Active {
                    history::cancelled(spi, queue, &[name.to_owned()]);
                }
                Ok(from)
            }
        }
    })
}
