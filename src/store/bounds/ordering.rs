//! The order of a queue whose documents wait for others of their ordering key: with the setting
//! `ordered` they run one at a time, in the order in which they became ready. With
//! `max_active_per_key` several of a key may run: key_places.rs has what is different then.
//!
//! A key that has documents has a row in `fetchq.ordering_keys`, with the subject of its
//! *head*: the one document of the key that may run. The head is pending, active, or planned
//! for a retry. All other pending documents of the key are *blocked*: their `lock_upgrade` is
//! infinite, so that no pick sees them.
//!
//! Triggers keep this true for every statement that writes documents. A transaction that adds
//! a document to a key updates the row of the key, or makes it. A transaction whose head is
//! done locks the row, and only then looks for the next head. Of two such transactions the
//! second one waits for the first, and then looks with a snapshot that sees what the first
//! one did; if it keeps an older snapshot, it fails (40001). Locks are taken in this order: a
//! document, the row of its key, a blocked document. A change of a blocked document alone
//! does not touch the row of its key.
//!
//! Lists lock the rows of several keys in the order of the bytes of the keys. Those that add
//! documents, or change them by `doc_put`, write the documents in that order. Those that settle
//! documents do that in the order of the subjects, so they call `lock_keys` first.

use std::cell::Cell;

use Status::{Active, Pending, Planned};

use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::spi::{self, Spi};
use crate::pg::transaction;
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::store::bounds::blocking::{
    FIND_KEY, block, delete_key, next_blocked, position, unblock, unblock_next,
};
use crate::store::bounds::key_places;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans::refuse_unseen;
use crate::store::queues::queue::DELETE_KEYS;
use crate::store::queues::statement::Statement;

// Index: the primary key of the keys. Adds a key with this document as its head, or finds
// the head that there is. $4: this transaction. The row of a known key is written again, so
// that a transaction with an older snapshot fails.
static ADD_KEY: Statement = Statement::new(
    "insert into fetchq.ordering_keys as k (queue_id, key, head, made_by) values ($1, $2, $3, $4)
     on conflict (queue_id, key) do update set made_by = k.made_by
     returning k.head, k.made_by {=} $4",
);

// Index: the primary key of the documents, because of `status + 0`. A document that is
// retried stays the head.
static BLOCK_IF_LATER: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject {=} $1
         and d.lock_upgrade is null
         and d.status {+} 0 {=} {pending}
         and d.attempts {=} 0
         and (d.next_iteration, d.seq) {>} ($2, $3)",
);

// Index of this statement and the four that follow: the primary key of the keys.
static LOCK_KEY: Statement = Statement::new(
    "select k.head {=} $3, k.also_unblocked[1], $3 {=} any (k.also_unblocked)
     from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update",
);

// Several documents of a key were active when the order was switched on: the next one of
// them becomes the head.
static PROMOTE_OTHER_ACTIVE: Statement = Statement::new(
    "update fetchq.ordering_keys k set head = k.also_unblocked[1], also_unblocked = k.also_unblocked[2:]
     where k.queue_id {=} $1 and k.key {=} $2",
);

static REMOVE_OTHER_ACTIVE: Statement = Statement::new(
    "update fetchq.ordering_keys k set also_unblocked = pg_catalog.array_remove(k.also_unblocked, $3)
     where k.queue_id {=} $1 and k.key {=} $2",
);

static ADD_OTHER_ACTIVE: Statement = Statement::new(
    "update fetchq.ordering_keys k set also_unblocked = pg_catalog.array_append(k.also_unblocked, $3)
     where k.queue_id {=} $1 and k.key {=} $2",
);

static SET_HEAD: Statement = Statement::new(
    "update fetchq.ordering_keys k set head = $3
     where k.queue_id {=} $1 and k.key {=} $2",
);

// Index of this statement and the three that follow: the primary key of the keys.
static FIND_OTHER_ACTIVE: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
         and k.also_unblocked {<>} '{}'",
);

