//! Whether a lease still holds, and the error if it does not.

use crate::domain::status::Status;
use crate::error::Error;
use crate::pg::documents::{Column, Row};
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::documents::history;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

/// An active document, as its worker names it.
#[derive(Clone, Copy)]
pub struct LeasedDoc<'a> {
    pub subject: &'a str,
    /// The lease number that the pick returned. None: any lease will do.
    pub lease: Option<i64>,
}

// Index: primary key.
static STATUS: Statement = Statement::new(
    "select d.status, coalesce({is_leased}, false) from only {docs} d where d.subject {=} $1",
);

/// Returns whether a document is active, and leased by the lease that the caller names. `lease`:
/// None for any lease. The marker `{is_leased}` is the same in SQL.
pub(in crate::store) fn holds_lease(row: &Row, lease: Option<i64>) -> bool {
    row.int4(Column::Status) == Status::Active.code()
        && lease.is_none_or(|lease| !row.is_null(Column::Lease) && row.int8(Column::Lease) == lease)
}

/// The error for a document that could not be settled: `Error::LeaseLost` if the caller named
/// a lease, else `Error::NotActive`. Both tell the status of the document. `Error::InHistory` if it is there. `Error::KeptAsItIs` if
/// the lease holds, and something of the user's has kept the document from being changed.
pub(in crate::store) fn lease_error(spi: &Spi, queue: &Queue, doc: LeasedDoc) -> Error {
    let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
    let rows = queue.run(spi, &STATUS, &args);
    let holds = !rows.is_empty() && rows.get(0, 2).unwrap_or(false);
    let found = (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code));
    if rows.is_empty()
        && let Some(error) = history::error_if_settled(spi, queue, doc.subject, doc.lease)
    {
        return error;
    }
    let may_suppress = queue.may_suppress();
    let (queue, subject) = (queue.name.to_string(), doc.subject.to_owned());
    // Without a trigger or a policy another session has leased it since.
    if holds && may_suppress {
        return Error::KeptAsItIs { queue, subject };
    }
    match doc.lease {
        Some(lease) => Error::LeaseLost {
            queue,
            subject,
            lease,
            found,
        },
        None => Error::NotActive {
            queue,
            subject,
            found,
        },
    }
}
