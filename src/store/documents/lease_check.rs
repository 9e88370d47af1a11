//! Whether leases still hold, and the error of one that does not.

use crate::domain::lease_number::needs_number;
use crate::domain::status::Status;
use crate::error::Error;
use crate::late::memory;
use crate::pg::documents::{Column, Row};
use crate::pg::session;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::store::documents::{history, late_leases};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::{Scope, Statement};

/// An active document, as its worker names it.
#[derive(Clone, Copy)]
pub struct LeasedDoc<'a> {
    pub subject: &'a str,
    /// The lease number that the pick returned. None: any lease that the subject alone settles.
    pub lease: Option<i64>,
    /// What the worker calls, for an error: `complete` for `doc_complete`, and for a list of such calls.
    pub call: &'static str,
}

// Index: primary key.
static STATUS: Statement = Statement::new(
    "select d.status, coalesce({is_leased}, false), {needs_number}
     from only {docs} d where d.subject {=} $1",
);

// Index: primary key, once for each subject. No other index can serve `status + 0`.
static FIRST_WITH_NUMBER: Statement = Statement::new(
    "select d.subject::pg_catalog.text from only {docs} d
     where d.subject {=} any ($1)
         and d.status {+} 0 {=} {active}
         and {needs_number}
     order by d.subject
     limit 1",
);

/// Returns whether a document is active, and leased by the lease that the caller names. `lease`:
/// None for any lease that the subject alone settles. The marker `{is_leased}` is the same in SQL.
pub(in crate::store) fn holds_lease(row: &Row, lease: Option<i64>) -> bool {
    if row.int4(Column::Status) != Status::Active.code() {
        return false;
    }
    let held = (!row.is_null(Column::Lease)).then(|| row.int8(Column::Lease));
    match lease {
        Some(_) => held == lease,
        None => !held.is_some_and(needs_number),
    }
}

/// The error for a document that could not be settled: `Error::LeaseLost` if the caller named
/// a lease, else `Error::NotActive`. Both tell the status of the document. `Error::LeaseNeeded` if
/// it named none, and only the number settles the document. `Error::InHistory` if it is there.
/// `Error::KeptAsItIs` if
/// the lease holds, and something of the user's has kept the document from being changed.
/// `Error::OlderSnapshot` if the snapshot of the transaction is older than the lease.
pub(in crate::store) fn lease_error(spi: &Spi, queue: &Queue, doc: LeasedDoc) -> Error {
    let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
    let rows = queue.run(spi, &STATUS, &args);
    let holds = !rows.is_empty() && rows.get(0, 2).unwrap_or(false);
    let found = (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code));
    let needs_number = !rows.is_empty() && rows.get(0, 3).unwrap_or(false);
    if !holds && memory::exists() && session::keeps_snapshot() {
        // The lease was written after the snapshot was taken.
        let now = queue.run_latest(spi, &STATUS, &args);
        if !now.is_empty() && now.get(0, 2).unwrap_or(false) {
            return Error::OlderSnapshot(queue.name.to_string());
        }
    }
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
        None if found == Some(Some(Status::Active)) && needs_number => Error::LeaseNeeded {
            queue,
            subject,
            call: doc.call,
        },
        None => Error::NotActive {
            queue,
            subject,
            found,
        },
    }
}

/// Returns `Error::LeaseNeeded` if only its number settles one of the documents, which a caller that
/// named no lease could not settle. `call`: as in `LeasedDoc`.
pub(in crate::store) fn lease_needed(
    queue: &Queue,
    subjects: Arg,
    call: &'static str,
) -> Option<Error> {
    let first: Option<String> = spi::connect(|spi| {
        let rows = queue.run(spi, &FIRST_WITH_NUMBER, &[subjects]);
        (!rows.is_empty()).then(|| rows.get(0, 1))?
    });
    first.map(|subject| Error::LeaseNeeded {
        queue: queue.name.to_string(),
        subject,
        call,
    })
}

/// A lease as its worker names it.
pub struct NamedLease {
    pub subject: String,
    pub lease: i64,
}

/// What a look at leases has found.
#[derive(Default)]
pub struct Held {
    /// The worker sessions of those that hold, each once.
    pub sessions: Vec<i64>,
    /// The subjects of documents that were cancelled while they were leased.
    pub cancelled: Vec<String>,
    /// Those of all others that do not hold.
    pub lost: Vec<String>,
}

// A document keeps lease and worker session when it is settled. One that was cancelled while it was
// leased has lost the worker session.
// Index: primary key, once for each document.
// $1 subjects, $2 lease numbers.
static LOOK_AT: Statement = Statement::new(
    "select i.n::pg_catalog.int4,
         d.status {=} {active} and d.lease {=} i.lease,
         d.status {=} {killed} and d.lease {=} i.lease and d.worker_session is null,
         d.worker_session
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) with ordinality
         as i (subject, lease, n)
     left join only {docs} d on d.subject {=} i.subject",
)
.in_scope(Scope::Nothing);

/// Looks at leases. One that is listed twice is found twice.
pub fn look_at(queue: &Queue, leases: &[NamedLease]) -> Held {
    let mut held = Held::default();
    // One that is no longer in memory is in its row.
    let in_rows = leases.iter().filter(|lease| {
        let late = late_leases::session_of(queue, &lease.subject, lease.lease);
        if let Some(session) = late
            && !held.sessions.contains(&session)
        {
            held.sessions.push(session);
        }
        late.is_none()
    });
    let leases: Vec<&NamedLease> = in_rows.collect();
    let subjects: Vec<&str> = leases.iter().map(|lease| &*lease.subject).collect();
    let numbers: Vec<i64> = leases.iter().map(|lease| lease.lease).collect();
    spi::connect(|spi| {
        let args = [Arg::from(subjects), Arg::from(numbers)];
        let rows = match memory::exists() {
            // A late lease may have been written after the snapshot was taken.
            true => queue.run_latest(spi, &LOOK_AT, &args),
            false => queue.run(spi, &LOOK_AT, &args),
        };
        for row in 0..rows.len() {
            let n: i32 = rows.get(row, 1).unwrap_or(0);
            let Some(lease) = leases.get(n as usize - 1) else {
                continue;
            };
            if rows.get(row, 2) == Some(true) {
                let session = rows.get(row, 4).unwrap_or(0);
                if !held.sessions.contains(&session) {
                    held.sessions.push(session);
                }
            } else if rows.get(row, 3) == Some(true) {
                held.cancelled.push(lease.subject.clone());
            } else {
                held.lost.push(lease.subject.clone());
            }
        }
    });
    held.sessions.sort_unstable();
    held
}
