//! Documents of one ordering key run one at a time, in the order in which they became
//! ready (`queue_set_ordered`).
//!
//! A key that has documents has a row in `ordering_keys`, with the subject of the one that
//! is *open*: pending, active, or planned to be tried again. All others of the key that
//! are pending are *held*: their `lock_upgrade` is infinite, so no pick sees them.
//!
//! Triggers keep it so, whoever writes. Who adds a document to a key updates the key's
//! row, or makes it; whose open document is done locks the row, and only then looks for
//! the next one. So of two at once the second waits for the first, and looks with a
//! snapshot that sees what that one did; where it keeps an older snapshot, it fails
//! (40001). Locks are taken in this order: a document, the row of its key, a held
//! document. What is done to a held document alone does not touch the row of its key.

use std::cell::Cell;

use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::spi::{self, Spi};
use crate::pg::transaction;
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::store::open_queue::Queue;
use crate::store::plans::refuse_unseen;
use crate::store::statement::Statement;

// (what is open already is said to be so again) $4: this transaction. The row is written
// again, so that a transaction with an older snapshot fails.
static ENTER: Statement = Statement::new(
    "insert into fetchq.ordering_keys as k (queue_id, key, head, made_by) values ($1, $2, $3, $4)
     on conflict (queue_id, key) do update set made_by = k.made_by
     returning k.head, k.made_by {=} $4",
);

// Index: primary key. What is tried again keeps its place.
static HOLD_LATER: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject {=} $1
         and d.lock_upgrade is null
         and d.status {+} 0 {=} {pending}
         and d.attempts {=} 0
         and (d.next_iteration, d.seq) {>} ($2, $3)",
);

static LOCK_KEY: Statement = Statement::new(
    "select k.head {=} $3, k.also_active[1], $3 {=} any (k.also_active)
     from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update",
);

// The next active one: those that were active when the order was switched on.
static NEXT_OTHER: Statement = Statement::new(
    "update fetchq.ordering_keys k set head = k.also_active[1], also_active = k.also_active[2:]
     where k.queue_id {=} $1 and k.key {=} $2",
);

static LEAVE_OTHERS: Statement = Statement::new(
    "update fetchq.ordering_keys k set also_active = pg_catalog.array_remove(k.also_active, $3)
     where k.queue_id {=} $1 and k.key {=} $2",
);

static JOIN_OTHERS: Statement = Statement::new(
    "update fetchq.ordering_keys k set also_active = pg_catalog.array_append(k.also_active, $3)
     where k.queue_id {=} $1 and k.key {=} $2",
);

static SET_OPEN: Statement = Statement::new(
    "update fetchq.ordering_keys k set head = $3
     where k.queue_id {=} $1 and k.key {=} $2",
);

static FORGET_KEY: Statement = Statement::new(
    "delete from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2",
);

// Index: line.
static NEXT: Statement = Statement::new(
    "select d.subject::pg_catalog.text, d.next_iteration, d.seq from only {docs} d
     where d.ordering_key {=} $1
         and d.lock_upgrade is not null and d.lock_upgrade {=} 'infinity'
         and d.status {+} 0 {=} {pending}
     order by d.next_iteration, d.seq
     limit 1",
);

// Index of the three: primary key.
static OPEN: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject {=} $1
         and d.ordering_key {=} $2
         and d.lock_upgrade {=} 'infinity'
         and d.status {+} 0 {=} {pending}",
);

static HOLD: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject {=} $1
         and d.lock_upgrade is null
         and d.status {+} 0 {=} {pending}",
);

static UNHOLD: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject {=} $1
         and d.lock_upgrade {=} 'infinity'",
);

static TRY_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
     for update skip locked",
);

static HAS_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2",
);

static ANY_KEY: Statement =
    Statement::new("select from fetchq.ordering_keys k where k.queue_id {=} $1 limit 1");

static IS_OPEN: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id {=} $1 and k.key {=} $2
         and k.head {=} $3",
);

const PLANNED: i32 = Status::Planned as i32;

pub const PENDING: i32 = Status::Pending as i32;

