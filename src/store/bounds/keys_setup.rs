//! Switching the order of a queue on and off (the settings `ordered` and `max_active_per_key`): its
//! triggers, its index, and the repair of its keys. `keys.rs` has the rules of the order.

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::Result;
use crate::late::memory;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::trigger::TriggerDocument;
use crate::pg::value::Arg;
use crate::signals::wakeups;
use crate::store::bounds::keys::{FIRST, Key, add_document};
use crate::store::counters::counter_log;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::KeyOrder;
use crate::store::queues::queue::{DELETE_KEYS, keep_writers_away};
use crate::store::queues::queue_tables;
use crate::store::queues::statement::{Scope, render};
use crate::store::queues::triggers::{has_triggers, set_triggers};

/// The triggers of a queue with an order. The first one serves maintenance (`may_change`).
const TRIGGERS: [(&str, &str); 5] = [
    (
        "fetchq_order_due",
        "create trigger fetchq_order_due before update on {docs}
         for each row when (old.lock_upgrade is null
             and (new.ordering_key is not null
                     and (old.status {=} {planned} and new.status {=} {pending}
                         or old.status {=} {active} and new.status {=} {killed})
                 or new.queued is not null and old.status {=} {active} and new.status {<>} {active}))
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
                 or coalesce(old.ordering_key {<>} new.ordering_key,
                     old.ordering_key is not null or new.ordering_key is not null)))
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

/// The other trigger of a queue in which a retry gives up its place, for maintenance too: so does a
/// document whose lease has expired.
const RETURN_TRIGGERS: [(&str, &str); 1] = [(
    "fetchq_order_return",
    "create trigger fetchq_order_return before update on {docs}
     for each row when (new.ordering_key is not null and old.lock_upgrade is null
         and old.status {=} {active} and new.status {=} {pending})
     execute function fetchq.trigger_docs_order()",
)];

/// The index of the blocked documents, by key, in the order in which they get a place.
const INDEX: &str = "docs_blocked_idx";

const CREATE_INDEX: &str = "create index \"{q}__docs_blocked_idx\" on {docs}
    (ordering_key, next_iteration, seq) where lock_upgrade is not null";

const HAS_ORDER: &str = "select from fetchq.queues
    where name {=} $1 and (is_ordered or max_active_per_key is not null)";

// The documents that wait for a retry have no place where a retry gives it up.
const PLAN_RETRIES: &str = "update {docs} d set status = {planned}, lock_upgrade = null
    where d.ordering_key is not null and d.status {=} {pending} and d.next_iteration {>} pg_catalog.now()
        and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')";

// The first places of a key go to its active documents, however many there are, then to one that is
// retried, then to the first ones. $2: how many documents of a key may run. $3: one that is retried
// keeps its place.
const ADD_KEYS: &str = "with ranked as (
        select d.ordering_key as key, d.subject::pg_catalog.text as subject, d.status,
            pg_catalog.row_number() over (partition by d.ordering_key
                order by d.status desc, ($3 and d.attempts {>} 0) desc, d.next_iteration, d.seq) as n
        from {docs} d
        where d.ordering_key is not null and d.status {=} any (array[{pending}, {active}])
            and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity'))
    insert into fetchq.ordering_keys (queue_id, key, unblocked)
    select $1, r.key, pg_catalog.array_agg(r.subject order by r.n)
    from ranked r where r.status {=} {active} or r.n {<=} $2
    group by r.key";

const BLOCK_ALL: &str = "update {docs} d set lock_upgrade = 'infinity'
    where d.ordering_key is not null and d.status {=} {pending} and d.lock_upgrade is null
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key
                and d.subject::pg_catalog.text {=} any (k.unblocked))";

// $1: the id of the queue, or NULL to unblock all documents and not those alone that may run.
const UNBLOCK_ALL: &str = "update {docs} d set lock_upgrade = null
    where d.lock_upgrade {=} 'infinity' and d.ordering_key is not null
        and ($1 is null or d.status {<>} {pending} or exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key
                and d.subject::pg_catalog.text {=} any (k.unblocked)))";

/// Makes the index of the blocked documents where a queue with an order lacks it.
pub fn create_index(spi: &Spi, name: &QueueName) {
    if !spi.once(HAS_ORDER, &[Arg::from(name.as_str())]).is_empty() {
        queue_tables::create_index(spi, name, INDEX, CREATE_INDEX);
    }
}

