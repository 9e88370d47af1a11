//! The cap of a queue (`max_active`): how many of its documents may be active at a time.
//!
//! A capped queue has as many rows in `fetchq.lease_slots` as documents may be active. A
//! slot is free, or it has the subject of an active document.
//!
//! limits.rs locks the slots for a pick (`admit`), and says why their locks make the cap exact.
//! This file assigns and frees them, and sets and repairs the cap.

use pgrx::pg_sys::{ItemPointerData, Oid};

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::relation::{self, LockMode};
use crate::pg::row_holder::row_holder;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::signals::wakeups;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans::refuse_unseen;
use crate::store::queues::queue::{DELETE_SLOTS, keep_writers_away};
use crate::store::queues::statement::{Statement, render};
use crate::store::queues::triggers::{has_triggers, set_triggers};

/// The first number of an extra slot. An extra slot is beyond the cap: it belongs to a
/// document that was active when the cap was lowered, or that was made active by hand. Its
/// number is this one plus the `seq` of the document. No cap reaches it, because a cap is an
/// `int`.
pub const FIRST_EXTRA_SLOT: i64 = 1 << 40;

/// Counts the extra slots of a queue. $1: the id of the queue, $2: `FIRST_EXTRA_SLOT`.
// Index: the primary key, a range that is empty as a rule.
pub static COUNT_EXTRA_SLOTS: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.slot {>=} $2",
);

/// Locks free slots. $1: the id of the queue, $2: `FIRST_EXTRA_SLOT`, $3: how many.
// Index: lease_slots_free_idx, which has the free slots alone, in this order.
pub static LOCK_FREE_SLOTS: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject is null
         and s.slot {<} $2
     order by s.slot
     limit $3
     for update skip locked",
);

// Indexes: lease_slots_free_idx for the free slots, the primary key for the update.
static ASSIGN_SLOTS: Statement = Statement::new(
    "with free as (
         select f.slot, pg_catalog.row_number() over () as n from (
             select s.slot from fetchq.lease_slots s
             where s.queue_id {=} $1 and s.subject is null
                 and s.slot {<} $2
             order by s.slot
             limit pg_catalog.cardinality($3)
             for update skip locked) f)
     update fetchq.lease_slots s set subject = u.subject
     from free
     join pg_catalog.unnest($3) with ordinality as u (subject, n) on u.n {=} free.n
     where s.queue_id {=} $1 and s.slot {=} free.slot",
);

/// Assigns free slots to documents that are about to become active. The first column of
/// the rows `own` has their subjects. The caller has locked as many free slots before. It is an
/// ERROR of the server when fewer slots are free than there are documents.
pub fn assign_slots(spi: &Spi, queue: &Queue, rows: &Rows, own: &[usize]) {
    let subjects = own.iter().filter_map(|row| rows.get::<String>(*row, 1));
    let args = [
        Arg::from(queue.id),
        Arg::from(FIRST_EXTRA_SLOT),
        Arg::from(subjects.collect::<Vec<String>>()),
    ];
    let assigned = queue.run(spi, &ASSIGN_SLOTS, &args).affected();
    if assigned != own.len() as i32 {
        pgrx::error!(
            "only {assigned} of {} lease slots of queue {} could be assigned",
            own.len(),
            queue.name
        );
    }
}

// Index: lease_slots_subject_idx. The slot is locked, so that a repair that runs at the
// same time does not free it: a repair skips locked slots.
static LOCK_SLOT_OF: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject {=} $2
     limit 1
     for update skip locked",
);

// Index: the primary key. A row for each number in `xmax`, with the place of one of its slots.
const USE_OF_SLOTS: &str = "select s.subject is not null, (pg_catalog.array_agg(s.ctid))[1],
        pg_catalog.count(*)
    from fetchq.lease_slots s
    where s.queue_id {=} $1
    group by 1, s.xmax";

