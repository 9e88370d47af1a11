//! Settling leased documents: completed, killed, planned anew, dropped.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).
//!
//! A caller that names its lease settles the document only while that lease holds.

use super::docs::{came, note};
use super::history::{self, Outcome};
use super::plans::{Queue, Statement};
use super::policy::Keep;
use super::{counters, dead_letters};
use crate::domain::counters::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::{Access, Change, Column, Row};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg, Spi};
use crate::pg::time;
use crate::ready::Key;

/// An active document, as its worker names it.
#[derive(Clone, Copy)]
pub struct Held<'a> {
    pub subject: &'a str,
    /// The pick that it was leased by; None: whoever holds it.
    pub lease: Option<i64>,
}

// Index of the four: primary key. Nothing else can prove `status + 0 = 2`.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = 3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce($4, d.payload),
         lease = null, holder = null, last_error = null
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.version, d.priority, d.seq",
);
static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = -1, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(),
         payload = coalesce($3, d.payload),
         lease = null, holder = null
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.version, d.priority, d.seq",
);
static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $4,
         payload = coalesce($5, d.payload),
         lease = null, holder = null, last_error = null
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.version, d.priority, d.seq",
);
static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.version, d.priority, d.seq",
);
static STATUS: Statement =
    Statement::new("select d.status from only {docs} d where d.subject operator(pg_catalog.=) $1");

/// Settles an active document as done.
pub fn complete(queue: &Queue, doc: Held, payload: Option<Jsonb>) -> Result<()> {
    match queue.policy.completed {
        Keep::AsItIs => {}
        Keep::Not => return remove(queue, doc),
        Keep::InHistory => return into_history(queue, doc, payload, Outcome::Completed),
    }
    let next_iteration = Arg::timestamp(time::COMPLETED_AT);
    let payload = Jsonb::arg(payload);
    let change = |row: &mut Row| {
        end_iteration(row, Status::Completed, &payload);
        row.set(Column::NextIteration, &next_iteration);
    };
    let how = Settling {
        change: Some(&change),
        statement: &COMPLETE,
        args: &[next_iteration, payload],
    };
    settle(queue, doc, how, |_| (0, Event::Complete))
}

/// Settles an active document as never to run again.
pub fn kill(queue: &Queue, doc: Held, payload: Option<Jsonb>) -> Result<()> {
    match (&queue.policy.dead_letter, queue.policy.killed) {
        (Some(target), _) => return dead_letters::kill(queue, target, doc, payload),
        (None, Keep::AsItIs) => {}
        (None, Keep::Not) => return remove(queue, doc),
        (None, Keep::InHistory) => return into_history(queue, doc, payload, Outcome::Killed),
    }
    let payload = Jsonb::arg(payload);
    let how = Settling {
        change: Some(&|row| end_iteration(row, Status::Killed, &payload)),
        statement: &KILL,
        args: &[payload],
    };
    settle(queue, doc, how, |_| (0, Event::Kill))
}

/// Plans the next iteration of an active document.
pub fn reschedule(
    queue: &Queue,
    doc: Held,
    next_iteration: i64,
    payload: Option<Jsonb>,
) -> Result<()> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let payload = Jsonb::arg(payload);
    let at = Arg::timestamp(next_iteration);
    let change = |row: &mut Row| {
        end_iteration(row, to, &payload);
        row.set(Column::NextIteration, &at);
    };
    let how = Settling {
        change: Some(&change),
        statement: &RESCHEDULE,
        args: &[Arg::from(to.code()), at, payload],
    };
    settle(queue, doc, how, |doc| {
        let key = Key::new(next_iteration, 0, doc.seq);
        note(queue, doc.version, doc.priority, to, key);
        came(queue, doc.version, to, 1);
        (0, Event::reschedule(to))
    })
}

/// What all of these do to an active document.
pub(super) fn end_iteration(row: &mut Row, to: Status, payload: &Arg) {
    let iterations = row.int8(Column::Iterations).saturating_add(1);
    row.set(Column::Attempts, &Arg::from(0));
    row.set(Column::Iterations, &Arg::from(iterations));
    row.set(Column::LastIteration, &Arg::timestamp(time::now()));
    if to != Status::Killed {
        row.set(Column::LastError, &Arg::from(None::<&str>));
    }
    if !payload.is_null() {
        row.set(Column::Payload, payload);
    }
    give_back(row, to);
}