static TRY_LOCK_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update skip locked",
);

static FIND_ANY_KEY: Statement =
    Statement::new("select from fetchq.ordering_keys k where k.queue_id {=} $1 limit 1");

// Index: the primary key of the documents, because of `status + 0`, once for each subject.
static LOCK_ACTIVE: Statement = Statement::new(
    "select d.ordering_key from only {docs} d
     where d.subject {=} any ($1)
         and d.status {+} 0 {=} {active}
     order by d.subject
     for update",
);

// Index: the primary key of the keys, once for each key. The order is that of
// `doc_put::locking_order`, whatever the collation of the database is.
static LOCK_KEYS: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} any ($2)
     order by k.key collate pg_catalog.\"C\"
     for update",
);

static IS_HEAD: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
         and k.head {=} $3",
);

fn status(doc: &TriggerDocument) -> Option<Status> {
    Status::from_code(doc.status)
}

fn is_pending_or_active(doc: &TriggerDocument) -> bool {
    matches!(status(doc), Some(Pending | Active))
}

/// Keeps the order after one row of a queue's documents was inserted, updated or deleted:
/// `old` and `new` are the row before and after. Fails with `Error::OlderSnapshot` when the
/// snapshot of the transaction is too old to see the row of the key.
pub fn document_changed(
    queue: &Queue,
    old: Option<&TriggerDocument>,
    new: Option<&TriggerDocument>,
) -> Result<()> {
    spi::connect(|spi| {
        match (old, new) {
            (Some(old), Some(new)) => {
                let is_same = old.ordering_key == new.ordering_key && old.subject == new.subject;
                if is_same {
                    return apply_status_change(spi, queue, old, new);
                }
                remove_document(spi, queue, old, None)?;
                if is_pending_or_active(new) {
                    add_document(spi, queue, new);
                } else {
                    unblock(spi, queue, new);
                }
            }
            (None, Some(new)) if is_pending_or_active(new) => add_document(spi, queue, new),
            (Some(old), None) => return remove_document(spi, queue, old, None),
            _ => {}
        }
        Ok(())
    })
}

/// Keeps the order after a document went from one status to another.
fn apply_status_change(
    spi: &Spi,
    queue: &Queue,
    old: &TriggerDocument,
    new: &TriggerDocument,
) -> Result<()> {
    // Settled and planned anew. Otherwise it is retried, and stays the head; it gives up a place.
    let is_settled = new.attempts == 0 && new.iterations > old.iterations
        || queue.policy.key_order.places().is_some();
    match (status(old), status(new)) {
        // Picks do not see blocked documents: this one was made active by hand, and runs
        // beside the head.
        (Some(Pending), Some(Active)) if old.is_blocked => add_document(spi, queue, new),
        (Some(Pending), Some(Pending | Active)) | (Some(Active), Some(Active)) => {}
        (Some(Active), Some(Pending)) if is_settled => {
            remove_document(spi, queue, old, Some(new))?;
        }
        (Some(Active), Some(Pending | Planned)) if !is_settled => {
            document_retried(spi, queue, old, new)?;
        }
        (_, Some(Pending | Active)) => add_document(spi, queue, new),
        // Planned before and now: it may be the head, which is retried.
        (Some(Planned), Some(Planned)) => {}
        _ => {
            remove_document(spi, queue, old, None)?;
            unblock(spi, queue, new);
        }
    }
    Ok(())
}

/// A document of an ordered queue is retried. It stays the head, unless others of its key run beside the
/// head: they were active when the order was switched on, or plain SQL has made them active. Then it
/// waits like all others, or they would run together again and again.
fn document_retried(
    spi: &Spi,
    queue: &Queue,
    old: &TriggerDocument,
    new: &TriggerDocument,
) -> Result<()> {
    let Some(key) = &old.ordering_key else {
        return Ok(());
    };
    let args = key_args(queue, key, &old.subject);
    if queue.run(spi, &FIND_OTHER_ACTIVE, &args[..2]).affected() == 0 {
        return Ok(());
    }
    // Maintenance does not wait. The document runs beside the others once more.
    if IS_MAINTENANCE.get() && queue.run(spi, &TRY_LOCK_KEY, &args[..2]).affected() == 0 {
        return Ok(());
    }
    let requeued = (status(new) == Some(Pending)).then_some(new);
    remove_document(spi, queue, old, requeued)
}

