//! Switching the order of a queue on and off (the setting `ordered`): its triggers, its index,
//! and the repair of its keys. `ordering.rs` has the rules of the order.

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::signals::wakeups;
use crate::store::open_queue::Queue;
use crate::store::ordering::{add_document, promote_next};
use crate::store::queue::{DELETE_KEYS, keep_writers_away};
use crate::store::statement::render;
use crate::store::triggers::{has_triggers, set_triggers};
use crate::store::{queue_tables, rights};

/// The triggers of an ordered queue. The first one serves maintenance (`may_change`).
const TRIGGERS: [(&str, &str); 5] = [
    (
        "fetchq_order_due",
        "create trigger fetchq_order_due before update on {docs}
         for each row when (new.ordering_key is not null and old.lock_upgrade is null
             and (old.status {=} {planned} and new.status {=} {pending}
                 or old.status {=} {active} and new.status {=} {killed}))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_insert",
        "create trigger fetchq_order_insert after insert on {docs}
         for each row when (
             new.ordering_key is not null and new.status {=} any (array[{pending}, {active}]))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_update",
        "create trigger fetchq_order_update after update on {docs}
         for each row when ((new.ordering_key is not null or old.ordering_key is not null)
             and not (old.status {=} {pending} and new.status {=} {active} and old.lock_upgrade is null)
             and (old.status {<>} new.status or old.subject {<>} new.subject
                 or old.ordering_key is distinct from new.ordering_key))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_delete",
        "create trigger fetchq_order_delete after delete on {docs}
         for each row when (old.ordering_key is not null
             and old.status {=} any (array[{planned}, {pending}, {active}]))
         execute function fetchq.trigger_docs_order()",
    ),
    (
        "fetchq_order_truncate",
        "create trigger fetchq_order_truncate after truncate on {docs}
         for each statement execute function fetchq.trigger_docs_order()",
    ),
];

/// The index of the blocked documents, by key, in the order in which they become the head.
const INDEX: &str = "docs_blocked_idx";

const CREATE_INDEX: &str = "create index \"{q}__docs_blocked_idx\" on {docs}
    (ordering_key, next_iteration, seq) where lock_upgrade is not null";

const IS_ORDERED: &str = "select from fetchq.queues where name {=} $1 and is_ordered";

// The head of a key is an active document, otherwise one that is retried, otherwise the
// first one. Several may be active.
const ADD_KEYS: &str = "with ranked as (
        select d.ordering_key as key, d.subject::text as subject, d.status,
            row_number() over (partition by d.ordering_key
                order by d.status desc, (d.attempts {>} 0) desc, d.next_iteration, d.seq) as n
        from {docs} d
        where d.ordering_key is not null and d.status {=} any (array[{pending}, {active}])
            and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity'))
    insert into fetchq.ordering_keys (queue_id, key, head, also_active)
    select $1, r.key, max(r.subject) filter (where r.n {=} 1),
        coalesce(
            array_agg(r.subject order by r.n) filter (where r.n {>} 1 and r.status {=} {active}),
            '{}')
    from ranked r group by r.key";

const BLOCK_ALL: &str = "update {docs} d set lock_upgrade = 'infinity'
    where d.ordering_key is not null and d.status {=} {pending} and d.lock_upgrade is null
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key and k.head {=} d.subject)";

// $1: the id of the queue, or NULL to unblock all documents and not the heads alone.
const UNBLOCK_ALL: &str = "update {docs} d set lock_upgrade = null
    where d.lock_upgrade {=} 'infinity' and d.ordering_key is not null
        and ($1 is null or d.status {<>} {pending} or exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key and k.head {=} d.subject))";

/// Makes the index of the blocked documents where an ordered queue lacks it. Fails with
/// `Error::AlteredTable`.
pub fn create_index(spi: &Spi, name: &QueueName) -> Result<()> {
    match spi.once(IS_ORDERED, &[Arg::from(name.as_str())]).is_empty() {
        true => Ok(()),
        false => queue_tables::create_index(spi, name, INDEX, CREATE_INDEX),
    }
}

/// Makes the keys, blocks all documents but the heads, and makes the triggers.
fn recreate_keys(spi: &Spi, name: &QueueName, id: i32) {
    spi.once(DELETE_KEYS, &[Arg::from(id)]);
    for sql in [ADD_KEYS, BLOCK_ALL, UNBLOCK_ALL] {
        spi.once(&render(sql, name), &[Arg::from(id)]);
    }
    set_triggers(spi, name, &TRIGGERS, true);
}

/// Returns whether triggers and index of the order exist, and the triggers are switched on.
fn is_set_up(spi: &Spi, name: &QueueName) -> bool {
    has_triggers(spi, name, &TRIGGERS) && queue_tables::has_index(name, INDEX)
}

