//! Looks at a document for a session that waits until it is settled. `waiting.rs` waits.
//!
//! What the caller has named is read with his rights. The entry of the dead-letter queue is read as
//! the owner of that queue: workers and readers of a queue need no rights there, and it tells only
//! why this document was killed.

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::subjects;
use crate::error::{Error, Result};
use crate::pg::relation::{self, LockMode, NamedLock};
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{planner, time};
use crate::store::queues::queue_places;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::render;

// Procedures that end their transaction cannot set a search_path, so these statements name
// everything in full.

// Index: the primary key.
const LOOK: &str = "select d.status, d.seq, d.created_at, d.result::pg_catalog.text,
        d.last_error::pg_catalog.text
    from only {docs} d
    where d.subject {=} $1";

// Index: (subject, id).
const LOOK_INTO_HISTORY: &str = "select h.outcome::pg_catalog.text, h.result::pg_catalog.text,
        h.last_error::pg_catalog.text, h.settled_at
    from only {history} h
    where h.subject {=} $1 and ($2 is null or h.created_at {=} $2)
    order by h.id desc
    limit 1";

const GET_DEAD_LETTER_QUEUE: &str =
    "select q.dead_letter::pg_catalog.text, q.created_at from fetchq.queues q where q.name {=} $1";

// A dead letter was added later than the document from which it was made, and than its queue: an
// older one is from another queue that had the name. Index: the primary key;
// for the second one a range of it, the subjects that were generated since the document was added,
// because another document had its subject.
const LOOK_INTO_DEAD_LETTERS: &str = "select d.origin {->>} 'error', d.created_at
    from only {docs} d
    where d.subject {=} $1
        and d.origin {->>} 'queue' {=} $2 and d.origin {->>} 'subject' {=} $1
        and ($3 is null or d.created_at {>=} $3) and ($4 is null or d.created_at {>=} $4)";

const LOOK_INTO_RENAMED_DEAD_LETTERS: &str = "select d.origin {->>} 'error', d.created_at
    from only {docs} d
    where d.subject {>=} $4
        and d.origin {->>} 'queue' {=} $2 and d.origin {->>} 'subject' {=} $1
        and d.created_at {>=} $3
    order by d.subject desc
    limit 1";

/// A document that is not settled.
#[derive(Clone, Copy)]
pub struct Unsettled {
    /// The docs table.
    pub table: u32,
    seq: i64,
    created_at: i64,
    status: Status,
}

/// What a session learns that waits for a document.
pub struct Outcome {
    /// What became of it, or its status: completed, killed, dropped, planned, pending, active.
    pub status: &'static str,
    /// What its worker returned, as JSON text.
    pub result: Option<String>,
    /// Why it was killed.
    pub message: Option<String>,
}

impl Outcome {
    fn new(status: &'static str) -> Self {
        Self {
            status,
            result: None,
            message: None,
        }
    }

    fn killed(message: Option<String>) -> Self {
        Self {
            message,
            ..Self::new(Status::Killed.word())
        }
    }
}

impl Unsettled {
    /// What a session learns whose time is over.
    pub fn outcome(&self) -> Outcome {
        Outcome::new(self.status.word())
    }
}

/// A document as a look at it found it.
pub enum Look {
    Unsettled(Unsettled),
    Settled(Outcome),
}

/// Looks at a document. `before`: as the session saw it first; a newer document with its subject is
/// another one.
///
/// Who has put a document need not be able to read the others. He knows its subject, and sees its payload
/// no more than before.
///
/// Fails with `Error::UnknownQueue`, with `Error::NoRight` when the caller has no right on the queue, and with `Error::NoDocument` when there is none and there was none before.
pub fn look(name: &QueueName, subject: &str, before: Option<&Unsettled>) -> Result<Look> {
    // The queue may have been dropped while the session slept.
    relation::accept_invalidations();
    rights::require_existing(name, Right::Any)?;
    let is_readable = |table| rights::require_on(name, table, Right::Any);
    let docs = name.relation("docs");
    let table = relation::lock_data_table_if(&docs, LockMode::Readers, true, is_readable)?;
    let NamedLock::Held(table, _) = table else {
        return Err(queue_places::unknown(name));
    };
    let table = table.to_u32();
    planner::with_index_scans(|| {
        spi::connect(|spi| {
            let is_same = |seq: i64| before.is_none_or(|b| (b.table, b.seq) == (table, seq));
            let rows = spi.once(&render(LOOK, name), &[Arg::from(subject)]);
            let seq = match rows.is_empty() {
                true => None,
                false => rows.get(0, 2).filter(|seq| is_same(*seq)),
            };
            if let Some(seq) = seq {
                let status = rows.get(0, 1).and_then(Status::from_code);
                return Ok(match status {
                    Some(Status::Completed) => Look::Settled(Outcome {
                        result: rows.get(0, 4),
                        ..Outcome::new(Status::Completed.word())
                    }),
                    Some(Status::Killed) => Look::Settled(Outcome::killed(rows.get(0, 5))),
                    status => Look::Unsettled(Unsettled {
                        table,
                        seq,
                        created_at: rows.timestamp(0, 3).unwrap_or(i64::MIN),
                        status: status.unwrap_or(Status::Planned),
                    }),
                });
            }
            match (find_trace(spi, name, subject, before), before) {
                (Some(outcome), _) => Ok(Look::Settled(outcome)),
                (None, Some(_)) => Ok(Look::Settled(Outcome::new("dropped"))),
                (None, None) => Err(Error::NoDocument {
                    queue: name.to_string(),
                    subject: subject.to_owned(),
                }),
            }
        })
    })
}

