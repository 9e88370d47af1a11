//! The order by key of a queue: how many documents of one ordering key may run at a time, and which.
//! With the setting `ordered` it is one, in the order in which they became ready. With
//! `max_active_per_key` it is that number.
//!
//! A key has as many *places* as documents of it may run. The row of the key in
//! `fetchq.ordering_keys` lists the documents that have one. All other pending documents of the key
//! are *blocked*: their `lock_upgrade` is infinite, so that no pick sees them. A document gets a free
//! place when it becomes pending, and gives it up when it is no longer pending or active. So the
//! number of active documents never exceeds that of the places, and a blocked document proves that
//! none is free. More documents than places are in the list only where documents were active before
//! the number was lowered or set, or were made active by hand.
//!
//! A document that is retried gives its place up too with `max_active_per_key`: until its retry is
//! due it is planned, and then it is pending anew. In an ordered queue it keeps its place, also while
//! it is planned (`KeyOrder::keeps_place_on_retry`). The one document that has the place is the *head*
//! of its key there.
//!
//! **Locks.** Triggers keep the list true for every statement that writes documents. Every change of
//! it writes or locks the row of the key first, also that of a document that is blocked in the end.
//! So two transactions that change one key do so one after the other, and each reads the blocked
//! documents with a snapshot that sees what the one before has done. A transaction that keeps an older
//! snapshot fails (40001): the row has changed since, or is younger than the snapshot
//! (`refuse_unseen`). Locks are taken in this order: a document, the row of its key, a blocked
//! document. A change of a blocked document alone does not touch the row of its key.
//!
//! Lists lock the rows of several keys in the order of the bytes of the keys. Those that add
//! documents, or change them by `doc_put`, write the documents in that order, after they have locked
//! active ones in the order of the subjects. Those that settle documents do that in the order of the
//! subjects, so they call `holding_keys` first. What was put on a document while it was leased comes when
//! it is settled, and its key is one of those.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use Status::{Active, Pending, Planned};

use crate::domain::names::{self, QueueName};
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::pg::{scan, transaction};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans::refuse_unseen;
use crate::store::queues::queue::DELETE_KEYS;
use crate::store::queues::statement::Scope;
use crate::store::queues::statement::{Statement, render};

// Index of this statement and the nine that follow: the primary key of the keys. Adds a key with this
// document, or locks the key that there is. $4: this transaction. The row of a known key is written
// again, so that a transaction with an older snapshot fails. NULL: the document has a place.
static ADD_KEY: Statement = Statement::new(
    "insert into fetchq.ordering_keys as k (queue_id, key, unblocked, made_by) values ($1, $2, array[$3], $4)
     on conflict (queue_id, key) do update set made_by = k.made_by
     returning case when $3 {=} any (k.unblocked) then null else k.unblocked end, k.made_by {=} $4",
);

// $3: the documents that get places.
static RESERVE_KEY: Statement = Statement::new(
    "insert into fetchq.ordering_keys (queue_id, key, unblocked, made_by) values ($1, $2, $3, $4)
     on conflict (queue_id, key) do nothing",
);

// Makes the keys that there are not, without documents, and locks the others. $3: this transaction. The
// order is that of `LOCK_KEYS`.
static RESERVE_KEYS: Statement = Statement::new(
    "insert into fetchq.ordering_keys as k (queue_id, key, unblocked, made_by)
     select $1, i.key, '{}'::pg_catalog.text[], $3
     from pg_catalog.unnest($2) as i (key)
     order by i.key collate pg_catalog.\"C\"
     on conflict (queue_id, key) do update set made_by = k.made_by",
);

// Those of them that have got no document.
static RELEASE_KEYS: Statement = Statement::new(
    "delete from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} any ($2)
         and pg_catalog.cardinality(k.unblocked) {=} 0",
);

// The other documents that have a place. NULL: this document has none.
static LOCK_KEY: Statement = Statement::new(
    "select case when $3 {=} any (k.unblocked) then pg_catalog.array_remove(k.unblocked, $3) end
     from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update",
);

static TRY_LOCK_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update skip locked",
);

static FIND_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2",
);

static HAS_PLACE: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
         and $3 {=} any (k.unblocked)",
);

