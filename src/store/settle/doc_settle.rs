//! Settles one leased document: complete, kill, reschedule, drop. `doc_reject.rs` has reject
//! and snooze.
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
use crate::ready::key::PickKey;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{documents_ready, note_entry, subjects_settled};
use crate::store::documents::history::{self, Columns, Outcome};
use crate::store::documents::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::statement::Statement;
use crate::store::settle::dead_letters;

// Index of all four: primary key. No other index can serve `{is_leased}`.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = {completed}, attempts = 0,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce($4, d.payload), result = $5,
         last_error = null
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq, d.attempts, d.picked_at",
);

static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, attempts = 0,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(),
         payload = coalesce($3, d.payload), result = null,
         last_error = coalesce($4, d.last_error)
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq, d.attempts, d.picked_at",
);

static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(), next_iteration = $4,
         payload = coalesce($5, d.payload), result = null,
         last_error = null
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq, d.attempts, d.picked_at",
);

static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq, d.attempts, d.picked_at",
);

/// Completes a leased document. It stays, is removed or moves to the history, by the policy
/// of the queue.
///
/// This and all functions that settle fail with `Error::LeaseLost` if the caller names a
/// lease that does not hold, and with `Error::NotActive` if it names none and the document is
/// not leased.
pub fn complete(
    queue: &Queue,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
    result: Option<Jsonb>,
) -> Result<()> {
    match queue.policy.completed {
        Keep::InTable => {}
        Keep::Nowhere => return remove(queue, doc, Event::Drop),
        Keep::InHistory => {
            let written = Written {
                payload,
                result,
                error: None,
            };
            return move_to_history(queue, doc, written, Outcome::Completed);
        }
    }
    let next_iteration = Arg::timestamp(time::COMPLETED_AT_US);
    let (payload, result) = (Jsonb::arg(payload), Jsonb::arg(result));
    let change = |row: &mut Row| {
        end_iteration(row, Status::Completed, &payload);
        row.set(Column::NextIteration, &next_iteration);
        row.set(Column::Result, &result);
    };
    let how = Settling {
        change: Some(&change),
        statement: &COMPLETE,
        args: &[next_iteration, payload, result],
    };
    settle(queue, doc, how, |_| (0, Event::Complete))
}

/// Kills a leased document: it moves to the dead-letter queue if there is one, else it stays, is
/// removed or moves to the history, by the policy of the queue. `error`: why, its last error. Fails
/// as `complete` does, and with the errors of `dead_letters::kill`.
pub fn kill(
    queue: &Queue,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
    error: Option<&str>,
) -> Result<()> {
    match (&queue.policy.dead_letter, queue.policy.killed) {
        (Some(target), _) => return dead_letters::kill(queue, target, doc, payload, error),
        (None, Keep::InTable) => {}
        (None, Keep::Nowhere) => return remove(queue, doc, Event::KillRemoved),
        (None, Keep::InHistory) => {
            let written = Written {
                payload,
                result: None,
                error,
            };
            return move_to_history(queue, doc, written, Outcome::Killed);
        }
    }
    let payload = Jsonb::arg(payload);
    let last_error = Arg::from(error);
    let change = |row: &mut Row| {
        end_iteration(row, Status::Killed, &payload);
        if error.is_some() {
            row.set(Column::LastError, &last_error);
        }
    };
    let how = Settling {
        change: Some(&change),
        statement: &KILL,
        args: &[payload, last_error],
    };
    settle(queue, doc, how, |_| (0, Event::Kill))
}

/// Plans the next iteration of a leased document, at `next_iteration` in microseconds since
/// 2000. Fails as `complete` does.
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
        let key = PickKey::new(next_iteration, 0, doc.seq);
        note_entry(queue, doc.version, doc.priority, to, key);
        documents_ready(queue, doc.version, to, 1);
        (0, Event::reschedule(to))
    })
}

/// Ends the iteration of a document: the changes that complete, kill and reschedule have in
/// common. A killed document keeps its last error. `payload`: NULL keeps the payload.
pub(in crate::store) fn end_iteration(row: &mut Row, to: Status, payload: &Arg) {
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
    row.set(Column::Result, &Jsonb::arg(None));
    set_status(row, to);
}

