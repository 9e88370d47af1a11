//! Documents that go back to be tried again: rejected, or handed back as they are.

use pgrx::PgSqlErrorCode;

use crate::domain::counter_events::Event;
use crate::domain::names;
use crate::domain::status::Status;
use crate::error::{self, Result};
use crate::pg::documents::{Change, Column, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::value::Arg;
use crate::pg::{random, spi, time};
use crate::ready::key::Key;
use crate::store::bookkeeping::{documents_ready, note_entry};
use crate::store::doc_settle::{Settling, clear_lease, settle};
use crate::store::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;
use crate::store::{counter_log, dead_letters};

// Index of the three: primary key. Nothing else can prove `status + 0 = 2`.
static LOCK: Statement = Statement::new(
    "select d.version, d.priority, d.attempts, d.max_attempts, d.next_iteration, d.seq
     from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     for update",
);

static REJECT: Statement = Statement::new(
    "update only {docs} d set
         status = $2,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         lease = null, worker_session = null, last_error = $4
     where d.subject {=} $1",
);

static SNOOZE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, next_iteration = $4,
         attempts = greatest(d.attempts {-} 1, 0),
         lease = null, worker_session = null
     where d.subject {=} $1
         and {is_leased}
     returning d.version, d.priority, d.seq, d.attempts",
);

/// What is kept of a message in the document itself: characters.
const ERROR_MAX: usize = 2000;

/// A document that is about to be rejected.
struct Failed {
    version: i32,
    priority: i32,
    attempts: i32,
    max_attempts: i32,
    next_iteration: i64,
    seq: i64,
}

impl Failed {
    fn to(&self) -> Status {
        if self.attempts >= self.max_attempts {
            Status::Killed
        } else {
            Status::Pending
        }
    }

    /// When it is tried again: after a delay that the caller names, or by the queue's
    /// policy, or when its lease would have ended.
    fn again(&self, queue: &Queue, not_before: Option<i64>) -> i64 {
        match (self.to(), not_before, queue.policy.retry) {
            (Status::Pending, Some(time), _) => time,
            (Status::Pending, None, Some(retry)) => {
                let delay = retry.delay(self.attempts, random::fraction());
                time::now().saturating_add(delay)
            }
            _ => self.next_iteration,
        }
    }
}

/// A document that was rejected.
pub struct Rejected {
    /// The attempts that it has had.
    pub attempts: i32,
}

/// Gives an active document back after a failure: it is retried, or killed when it has
/// had all its attempts. `not_before`: when it is retried, if the caller wants to say.
pub fn reject(
    queue: &Queue,
    doc: LeasedDoc,
    message: &str,
    not_before: Option<i64>,
) -> Result<Rejected> {
    let (error, _) = names::cut(message, ERROR_MAX);
    let failed = match reject_row(queue, doc, error, not_before) {
        Some(done) => done,
        None => reject_by_statement(queue, doc, error, not_before)?,
    };
    let (failed, again) = failed;
    let to = failed.to();
    if to == Status::Pending {
        let key = Key::new(again, failed.attempts, failed.seq);
        note_entry(queue, failed.version, failed.priority, to, key);
        documents_ready(queue, failed.version, to, 1);
    }
    if to == Status::Killed && dead_letters::removes_failed(queue) {
        let subjects = [doc.subject.to_owned()];
        let (stay, removed) = (Event::RejectKilled, Event::RejectRemoved);
        dead_letters::settle_failed(queue, &subjects, stay, removed, true)?;
    } else {
        counter_log::record_event(queue, 0, 1, Event::reject(to));
    }
    Ok(Rejected {
        attempts: failed.attempts,
    })
}

/// Without a statement; None: that is for statements to decide.
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
    };
    let again = failed.again(queue, not_before);
    let iterations = row.int8(Column::Iterations).saturating_add(1);
    row.set(Column::Iterations, &Arg::from(iterations));
    row.set(Column::LastIteration, &Arg::timestamp(time::now()));
    row.set(Column::NextIteration, &Arg::timestamp(again));
    row.set(Column::LastError, &Arg::from(error));
    clear_lease(&mut row, failed.to());
    (documents.replace(&mut row, true) == Change::Done).then_some((failed, again))
}

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
        };
        let again = failed.again(queue, not_before);
        let args = [
            subject,
            Arg::from(failed.to().code()),
            Arg::timestamp(again),
            Arg::from(error),
        ];
        queue.run_noting(spi, &REJECT, &args);
        Ok((failed, again))
    })
}

/// Hands an active document back as if it had not been picked: the attempt does not
/// count.
pub fn snooze(queue: &Queue, doc: LeasedDoc, next_iteration: i64) -> Result<()> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let at = Arg::timestamp(next_iteration);
    let attempts = std::cell::Cell::new(0);
    let change = |row: &mut Row| {
        attempts.set(row.int4(Column::Attempts).saturating_sub(1).max(0));
        row.set(Column::Attempts, &Arg::from(attempts.get()));
        row.set(Column::NextIteration, &at);
        clear_lease(row, to);
    };
    let how = Settling {
        change: Some(&change),
        statement: &SNOOZE,
        args: &[Arg::from(to.code()), at],
    };
    settle(queue, doc, how, |doc| {
        // Where a statement has counted them: the first place that it can have.
        let key = Key::new(next_iteration, attempts.get(), doc.seq);
        note_entry(queue, doc.version, doc.priority, to, key);
        documents_ready(queue, doc.version, to, 1);
        let event = match to {
            Status::Pending => Event::ReturnPending,
            _ => Event::ReturnPlanned,
        };
        (0, event)
    })
}

/// Width of `__logs.message`, in characters (fetchq 4 contract).
const MESSAGE_MAX: usize = 255;

/// What is logged about a document.
pub struct LogEntry<'a> {
    pub subject: &'a str,
    pub message: &'a str,
    pub details: Option<Jsonb>,
    pub ref_id: Option<&'a str>,
    /// Which attempt at the document failed.
    pub attempt: Option<i32>,
}

static LOG: Statement = Statement::new(
    "insert into {logs} (subject, message, details, ref_id, attempt)
     values ($1, $2, $3, $4, $5)",
);

/// Adds a line. A message that is too long is cut, with a warning: losing its end is
/// better than failing to reject the document.
pub fn log_failure(queue: &Queue, entry: &LogEntry) {
    let (message, was_cut) = names::cut(entry.message, MESSAGE_MAX);
    if was_cut {
        error::warn(
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            format!(
                "the message for document \"{}\" was cut to {MESSAGE_MAX} characters",
                entry.subject
            ),
            "Put long texts into the details.",
        );
    }
    spi::connect(|spi| {
        queue.run(
            spi,
            &LOG,
            &[
                Arg::from(entry.subject),
                Arg::from(message),
                Jsonb::arg(entry.details),
                Arg::from(entry.ref_id),
                Arg::from(entry.attempt),
            ],
        );
    });
}