// $3: how many places there are.
static HAS_TOO_MANY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
         and pg_catalog.cardinality(k.unblocked) {>} $3",
);

// $4: this transaction if it has given a place to a document that came, else NULL.
static SET_PLACES: Statement = Statement::new(
    "update fetchq.ordering_keys k set unblocked = $3, made_by = coalesce($4, k.made_by)
     where k.queue_id {=} $1 and k.key {=} $2",
);

static DELETE_KEY: Statement = Statement::new(
    "delete from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2",
);

static FIND_ANY_KEY: Statement =
    Statement::new("select from fetchq.ordering_keys k where k.queue_id {=} $1 limit 1");

// Index: the primary key of the keys, once for each key. The order is that of
// `doc_put::locking_order`, whatever the collation of the database is.
static LOCK_KEYS: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} any ($2)
     order by k.key collate pg_catalog.\"C\"
     for update",
);

/// Locks active documents, and returns their keys and those of what is queued on them.
macro_rules! lock_active {
    ($condition:literal) => {
        concat!(
            "select d.ordering_key, d.queued {->>} 'ordering_key'::pg_catalog.text from only {docs} d
             where d.subject {=} any ($1)
                 and d.status {+} 0 {=} {active}",
            $condition,
            "
             order by d.subject
             for update"
        )
    };
}

// Index of both: the primary key of the documents, because of `status + 0`, once for each subject.
static LOCK_ACTIVE: Statement = Statement::new(lock_active!(""));

static LOCK_QUEUED: Statement = Statement::new(lock_active!(" and d.queued is not null"));

// Index: docs_blocked_idx, which has the blocked documents alone, by key, in this order.
static FIND_NEXT_BLOCKED: Statement = Statement::new(
    "select d.subject::pg_catalog.text, d.next_iteration, d.seq from only {docs} d
     where d.ordering_key {=} $1
         and d.lock_upgrade is not null and d.lock_upgrade {=} 'infinity'
         and d.status {+} 0 {=} {pending}
     order by d.next_iteration, d.seq
     limit 1",
)
.in_scope(Scope::Nothing);

// Index of this statement and the three that follow: the primary key of the documents, because of
// `status + 0`.
static UNBLOCK_NEXT: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject {=} $1
         and d.ordering_key {=} $2
         and d.lock_upgrade {=} 'infinity'
         and d.status {+} 0 {=} {pending}",
);

static UNBLOCK: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject {=} $1
         and d.lock_upgrade {=} 'infinity'",
);

static BLOCK: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject {=} $1
         and d.lock_upgrade is null
         and d.status {+} 0 {=} {pending}",
);

// Blocks the last of the documents $1 that are after the position $2, $3. It does not wait for a
// document that is being picked. $4: a document that is retried keeps its place.
static BLOCK_LAST: Statement = Statement::new(
    "update only {docs} t set lock_upgrade = 'infinity'
     where t.subject {=} any (array(
         select d.subject from only {docs} d
         where d.subject {=} any ($1)
             and d.lock_upgrade is null
             and d.status {+} 0 {=} {pending}
             and (d.next_iteration, d.seq) {>} ($2, $3)
             and (d.attempts {=} 0 or not $4)
         order by d.next_iteration desc, d.seq desc
         limit 1
         for update skip locked))
     returning t.subject::pg_catalog.text",
);

// Index: the primary key of the keys, and docs_blocked_idx. The documents that have the places of a
// key, and the blocked one before the position $3, $4.
const BEFORE: &str = "select
        (select k.unblocked from fetchq.ordering_keys k where k.queue_id {=} $1 and k.key {=} $2),
        (select d.subject::pg_catalog.text from only {docs} d
            where d.ordering_key {=} $2
                and d.lock_upgrade is not null and d.lock_upgrade {=} 'infinity'
                and d.status {+} 0 {=} {pending}
                and (d.next_iteration, d.seq) {<} ($3, $4)
            order by d.next_iteration desc, d.seq desc
            limit 1)";

