//! Settling leased documents: completed, killed, planned anew, dropped.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).
//!
//! A caller that names its lease settles the document only while that lease holds.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::documents::{Change, Column, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::value::Arg;
use crate::pg::{spi, time};
use crate::ready::key::Key;
use crate::store::bookkeeping::{documents_ready, note_entry};
use crate::store::history::{self, Outcome};
use crate::store::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::open_queue::Queue;
use crate::store::policy::Keep;
use crate::store::statement::Statement;
use crate::store::{counter_log, dead_letters};

// Index of the four: primary key. Nothing else can prove `status + 0 = 2`.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = {completed}, attempts = 0,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce($4, d.payload),
         lease = null, worker_session = null, last_error = null
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq",
);

static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, attempts = 0,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(),
         payload = coalesce($3, d.payload),
         lease = null, worker_session = null
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq",
);

static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(), next_iteration = $4,
         payload = coalesce($5, d.payload),
         lease = null, worker_session = null, last_error = null
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq",
);

static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq",
);

/// Settles an active document as done.
pub fn complete(queue: &Queue, doc: LeasedDoc, payload: Option<Jsonb>) -> Result<()> {
    match queue.policy.completed {
        Keep::InTable => {}
        Keep::Nowhere => return remove(queue, doc),
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
pub fn kill(queue: &Queue, doc: LeasedDoc, payload: Option<Jsonb>) -> Result<()> {
    match (&queue.policy.dead_letter, queue.policy.killed) {
        (Some(target), _) => return dead_letters::kill(queue, target, doc, payload),
        (None, Keep::InTable) => {}
        (None, Keep::Nowhere) => return remove(queue, doc),
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
    doc: LeasedDoc,
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
        note_entry(queue, doc.version, doc.priority, to, key);
        documents_ready(queue, doc.version, to, 1);
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
    clear_lease(row, to);
}

/// Nobody holds a document any more.
pub(super) fn clear_lease(row: &mut Row, to: Status) {
    row.set(Column::Status, &Arg::from(to.code()));
    row.set(Column::Lease, &Arg::from(None::<i64>));
    row.set(Column::WorkerSession, &Arg::from(None::<i64>));
}

/// Settles an active document by removing it.
pub fn drop(queue: &Queue, doc: LeasedDoc) -> Result<()> {
    match queue.policy.dropped {
        Keep::InTable | Keep::Nowhere => remove(queue, doc),
        Keep::InHistory => into_history(queue, doc, None, Outcome::Dropped),
    }
}

/// Moves an active document into the queue's history.
fn into_history(
    queue: &Queue,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
    outcome: Outcome,
) -> Result<()> {
    let payload = payload.map(Jsonb::array_of_one);
    let settled = history::settle(queue, &[doc.subject], doc.lease, payload, outcome);
    match settled.is_empty() {
        true => Err(spi::connect(|spi| lease_error(spi, queue, doc))),
        false => Ok(()),
    }
}

/// Removes an active document.
fn remove(queue: &Queue, doc: LeasedDoc) -> Result<()> {
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
    doc: LeasedDoc,
    how: Settling,
    outcome: impl FnOnce(&Settled) -> (i32, Event),
) -> Result<()> {
    let settled = match settle_row(queue, doc, &how) {
        Some(settled) => settled,
        None => settle_by_statement(queue, doc, &how)?,
    };
    let (version, event) = outcome(&settled);
    counter_log::record_event(queue, version, 1, event);
    Ok(())
}

/// Without a statement; None: that is for the statement to decide.
fn settle_row(queue: &Queue, doc: LeasedDoc, how: &Settling) -> Option<Settled> {
    let access = how.change.map_or(Access::Delete, |_| Access::Update);
    let mut documents = queue.documents(access)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| holds_lease(row, doc.lease))?;
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

fn settle_by_statement(queue: &Queue, doc: LeasedDoc, how: &Settling) -> Result<Settled> {
    spi::connect(|spi| {
        let mut args = vec![Arg::from(doc.subject), Arg::from(doc.lease)];
        args.extend(how.args);
        let rows = queue.run_noting(spi, how.statement, &args);
        if rows.is_empty() {
            return Err(lease_error(spi, queue, doc));
        }
        Ok(Settled {
            version: rows.get(0, 1).unwrap_or(0),
            priority: rows.get(0, 2).unwrap_or(0),
            seq: rows.get(0, 3).unwrap_or(i64::MIN),
        })
    })
}
