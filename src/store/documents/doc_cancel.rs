//! Cancels a document that is not settled.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::bounds::keys::holding_queued_key;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{leases_taken, subjects_settled};
use crate::store::documents::doc_put::put_all_queued;
use crate::store::documents::history::{self, Outcome};
use crate::store::documents::queued::queued_of;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

// Index of both: primary key. The lease number of an active document, without the worker session,
// tells its worker that it was cancelled.
static LOCK: Statement = Statement::new(
    "select d.status, d.queued, d.worker_session from only {docs} d
     where d.subject {=} $1
     for update",
);

static CANCEL: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, attempts = 0, result = null, last_error = 'cancelled',
         worker_session = case when d.status {<>} {active} then d.worker_session end,
         last_iteration = pg_catalog.now()
     where d.subject {=} $1",
);

/// Kills a document that is planned, pending or active, and returns the status that it had.
/// Fails with the status of a document that is settled, with the outcome of one that is in the history and
/// has none, and with None for one that does not exist or has an unknown status.
pub fn cancel(queue: &Queue, subject: &str) -> std::result::Result<Status, Option<&'static str>> {
    holding_queued_key(queue, subject, || lock_and_cancel(queue, subject))
}

fn lock_and_cancel(
    queue: &Queue,
    subject: &str,
) -> std::result::Result<Status, Option<&'static str>> {
    spi::connect(|spi| {
        let key = Arg::from(subject);
        let rows = queue.run(spi, &LOCK, &[key]);
        if rows.is_empty() {
            let outcome = history::last_outcome(spi, queue, subject);
            let outcome = outcome.and_then(|word| Outcome::parse(&word));
            return Err(
                outcome.map(|outcome| outcome.status().map_or(outcome.word(), Status::word))
            );
        }
        let from = rows.get(0, 1).and_then(Status::from_code);
        match from.and_then(|from| Some((from, Event::cancel(from)?))) {
            None => Err(from.map(Status::word)),
            Some((from, event)) => {
                // A trigger of the user's may suppress the change.
                if queue.run_noting(spi, &CANCEL, &[key]).affected() == 0 {
                    return Err(Some(from.word()));
                }
                if from == Status::Active {
                    leases_taken(queue, &rows, 3);
                }
                counter_log::record_event(queue, 0, 1, event);
                subjects_settled(queue, [subject]);
                // An active document stays in the table, so that its worker can learn that
                // it was cancelled.
                if from != Status::Active {
                    history::cancelled(spi, queue, &[subject.to_owned()]);
                } else if let Some(queued) = queued_of(&rows, 0, 2) {
                    put_all_queued(queue, &[(subject, &*queued)]);
                }
                Ok(from)
            }
        }
    })
}