/// Nobody holds a document any more.
pub(super) fn give_back(row: &mut Row, to: Status) {
    row.set(Column::Status, &Arg::from(to.code()));
    row.set(Column::Lease, &Arg::from(None::<i64>));
    row.set(Column::Holder, &Arg::from(None::<i64>));
}

/// Settles an active document by removing it.
pub fn drop(queue: &Queue, doc: Held) -> Result<()> {
    match queue.policy.dropped {
        Keep::AsItIs | Keep::Not => remove(queue, doc),
        Keep::InHistory => into_history(queue, doc, None, Outcome::Dropped),
    }
}

/// Moves an active document into the queue's history.
fn into_history(queue: &Queue, doc: Held, payload: Option<Jsonb>, outcome: Outcome) -> Result<()> {
    let payload = payload.map(Jsonb::array_of_one);
    let settled = history::settle(queue, &[doc.subject], doc.lease, payload, outcome);
    match settled.is_empty() {
        true => Err(spi::connect(|spi| not_held(spi, queue, doc))),
        false => Ok(()),
    }
}

/// Removes an active document.
fn remove(queue: &Queue, doc: Held) -> Result<()> {
    let how = Settling {
        change: None,
        statement: &DROP,
        args: &[],
    };
    settle(queue, doc, how, |doc| (doc.version, Event::Drop))
}

/// How an active document is settled.
pub(super) struct Settling<'a> {
    /// What becomes of it; None: it is removed.
    pub change: Option<&'a dyn Fn(&mut Row)>,
    /// The same as a statement: its first parameters are subject and lease, and it
    /// returns the columns of `Settled`.
    pub statement: &'static Statement,
    pub args: &'a [Arg],
}

/// A document that was settled.
pub(super) struct Settled {
    pub version: i32,
    pub priority: i32,
    pub seq: i64,
}

/// Settles a document and counts it; `outcome` says as what.
pub(super) fn settle(
    queue: &Queue,
    doc: Held,
    how: Settling,
    outcome: impl FnOnce(&Settled) -> (i32, Event),
) -> Result<()> {
    let settled = match settle_row(queue, doc, &how) {
        Some(settled) => settled,
        None => settle_by_statement(queue, doc, &how)?,
    };
    let (version, event) = outcome(&settled);
    counters::note(queue, version, 1, event);
    Ok(())
}

/// Whether a document is active, and held by the lease that the caller names.
pub(super) fn is_held(row: &Row, lease: Option<i64>) -> bool {
    row.int4(Column::Status) == Status::Active.code()
        && lease.is_none_or(|lease| !row.is_null(Column::Lease) && row.int8(Column::Lease) == lease)
}

/// Without a statement; None: that is for the statement to decide.
fn settle_row(queue: &Queue, doc: Held, how: &Settling) -> Option<Settled> {
    let access = how.change.map_or(Access::Delete, |_| Access::Update);
    let mut documents = queue.documents(access)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| is_held(row, doc.lease))?;
    let settled = Settled {
        version: row.int4(Column::Version),
        priority: row.int4(Column::Priority),
        seq: row.int8(Column::Seq),
    };
    let done = match how.change {
        Some(change) => {
            change(&mut row);
            documents.replace(&mut row, true)
        }
        None => documents.remove(&row, true),
    };
    (done == Change::Done).then_some(settled)
}

fn settle_by_statement(queue: &Queue, doc: Held, how: &Settling) -> Result<Settled> {
    spi::connect(|spi| {
        let mut args = vec![Arg::from(doc.subject), Arg::from(doc.lease)];
        args.extend(how.args);
        let rows = queue.run_noting(spi, how.statement, &args);
        if rows.is_empty() {
            return Err(not_held(spi, queue, doc));
        }
        Ok(Settled {
            version: rows.get(0, 1).unwrap_or(0),
            priority: rows.get(0, 2).unwrap_or(0),
            seq: rows.get(0, 3).unwrap_or(i64::MIN),
        })
    })
}

/// Why a document could not be settled.
pub(super) fn not_held(spi: &Spi, queue: &Queue, doc: Held) -> Error {
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