/// How many places a key has, and whether a retry keeps its place: parameters of the statements.
fn order_args(order: KeyOrder) -> [Arg; 2] {
    let places = i64::try_from(order.places()).unwrap_or(i64::MAX);
    [Arg::from(places), Arg::from(order.keeps_place_on_retry())]
}

/// Makes the keys, blocks all documents but those that may run, and makes the triggers. `order` is
/// not `KeyOrder::None`. Returns how many retries are planned from now on, which the caller counts.
fn recreate_keys(spi: &Spi, name: &QueueName, id: i32, order: KeyOrder) -> i32 {
    // Those that are leased keep their places.
    if memory::exists()
        && let Ok(queue) = Queue::open(name)
    {
        queue.before_scope(Scope::Table);
    }
    spi.once(DELETE_KEYS, &[Arg::from(id)]);
    let gives_up_place = !order.keeps_place_on_retry();
    set_triggers(spi, name, &RETURN_TRIGGERS, gives_up_place);
    let mut planned = 0;
    if gives_up_place {
        // The triggers would look for keys, which are made afterwards.
        set_triggers(spi, name, &TRIGGERS, false);
        planned = spi.once(&render(PLAN_RETRIES, name), &[]).affected();
    }
    let id = Arg::from(id);
    let [places, keeps_place] = order_args(order);
    spi.once(&render(ADD_KEYS, name), &[id, places, keeps_place]);
    for sql in [BLOCK_ALL, UNBLOCK_ALL] {
        spi.once(&render(sql, name), &[id]);
    }
    set_triggers(spi, name, &TRIGGERS, true);
    planned
}

/// Returns whether triggers and index of the order exist, and the triggers are switched on.
fn is_set_up(spi: &Spi, name: &QueueName, order: KeyOrder) -> bool {
    has_triggers(spi, name, &TRIGGERS)
        && has_triggers(spi, name, &RETURN_TRIGGERS) != order.keeps_place_on_retry()
        && queue_tables::has_index(name, INDEX)
}

/// Counts retries that `recreate_keys` has planned. Fails as `Queue::open` does.
fn count_planned(name: &QueueName, n: i32) -> Result<()> {
    if n > 0 {
        counter_log::record_event(&*Queue::open(name)?, 0, n, Event::UpsertToPlanned);
    }
    Ok(())
}

/// Makes or drops the triggers, the index and the keys of a queue whose order is switched on or
/// off, or changed. The caller has locked its row in the registry, which has the new order already.
/// Fails with `Error::UnknownQueue` when the queue has lost its
/// documents table.
pub(in crate::store) fn change(
    name: &QueueName,
    id: i32,
    before: KeyOrder,
    after: KeyOrder,
) -> Result<()> {
    if !before.blocks() && !after.blocks() {
        return Ok(());
    }
    spi::connect(|spi| {
        if before == after && is_set_up(spi, name, after) {
            // The keys are right already.
            return Ok(());
        }
        keep_writers_away(name)?;
        if after.blocks() {
            create_index(spi, name);
            let planned = recreate_keys(spi, name, id, after);
            count_planned(name, planned)?;
        } else {
            set_triggers(spi, name, &RETURN_TRIGGERS, false);
            set_triggers(spi, name, &TRIGGERS, false);
            spi.once(DELETE_KEYS, &[Arg::from(id)]);
            spi.once(&render(UNBLOCK_ALL, name), &[Arg::from(None::<i32>)]);
            if queue_tables::has_index(name, INDEX) {
                let sql = format!("drop index {}", name.qualified(INDEX));
                spi.once(&sql, &[]);
            }
        }
        Ok(())
    })
}

// Documents that the keys do not know: their key has no row, or they have no place and are not blocked.
// The rows are locked, so that a second look at one of them ($2), with a snapshot that sees what was
// committed before the lock, decides.
const LOCK_STRAY_DOCUMENTS: &str = "select d.subject::pg_catalog.text, d.status, d.ordering_key,
        d.lock_upgrade is not null
    from {docs} d
    where ($2 is null or d.subject {=} $2)
        and d.ordering_key is not null and d.status {=} any (array[{pending}, {active}])
        and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')
        and not exists (
            select from fetchq.ordering_keys k
            where k.queue_id {=} $1 and k.key {=} d.ordering_key
                and (d.lock_upgrade is not null or d.subject::pg_catalog.text {=} any (k.unblocked)))
    order by d.status desc, d.next_iteration, d.seq
    for update skip locked";

