//! Extends the lease of a document or of a whole pick.

use crate::error::{Error, Result};
use crate::pg::documents::{Change, Column};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::documents::bookkeeping::note_lease;
use crate::store::documents::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::documents::stop_requests::is_stopped;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

// Index of both: primary key. No other index can serve `{is_leased}`.
static EXTEND: Statement = Statement::new(
    "update only {docs} d set next_iteration = $3, progress = coalesce($4, d.progress)
     where d.subject {=} $1
         and {is_leased}
     returning d.worker_session",
);

// A document keeps lease and worker session when it is settled. One that was cancelled while it was
// leased has lost the worker session.
static IS_CANCELLED: Statement = Statement::new(
    "select from only {docs} d
     where d.subject {=} $1
         and d.status {+} 0 {=} {killed}
         and d.lease {=} $2
         and d.worker_session is null",
);

/// The result of an extension.
pub struct Extended {
    /// When the lease expires, in microseconds since 2000. None: the document was cancelled.
    pub until: Option<i64>,
    /// The worker should stop its work.
    pub stop: bool,
}

/// Extends the lease of a document to `until`, in microseconds since 2000, and stores its progress
/// if there is any.
///
/// Fails with `Error::LeaseLost` if the caller names a lease that does not hold, and with
/// `Error::NotActive` if it names none and the document is not leased, with `Error::LeaseNeeded` if only
/// the number settles it.
pub fn extend(
    queue: &Queue,
    doc: LeasedDoc,
    until: i64,
    progress: Option<Jsonb>,
) -> Result<Extended> {
    let progress = Jsonb::arg(progress);
    let worker_session = match extend_row(queue, doc, until, progress) {
        Some(worker_session) => worker_session,
        None => match extend_by_statement(queue, doc, until, progress)? {
            Some(worker_session) => worker_session,
            None => {
                return Ok(Extended {
                    until: None,
                    stop: true,
                });
            }
        },
    };
    note_lease(queue, until);
    Ok(Extended {
        until: Some(until),
        stop: spi::connect(|spi| is_stopped(spi, worker_session)),
    })
}

// The documents of a lease, locked in the order of their subjects as every list is, so that two
// sessions do not deadlock.
// Index: due. Every active document of the queue is read, because none has the lease number.
// $1 lease number.
static HELD: Statement = Statement::new(
    "select d.ctid, d.worker_session
     from only {docs} d
     where d.status {=} {active}
         and d.lock_upgrade is null
         and d.lease {=} $1
     order by d.subject
     for update",
);

// The same among documents that the caller names.
// Index: primary key, once for each subject. No other index can serve `status + 0`.
// $1 lease number, $2 subjects.
static HELD_OF: Statement = Statement::new(
    "select d.ctid, d.worker_session
     from only {docs} d
     where d.subject {=} any ($2)
         and d.status {+} 0 {=} {active}
         and d.lease {=} $1
     order by d.subject
     for update",
);

// A Tid Scan of rows that this transaction has locked.
static EXTEND_HELD: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2
     where d.ctid {=} any ($1)",
);

/// The result of an extension of a whole pick.
pub struct ExtendedPick {
    /// The number of documents whose lease was extended.
    pub affected: i64,
    /// The worker should stop its work.
    pub stop: bool,
}

/// Extends all documents that are still leased by a lease to `until`, in microseconds since 2000.
/// `subjects`: only these, and no other document is read; None: all of them.
///
/// Fails with `Error::LeaseGone` if there is none.
pub fn extend_pick(
    queue: &Queue,
    lease: i64,
    until: i64,
    subjects: Option<Vec<String>>,
) -> Result<ExtendedPick> {
    let number = Arg::from(lease);
    spi::connect(|spi| {
        let held = match subjects {
            None => queue.run(spi, &HELD, &[number]),
            Some(subjects) => queue.run(spi, &HELD_OF, &[number, Arg::from(subjects)]),
        };
        if held.is_empty() {
            return Err(Error::LeaseGone {
                queue: queue.name.to_string(),
                lease,
            });
        }
        let args = [held.tids(1), Arg::timestamp(until)];
        let affected = queue.run_noting(spi, &EXTEND_HELD, &args).affected();
        note_lease(queue, until);
        Ok(ExtendedPick {
            affected: affected.into(),
            // One pick leases all documents for the same worker.
            stop: is_stopped(spi, held.get(0, 2).unwrap_or(0)),
        })
    })
}

/// Extends a lease without a statement, and returns its worker session. None: the statement
/// has to decide.
fn extend_row(queue: &Queue, doc: LeasedDoc, until: i64, progress: Arg) -> Option<i64> {
    let mut documents = queue.documents(Access::Update)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| holds_lease(row, doc.lease))?;
    row.set(Column::NextIteration, &Arg::timestamp(until));
    if !progress.is_null() {
        row.set(Column::Progress, &progress);
    }
    let worker_session = row.int8(Column::WorkerSession);
    (documents.replace(&mut row, true) == Change::Done).then_some(worker_session)
}

/// Extends a lease, and returns its worker session. None: the document was cancelled.
fn extend_by_statement(
    queue: &Queue,
    doc: LeasedDoc,
    until: i64,
    progress: Arg,
) -> Result<Option<i64>> {
    spi::connect(|spi| {
        let (subject, lease) = (Arg::from(doc.subject), Arg::from(doc.lease));
        let args = [subject, lease, Arg::timestamp(until), progress];
        let rows = queue.run_noting(spi, &EXTEND, &args);
        if !rows.is_empty() {
            return Ok(Some(rows.get(0, 1).unwrap_or(0)));
        }
        match queue.run(spi, &IS_CANCELLED, &[subject, lease]).affected() {
            0 => Err(lease_error(spi, queue, doc)),
            _ => Ok(None),
        }
    })
}