/// The documents of a key that have its places, and the blocked one just before a position. Locks
/// nothing.
pub fn before(
    spi: &Spi,
    name: &QueueName,
    queue: i32,
    key: &str,
    at: Position,
) -> (Vec<String>, Option<String>) {
    let args = [
        Arg::from(queue),
        Arg::from(key),
        Arg::timestamp(at.0),
        Arg::from(at.1),
    ];
    let rows = spi.once_latest(&render(BEFORE, name), &args);
    (rows.get(0, 1).unwrap_or_default(), rows.get(0, 2))
}

/// The place of a document in the order of its key: `next_iteration` and `seq`.
pub type Position = (i64, i64);

/// Before all documents.
pub const FIRST: Position = (i64::MIN, i64::MIN);

fn position(doc: &TriggerDocument) -> Position {
    (doc.next_iteration, doc.seq)
}

fn status(doc: &TriggerDocument) -> Option<Status> {
    Status::from_code(doc.status)
}

fn is_pending_or_active(doc: &TriggerDocument) -> bool {
    matches!(status(doc), Some(Pending | Active))
}

/// Blocks a document, if it is pending.
fn block(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    queue.run(spi, &BLOCK, &[Arg::from(doc.subject.as_str())]);
}

/// Unblocks a document, if it is blocked.
fn unblock(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    if doc.is_blocked {
        queue.run(spi, &UNBLOCK, &[Arg::from(doc.subject.as_str())]);
    }
}

/// A key whose row this transaction has locked.
pub struct Key<'a> {
    spi: &'a Spi,
    queue: &'a Queue,
    key: &'a str,
    /// The documents that have its places.
    pub unblocked: Vec<String>,
}

impl<'a> Key<'a> {
    /// `rows`: the documents that have the places of the key are in the first column. None: it is NULL,
    /// or there is no row.
    pub fn of(spi: &'a Spi, queue: &'a Queue, key: &'a str, rows: &Rows) -> Option<Self> {
        if rows.is_empty() {
            return None;
        }
        Some(Self {
            spi,
            queue,
            key,
            unblocked: rows.get(0, 1)?,
        })
    }

    fn is_free(&self) -> bool {
        self.unblocked.len() < self.queue.policy.key_order.places()
    }

    /// Writes the list. A key without documents is deleted. `made_by`: this transaction if it has
    /// given a place to a document that came.
    pub fn write(&self, made_by: Option<i64>) {
        let (id, key) = (Arg::from(self.queue.id), Arg::from(self.key));
        if self.unblocked.is_empty() {
            self.queue.run(self.spi, &DELETE_KEY, &[id, key]);
            return;
        }
        let args = [
            id,
            key,
            Arg::from(self.unblocked.clone()),
            Arg::from(made_by),
        ];
        self.queue.run(self.spi, &SET_PLACES, &args);
    }

    /// The first blocked document, and its position.
    fn next_blocked(&self) -> Option<(String, Position)> {
        let args = [Arg::from(self.key)];
        let next = self.queue.run(self.spi, &FIND_NEXT_BLOCKED, &args);
        if next.is_empty() {
            return None;
        }
        let at = next.timestamp(0, 2).unwrap_or(i64::MIN);
        Some((next.get(0, 1)?, (at, next.get(0, 3).unwrap_or(i64::MIN))))
    }

    /// Unblocks a document that `next_blocked` has found. It waits for a transaction that is changing
    /// the document. Returns false when the document is gone then, or is no longer blocked: the next
    /// one is to be tried.
    fn unblock_next(&self, subject: &str) -> bool {
        let args = [Arg::from(subject), Arg::from(self.key)];
        self.queue.run(self.spi, &UNBLOCK_NEXT, &args).affected() > 0
    }

    /// Gives free places to the first blocked documents. `requeued`, which is pending and not
    /// blocked, gets one in its turn, or is blocked.
    pub fn fill(&mut self, mut requeued: Option<&TriggerDocument>) {
        while self.is_free() {
            let next = self.next_blocked();
            let next = next.filter(|(_, at)| requeued.is_none_or(|doc| *at < position(doc)));
            match (next, requeued) {
                (Some((next, _)), _) => {
                    if self.unblock_next(&next) {
                        self.unblocked.push(next);
                    }
                }
                (None, Some(doc)) => {
                    self.unblocked.push(doc.subject.clone());
                    requeued = None;
                }
                (None, None) => break,
            }
        }
        if let Some(doc) = requeued {
            block(self.spi, self.queue, doc);
        }
    }