/// Changes the status of a document, which ends its lease. The row keeps the lease number, so that
/// the next one is greater, and the worker session.
pub(in crate::store) fn set_status(row: &mut Row, to: Status) {
    row.set(Column::Status, &Arg::from(to.code()));
}

/// Drops a leased document: it is removed or moves to the history, by the policy of the queue.
/// Fails as `complete` does.
pub fn drop(queue: &Queue, doc: LeasedDoc) -> Result<()> {
    match queue.policy.dropped {
        Keep::InTable | Keep::Nowhere => remove(queue, doc, Event::Drop),
        Keep::InHistory => move_to_history(queue, doc, Written::default(), Outcome::Dropped),
    }
}

/// What a worker says about a document that leaves for the history.
#[derive(Default)]
struct Written<'a> {
    payload: Option<Jsonb>,
    result: Option<Jsonb>,
    error: Option<&'a str>,
}

/// Moves a leased document to the queue's history.
fn move_to_history(
    queue: &Queue,
    doc: LeasedDoc,
    written: Written,
    outcome: Outcome,
) -> Result<()> {
    let columns = Columns {
        payloads: written.payload.map(Jsonb::array_of_one),
        results: written.result.map(Jsonb::array_of_one),
        error: written.error,
    };
    let settled = history::settle(queue, &[doc.subject], doc.lease, columns, outcome);
    match settled.is_empty() {
        true => Err(spi::connect(|spi| lease_error(spi, queue, doc))),
        false => Ok(()),
    }
}

/// Removes a leased document. `event` is counted.
fn remove(queue: &Queue, doc: LeasedDoc, event: Event) -> Result<()> {
    let how = Settling {
        change: None,
        statement: &DROP,
        args: &[],
    };
    settle(queue, doc, how, |doc| (doc.version, event))
}

/// How a leased document is settled.
pub(in crate::store) struct Settling<'a> {
    /// Changes the row. None: it is removed.
    pub change: Option<&'a dyn Fn(&mut Row)>,
    /// Does the same as a statement. Its first parameters are subject and lease, and it
    /// returns the columns of `Settled`.
    pub statement: &'static Statement,
    /// The further parameters of the statement.
    pub args: &'a [Arg],
}

/// A document that was settled.
pub(in crate::store) struct Settled {
    pub version: i32,
    pub priority: i32,
    pub seq: i64,
    /// As they were written. If the document was removed, they are those that it had.
    pub attempts: i32,
    /// In microseconds since 2000.
    pub picked_at: Option<i64>,
}

/// Settles a document and counts it. `outcome` returns the version and the event to count.
/// Fails as [`complete`] does.
pub(in crate::store) fn settle(
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
    let run = event
        .timing()
        .and_then(|_| counter_log::run_bucket(time::clock(), settled.picked_at));
    counter_log::record_one(queue, version, event, run);
    if event.settles() {
        subjects_settled(queue, [doc.subject]);
    }
    Ok(())
}

/// Settles a document without a statement. None: the statement has to decide.
fn settle_row(queue: &Queue, doc: LeasedDoc, how: &Settling) -> Option<Settled> {
    let access = how.change.map_or(Access::Delete, |_| Access::Update);
    let mut documents = queue.documents(access)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| holds_lease(row, doc.lease))?;
    let result = match how.change {
        Some(change) => {
            change(&mut row);
            documents.replace(&mut row, true)
        }
        None => documents.remove(&row, true),
    };
    (result == Change::Done).then(|| Settled {
        version: row.int4(Column::Version),
        priority: row.int4(Column::Priority),
        seq: row.int8(Column::Seq),
        attempts: row.int4(Column::Attempts),
        picked_at: row.timestamp(Column::PickedAt),
    })
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
            attempts: rows.get(0, 4).unwrap_or(i32::MIN),
            picked_at: rows.timestamp(0, 5),
        })
    })
}
