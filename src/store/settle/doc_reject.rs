//! Gives a leased document back: reject after a failure, snooze without one. The log of
//! failures, which a rejection writes, is here too.

use crate::domain::counter_events::Event;
use crate::domain::names;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::documents::{Change, Column, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::value::Arg;
use crate::pg::{random, spi, time};
use crate::ready::key::PickKey;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{documents_ready, note_entry, subjects_settled};
use crate::store::documents::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;
use crate::store::settle::dead_letters::{self, Settler};
use crate::store::settle::doc_settle::{self, Settling, set_status, settle};

/// The number of characters of a message that are kept in the document, in `last_error`.
const LAST_ERROR_MAX: usize = 2000;

/// A document that is rejected, as it was before.
struct Failed {
    version: i32,
    priority: i32,
    attempts: i32,
    max_attempts: i32,
    next_iteration: i64,
    seq: i64,
    picked_at: Option<i64>,
    has_key: bool,
}

impl Failed {
    /// The document has had all its attempts.
    fn is_last(&self) -> bool {
        self.attempts >= self.max_attempts
    }

    /// The status that the document gets: killed if it has had all its attempts, else pending, also
    /// before its time. Where others of its key are waiting for a place, it is planned until then.
    fn new_status(&self, queue: &Queue, retry_at: i64) -> Status {
        match self.is_last() {
            true => Status::Killed,
            false if self.has_key && !queue.policy.key_order.keeps_place_on_retry() => {
                Status::planned_or_pending(retry_at <= time::now())
            }
            false => Status::Pending,
        }
    }

    /// When the document is retried, in microseconds since 2000: when the caller says, or
    /// after the backoff of the queue, or when its lease would have expired. A killed document
    /// keeps its time.
    fn retry_at(&self, queue: &Queue, not_before: Option<i64>) -> i64 {
        match (self.is_last(), not_before, queue.policy.retry) {
            (false, Some(time), _) => time,
            (false, None, Some(retry)) => {
                let delay = retry.delay(self.attempts, random::fraction());
                time::now().saturating_add(delay)
            }
            _ => self.next_iteration,
        }
    }
}

/// Why a document is given back or killed: what is logged about it, and the beginning of the message
/// becomes its last error.
#[derive(Clone, Copy)]
pub struct Failure<'a> {
    pub message: &'a str,
    pub details: Option<Jsonb>,
    pub ref_id: Option<&'a str>,
}

impl Failure<'_> {
    /// What the document keeps of it.
    fn last_error(&self) -> &str {
        names::cut(self.message, LAST_ERROR_MAX).0
    }

    fn log(&self, queue: &Queue, subject: &str, attempt: Option<i32>) {
        let entry = LogEntry {
            subject,
            message: self.message,
            details: self.details,
            ref_id: self.ref_id,
            attempt,
        };
        log_failure(queue, &entry);
    }
}

// Index of both: primary key. For the first one, no other index can serve `{is_leased}`.
static LOCK: Statement = Statement::new(
    "select d.version, d.priority, d.attempts, d.max_attempts, d.next_iteration, d.seq,
         d.picked_at, d.ordering_key is not null
     from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     for update",
);

static REJECT: Statement = Statement::new(
    "update only {docs} d set
         status = $2,
         result = case when $2 {=} {killed} then null else d.result end,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(), next_iteration = $3,
         last_error = $4
     where d.subject {=} $1",
);

/// Gives a leased document back after a failure, and logs that. It is retried, or killed if it has
/// had all its attempts; a killed one may move to the dead-letter queue or the history. `not_before`
/// is when it is retried, in microseconds since 2000; None for the backoff of the queue.
///
/// Fails with `Error::LeaseLost` if the caller names a lease that does not hold, with
/// `Error::NotActive` if it names none and the document is not leased, and with the errors of
/// `dead_letters::settle_failed`.
pub fn reject(
    queue: &Queue,
    doc: LeasedDoc,
    failure: &Failure,
    not_before: Option<i64>,
) -> Result<()> {
    let error = failure.last_error();
    let (failed, retry_at) = match reject_row(queue, doc, error, not_before) {
        Some(rejected) => rejected,
        None => reject_by_statement(queue, doc, error, not_before)?,
    };
    let to = failed.new_status(queue, retry_at);
    let run = counter_log::run_bucket(time::clock(), failed.picked_at);
    if to != Status::Killed {
        let key = PickKey::new(retry_at, failed.attempts, failed.seq);
        note_entry(queue, failed.version, failed.priority, to, key);
        documents_ready(queue, failed.version, to, 1);
    }
    if to == Status::Killed && dead_letters::removes_failed(queue) {
        let subjects = [doc.subject.to_owned()];
        let (stay, removed) = (Event::RejectKilled, Event::RejectRemoved);
        let by = Settler::Worker { run };
        dead_letters::settle_failed(queue, &subjects, stay, removed, by)?;
    } else {
        counter_log::record_one(queue, 0, Event::reject(to), run);
        if to == Status::Killed {
            subjects_settled(queue, [doc.subject]);
        }
    }
    failure.log(queue, doc.subject, Some(failed.attempts));
    Ok(())
}

/// Kills a leased document as `doc_settle::kill` does. If there is a failure, it says why, and is
/// logged.
pub fn kill(
    queue: &Queue,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
    failure: Option<&Failure>,
) -> Result<()> {
    let Some(failure) = failure else {
        return doc_settle::kill(queue, doc, payload, None);
    };
    // The log tells which attempt it was, which the row no longer knows afterwards.
    let attempt = spi::connect(|spi| {
        let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
        let rows = queue.run(spi, &LOCK, &args);
        if rows.is_empty() {
            return Err(lease_error(spi, queue, doc));
        }
        Ok(rows.get(0, 3))
    })?;
    doc_settle::kill(queue, doc, payload, Some(failure.last_error()))?;
    failure.log(queue, doc.subject, attempt);
    Ok(())
}