const ACTIVE: i32 = Status::Active as i32;

/// In the line of its key, or running.
fn is_in_line(doc: &TriggerDocument) -> bool {
    matches!(doc.status, PENDING | ACTIVE)
}

/// What changed in the documents of an ordered queue: behind its row triggers.
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
                    return moved(spi, queue, old, new);
                }
                left(spi, queue, old, None)?;
                if is_in_line(new) {
                    entered(spi, queue, new);
                } else {
                    unhold(spi, queue, new);
                }
            }
            (None, Some(new)) if is_in_line(new) => entered(spi, queue, new),
            (Some(old), None) => return left(spi, queue, old, None),
            _ => {}
        }
        Ok(())
    })
}

/// A document went from one state to another.
fn moved(spi: &Spi, queue: &Queue, old: &TriggerDocument, new: &TriggerDocument) -> Result<()> {
    // Settled and planned anew; else it is to be tried again, and keeps its place.
    let is_done = new.attempts == 0 && new.iterations > old.iterations;
    match (old.status, new.status) {
        // Picks do not see what is held: made active by hand, it runs beside the open one.
        (PENDING, ACTIVE) if old.is_held => entered(spi, queue, new),
        (PENDING, PENDING | ACTIVE) | (ACTIVE, ACTIVE) => {}
        (ACTIVE, PENDING) if is_done => left(spi, queue, old, Some(new))?,
        (ACTIVE, PENDING) => {}
        (ACTIVE, PLANNED) if !is_done => {}
        (_, PENDING | ACTIVE) => entered(spi, queue, new),
        // Planned before and now: it may be the open one, which is tried again.
        (PLANNED, PLANNED) => {}
        _ => {
            left(spi, queue, old, None)?;
            unhold(spi, queue, new);
        }
    }
    Ok(())
}

fn key<'a>(queue: &Queue, key: &'a str, subject: &'a str) -> [Arg; 3] {
    [Arg::from(queue.id), Arg::from(key), Arg::from(subject)]
}

/// A document has come into line: it is the open one of its key, or held. A statement
/// writes rows in any order: where all of the line came within this transaction, so that
/// nobody else can have picked what is open, that one goes behind an earlier one.
pub fn entered(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    let Some(name) = &doc.ordering_key else {
        return unhold(spi, queue, doc);
    };
    let args = key(queue, name, &doc.subject);
    let enter = [args[0], args[1], args[2], Arg::from(transaction::number())];
    let row = queue.run(spi, &ENTER, &enter);
    let open: String = row.get(0, 1).unwrap_or_default();
    let (is_open, is_made_here) = (open == doc.subject, row.get(0, 2) == Some(true));
    let subject = [args[2]];
    match (is_open, doc.status) {
        (true, _) if doc.is_held => {
            queue.run(spi, &UNHOLD, &subject);
        }
        (true, _) => {}
        // Nobody can hold what runs already. (A lease that is hidden never ends.)
        (false, ACTIVE) => {
            queue.run(spi, &JOIN_OTHERS, &args);
            unhold(spi, queue, doc);
        }
        (false, _) if is_made_here && hold_later(spi, queue, &open, doc) => {
            queue.run(spi, &SET_OPEN, &args);
            unhold(spi, queue, doc);
        }
        (false, _) => {
            queue.run(spi, &HOLD, &subject);
        }
    }
}

/// Holds the open document of a key if its place is behind another one.
fn hold_later(spi: &Spi, queue: &Queue, open: &str, doc: &TriggerDocument) -> bool {
    let args = [
        Arg::from(open),
        Arg::timestamp(doc.next_iteration),
        Arg::from(doc.seq),
    ];
    queue.run(spi, &HOLD_LATER, &args).affected() > 0
}

fn unhold(spi: &Spi, queue: &Queue, doc: &TriggerDocument) {
    if doc.is_held {
        queue.run(spi, &UNHOLD, &[Arg::from(doc.subject.as_str())]);
    }
}

