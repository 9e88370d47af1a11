//! Blocked documents: those that wait for others of their ordering key. Their `lock_upgrade` is
//! infinite, so that no pick sees them. `ordering.rs` says which documents are blocked.

use crate::pg::spi::Spi;
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

// Index: docs_blocked_idx, which has the blocked documents alone, by key, in this order.
static FIND_NEXT_BLOCKED: Statement = Statement::new(
    "select d.subject::pg_catalog.text, d.next_iteration, d.seq from only {docs} d
     where d.ordering_key {=} $1
         and d.lock_upgrade is not null and d.lock_upgrade {=} 'infinity'
         and d.status {+} 0 {=} {pending}
     order by d.next_iteration, d.seq
     limit 1",
);

// Index of this statement and the two that follow: the primary key of the documents.
static UNBLOCK_NEXT: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject {=} $1
         and d.ordering_key {=} $2
         and d.lock_upgrade {=} 'infinity'
         and d.status {+} 0 {=} {pending}",
);

static BLOCK: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject {=} $1
         and d.lock_upgrade is null
         and d.status {+} 0 {=} {pending}",
);

static UNBLOCK: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject {=} $1
         and d.lock_upgrade {=} 'infinity'",
);

// Index: the primary key of the keys.
static DELETE_KEY: Statement = Statement::new(
    "delete from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2",
);

/// Finds the row of a key. $1: the id of the queue, $2: the key.
// Index: the primary key of the keys.
pub static FIND_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2",
);

/// The place of a document in the order of its key: `next_iteration` and `seq`.
pub type Position = (i64, i64);

/// The position of a document.
pub fn position(doc: &TriggerDocument) -> Position {
    (doc.next_iteration, doc.seq)
}

/// A blocked document.
pub struct Blocked {
    pub subject: String,
    pub position: Position,
}

/// The first blocked document of a key. None: there is none.
pub fn next_blocked(spi: &Spi, queue: &Queue, key: &str) -> Option<Blocked> {
    let next = queue.run(spi, &FIND_NEXT_BLOCKED, &[Arg::from(key)]);
    if next.is_empty() {
        return None;
    }
    Some(Blocked {
        subject: next.get(0, 1)?,
        position: (
            next.timestamp(0, 2).unwrap_or(i64::MIN),
            next.get(0, 3).unwrap_or(i64::MIN),
        ),
    })
}

/// Unblocks a document that `next_blocked` has found. It waits for a transaction that is changing
/// the document. Returns false when the document is gone then, or is no longer blocked: the next
/// one is to be tried.
pub fn unblock_next(spi: &Spi, queue: &Queue, key: &str, subject: &str) -> bool {
    let args = [Arg::from(subject), Arg::from(key)];
    queue.run(spi, &UNBLOCK_NEXT, &args).affected() > 0
}

/// Blocks a document, if it is pending.
pub fn block(spi: &Spi, queue: &Queue, subject: &str) {
    queue.run(spi, &BLOCK, &[Arg::from(subject)]);
}

/// Unblocks a document, if it is blocked.
pub fn unblock(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    if doc.is_blocked {
        queue.run(spi, &UNBLOCK, &[Arg::from(doc.subject.as_str())]);
    }
}

/// Deletes a key that has no documents.
pub fn delete_key(spi: &Spi, queue: &Queue, key: &str) {
    queue.run(spi, &DELETE_KEY, &[Arg::from(queue.id), Arg::from(key)]);
}