/// Makes or drops the triggers, the index and the keys of a queue whose order is switched on or
/// off. The caller has locked its row in the registry, which says already whether it is ordered.
/// Fails with `Error::AlteredTable`, and with `Error::UnknownQueue` when the queue has lost its
/// documents table.
pub(super) fn change(name: &QueueName, id: i32, before: bool, after: bool) -> Result<()> {
    if !before && !after {
        return Ok(());
    }
    spi::connect(|spi| {
        if before && after && is_set_up(spi, name) {
            // The keys are right already.
            return Ok(());
        }
        keep_writers_away(name)?;
        if after {
            create_index(spi, name)?;
            recreate_keys(spi, name, id);
        } else {
            set_triggers(spi, name, &TRIGGERS, false);
            spi.once(DELETE_KEYS, &[Arg::from(id)]);
            spi.once(&render(UNBLOCK_ALL, name), &[Arg::from(None::<i32>)]);
            if queue_tables::has_index(name, INDEX) {
                let sql = format!("drop index {}", name.qualified(INDEX));
                rights::as_table_owner(name, || spi.once(&sql, &[]).affected());
            }
        }
        Ok(())
    })
}

// Keys whose head is gone. The rows are locked, so that a second look, with a snapshot that
// sees what was committed before the lock, decides.
const LOCK_STALE_KEYS: &str = "select k.key from fetchq.ordering_keys k
    where k.queue_id {=} $1
        and not exists (
            select from {docs} d
            where d.subject {=} k.head and d.ordering_key {=} k.key
                and d.status {=} any (array[{planned}, {pending}, {active}])
                and (d.lock_upgrade is null or d.lock_upgrade {<>} 'infinity'))
    order by k.key
    for update skip locked";

const IS_STALE_KEY: &str = "select from fetchq.ordering_keys k
    where k.queue_id {=} $1 and k.key {=} $2
        and not exists (
            select from {docs} d
            where d.subject {=} k.head and d.ordering_key {=} k.key
                and d.status {=} any (array[{planned}, {pending}, {active}])
                and (d.lock_upgrade is null or d.lock_upgrade {<>} 'infinity'))";

// Documents that the keys do not know: their key has no row, or they are neither blocked nor
// the head nor one of the other active documents.
const LOCK_STRAY_DOCUMENTS: &str = "select d.subject::text, d.status, d.ordering_key,
        d.lock_upgrade is not null
    from {docs} d
    where d.ordering_key is not null and d.status {=} any (array[{pending}, {active}])
        and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key
                and (d.lock_upgrade is not null or k.head {=} d.subject
                    or d.subject::text {=} any (k.also_active)))
    order by d.status desc, d.next_iteration, d.seq
    for update skip locked";

const IS_STRAY_DOCUMENT: &str = "select from {docs} d
    where d.subject {=} $2 and d.ordering_key is not null
        and d.status {=} any (array[{pending}, {active}])
        and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key
                and (d.lock_upgrade is not null or k.head {=} d.subject
                    or d.subject::text {=} any (k.also_active)))";

/// A row of `LOCK_STRAY_DOCUMENTS`. None: the subject is NULL, which the table forbids.
fn stray_document(rows: &Rows, row: usize) -> Option<TriggerDocument> {
    Some(TriggerDocument {
        subject: rows.get(row, 1)?,
        status: rows.get(row, 2).unwrap_or(Status::Pending.code()),
        ordering_key: rows.get(row, 3),
        is_blocked: rows.get(row, 4).unwrap_or(false),
        attempts: 0,
        iterations: 0,
        // The rows come in order: each is after those that were added before.
        next_iteration: i64::MAX,
        seq: i64::MAX,
    })
}

/// Repairs the keys of an ordered queue after triggers were switched off, or rows were lost.
/// Does nothing in a queue without an order. Rows that other transactions have locked are
/// left to the next repair.
pub fn repair(queue: &Queue) {
    if !queue.policy.is_ordered {
        return;
    }
    let id = Arg::from(queue.id);
    spi::connect(|spi| {
        if !is_set_up(spi, &queue.name) {
            if relation::try_lock(queue.table, LockMode::Writers) {
                if let Err(e) = create_index(spi, &queue.name) {
                    e.warn();
                    return;
                }
                recreate_keys(spi, &queue.name, queue.id);
                wakeups::capacity_freed(queue.table.to_u32(), u32::MAX);
            }
            return;
        }
        let rows = queue.once(spi, LOCK_STALE_KEYS, &[id]);
        let stale: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        for key in stale {
            let args = [id, Arg::from(key.as_str())];
            if queue.once(spi, IS_STALE_KEY, &args).affected() > 0 {
                promote_next(spi, queue, &key, None);
            }
        }
        let rows = queue.once(spi, LOCK_STRAY_DOCUMENTS, &[id]);
        let strays: Vec<TriggerDocument> = (0..rows.len())
            .filter_map(|row| stray_document(&rows, row))
            .collect();
        for doc in strays {
            let args = [id, Arg::from(doc.subject.as_str())];
            if queue.once(spi, IS_STRAY_DOCUMENT, &args).affected() > 0 {
                add_document(spi, queue, &doc);
            }
        }
    });
}
