//! Leases that last longer than they were given for.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::documents::{Change, Column};
use crate::pg::documents_check::Access;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::ready::key::Key;
use crate::store::bookkeeping::note_entry;
use crate::store::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;
use crate::store::{counter_log, history, plans};

// Index of both: primary key. Nothing else can prove `status + 0 = 2`.
static EXTEND: Statement = Statement::new(
    "update only {docs} d set next_iteration = $3
     where d.subject {=} $1
         and {is_leased}
     returning d.worker_session",
);

static IS_CANCELLED: Statement = Statement::new(
    "select from only {docs} d
     where d.subject {=} $1
         and d.status {+} 0 {=} {killed}
         and d.lease {=} $2",
);

// (nearly always nobody)
static IS_ANY_STOPPED: Statement = Statement::new("select from fetchq.stop_requests limit 1");

static IS_STOPPED: Statement = Statement::new(
    "select from fetchq.stop_requests s
     join fetchq.worker_sessions h on h.name {=} s.name
     where h.id {=} $1
         and h.since {<} s.since",
);

/// What became of a lease.
pub struct Extended {
    /// When it ends; None: the document was cancelled.
    pub until: Option<i64>,
    /// The worker should stop what it does.
    pub stop: bool,
}

/// Has the lease of a document last until a time.
pub fn extend(queue: &Queue, doc: LeasedDoc, until: i64) -> Result<Extended> {
    let holder = match extend_row(queue, doc, until) {
        Some(holder) => holder,
        None => match extend_by_statement(queue, doc, until)? {
            Some(holder) => holder,
            None => {
                return Ok(Extended {
                    until: None,
                    stop: true,
                });
            }
        },
    };
    note_entry(queue, 0, 0, Status::Active, Key::at(until));
    let stop = spi::connect(|spi| {
        plans::run_latest(spi, &IS_ANY_STOPPED, &[]).affected() > 0
            && plans::run_latest(spi, &IS_STOPPED, &[Arg::from(holder)]).affected() > 0
    });
    Ok(Extended {
        until: Some(until),
        stop,
    })
}

/// Without a statement, who holds it; None: that is for the statement to decide.
fn extend_row(queue: &Queue, doc: LeasedDoc, until: i64) -> Option<i64> {
    let mut documents = queue.documents(Access::Update)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| holds_lease(row, doc.lease))?;
    row.set(Column::NextIteration, &Arg::timestamp(until));
    let holder = row.int8(Column::WorkerSession);
    (documents.replace(&mut row, true) == Change::Done).then_some(holder)
}

/// Who holds it; None: it was cancelled.
fn extend_by_statement(queue: &Queue, doc: LeasedDoc, until: i64) -> Result<Option<i64>> {
    spi::connect(|spi| {
        let (subject, lease) = (Arg::from(doc.subject), Arg::from(doc.lease));
        let args = [subject, lease, Arg::timestamp(until)];
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

// Index of both: primary key. An active document keeps the number of its lease, by which
// its worker learns of it: doc_extend().
static LOCK: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject {=} $1
     for update",
);

static CANCEL: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, attempts = 0, worker_session = null, last_error = 'cancelled'
     where d.subject {=} $1",
);

/// Kills a document that is planned, pending or active, and says which of them it was.
/// The error is what it is instead; None: there is no such document.
pub fn cancel(queue: &Queue, subject: &str) -> std::result::Result<Status, Option<Status>> {
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
                counter_log::record_event(queue, 0, 1, event);
                // An active one stays for its worker to learn of it.
                if from != Status::Active {
                    history::cancelled(spi, queue, &[name.to_owned()]);
                }
                Ok(from)
            }
        }
    })
}