/// A row of `LOCK_STRAY_DOCUMENTS`. None: the subject is NULL, which the table forbids.
fn stray_document(rows: &Rows, row: usize) -> Option<TriggerDocument> {
    Some(TriggerDocument {
        subject: rows.get(row, 1)?,
        status: rows.get(row, 2).unwrap_or(Status::Pending.code()),
        ordering_key: rows.get(row, 3),
        is_blocked: rows.get(row, 4).unwrap_or(false),
        queued_key: None,
        attempts: 0,
        iterations: 0,
        // The rows come in order: each is after those that were added before.
        next_iteration: i64::MAX,
        seq: i64::MAX,
    })
}

fn add_stray_documents(spi: &Spi, queue: &Queue) {
    let look = |subject: Option<&str>| {
        let args = [Arg::from(queue.id), Arg::from(subject)];
        queue.once(spi, LOCK_STRAY_DOCUMENTS, &args)
    };
    let rows = look(None);
    let strays = (0..rows.len()).filter_map(|row| stray_document(&rows, row));
    for doc in strays.collect::<Vec<TriggerDocument>>() {
        if !look(Some(&doc.subject)).is_empty() {
            add_document(spi, queue, &doc);
        }
    }
}

// Keys of which a document that has a place is gone, that have a free place beside a blocked document,
// or a pending document with a place that there is not; and those that have a place rightly. $2 and $3
// as for `ADD_KEYS`: a document that is planned may have kept its place. The rows are locked, and a
// second look at one of them ($4) decides.
const LOCK_STALE_KEYS: &str = "select coalesce(live.subjects, '{}'), k.key from fetchq.ordering_keys k
    left join lateral (
        select pg_catalog.count(*) as n, pg_catalog.count(*) filter (where d.status {=} {pending}) as pending,
            pg_catalog.array_agg(d.subject::pg_catalog.text order by d.status desc, d.next_iteration, d.seq) as subjects
        from {docs} d
        where d.subject {=} any (k.unblocked)
            and d.ordering_key {=} k.key
            and (d.status {=} any (array[{pending}, {active}]) or $3 and d.status {=} {planned})
            and (d.lock_upgrade is null or d.lock_upgrade {<>} 'infinity')) live on true
    where k.queue_id {=} $1 and ($4 is null or k.key {=} $4)
        and (live.n {<>} pg_catalog.cardinality(k.unblocked)
            or live.n {>} $2 and live.pending {>} 0
            or live.n {<} $2 and exists (
                select from {docs} b
                where b.ordering_key {=} k.key and b.status {=} {pending}
                    and b.lock_upgrade {=} 'infinity'))
    order by k.key
    for update of k skip locked";

fn repair_keys(spi: &Spi, queue: &Queue) {
    let order = queue.policy.key_order;
    let [places, keeps_place] = order_args(order);
    let look = |key: Option<&str>| {
        let args = [Arg::from(queue.id), places, keeps_place, Arg::from(key)];
        queue.once(spi, LOCK_STALE_KEYS, &args)
    };
    let rows = look(None);
    let keys: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 2)).collect();
    for key in &keys {
        let row = look(Some(key));
        // No row: the key was changed before it was locked.
        let Some(mut key) = Key::of(spi, queue, key, &row) else {
            continue;
        };
        while key.unblocked.len() > order.places() && key.block_last(FIRST) {}
        key.fill(None);
        key.write(None);
    }
}

/// Repairs the keys of a queue with an order after triggers were switched off, or rows were lost.
/// Does nothing in a queue without an order. Rows that other transactions have locked are
/// left to the next repair.
pub fn repair(queue: &Queue) {
    let order = queue.policy.key_order;
    if !order.blocks() {
        return;
    }
    spi::connect(|spi| {
        if is_set_up(spi, &queue.name, order) {
            add_stray_documents(spi, queue);
            // After the documents: only the first of a key that had no row has been added, and the
            // others, which are blocked, may get places now.
            repair_keys(spi, queue);
        } else if relation::try_lock(queue.table, LockMode::Writers) {
            create_index(spi, &queue.name);
            let planned = recreate_keys(spi, &queue.name, queue.id, order);
            counter_log::record_event(queue, 0, planned, Event::UpsertToPlanned);
            wakeups::capacity_freed(queue.table.to_u32(), u32::MAX);
        }
    });
}
