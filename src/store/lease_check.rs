//! Settling leased documents: completed, killed, planned anew, dropped.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).
//!
//! A caller that names its lease settles the document only while that lease holds.

use crate::domain::status::Status;
use crate::error::Error;
use crate::pg::documents::{Column, Row};
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;

/// An active document, as its worker names it.
#[derive(Clone, Copy)]
pub struct LeasedDoc<'a> {
    pub subject: &'a str,
    /// The pick that it was leased by; None: whoever holds it.
    pub lease: Option<i64>,
}

static STATUS: Statement =
    Statement::new("select d.status from only {docs} d where d.subject {=} $1");

/// Whether a document is active, and held by the lease that the caller names.
pub(super) fn holds_lease(row: &Row, lease: Option<i64>) -> bool {
    row.int4(Column::Status) == Status::Active.code()
        && lease.is_none_or(|lease| !row.is_null(Column::Lease) && row.int8(Column::Lease) == lease)
}

/// Why a document could not be settled.
pub(super) fn lease_error(spi: &Spi, queue: &Queue, doc: LeasedDoc) -> Error {
    let rows = queue.run(spi, &STATUS, &[Arg::from(doc.subject)]);
    let found = (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code));
    let (queue, subject) = (queue.name.to_string(), doc.subject.to_owned());
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