/// How many lease slots of a queue documents have, and how many free ones the open transactions of
/// other sessions have locked. Locks nothing. `queue`: its id. `slots`: the table of the slots, which is
/// locked.
pub fn use_of_slots(spi: &Spi, slots: Oid, queue: i32) -> (i64, i64) {
    let rows = spi.once_latest(USE_OF_SLOTS, &[Arg::from(queue)]);
    let mut used = (0, 0);
    for row in 0..rows.len() {
        let n: i64 = rows.get(row, 3).unwrap_or(0);
        if rows.get(row, 1) == Some(true) {
            used.0 += n;
        } else if is_locked(slots, &rows, row, 2) {
            used.1 += n;
        }
    }
    used
}

/// Returns whether a transaction of another session has locked or changed a row of a table, whose `ctid` is
/// in a column.
pub fn is_locked(table: Oid, rows: &Rows, row: usize, ctid: i32) -> bool {
    let tid = rows.get::<ItemPointerData>(row, ctid);
    tid.and_then(|tid| row_holder(table, tid)).is_some()
}

// Index: lease_slots_free_idx, and a Tid Scan for the update.
static TAKE_SLOT: Statement = Statement::new(
    "update fetchq.lease_slots t set subject = $3
     where t.ctid {=} any (array(
         select s.ctid from fetchq.lease_slots s
         where s.queue_id {=} $1 and s.subject is null
             and s.slot {<} $2
         order by s.slot
         limit 1
         for update skip locked))",
);

// Index: the primary key decides the conflict.
static ADD_EXTRA_SLOT: Statement = Statement::new(
    "insert into fetchq.lease_slots as s (queue_id, slot, subject) values ($1, $2, $3)
     on conflict (queue_id, slot) do update set subject = excluded.subject",
);

// Index: lease_slots_subject_idx. The slot is locked before it is freed, because a change
// of the cap may be moving the document to another slot.
static LOCK_SLOTS_OF: Statement = Statement::new(
    "select s.slot from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject {=} $2
     for update",
);

// Index: the primary key.
static FREE_SLOT: Statement = Statement::new(
    "update fetchq.lease_slots s set subject = null
     where s.queue_id {=} $1 and s.slot {=} $2",
);

// Index: the primary key.
static REMOVE_EXTRA_SLOT: Statement = Statement::new(
    "delete from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.slot {=} $2",
);

/// Gives a slot to a document that has become active, unless it has one: fetchq's own picks
/// assign the slots before. Where no slot is free, the document gets an extra one, whose
/// number follows from `seq`. Does nothing in a queue without a cap.
pub fn document_activated(queue: &Queue, subject: &str, seq: i64) {
    if queue.policy.max_active.is_none() {
        return;
    }
    let (id, subject) = (Arg::from(queue.id), Arg::from(subject));
    spi::connect(|spi| {
        if queue.run(spi, &LOCK_SLOT_OF, &[id, subject]).affected() > 0 {
            return;
        }
        let args = [id, Arg::from(FIRST_EXTRA_SLOT), subject];
        if queue.run(spi, &TAKE_SLOT, &args).affected() == 0 {
            let slot = Arg::from(FIRST_EXTRA_SLOT.saturating_add(seq));
            queue.run(spi, &ADD_EXTRA_SLOT, &[id, slot, subject]);
        }
    });
}

// Index: lease_slots_subject_idx. Run as of now too, to find a slot that the snapshot of the
// transaction does not see.
static HAS_SLOT: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject {=} $2
     limit 1",
);

// Index: lease_slots_subject_idx. Run as of now.
static HAS_USED_SLOT: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject is not null
     limit 1",
);

/// Frees slots, which this transaction has locked.
fn free_slots(spi: &Spi, queue: &Queue, slots: &[i64]) {
    for slot in slots {
        let statement = match *slot < FIRST_EXTRA_SLOT {
            true => &FREE_SLOT,
            false => &REMOVE_EXTRA_SLOT,
        };
        queue.run(spi, statement, &[Arg::from(queue.id), Arg::from(*slot)]);
    }
}