/// What is known of a document that has left the queue: from its history, or from its dead-letter
/// queue, whichever is newer. `before`: as the session saw it first; None for any document with this
/// subject.
fn find_trace(
    spi: &Spi,
    name: &QueueName,
    subject: &str,
    before: Option<&Unsettled>,
) -> Option<Outcome> {
    let created_at = before.map(|before| before.created_at);
    let archived = find_archived(spi, name, subject, created_at);
    let dead = find_dead_letter(spi, name, subject, created_at);
    let newest = [archived, dead].into_iter().flatten();
    newest
        .max_by_key(|(time, _)| *time)
        .map(|(_, outcome)| outcome)
}

fn created_arg(created_at: Option<i64>) -> Arg {
    created_at.map_or_else(Arg::no_timestamp, Arg::timestamp)
}

/// What the history knows of a document, and since when.
fn find_archived(
    spi: &Spi,
    name: &QueueName,
    subject: &str,
    created_at: Option<i64>,
) -> Option<(i64, Outcome)> {
    if !queue_tables::has_history(name) {
        return None;
    }
    let args = [Arg::from(subject), created_arg(created_at)];
    let rows = spi.once(&render(LOOK_INTO_HISTORY, name), &args);
    if rows.is_empty() {
        return None;
    }
    let outcome: String = rows.get(0, 1)?;
    let settled_at = rows.timestamp(0, 4).unwrap_or(i64::MIN);
    let outcome = match outcome.as_str() {
        "completed" => Outcome {
            result: rows.get(0, 2),
            ..Outcome::new(Status::Completed.word())
        },
        "killed" | "cancelled" | "expired" => Outcome::killed(rows.get(0, 3)),
        _ => Outcome::new("dropped"),
    };
    Some((settled_at, outcome))
}

/// What the dead-letter queue knows of a document, and since when. Waits for nobody.
fn find_dead_letter(
    spi: &Spi,
    name: &QueueName,
    subject: &str,
    created_at: Option<i64>,
) -> Option<(i64, Outcome)> {
    let rows = spi.once(GET_DEAD_LETTER_QUEUE, &[Arg::from(name.as_str())]);
    if rows.is_empty() {
        return None;
    }
    let target = QueueName::parse(&rows.get::<String>(0, 1)?).ok()?;
    let queue_created_at = created_arg(rows.timestamp(0, 2));
    let table = relation::lock_data_table(&target.relation("docs"), LockMode::Readers, false);
    let NamedLock::Held(..) = table else {
        return None;
    };
    let args = [
        Arg::from(subject),
        Arg::from(name.as_str()),
        created_arg(created_at),
        queue_created_at,
    ];
    let same = spi.once(&render(LOOK_INTO_DEAD_LETTERS, &target), &args);
    let found = match (same.is_empty(), created_at) {
        (false, _) => same,
        (true, Some(created_at)) => {
            let first = subjects::first_at(created_at.max(0));
            let args = [args[0], args[1], args[2], Arg::from(first.as_str())];
            spi.once(&render(LOOK_INTO_RENAMED_DEAD_LETTERS, &target), &args)
        }
        (true, None) => return None,
    };
    if found.is_empty() {
        return None;
    }
    let killed_at = found.timestamp(0, 2).unwrap_or_else(time::now);
    Some((killed_at, Outcome::killed(found.get(0, 1))))
}
