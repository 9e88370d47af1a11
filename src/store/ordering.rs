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

use super::flow::{has_triggers, lock_documents, refuse_unseen, set_triggers};
use super::plans::{Queue, Statement, render};
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{self, Arg, Spi};
use crate::pg::transaction;
use crate::pg::trigger::Document;
use crate::worker::waiters;

// (what is open already is said to be so again) $4: this transaction. The row is written
// again, so that a transaction with an older snapshot fails.
static ENTER: Statement = Statement::new(
    "insert into fetchq.ordering_keys as k (queue_id, key, subject, made_by) values ($1, $2, $3, $4)
     on conflict (queue_id, key) do update set made_by = k.made_by
     returning k.subject, k.made_by operator(pg_catalog.=) $4",
);
// Index: primary key. What is tried again keeps its place.
static HOLD_LATER: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject operator(pg_catalog.=) $1
         and d.lock_upgrade is null
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 1
         and d.attempts operator(pg_catalog.=) 0
         and (d.next_iteration, d.seq) operator(pg_catalog.>) ($2, $3)",
);
static LOCK_KEY: Statement = Statement::new(
    "select k.subject operator(pg_catalog.=) $3, k.others[1], $3 operator(pg_catalog.=) any (k.others)
     from fetchq.ordering_keys k
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2
     for update",
);
// The next active one: those that were active when the order was switched on.
static NEXT_OTHER: Statement = Statement::new(
    "update fetchq.ordering_keys k set subject = k.others[1], others = k.others[2:]
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2",
);
static LEAVE_OTHERS: Statement = Statement::new(
    "update fetchq.ordering_keys k set others = pg_catalog.array_remove(k.others, $3)
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2",
);
static JOIN_OTHERS: Statement = Statement::new(
    "update fetchq.ordering_keys k set others = pg_catalog.array_append(k.others, $3)
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2",
);
static SET_OPEN: Statement = Statement::new(
    "update fetchq.ordering_keys k set subject = $3
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2",
);
static FORGET_KEY: Statement = Statement::new(
    "delete from fetchq.ordering_keys k
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2",
);
// Index: line.
static NEXT: Statement = Statement::new(
    "select d.subject::pg_catalog.text, d.next_iteration, d.seq from only {docs} d
     where d.ordering_key operator(pg_catalog.=) $1
         and d.lock_upgrade is not null and d.lock_upgrade operator(pg_catalog.=) 'infinity'
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 1
     order by d.next_iteration, d.seq
     limit 1",
);
// Index of the three: primary key.
static OPEN: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject operator(pg_catalog.=) $1
         and d.ordering_key operator(pg_catalog.=) $2
         and d.lock_upgrade operator(pg_catalog.=) 'infinity'
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 1",
);
static HOLD: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = 'infinity'
     where d.subject operator(pg_catalog.=) $1
         and d.lock_upgrade is null
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 1",
);
static UNHOLD: Statement = Statement::new(
    "update only {docs} d set lock_upgrade = null
     where d.subject operator(pg_catalog.=) $1
         and d.lock_upgrade operator(pg_catalog.=) 'infinity'",
);
static TRY_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2
     for update skip locked",
);
static HAS_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2",
);

static ANY_KEY: Statement = Statement::new(
    "select from fetchq.ordering_keys k where k.queue_id operator(pg_catalog.=) $1 limit 1",
);
static IS_OPEN: Statement = Statement::new(
    "select from fetchq.ordering_keys k
     where k.queue_id operator(pg_catalog.=) $1 and k.key operator(pg_catalog.=) $2
         and k.subject operator(pg_catalog.=) $3",
);

const PLANNED: i32 = Status::Planned as i32;
const PENDING: i32 = Status::Pending as i32;
const ACTIVE: i32 = Status::Active as i32;

/// In the line of its key, or running.
fn is_in_line(doc: &Document) -> bool {
    matches!(doc.status, PENDING | ACTIVE)
}

