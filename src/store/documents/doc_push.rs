//! Adds one document that has a subject. Hot.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::{Column, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::value::Arg;
use crate::pg::{spi, time};
use crate::ready::key::PickKey;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{documents_ready, note_entry, note_expiry};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::{Scope, Statement};

/// A document that is to be added.
#[derive(Clone, Copy)]
pub struct NewDoc<'a> {
    pub subject: &'a str,
    pub version: i32,
    pub priority: i32,
    /// When it becomes ready, in microseconds since 2000.
    pub next_iteration: i64,
    pub payload: Jsonb,
    pub ordering_key: Option<&'a str>,
    /// None: the `max_attempts` of the queue.
    pub max_attempts: Option<i32>,
    /// What the producer says about the document.
    pub headers: Option<Jsonb>,
    /// When it expires if it has not begun.
    pub expires: Expires,
}

/// When a document expires if it has not begun.
#[derive(Clone, Copy)]
pub enum Expires {
    /// As set for the queue.
    AsQueue,
    /// So long after its time: months, days and microseconds.
    In((i32, i32, i64)),
    /// At a time in microseconds since 2000, or never.
    At(Option<i64>),
}

impl From<Option<(i32, i32, i64)>> for Expires {
    fn from(after: Option<(i32, i32, i64)>) -> Self {
        after.map_or(Self::AsQueue, Self::In)
    }
}

impl<'a> NewDoc<'a> {
    /// A document of version 0 and priority 0, without options.
    pub fn new(subject: &'a str, payload: Jsonb, next_iteration: i64) -> Self {
        Self {
            subject,
            version: 0,
            priority: 0,
            next_iteration,
            payload,
            ordering_key: None,
            max_attempts: None,
            headers: None,
            expires: Expires::AsQueue,
        }
    }

    /// The status that the document gets: pending if it is due at the time of the
    /// transaction, else planned.
    pub fn status(&self) -> Status {
        Status::planned_or_pending(self.next_iteration <= time::now())
    }

    /// When it expires, in microseconds since 2000.
    pub fn expires_at(&self, queue: &Queue) -> Option<i64> {
        match self.expires {
            Expires::AsQueue => queue.expires_at(self.next_iteration, None),
            Expires::In(after) => queue.expires_at(self.next_iteration, Some(after)),
            Expires::At(at) => at,
        }
    }

    /// The values of the columns `NEW`, which are the parameters of the statements that insert.
    pub(in crate::store) fn args(&self, queue: &Queue) -> [Arg; NEW.len()] {
        [
            Arg::from(self.subject),
            Arg::from(self.version),
            Arg::from(self.priority),
            Arg::from(self.status().code()),
            Arg::timestamp(self.next_iteration),
            Jsonb::arg(Some(self.payload)),
            Arg::from(self.ordering_key),
            Arg::from(self.max_attempts),
            Jsonb::arg(self.headers),
            Arg::opt_timestamp(self.expires_at(queue)),
        ]
    }
}

/// What a document is added with: what producers write, and the status that follows from it.
pub(in crate::store) const NEW: [Column; 10] = [
    Column::Subject,
    Column::Version,
    Column::Priority,
    Column::Status,
    Column::NextIteration,
    Column::Payload,
    Column::OrderingKey,
    Column::MaxAttempts,
    Column::Headers,
    Column::ExpiresAt,
];

/// A statement that adds a document with the columns `NEW`, and others and their values.
macro_rules! add {
    ($columns:literal, $values:literal) => {
        concat!(
            "insert into {docs} (subject, version, priority, status, next_iteration, payload, ordering_key, max_attempts, headers, expires_at, created_at",
            $columns,
            ")
             overriding system value
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, pg_catalog.now()",
            $values,
            ")
             on conflict (subject) do nothing
             returning seq"
        )
    };
}

// Index of both statements: primary key, as the arbiter of the conflict. No look-up is needed before
// the insert.
pub(in crate::store) static PUSH: Statement = Statement::new(add!("", ""));

// $11 is a `seq` that keeps the order of a list.
pub(in crate::store) static PUSH_WITH_SEQ: Statement = Statement::new(add!(", seq", ", $11"));

