//! Documents that go back to be tried again: rejected, or handed back as they are.

use super::counters;
use super::dead_letters;
use super::docs::{came, note};
use super::plans::{Queue, Statement};
use super::settle::{Held, Settling, give_back, is_held, not_held, settle};
use crate::domain::counters::Event;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::documents::{Access, Change, Column, Row};
use crate::pg::spi::{self, Arg};
use crate::pg::{chance, time};
use crate::ready::Key;

// Index of the three: primary key. Nothing else can prove `status + 0 = 2`.
static LOCK: Statement = Statement::new(
    "select d.version, d.priority, d.attempts, d.max_attempts, d.next_iteration, d.seq
     from only {docs} d
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     for update",
);
static REJECT: Statement = Statement::new(
    "update only {docs} d set
         status = $2,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         lease = null, holder = null, last_error = $4
     where d.subject operator(pg_catalog.=) $1",
);
static SNOOZE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, next_iteration = $4,
         attempts = greatest(d.attempts operator(pg_catalog.-) 1, 0),
         lease = null, holder = null
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
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
                let delay = retry.delay(self.attempts, chance::fraction());
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
    doc: Held,
    message: &str,
    not_before: Option<i64>,
) -> Result<Rejected> {
    let (error, _) = crate::domain::names::cut(message, ERROR_MAX);
    let failed = match reject_row(queue, doc, error, not_before) {
        Some(done) => done,
        None => reject_by_statement(queue, doc, error, not_before)?,
    };
    let (failed, again) = failed;
    let to = failed.to();
    if to == Status::Pending {
        let key = Key::new(again, failed.attempts, failed.seq);
        note(queue, failed.version, failed.priority, to, key);
        came(queue, failed.version, to, 1);
    }
    if to == Status::Killed && dead_letters::leave(queue) {
        let subjects = [doc.subject.to_owned()];
        let (stay, removed) = (Event::RejectKilled, Event::RejectRemoved);
        dead_letters::failed(queue, &subjects, stay, removed, true)?;
    } else {
        counters::note(queue, 0, 1, Event::reject(to));
    }
    Ok(Rejected {
        attempts: failed.attempts,
    })
}

/// Without a statement; None: that is for statements to decide.
fn reject_row(
    queue: &Queue,
    doc: Held,
    error: &str,
    not_before: Option<i64>,
) -> Option<(Failed, i64)> {
    let mut documents = queue.documents(Access::Update)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| is_held(row, doc.lease))?;
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
    give_back(&mut row, failed.to());
    (documents.replace(&mut row, true) == Change::Done).then_some((failed, again))
}

fn reject_by_statement(
    queue: &Queue,
    doc: Held,
    error: &str,
    not_before: Option<i64>,
) -> Result<(Failed, i64)> {
    spi::connect(|spi| {
        let subject = Arg::from(doc.subject);
        let rows = queue.run(spi, &LOCK, &[subject, Arg::from(doc.lease)]);
        if rows.is_empty() {
            return Err(not_held(spi, queue, doc));
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
pub fn snooze(queue: &Queue, doc: Held, next_iteration: i64) -> Result<()> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let at = Arg::timestamp(next_iteration);
    let attempts = std::cell::Cell::new(0);
    let change = |row: &mut Row| {
        attempts.set(row.int4(Column::Attempts).saturating_sub(1).max(0));
        row.set(Column::Attempts, &Arg::from(attempts.get()));
        row.set(Column::NextIteration, &at);
        give_back(row, to);
    };
    let how = Settling {
        change: Some(&change),
        statement: &SNOOZE,
        args: &[Arg::from(to.code()), at],
    };
    settle(queue, doc, how, |doc| {
        // Where a statement has counted them: the first place that it can have.
        let key = Key::new(next_iteration, attempts.get(), doc.seq);
        note(queue, doc.version, doc.priority, to, key);
        came(queue, doc.version, to, 1);
        let event = match to {
            Status::Pending => Event::ReturnPending,
            _ => Event::ReturnPlanned,
        };
        (0, event)
    })
}