/// What changed in the documents of an ordered queue: behind its row triggers.
pub fn changed(queue: &Queue, old: Option<&Document>, new: Option<&Document>) -> Result<()> {
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
fn moved(spi: &Spi, queue: &Queue, old: &Document, new: &Document) -> Result<()> {
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
fn entered(spi: &Spi, queue: &Queue, doc: &Document) {
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
fn hold_later(spi: &Spi, queue: &Queue, open: &str, doc: &Document) -> bool {
    let args = [
        Arg::from(open),
        Arg::timestamp(doc.next_iteration),
        Arg::from(doc.seq),
    ];
    queue.run(spi, &HOLD_LATER, &args).affected() > 0
}

fn unhold(spi: &Spi, queue: &Queue, doc: &Document) {
    if doc.is_held {
        queue.run(spi, &UNHOLD, &[Arg::from(doc.subject.as_str())]);
    }
}

/// A document has left the line; `again`: it has gone back into it. If it was the open
/// one, the next one is opened.
fn left(spi: &Spi, queue: &Queue, doc: &Document, again: Option<&Document>) -> Result<()> {
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
        return refuse_unseen(spi, queue, &HAS_KEY, &args[..2]);
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
fn open_next(spi: &Spi, queue: &Queue, name: &str, again: Option<&Document>) {
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
pub fn may_change(queue: &Queue, doc: &Document) -> bool {
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
const FORGET_KEYS: &str =
    "delete from fetchq.ordering_keys k where k.queue_id operator(pg_catalog.=) $1";

/// All documents are gone.
pub fn emptied(queue: &Queue) -> Result<()> {
    spi::connect(|spi| {
        let id = [Arg::from(queue.id)];
        spi.once(FORGET_KEYS, &id);
        refuse_unseen(spi, queue, &ANY_KEY, &id)
    })
}

// The first one is for maintenance: `may_change`.
const TRIGGERS: [(&str, &str); 5] = [
    (
        "fetchq_order_due",
        "create trigger fetchq_order_due before update on {docs}
         for each row when (new.ordering_key is not null and old.lock_upgrade is null
             and (old.status = 0 and new.status = 1 or old.status = 2 and new.status = -1))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_insert",
        "create trigger fetchq_order_insert after insert on {docs}
         for each row when (new.ordering_key is not null and new.status in (1, 2))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_update",
        "create trigger fetchq_order_update after update on {docs}
         for each row when ((new.ordering_key is not null or old.ordering_key is not null)
             and not (old.status = 1 and new.status = 2 and old.lock_upgrade is null)
             and (old.status <> new.status or old.subject <> new.subject
                 or old.ordering_key is distinct from new.ordering_key))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_delete",
        "create trigger fetchq_order_delete after delete on {docs}
         for each row when (old.ordering_key is not null and old.status in (0, 1, 2))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_truncate",
        "create trigger fetchq_order_truncate after truncate on {docs}
         for each statement execute function fetchq.trigger_docs_order()",
    ),
];

/// The line index: what is held, by key, in the order of the line.
const INDEX: &str = "docs_line_idx";
const CREATE_INDEX: &str = "create index \"{q}__docs_line_idx\" on {docs}
    (ordering_key, next_iteration, seq) where lock_upgrade is not null";

const IS_ORDERED: &str = "select from fetchq.queues where name = $1 and is_ordered";
const SET_ORDERED: &str = "update fetchq.queues set is_ordered = $2 where name = $1";
// What is active is open; then what is tried again; then the first in line. Several may
// be active.
const SORT_IN: &str = "with line as (
        select d.ordering_key as key, d.subject::text as subject, d.status,
            row_number() over (partition by d.ordering_key
                order by d.status desc, d.attempts > 0 desc, d.next_iteration, d.seq) as n
        from {docs} d
        where d.ordering_key is not null and d.status in (1, 2)
            and (d.lock_upgrade is null or d.lock_upgrade = 'infinity'))
    insert into fetchq.ordering_keys (queue_id, key, subject, others)
    select $1, l.key, max(l.subject) filter (where l.n = 1),
        coalesce(array_agg(l.subject order by l.n) filter (where l.n > 1 and l.status = 2), '{}')
    from line l group by l.key";
const HOLD_ALL: &str = "update {docs} d set lock_upgrade = 'infinity'
    where d.ordering_key is not null and d.status = 1 and d.lock_upgrade is null
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key and k.subject = d.subject)";
const OPEN_ALL: &str = "update {docs} d set lock_upgrade = null
    where d.lock_upgrade = 'infinity' and d.ordering_key is not null
        and ($1 is null or d.status <> 1 or exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key and k.subject = d.subject))";

/// Makes the index of an ordered queue where it is missing.
pub fn create_index(spi: &Spi, name: &QueueName) {
    let is_ordered = spi.once(IS_ORDERED, &[Arg::from(name.as_str())]).affected() > 0;
    if is_ordered && relation::lookup_data_table(&name.relation(INDEX)).is_none() {
        spi.once(
            &render(CREATE_INDEX, name).replace("{q}", name.as_str()),
            &[],
        );
    }
}

fn sort_in(spi: &Spi, name: &QueueName, id: i32) {
    spi.once(FORGET_KEYS, &[Arg::from(id)]);
    for sql in [SORT_IN, HOLD_ALL, OPEN_ALL] {
        spi.once(&render(sql, name), &[Arg::from(id)]);
    }
    set_triggers(spi, name, &TRIGGERS, true);
}

fn is_whole(spi: &Spi, name: &QueueName) -> bool {
    has_triggers(spi, name, &TRIGGERS)
        && relation::lookup_data_table(&name.relation(INDEX)).is_some()
}

/// Switches the order of a queue on or off.
pub fn set_ordered(name: &QueueName, is_ordered: bool) -> Result<i32> {
    let id = lock_documents(name, "fetchq.queue_set_ordered")?;
    Ok(spi::connect(|spi| {
        let key = Arg::from(name.as_str());
        let was_ordered = spi.once(IS_ORDERED, &[key]).affected() > 0;
        let affected = spi
            .once(SET_ORDERED, &[key, Arg::from(is_ordered)])
            .affected();
        if is_ordered && was_ordered && is_whole(spi, name) {
            // Nothing to do: the lines are as they are to be.
        } else if is_ordered {
            create_index(spi, name);
            sort_in(spi, name, id);
        } else {
            set_triggers(spi, name, &TRIGGERS, false);
            spi.once(FORGET_KEYS, &[Arg::from(id)]);
            spi.once(&render(OPEN_ALL, name), &[Arg::from(None::<i32>)]);
            if relation::lookup_data_table(&name.relation(INDEX)).is_some() {
                spi.once(&format!("drop index {}", name.qualified(INDEX)), &[]);
            }
        }
        affected
    }))
}

// Keys whose open document is gone; locked, so that a second look decides.
const STALE_KEYS: &str = "select k.key from fetchq.ordering_keys k
    where k.queue_id = $1
        and not exists (
            select from {docs} d
            where d.subject = k.subject and d.ordering_key = k.key and d.status in (0, 1, 2)
                and (d.lock_upgrade is null or d.lock_upgrade <> 'infinity'))
    order by k.key
    for update skip locked";
const IS_STALE: &str = "select from fetchq.ordering_keys k
    where k.queue_id = $1 and k.key = $2
        and not exists (
            select from {docs} d
            where d.subject = k.subject and d.ordering_key = k.key and d.status in (0, 1, 2)
                and (d.lock_upgrade is null or d.lock_upgrade <> 'infinity'))";
// Documents that are in no line: of a key without a row, or not held and not open.
const STRAY: &str = "select d.subject::text, d.status, d.ordering_key, d.lock_upgrade is not null
    from {docs} d
    where d.ordering_key is not null and d.status in (1, 2)
        and (d.lock_upgrade is null or d.lock_upgrade = 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key
                and (d.lock_upgrade is not null or k.subject = d.subject or d.subject::text = any (k.others)))
    order by d.status desc, d.next_iteration, d.seq
    for update skip locked";
const IS_STRAY: &str = "select from {docs} d
    where d.subject = $2 and d.ordering_key is not null and d.status in (1, 2)
        and (d.lock_upgrade is null or d.lock_upgrade = 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key
                and (d.lock_upgrade is not null or k.subject = d.subject or d.subject::text = any (k.others)))";

/// Repairs the lines of an ordered queue: where triggers were switched off, or rows were
/// lost. What others hold waits for the next time.
pub fn repair(queue: &Queue) {
    if !queue.policy.is_ordered {
        return;
    }
    let id = Arg::from(queue.id);
    spi::connect(|spi| {
        if !is_whole(spi, &queue.name) {
            if relation::try_lock(queue.table, LockMode::Writers) {
                create_index(spi, &queue.name);
                sort_in(spi, &queue.name, queue.id);
                waiters::has_room(queue.table.to_u32(), u32::MAX);
            }
            return;
        }
        let rows = queue.once(spi, STALE_KEYS, &[id]);
        let stale: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        for name in stale {
            let args = [id, Arg::from(name.as_str())];
            if queue.once(spi, IS_STALE, &args).affected() > 0 {
                open_next(spi, queue, &name, None);
            }
        }
        let rows = queue.once(spi, STRAY, &[id]);
        for row in 0..rows.len() {
            let Some(subject) = rows.get::<String>(row, 1) else {
                continue;
            };
            let args = [id, Arg::from(subject.as_str())];
            if queue.once(spi, IS_STRAY, &args).affected() > 0 {
                let stray = Document {
                    status: rows.get(row, 2).unwrap_or(PENDING),
                    ordering_key: rows.get(row, 3),
                    is_held: rows.get(row, 4).unwrap_or(false),
                    subject,
                    attempts: 0,
                    iterations: 0,
                    // (they come in order)
                    next_iteration: i64::MAX,
                    seq: i64::MAX,
                };
                entered(spi, queue, &stray);
            }
        }
    });
}