/// Frees the slot of a document that is no longer active, and wakes the waiters of the
/// queue. Does nothing in a queue without a cap. Fails with `Error::OlderSnapshot` when the
/// snapshot of the transaction is too old to see the slot.
pub fn document_released(queue: &Queue, subject: &str) -> Result<()> {
    if queue.policy.max_active.is_none() {
        return Ok(());
    }
    let id = Arg::from(queue.id);
    let freed = spi::connect(|spi| {
        let args = [id, Arg::from(subject)];
        let rows = queue.run(spi, &LOCK_SLOTS_OF, &args);
        let slots: Vec<i64> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        if slots.is_empty() {
            refuse_unseen(spi, &queue.name, &HAS_SLOT, &args)?;
        }
        free_slots(spi, queue, &slots);
        Ok::<u32, Error>(u32::try_from(slots.len()).unwrap_or(1))
    })?;
    wakeups::capacity_freed(queue.table.to_u32(), freed);
    Ok(())
}

const FREE_ALL_SLOTS: &str = "update fetchq.lease_slots s set subject = null
    where s.queue_id {=} $1 and s.slot {<} $2
        and s.subject is not null";

const REMOVE_EXTRA_SLOTS: &str = "delete from fetchq.lease_slots s
    where s.queue_id {=} $1 and s.slot {>=} $2";

/// Frees all slots of a queue whose documents were truncated. Does nothing in a queue
/// without a cap. Fails with `Error::OlderSnapshot` when the snapshot of the transaction is
/// too old to see a slot that is in use.
pub fn documents_truncated(queue: &Queue) -> Result<()> {
    if queue.policy.max_active.is_none() {
        return Ok(());
    }
    let args = [Arg::from(queue.id), Arg::from(FIRST_EXTRA_SLOT)];
    spi::connect(|spi| {
        // In this order: a document that is moved to an extra slot between the two
        // statements is found by the second one.
        for sql in [FREE_ALL_SLOTS, REMOVE_EXTRA_SLOTS] {
            spi.once(sql, &args);
        }
        refuse_unseen(spi, &queue.name, &HAS_USED_SLOT, &args[..1])
    })
}

/// The triggers of a capped queue. They make the cap hold for plain SQL too: what an
/// operator does in a console counts.
const CAP_TRIGGERS: [(&str, &str); 4] = [
    (
        "fetchq_cap_insert",
        "create trigger fetchq_cap_insert after insert on {docs}
         for each row when (new.status {=} {active}) execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_update",
        "create trigger fetchq_cap_update after update on {docs}
         for each row when (
             (old.status {=} {active}) {<>} (new.status {=} {active})
             or old.status {=} {active} and old.subject {<>} new.subject)
         execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_delete",
        "create trigger fetchq_cap_delete after delete on {docs}
         for each row when (old.status {=} {active}) execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_truncate",
        "create trigger fetchq_cap_truncate after truncate on {docs}
         for each statement execute function fetchq.trigger_docs_cap()",
    ),
];

// The slots are new rows, so that no transaction with an older snapshot can lock one.
const CREATE_SLOTS: &str = "insert into fetchq.lease_slots (queue_id, slot, subject)
    select $1, coalesce(free.slot, $3 {+} a.seq), a.subject
    from (
        select d.subject, d.seq, pg_catalog.row_number() over (order by d.next_iteration, d.seq) as n
        from {docs} d where d.status {=} {active}) a
    full join pg_catalog.generate_series(1, $2::bigint) as free (slot) on free.slot {=} a.n";

/// Replaces the slots of a queue: `max_active` of them, and extra ones for active documents
/// beyond that. Makes the triggers where they are missing.
fn recreate_slots(spi: &Spi, name: &QueueName, id: i32, max_active: i32) {
    spi.once(DELETE_SLOTS, &[Arg::from(id)]);
    let args = [
        Arg::from(id),
        Arg::from(i64::from(max_active)),
        Arg::from(FIRST_EXTRA_SLOT),
    ];
    spi.once(&render(CREATE_SLOTS, name), &args);
    set_triggers(spi, name, &CAP_TRIGGERS, true);
}