fn key_args<'a>(queue: &Queue, key: &'a str, subject: &'a str) -> [Arg; 3] {
    [Arg::from(queue.id), Arg::from(key), Arg::from(subject)]
}

/// Adds a document that is pending or active to its key: it becomes the head or gets a place, or is
/// blocked.
///
/// A statement writes its rows in any order. Where this transaction has made the key, no
/// other can have picked the head: the head is then blocked if the new document is before it.
pub fn add_document(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    let Some(key) = &doc.ordering_key else {
        return unblock(spi, queue, doc);
    };
    if let Some(n) = queue.policy.key_order.places() {
        return key_places::add(spi, queue, key, n, doc);
    }
    let args = key_args(queue, key, &doc.subject);
    let add_args = [args[0], args[1], args[2], Arg::from(transaction::number())];
    let row = queue.run(spi, &ADD_KEY, &add_args);
    let head: String = row.get(0, 1).unwrap_or_default();
    let (is_head, is_made_here) = (head == doc.subject, row.get(0, 2) == Some(true));
    match (is_head, status(doc)) {
        (true, _) => unblock(spi, queue, doc),
        // A document that runs already cannot be blocked, and a lease whose `lock_upgrade`
        // is set would never expire.
        (false, Some(Active)) => {
            queue.run(spi, &ADD_OTHER_ACTIVE, &args);
            unblock(spi, queue, doc);
        }
        (false, _) if is_made_here && block_if_later(spi, queue, &head, doc) => {
            queue.run(spi, &SET_HEAD, &args);
            unblock(spi, queue, doc);
        }
        (false, _) => block(spi, queue, &doc.subject),
    }
}

/// Blocks the head of a key if it comes after a document in the order. Returns whether it did.
fn block_if_later(spi: &Spi, queue: &Queue, head: &str, doc: &TriggerDocument) -> bool {
    let args = [
        Arg::from(head),
        Arg::timestamp(doc.next_iteration),
        Arg::from(doc.seq),
    ];
    queue.run(spi, &BLOCK_IF_LATER, &args).affected() > 0
}

/// Removes a document from its key. If it was the head, the next one becomes the head.
/// `requeued`: the same document, where it goes back into the order.
fn remove_document(
    spi: &Spi,
    queue: &Queue,
    doc: &TriggerDocument,
    requeued: Option<&TriggerDocument>,
) -> Result<()> {
    let Some(key) = &doc.ordering_key else {
        return Ok(());
    };
    // No row names a blocked document.
    if doc.is_blocked || !matches!(status(doc), Some(Planned | Pending | Active)) {
        return Ok(());
    }
    if let Some(n) = queue.policy.key_order.places() {
        // A planned document has no place.
        return match status(doc) {
            Some(Planned) => Ok(()),
            _ => key_places::remove(spi, queue, key, n, doc, requeued),
        };
    }
    let args = key_args(queue, key, &doc.subject);
    // A planned document is the head only if it is retried. Most are not, and need no lock.
    if status(doc) == Some(Planned) && queue.run(spi, &IS_HEAD, &args).affected() == 0 {
        return Ok(());
    }
    let row = queue.run(spi, &LOCK_KEY, &args);
    if row.is_empty() {
        return refuse_unseen(spi, &queue.name, &FIND_KEY, &args[..2]);
    }
    let (is_head, is_other_active) = (row.get(0, 1) == Some(true), row.get(0, 3) == Some(true));
    if !is_head {
        if is_other_active {
            queue.run(spi, &REMOVE_OTHER_ACTIVE, &args);
            if let Some(requeued) = requeued {
                add_document(spi, queue, requeued);
            }
        }
        return Ok(());
    }
    if row.get::<String>(0, 2).is_some() {
        queue.run(spi, &PROMOTE_OTHER_ACTIVE, &args[..2]);
        if let Some(requeued) = requeued {
            add_document(spi, queue, requeued);
        }
        return Ok(());
    }
    promote_next(spi, queue, key, requeued);
    Ok(())
}