/// A document has left the line; `again`: it has gone back into it. If it was the open
/// one, the next one is opened.
fn left(
    spi: &Spi,
    queue: &Queue,
    doc: &TriggerDocument,
    again: Option<&TriggerDocument>,
) -> Result<()> {
    let Some(name) = &doc.ordering_key else {
        return Ok(());
    };
    // (a held one leaves nothing behind)
    if doc.is_held || !matches!(doc.status, PLANNED | PENDING | ACTIVE) {
        return Ok(());
    }
    let args = key(queue, name, &doc.subject);
    // A planned one is open only if it is tried again: mostly nobody has to wait.
    if doc.status == PLANNED && queue.run(spi, &IS_OPEN, &args).affected() == 0 {
        return Ok(());
    }
    let row = queue.run(spi, &LOCK_KEY, &args);
    if row.is_empty() {
        return refuse_unseen(spi, &queue.name, &HAS_KEY, &args[..2]);
    }
    if row.get(0, 1) != Some(true) {
        if row.get(0, 3) == Some(true) {
            queue.run(spi, &LEAVE_OTHERS, &args);
            if let Some(again) = again {
                entered(spi, queue, again);
            }
        }
        return Ok(());
    }
    if row.get::<String>(0, 2).is_some() {
        queue.run(spi, &NEXT_OTHER, &args[..2]);
        if let Some(again) = again {
            entered(spi, queue, again);
        }
        return Ok(());
    }
    open_next(spi, queue, name, again);
    Ok(())
}

/// Opens the first one in the line of a key whose row is locked; that is `again`, which
/// is not held, if no other is before it. Without any, the key is forgotten.
pub fn open_next(spi: &Spi, queue: &Queue, name: &str, again: Option<&TriggerDocument>) {
    loop {
        let next = queue.run(spi, &NEXT, &[Arg::from(name)]);
        if next.is_empty() {
            if again.is_none() {
                queue.run(spi, &FORGET_KEY, &[Arg::from(queue.id), Arg::from(name)]);
            }
            return;
        }
        let place = (
            next.timestamp(0, 2).unwrap_or(i64::MIN),
            next.get(0, 3).unwrap_or(i64::MIN),
        );
        if again.is_some_and(|again| (again.next_iteration, again.seq) < place) {
            return;
        }
        let Some(subject) = next.get::<String>(0, 1) else {
            return;
        };
        let args = key(queue, name, &subject);
        // Waits for who is changing it; not there any more, or not held: the next one.
        if queue.run(spi, &OPEN, &[args[2], args[1]]).affected() > 0 {
            queue.run(spi, &SET_OPEN, &args);
            if let Some(again) = again {
                queue.run(spi, &HOLD, &[Arg::from(again.subject.as_str())]);
            }
            return;
        }
    }
}

thread_local! {
    static IS_MAINTENANCE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a statement of maintenance. It waits for nobody: while another transaction has
/// the key of a document, this one stays as it is.
pub fn as_maintenance<R>(work: impl FnOnce() -> R) -> R {
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            IS_MAINTENANCE.set(false);
        }
    }
    IS_MAINTENANCE.set(true);
    let _until = Until;
    work()
}

/// Whether a document can be changed now: what was planned is due, or a lease ran out at
/// the last attempt.
pub fn may_change(queue: &Queue, doc: &TriggerDocument) -> bool {
    let Some(name) = &doc.ordering_key else {
        return true;
    };
    if !IS_MAINTENANCE.get() {
        return true;
    }
    spi::connect(|spi| {
        let args = [Arg::from(queue.id), Arg::from(name.as_str())];
        queue.run(spi, &TRY_KEY, &args).affected() > 0
            || queue.run(spi, &HAS_KEY, &args).affected() == 0
    })
}

// (also run by triggers, under the search_path of the session)
pub const FORGET_KEYS: &str = "delete from fetchq.ordering_keys k where k.queue_id {=} $1";

/// All documents are gone.
pub fn documents_truncated(queue: &Queue) -> Result<()> {
    spi::connect(|spi| {
        let id = [Arg::from(queue.id)];
        spi.once(FORGET_KEYS, &id);
        refuse_unseen(spi, &queue.name, &ANY_KEY, &id)
    })
}