const ADD_SLOTS: &str = "insert into fetchq.lease_slots (queue_id, slot)
    select $1, n.slot from pg_catalog.generate_series(1, $2::bigint) as n (slot)
    where not exists (
        select from fetchq.lease_slots s where s.queue_id {=} $1 and s.slot {=} n.slot)";

/// Makes the slots and triggers of a queue whose cap is changed; None: it has none. The caller has
/// locked its row in the registry, which has the new cap already. Fails with
/// `Error::UnknownQueue` when the queue has lost its documents table.
pub(in crate::store) fn change(
    name: &QueueName,
    id: i32,
    before: Option<i32>,
    after: Option<i32>,
) -> Result<()> {
    if before.is_none() && after.is_none() {
        return Ok(());
    }
    let is_raised = before.is_some_and(|before| after.is_some_and(|after| before <= after))
        && spi::connect(|spi| has_triggers(spi, name, &CAP_TRIGGERS));
    // Adding slots needs no lock on the documents. To remove slots, every pick and every
    // settlement has to be kept away: each would wait for the other otherwise.
    if !is_raised {
        keep_writers_away(name)?;
    }
    spi::connect(|spi| match after {
        Some(max) if is_raised => {
            let args = [Arg::from(id), Arg::from(i64::from(max))];
            spi.once(ADD_SLOTS, &args);
        }
        Some(max) => recreate_slots(spi, name, id, max),
        None => {
            spi.once(DELETE_SLOTS, &[Arg::from(id)]);
            set_triggers(spi, name, &CAP_TRIGGERS, false);
        }
    });
    Ok(())
}

// Slots of documents that are not active. The repair looks twice, the second time at those alone that
// it has locked ($2): that look sees what was committed before the first one had its locks.
const LOCK_STALE_SLOTS: &str = "select s.slot from fetchq.lease_slots s
    where s.queue_id {=} $1 and s.subject is not null
        and ($2 is null or s.slot {=} any ($2))
        and not exists (
            select from {docs} d
            where d.subject {=} s.subject and d.status {+} 0 {=} {active})
    for update skip locked";

const LOCK_DOCUMENTS_WITHOUT_SLOT: &str = "select d.subject::pg_catalog.text, d.seq from {docs} d
    where d.status {=} {active}
        and not exists (
            select from fetchq.lease_slots s
            where s.queue_id {=} $1 and s.subject {=} d.subject)
    order by d.subject
    for update skip locked";

/// Repairs the slots of a queue whose cap is `max_active`: frees those of documents that are
/// not active, and gives one to each active document without. Creates slots and triggers
/// anew when a trigger is missing, unless the documents cannot be locked without waiting.
pub fn repair_slots(spi: &Spi, queue: &Queue, max_active: i32) {
    let id = Arg::from(queue.id);
    if !has_triggers(spi, &queue.name, &CAP_TRIGGERS) {
        if relation::try_lock(queue.table, LockMode::Writers) {
            recreate_slots(spi, &queue.name, queue.id, max_active);
        }
        return;
    }
    let lock_stale = |of: Option<Vec<i64>>| -> Vec<i64> {
        let rows = queue.once(spi, LOCK_STALE_SLOTS, &[id, Arg::from(of)]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    };
    let slots = lock_stale(None);
    if !slots.is_empty() {
        free_slots(spi, queue, &lock_stale(Some(slots)));
        wakeups::capacity_freed(queue.table.to_u32(), u32::MAX);
    }
    let rows = queue.once(spi, LOCK_DOCUMENTS_WITHOUT_SLOT, &[id]);
    for row in 0..rows.len() {
        if let (Some(subject), Some(seq)) = (rows.get::<String>(row, 1), rows.get(row, 2)) {
            let args = [id, Arg::from(subject.as_str())];
            if queue.run(spi, &HAS_SLOT, &args).affected() == 0 {
                document_activated(queue, &subject, seq);
            }
        }
    }
}