    /// Blocks the last pending document that has a place, if it comes after a position. Returns
    /// whether there was one. A document that another transaction has locked is left alone: that
    /// one may be picking it, and wait for the row of the key when it settles it.
    pub fn block_last(&mut self, after: Position) -> bool {
        let args = [
            Arg::from(self.unblocked.clone()),
            Arg::timestamp(after.0),
            Arg::from(after.1),
            Arg::from(self.queue.policy.key_order.keeps_place_on_retry()),
        ];
        let rows = self.queue.run(self.spi, &BLOCK_LAST, &args);
        if rows.is_empty() {
            return false;
        }
        let last: Option<String> = rows.get(0, 1);
        self.unblocked
            .retain(|subject| Some(subject) != last.as_ref());
        true
    }
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
    match (status(old), status(new)) {
        // Picks do not see blocked documents: this one was made active by hand, and runs
        // beside the others.
        (Some(Pending), Some(Active)) if old.is_blocked => add_document(spi, queue, new),
        (Some(Pending), Some(Pending | Active)) | (Some(Active), Some(Active)) => {}
        (Some(Active), Some(Pending | Planned)) if keeps_place(spi, queue, old, new) => {}
        (Some(Active), Some(Pending)) => remove_document(spi, queue, old, Some(new))?,
        (_, Some(Pending | Active)) => add_document(spi, queue, new),
        // Planned before and now: it may be one that is retried, and has a place.
        (Some(Planned), Some(Planned)) => {}
        _ => {
            remove_document(spi, queue, old, None)?;
            unblock(spi, queue, new);
        }
    }
    Ok(())
}

/// Returns whether an active document that is now pending or planned keeps its place: it is retried, and
/// the queue is ordered. If others of its key run beside the head, it waits like all others, or they would
/// run together again and again: they were active when the order was switched on, or plain SQL has made
/// them active.
fn keeps_place(spi: &Spi, queue: &Queue, old: &TriggerDocument, new: &TriggerDocument) -> bool {
    let order = queue.policy.key_order;
    let is_settled = new.attempts == 0 && new.iterations > old.iterations;
    if !order.keeps_place_on_retry() || is_settled {
        return false;
    }
    let Some(key) = &old.ordering_key else {
        return true;
    };
    let args = [
        Arg::from(queue.id),
        Arg::from(key.as_str()),
        Arg::from(i32::try_from(order.places()).unwrap_or(i32::MAX)),
    ];
    queue.run(spi, &HAS_TOO_MANY, &args).affected() == 0
        // Maintenance does not wait. The document runs beside the others once more.
        || IS_MAINTENANCE.get() && queue.run(spi, &TRY_LOCK_KEY, &args[..2]).affected() == 0
}

/// Adds a document that is pending or active to its key: it gets a place, or is blocked.
///
/// A statement writes its rows in any order. Where this transaction was the last one to give away
/// a free place, a document that comes before one with a place gets that place instead. In an ordered
/// queue it has made the key then, so that no other one can have picked the head.
pub fn add_document(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    let Some(key) = &doc.ordering_key else {
        return unblock(spi, queue, doc);
    };
    let this = transaction::number();
    let args = [
        Arg::from(queue.id),
        Arg::from(key.as_str()),
        Arg::from(doc.subject.as_str()),
        Arg::from(this),
    ];
    let row = queue.run(spi, &ADD_KEY, &args);
    let Some(mut key) = Key::of(spi, queue, key, &row) else {
        return unblock(spi, queue, doc);
    };
    let is_filled_here = row.get(0, 2) == Some(true);
    // A document that runs already cannot be blocked, and a lease whose `lock_upgrade` is set
    // would never expire.
    let is_active = status(doc) == Some(Active);
    if is_active || key.is_free() || is_filled_here && key.block_last(position(doc)) {
        key.unblocked.push(doc.subject.clone());
        key.write((!is_active).then_some(this));
        unblock(spi, queue, doc);
    } else {
        block(spi, queue, doc);
    }
}

