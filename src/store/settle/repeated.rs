//! Whether a settlement that finds no lease is repeated: the same worker has made it before, and has not
//! got the answer, because its connection broke.
//!
//! A lease is settled once, and only its worker knows its number. What the worker did stays in the
//! document with the number of the lease, until the next lease, whatever becomes of the document: see
//! `ACTION_BITS`. An administrator, maintenance and what ends a session write nothing there. So a
//! document that has both was settled by this call before.

use crate::domain::lease_number::needs_number;
use crate::domain::status::Status;
use crate::error::Error;
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::documents::lease_check::lease_error;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue_tables;
use crate::store::queues::statement::Statement;
use crate::store::settle::settlement::Settlement;

// Index: primary key.
// $1 subject, $2 lease number, $3 the action.
static IS_IN_TABLE: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject {=} $1
         and d.lease {=} $2
         and {settled_by} {=} $3",
);

// Index: (subject, id).
const IS_IN_HISTORY: &str = "select from only {history} d
    where d.subject {=} $1
        and d.lease {=} $2
        and {settled_by} {=} $3
    limit 1";

/// The error for a document that could not be settled: `Error::SettledBefore` for a settlement that is
/// repeated, and otherwise that of `lease_error`.
pub(in crate::store) fn unsettled_error(spi: &Spi, queue: &Queue, doc: &Settlement) -> Error {
    let error = lease_error(spi, queue, doc.doc());
    let is_known = matches!(error, Error::LeaseLost { .. } | Error::InHistory { .. });
    // What `doc_pick` has leased, somebody else may have settled by the subject alone.
    let Some(lease) = doc.lease.filter(|lease| is_known && needs_number(*lease)) else {
        return error;
    };
    match was_settled(spi, queue, doc, lease) {
        None => error,
        Some(found) => Error::SettledBefore {
            queue: queue.name.to_string(),
            subject: doc.subject.to_string(),
            lease,
            found,
        },
    }
}

/// Whether this lease was settled by this action. The status that the document has; None if it has left
/// the table.
fn was_settled(spi: &Spi, queue: &Queue, doc: &Settlement, lease: i64) -> Option<Option<Status>> {
    let args = [
        Arg::from(&*doc.subject),
        Arg::from(lease),
        Arg::from(doc.action.code()),
    ];
    let rows = queue.run(spi, &IS_IN_TABLE, &args);
    if !rows.is_empty() {
        return Some(rows.get(0, 1).and_then(Status::from_code));
    }
    if !queue_tables::has_history(&queue.name) {
        return None;
    }
    let is_there = queue.once(spi, IS_IN_HISTORY, &args).affected() > 0;
    is_there.then_some(None)
}