/// Adds a document. Returns the number of documents that were added: 1, or 0 if the subject
/// exists already.
pub fn push(queue: &Queue, doc: &NewDoc) -> i32 {
    if let Some(seq) = push_row(queue, doc) {
        record_push(queue, doc, seq);
        return 1;
    }
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, &PUSH, &doc.args(queue));
        if !rows.is_empty() {
            record_push(queue, doc, rows.get(0, 1).unwrap_or(i64::MIN));
        }
        rows.affected()
    })
}

// Index: primary key.
static FIND: Statement =
    Statement::new("select 1 from {docs} d where d.subject {=} $1").in_scope(Scope::Nothing);

/// Returns whether a document was not added because its subject exists. Where nothing of the user's
/// can suppress the insert, there is no other reason, and it is not looked up.
fn is_duplicate(queue: &Queue, subject: &str) -> bool {
    !queue.may_suppress()
        || spi::connect(|spi| !queue.run(spi, &FIND, &[Arg::from(subject)]).is_empty())
}

/// How often a document is added again that was neither added nor found, because it may have been
/// removed in between.
pub const MAX_LOOKS: usize = 10;

/// Adds a document as [`push`] does, for a caller who relies on it that the document exists then.
///
/// Fails with `Error::HiddenDocument` when it can neither be added nor found: a trigger of the user
/// suppresses the insert, or a policy hides it.
pub fn push_or_find(queue: &Queue, doc: &NewDoc) -> Result<i32> {
    for _ in 0..MAX_LOOKS {
        let n = push(queue, doc);
        if n > 0 || is_duplicate(queue, doc.subject) {
            return Ok(n);
        }
    }
    Err(Error::HiddenDocument {
        queue: queue.name.to_string(),
        subject: doc.subject.to_owned(),
    })
}

/// Notes, signals and counts a document that was added.
pub(in crate::store) fn record_push(queue: &Queue, doc: &NewDoc, seq: i64) {
    let key = PickKey::new(doc.next_iteration, 0, seq);
    note_entry(queue, doc.version, doc.priority, doc.status(), key);
    note_expiry(queue, doc.expires_at(queue));
    documents_ready(queue, doc.version, doc.status(), 1);
    counter_log::record_event(queue, doc.version, 1, Event::push(doc.status()));
}

/// The error of `n` documents of `of` that were neither added nor found.
pub fn not_added(queue: &Queue, n: usize, of: usize) -> Error {
    let queue = queue.name.to_string();
    Error::NotAdded { queue, n, of }
}

/// Adds a document with a new subject without a statement, and returns its `seq`. None: the
/// statement has to decide.
pub(in crate::store) fn push_row(queue: &Queue, doc: &NewDoc) -> Option<i64> {
    let mut documents = queue.documents(Access::Insert)?;
    if documents.find(doc.subject).is_some() {
        return None;
    }
    let (mut row, seq) = new_row(queue, doc)?;
    documents.add_if_new(&mut row).then_some(seq)
}

/// The row of a document with the next `seq`, and that `seq`. None where only a statement can
/// add one.
pub(in crate::store) fn new_row(queue: &Queue, doc: &NewDoc) -> Option<(Row, i64)> {
    let seq = queue.next_seq()?;
    Some((row_with_seq(queue, doc, seq), seq))
}

/// The row of a document with a `seq` that the caller has chosen.
pub(in crate::store) fn row_with_seq(queue: &Queue, doc: &NewDoc, seq: i64) -> Row {
    let mut row = Row::empty();
    for (column, value) in NEW.into_iter().zip(doc.args(queue)) {
        row.set(column, &value);
    }
    row.set(Column::Attempts, &Arg::from(0));
    row.set(Column::Iterations, &Arg::from(0i64));
    row.set(Column::CreatedAt, &Arg::timestamp(time::now()));
    row.set(Column::Seq, &Arg::from(seq));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_document_has_what_producers_write() {
        let written = |column: &Column| NEW.contains(column) && *column != Column::Status;
        assert!(Column::ALL.iter().all(|c| c.def().is_put == written(c)));
    }
}
