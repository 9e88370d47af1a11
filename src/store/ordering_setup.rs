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

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{self, Spi};
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::signals::wakeups;
use crate::store::open_queue::Queue;
use crate::store::ordering::{FORGET_KEYS, PENDING, entered, open_next};
use crate::store::queue::lock_documents;
use crate::store::statement::render;
use crate::store::triggers::{has_triggers, set_triggers};

// The first one is for maintenance: `may_change`.
const TRIGGERS: [(&str, &str); 5] = [
    (
        "fetchq_order_due",
        "create trigger fetchq_order_due before update on {docs}
         for each row when (new.ordering_key is not null and old.lock_upgrade is null
             and (old.status = {planned} and new.status = {pending} or old.status = {active} and new.status = {killed}))
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
             and not (old.status = {pending} and new.status = {active} and old.lock_upgrade is null)
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
    insert into fetchq.ordering_keys (queue_id, key, head, also_active)
    select $1, l.key, max(l.subject) filter (where l.n = 1),
        coalesce(array_agg(l.subject order by l.n) filter (where l.n > 1 and l.status = {active}), '{}')
    from line l group by l.key";

const HOLD_ALL: &str = "update {docs} d set lock_upgrade = 'infinity'
    where d.ordering_key is not null and d.status = {pending} and d.lock_upgrade is null
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key and k.head = d.subject)";

const OPEN_ALL: &str = "update {docs} d set lock_upgrade = null
    where d.lock_upgrade = 'infinity' and d.ordering_key is not null
        and ($1 is null or d.status <> 1 or exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key and k.head = d.subject))";

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
            where d.subject = k.head and d.ordering_key = k.key and d.status in (0, 1, 2)
                and (d.lock_upgrade is null or d.lock_upgrade <> 'infinity'))
    order by k.key
    for update skip locked";

const IS_STALE: &str = "select from fetchq.ordering_keys k
    where k.queue_id = $1 and k.key = $2
        and not exists (
            select from {docs} d
            where d.subject = k.head and d.ordering_key = k.key and d.status in (0, 1, 2)
                and (d.lock_upgrade is null or d.lock_upgrade <> 'infinity'))";

// Documents that are in no line: of a key without a row, or not held and not open.
const STRAY: &str = "select d.subject::text, d.status, d.ordering_key, d.lock_upgrade is not null
    from {docs} d
    where d.ordering_key is not null and d.status in (1, 2)
        and (d.lock_upgrade is null or d.lock_upgrade = 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key
                and (d.lock_upgrade is not null or k.head = d.subject or d.subject::text = any (k.also_active)))
    order by d.status desc, d.next_iteration, d.seq
    for update skip locked";

const IS_STRAY: &str = "select from {docs} d
    where d.subject = $2 and d.ordering_key is not null and d.status in (1, 2)
        and (d.lock_upgrade is null or d.lock_upgrade = 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id = $1 and k.key = d.ordering_key
                and (d.lock_upgrade is not null or k.head = d.subject or d.subject::text = any (k.also_active)))";

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
                wakeups::capacity_freed(queue.table.to_u32(), u32::MAX);
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
                let stray = TriggerDocument {
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
