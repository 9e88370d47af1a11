//! Whether a settlement that finds no lease is repeated: the same worker has made it before, and has not
//! got the answer, because its connection broke.
//!
//! A lease is settled once, and only its worker knows its number. So a document that was settled under the
//! number that a caller names was settled by this caller. It says so only where nothing else can have
//! brought the document to where it is: it could also have been cancelled, its lease could have run out,
//! or a worker that names no number could have settled it.

use crate::domain::lease_number::needs_number;
use crate::domain::settlement::Action;
use crate::domain::status::Status;
use crate::error::Error;
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::documents::lease_check::lease_error;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue_tables;
use crate::store::queues::statement::Statement;
use crate::store::settle::settlement::Settlement;

// A settlement writes the last iteration, and neither an expired lease nor the release of a worker does.
// A document that was cancelled while it was leased has lost the worker session. Complete, kill and
// reschedule set the attempts to 0, and reject leaves them.
// Index: primary key.
// $1 subject, $2 lease number, $3 statuses, $4 whether the attempts are 0.
static IS_IN_TABLE: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject {=} $1
         and d.lease {=} $2
         and d.status {+} 0 {=} any ($3)
         and (d.attempts {=} 0) {=} $4
         and d.worker_session is not null
         and d.last_iteration {>=} d.picked_at",
);

// Index: (subject, id). Of a lease that ran out, maintenance writes the error.
const IS_IN_HISTORY: &str = "select from only {history} h
    where h.subject {=} $1
        and h.lease {=} $2
        and h.outcome {=} $3
        and (h.last_error is null
            or h.last_error {<>} pg_catalog.format('the lease of attempt %s ran out', h.attempts))
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
    let (statuses, has_no_attempts, outcome): (&[Status], _, _) = match doc.action {
        Action::Complete => (&[Status::Completed], true, Some("completed")),
        Action::Kill => (&[Status::Killed], true, Some("killed")),
        Action::Reschedule => (&[Status::Planned, Status::Pending], true, None),
        Action::Reject => (
            &[Status::Planned, Status::Pending, Status::Killed],
            false,
            Some("killed"),
        ),
        // A release looks the same as the first, and the removal by an administrator as the second.
        Action::Snooze | Action::Drop => return None,
    };
    let (subject, lease) = (Arg::from(&*doc.subject), Arg::from(lease));
    let codes: Vec<i32> = statuses.iter().map(|status| status.code()).collect();
    let args = [subject, lease, Arg::from(codes), Arg::from(has_no_attempts)];
    let rows = queue.run(spi, &IS_IN_TABLE, &args);
    if !rows.is_empty() {
        return Some(rows.get(0, 1).and_then(Status::from_code));
    }
    let outcome = outcome.filter(|_| queue_tables::has_history(&queue.name))?;
    let args = [subject, lease, Arg::from(outcome)];
    let is_there = queue.once(spi, IS_IN_HISTORY, &args).affected() > 0;
    is_there.then_some(None)
}