/// Makes the first blocked document of a key the head. The caller has locked the row of the
/// key. `requeued`, which is not blocked, stays the head if no blocked document is before it.
/// Without any document, the key is deleted.
pub fn promote_next(spi: &Spi, queue: &Queue, key: &str, requeued: Option<&TriggerDocument>) {
    loop {
        let Some(next) = next_blocked(spi, queue, key) else {
            if requeued.is_none() {
                delete_key(spi, queue, key);
            }
            return;
        };
        if requeued.is_some_and(|doc| position(doc) < next.position) {
            return;
        }
        if unblock_next(spi, queue, key, &next.subject) {
            let args = key_args(queue, key, &next.subject);
            queue.run(spi, &SET_HEAD, &args);
            if let Some(requeued) = requeued {
                block(spi, queue, &requeued.subject);
            }
            return;
        }
    }
}

thread_local! {
    static IS_MAINTENANCE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a statement of maintenance, which never waits: while another transaction has locked
/// the key of a document, the document stays as it is. Returns what `work` returns.
pub fn as_maintenance<R>(work: impl FnOnce() -> R) -> R {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            IS_MAINTENANCE.set(false);
        }
    }
    IS_MAINTENANCE.set(true);
    let _reset = Reset;
    work()
}

/// Returns whether a document may be changed now. Only maintenance is refused: while another
/// transaction has locked the key of a document that is due, or whose last lease expired.
pub fn may_change(queue: &Queue, doc: &TriggerDocument) -> bool {
    let Some(key) = &doc.ordering_key else {
        return true;
    };
    if !IS_MAINTENANCE.get() {
        return true;
    }
    spi::connect(|spi| {
        let args = [Arg::from(queue.id), Arg::from(key.as_str())];
        let try_lock = || queue.run(spi, &TRY_LOCK_KEY, &args).affected() > 0;
        if try_lock() {
            return true;
        }
        if queue.run(spi, &FIND_KEY, &args).affected() > 0 {
            return false;
        }
        let is_added = status(doc) == Some(Pending) && queue.policy.key_order.places().is_some();
        !is_added || key_places::reserve(spi, queue, key, doc) || try_lock()
    })
}

/// Locks the keys of leased documents that this transaction is about to settle. `subjects`: those of
/// the documents, a `text[]`. It locks first the documents, in the order of their subjects, then the
/// keys in the order of their bytes. Does nothing in a queue whose documents do not wait for others.
///
/// A statement that settles a list locks the keys in the order of the subjects. Without this call it
/// and a transaction that locks the keys in their order would wait for each other: a producer, or,
/// where several documents of a key run at a time, another worker.
pub fn lock_keys(queue: &Queue, subjects: impl FnOnce() -> Arg) {
    if !queue.policy.key_order.blocks() {
        return;
    }
    spi::connect(|spi| {
        let rows = queue.run(spi, &LOCK_ACTIVE, &[subjects()]);
        let mut keys: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.len() > 1 {
            queue.run(spi, &LOCK_KEYS, &[Arg::from(queue.id), Arg::from(keys)]);
        }
    });
}

/// Deletes the keys of a queue whose documents were truncated. Fails with
/// `Error::OlderSnapshot` when the snapshot of the transaction is too old to see a key.
pub fn documents_truncated(queue: &Queue) -> Result<()> {
    spi::connect(|spi| {
        let id = [Arg::from(queue.id)];
        spi.once(DELETE_KEYS, &id);
        refuse_unseen(spi, &queue.name, &FIND_ANY_KEY, &id)
    })
}