/// Rejects a document without a statement, and returns it as it was and when it is retried.
/// None: the statements have to decide.
fn reject_row(
    queue: &Queue,
    doc: LeasedDoc,
    error: &str,
    not_before: Option<i64>,
) -> Option<(Failed, i64)> {
    let mut documents = queue.documents(Access::Update)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| holds_lease(row, doc.lease))?;
    let max_attempts = match row.is_null(Column::MaxAttempts) {
        true => queue.policy.max_attempts,
        false => row.int4(Column::MaxAttempts),
    };
    let failed = Failed {
        version: row.int4(Column::Version),
        priority: row.int4(Column::Priority),
        attempts: row.int4(Column::Attempts),
        max_attempts,
        next_iteration: row.int8(Column::NextIteration),
        seq: row.int8(Column::Seq),
        picked_at: row.timestamp(Column::PickedAt),
        // Where keys matter, the documents have triggers, and only statements write them.
        has_key: false,
    };
    let retry_at = failed.retry_at(queue, not_before);
    let iterations = row.int8(Column::Iterations).saturating_add(1);
    row.set(Column::Iterations, &Arg::from(iterations));
    row.set(Column::LastIteration, &Arg::timestamp(time::now()));
    row.set(Column::NextIteration, &Arg::timestamp(retry_at));
    row.set(Column::LastError, &Arg::from(error));
    let to = failed.new_status(queue, retry_at);
    if to == Status::Killed {
        row.set(Column::Result, &Jsonb::arg(None));
    }
    set_status(&mut row, to);
    (documents.replace(&mut row, true) == Change::Done).then_some((failed, retry_at))
}

/// Rejects a document by statements, and returns it as it was and when it is retried.
fn reject_by_statement(
    queue: &Queue,
    doc: LeasedDoc,
    error: &str,
    not_before: Option<i64>,
) -> Result<(Failed, i64)> {
    spi::connect(|spi| {
        let subject = Arg::from(doc.subject);
        let rows = queue.run(spi, &LOCK, &[subject, Arg::from(doc.lease)]);
        if rows.is_empty() {
            return Err(lease_error(spi, queue, doc));
        }
        let int = |column| rows.get(0, column).unwrap_or(0);
        let failed = Failed {
            version: int(1),
            priority: int(2),
            attempts: int(3),
            max_attempts: rows.get(0, 4).unwrap_or(queue.policy.max_attempts),
            next_iteration: rows.timestamp(0, 5).unwrap_or(i64::MIN),
            seq: rows.get(0, 6).unwrap_or(i64::MIN),
            picked_at: rows.timestamp(0, 7),
            has_key: rows.get(0, 8) == Some(true),
        };
        let retry_at = failed.retry_at(queue, not_before);
        let args = [
            subject,
            Arg::from(failed.new_status(queue, retry_at).code()),
            Arg::timestamp(retry_at),
            Arg::from(error),
        ];
        // A trigger of the user's may suppress the change.
        if queue.run_noting(spi, &REJECT, &args).affected() == 0 {
            return Err(lease_error(spi, queue, doc));
        }
        Ok((failed, retry_at))
    })
}

// Index: primary key. No other index can serve `{is_leased}`.
static SNOOZE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, next_iteration = $4,
         attempts = greatest(d.attempts {-} 1, 0)
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq, d.attempts, d.picked_at",
);

/// Gives a leased document back as if it had not been picked: the attempt does not count. It
/// becomes ready at `next_iteration`, in microseconds since 2000. Fails as
/// `doc_settle::complete` does.
pub fn snooze(queue: &Queue, doc: LeasedDoc, next_iteration: i64) -> Result<()> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let at = Arg::timestamp(next_iteration);
    let change = |row: &mut Row| {
        let attempts = row.int4(Column::Attempts).saturating_sub(1).max(0);
        row.set(Column::Attempts, &Arg::from(attempts));
        row.set(Column::NextIteration, &at);
        set_status(row, to);
    };
    let how = Settling {
        change: Some(&change),
        statement: &SNOOZE,
        args: &[Arg::from(to.code()), at],
    };
    settle(queue, doc, how, |doc| {
        let key = PickKey::new(next_iteration, doc.attempts, doc.seq);
        note_entry(queue, doc.version, doc.priority, to, key);
        documents_ready(queue, doc.version, to, 1);
        let event = match to {
            Status::Pending => Event::ReturnPending,
            _ => Event::ReturnPlanned,
        };
        (0, event)
    })
}

/// What is logged about a document.
pub struct LogEntry<'a> {
    pub subject: &'a str,
    pub message: &'a str,
    pub details: Option<Jsonb>,
    pub ref_id: Option<&'a str>,
    /// The number of the attempt that failed.
    pub attempt: Option<i32>,
}

static LOG: Statement = Statement::new(
    "insert into {logs} (subject, message, details, ref_id, attempt)
     values ($1, $2, $3, $4, $5)",
);

/// Adds a line to the log.
pub fn log_failure(queue: &Queue, entry: &LogEntry) {
    spi::connect(|spi| {
        queue.run(
            spi,
            &LOG,
            &[
                Arg::from(entry.subject),
                Arg::from(entry.message),
                Jsonb::arg(entry.details),
                Arg::from(entry.ref_id),
                Arg::from(entry.attempt),
            ],
        );
    });
}