/// Takes the place of a document that is no longer pending or active, or that is `requeued`: the
/// same document, pending again. The next documents of the key get what is free.
fn remove_document(
    spi: &Spi,
    queue: &Queue,
    doc: &TriggerDocument,
    requeued: Option<&TriggerDocument>,
) -> Result<()> {
    let Some(key) = &doc.ordering_key else {
        return Ok(());
    };
    let args = [
        Arg::from(queue.id),
        Arg::from(key.as_str()),
        Arg::from(doc.subject.as_str()),
    ];
    let may_have_place = match status(doc) {
        // No row names a blocked document.
        _ if doc.is_blocked => false,
        Some(Pending | Active) => true,
        // It has a place only if it is retried and keeps it. Most have none, and need no lock.
        Some(Planned) => {
            queue.policy.key_order.keeps_place_on_retry()
                && queue.run(spi, &HAS_PLACE, &args).affected() > 0
        }
        _ => false,
    };
    if !may_have_place {
        return Ok(());
    }
    let row = queue.run(spi, &LOCK_KEY, &args);
    if row.is_empty() {
        return refuse_unseen(spi, &queue.name, &FIND_KEY, &args[..2]);
    }
    if let Some(mut key) = Key::of(spi, queue, key, &row) {
        let others = key.unblocked.len();
        key.fill(requeued);
        // Where the document has got its place back and nothing else is new, no other transaction
        // needs to know.
        let is_same = key.unblocked.len() == others + 1 && key.unblocked.contains(&doc.subject);
        if !is_same {
            key.write(None);
        }
    }
    Ok(())
}

thread_local! {
    static IS_MAINTENANCE: Cell<bool> = const { Cell::new(false) };
    /// The keys that a statement of maintenance has made for what is queued.
    static RESERVED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs a statement of maintenance, which never waits: while another transaction has locked
/// the key of a document, or of what is queued on it, the document stays as it is. Returns what `work`
/// returns. Whoever puts what was queued calls [`release_reserved`] then.
pub fn as_maintenance<R>(work: impl FnOnce() -> R) -> R {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            IS_MAINTENANCE.set(false);
        }
    }
    IS_MAINTENANCE.set(true);
    RESERVED.take();
    let _reset = Reset;
    work()
}

/// Removes the keys that maintenance has made for what was queued, if they have got no document.
pub fn release_reserved(queue: &Queue) {
    let reserved = RESERVED.take();
    if !reserved.is_empty() {
        spi::connect(|spi| release_keys(spi, queue, reserved));
    }
}

fn release_keys(spi: &Spi, queue: &Queue, keys: Vec<String>) {
    queue.run(spi, &RELEASE_KEYS, &[Arg::from(queue.id), Arg::from(keys)]);
}

/// Returns whether a document may be changed now. Only maintenance is refused: while another
/// transaction has locked the key of a document that is due, or whose lease expired, or the key of what
/// is queued on that.
///
/// A statement of maintenance changes many documents, and their places follow when all are changed.
/// So it locks the keys of a document now, and adds the key of one that becomes pending. Without that,
/// others could add the key and lock it meanwhile. Maintenance would wait for them, while they wait for
/// a key that it has locked.
pub fn may_change(queue: &Queue, doc: &TriggerDocument) -> bool {
    if !IS_MAINTENANCE.get() {
        return true;
    }
    let own = doc.ordering_key.as_deref();
    let queued = doc.queued_key.as_deref();
    let queued = queued.filter(|key| own != Some(*key) && names::check_ordering_key(key).is_ok());
    spi::connect(|spi| {
        let may_put = queued.is_none_or(|key| {
            let reserve = || {
                RESERVED.with_borrow_mut(|keys| keys.push(key.to_owned()));
                reserve_key(spi, queue, key, Vec::new())
            };
            try_key(spi, queue, key, reserve)
        });
        may_put
            && own.is_none_or(|key| {
                let reserve = || {
                    status(doc) != Some(Pending)
                        || reserve_key(spi, queue, key, vec![doc.subject.as_str()])
                };
                try_key(spi, queue, key, reserve)
            })
    })
}

/// Locks a key, or has `reserve` make it, without waiting for another transaction. Returns whether that
/// was possible.
fn try_key(spi: &Spi, queue: &Queue, key: &str, reserve: impl FnOnce() -> bool) -> bool {
    let args = [Arg::from(queue.id), Arg::from(key)];
    let runs = |statement| queue.run(spi, statement, &args).affected() > 0;
    runs(&TRY_LOCK_KEY)
        || !runs(&FIND_KEY)
            && (reserve()
                // Another transaction has just added the key.
                || runs(&TRY_LOCK_KEY))
}

/// Makes a key. Returns false if there is one, or if another transaction makes it now, which would have
/// to be waited for.
fn reserve_key(spi: &Spi, queue: &Queue, key: &str, subjects: Vec<&str>) -> bool {
    if scan::is_being_added(
        ("fetchq", "ordering_keys"),
        "ordering_keys_pkey",
        queue.id,
        key,
    ) {
        return false;
    }
    let args = [
        Arg::from(queue.id),
        Arg::from(key),
        Arg::from(subjects),
        Arg::from(transaction::number()),
    ];
    queue.run(spi, &RESERVE_KEY, &args).affected() > 0
}

/// Runs `work`, which settles leased documents, with their keys locked, and those of what is queued on
/// them. `subjects`: those of the documents, a `text[]`. It locks first the documents, in the order of
/// their subjects, then the keys in the order of their bytes. In a queue whose documents do not wait for
/// others it locks nothing.
///
/// A statement that settles a list locks the keys in the order of the subjects. Without this it
/// and a transaction that locks the keys in their order would wait for each other: a producer, or,
/// where several documents of a key run at a time, another worker.
pub fn holding_keys<R>(
    queue: &Queue,
    subjects: impl FnOnce() -> Arg,
    work: impl FnOnce() -> R,
) -> R {
    hold(queue, &LOCK_ACTIVE, subjects, work)
}

/// As [`holding_keys`], for one document. Its key is the only one, unless something is queued on it: the
/// document is not locked then. A put that comes in between may still change the order of the locks.
pub fn holding_queued_key<R>(queue: &Queue, subject: &str, work: impl FnOnce() -> R) -> R {
    hold(queue, &LOCK_QUEUED, || Arg::from(vec![subject]), work)
}

fn hold<R>(
    queue: &Queue,
    statement: &'static Statement,
    subjects: impl FnOnce() -> Arg,
    work: impl FnOnce() -> R,
) -> R {
    if !queue.policy.key_order.blocks() {
        return work();
    }
    let reserved = spi::connect(|spi| lock_keys(spi, queue, statement, subjects()));
    let result = work();
    if !reserved.is_empty() {
        spi::connect(|spi| release_keys(spi, queue, reserved));
    }
    result
}

/// Locks the keys of documents that `statement` locks. Returns those of what is queued, which may have
/// been made for that.
fn lock_keys(
    spi: &Spi,
    queue: &Queue,
    statement: &'static Statement,
    subjects: Arg,
) -> Vec<String> {
    let rows = queue.run(spi, statement, &[subjects]);
    let rows = &rows;
    let keys = |column| (0..rows.len()).filter_map(move |row| rows.get::<String>(row, column));
    let mut all: BTreeSet<String> = keys(1).collect();
    let queued = keys(2).filter(|key| names::check_ordering_key(key).is_ok());
    let queued: Vec<String> = queued.filter(|key| !all.contains(key)).collect();
    all.extend(queued.iter().cloned());
    if all.len() > 1 {
        let mut args = vec![Arg::from(queue.id), Arg::from(Vec::from_iter(all))];
        let statement = match queued.is_empty() {
            true => &LOCK_KEYS,
            false => {
                args.push(Arg::from(transaction::number()));
                &RESERVE_KEYS
            }
        };
        queue.run(spi, statement, &args);
    }
    queued
}

/// Locks those of documents that are active, in the order of their subjects, as whoever settles them does.
pub fn lock_active(queue: &Queue, subjects: Vec<&str>) {
    if queue.policy.key_order.blocks() && subjects.len() > 1 {
        spi::connect(|spi| {
            queue
                .run(spi, &LOCK_ACTIVE, &[Arg::from(subjects)])
                .affected()
        });
    }
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
