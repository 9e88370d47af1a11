//! Which documents that are ready may be picked: none of a queue that is paused, so many
//! at a time of one with `max_active`, so many within an interval of one with a rate.
//!
//! Both limits are rows, so that their locks make them exact: a place (`lease_slots`) is
//! free or has the subject of an active document, a turn (`rate_permits`) says from when on
//! it can be taken. A pick locks as many as it may need, skips those that others have
//! locked, and then claims as many documents. So nobody waits, and what is rolled back,
//! or ends with its session, has taken nothing.

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::relation::{self, LockMode};
use crate::pg::session;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::signals::wakeups;
use crate::store::open_queue::Queue;
use crate::store::plans::refuse_unseen;
use crate::store::queue::{self, lock_documents};
use crate::store::statement::{Statement, render};
use crate::store::triggers::{has_triggers, set_triggers};

/// Places beyond the limit are numbered from here, by the `seq` of their documents.
pub const BEYOND: i64 = 1 << 40;

// Places beyond the limit: of documents that were active when it was lowered, or that
// were made active by hand.
pub static OVER: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.slot {>=} $2",
);

pub static LOCK_PLACES: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject is null
         and s.slot {<} $2
     order by s.slot
     limit $3
     for update skip locked",
);

static OCCUPY: Statement = Statement::new(
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

/// Gives the free places to documents that are about to become active: `rows` begin with
/// their subjects.
pub fn occupy(spi: &Spi, queue: &Queue, rows: &Rows) {
    let subjects = (0..rows.len()).filter_map(|row| rows.get::<String>(row, 1));
    let args = [
        Arg::from(queue.id),
        Arg::from(BEYOND),
        Arg::from(subjects.collect::<Vec<String>>()),
    ];
    let occupied = queue.run(spi, &OCCUPY, &args).affected();
    if occupied != rows.affected() {
        pgrx::error!(
            "only {occupied} of {} places of queue {} could be taken",
            rows.affected(),
            queue.name
        );
    }
}

// Locked, so that a repair that runs does not free it: that one skips it.
static HAS_PLACE: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject {=} $2
     limit 1
     for update skip locked",
);

static TAKE_PLACE: Statement = Statement::new(
    "update fetchq.lease_slots t set subject = $3
     where t.ctid {=} any (array(
         select s.ctid from fetchq.lease_slots s
         where s.queue_id {=} $1 and s.subject is null
             and s.slot {<} $2
         order by s.slot
         limit 1
         for update skip locked))",
);

static ADD_PLACE: Statement = Statement::new(
    "insert into fetchq.lease_slots as s (queue_id, slot, subject) values ($1, $2, $3)
     on conflict (queue_id, slot) do update set subject = excluded.subject",
);

// Locked first: who changes the limit may be moving it.
static LOCK_PLACE: Statement = Statement::new(
    "select s.slot from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject {=} $2
     for update",
);

static FREE_PLACE: Statement = Statement::new(
    "update fetchq.lease_slots s set subject = null
     where s.queue_id {=} $1 and s.slot {=} $2",
);

static REMOVE_PLACE: Statement = Statement::new(
    "delete from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.slot {=} $2",
);

/// A document has become active: fetchq's own picks have given it a place before.
pub fn document_activated(queue: &Queue, subject: &str, seq: i64) {
    if queue.policy.max_active.is_none() {
        return;
    }
    let (id, subject) = (Arg::from(queue.id), Arg::from(subject));
    spi::connect(|spi| {
        if queue.run(spi, &HAS_PLACE, &[id, subject]).affected() > 0 {
            return;
        }
        let args = [id, Arg::from(BEYOND), subject];
        if queue.run(spi, &TAKE_PLACE, &args).affected() == 0 {
            let slot = Arg::from(BEYOND.saturating_add(seq));
            queue.run(spi, &ADD_PLACE, &[id, slot, subject]);
        }
    });
}

// As of now: places that a transaction's snapshot does not see.
static PLACE_OF: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject {=} $2
     limit 1",
);

static ANY_PLACE: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.subject is not null
     limit 1",
);

/// A document is not active any more.
pub fn document_released(queue: &Queue, subject: &str) -> Result<()> {
    if queue.policy.max_active.is_none() {
        return Ok(());
    }
    let id = Arg::from(queue.id);
    let freed = spi::connect(|spi| {
        let args = [id, Arg::from(subject)];
        let rows = queue.run(spi, &LOCK_PLACE, &args);
        let slots: Vec<i64> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        if slots.is_empty() {
            refuse_unseen(spi, &queue.name, &PLACE_OF, &args)?;
        }
        for slot in &slots {
            let statement = match *slot < BEYOND {
                true => &FREE_PLACE,
                false => &REMOVE_PLACE,
            };
            queue.run(spi, statement, &[id, Arg::from(*slot)]);
        }
        Ok::<u32, Error>(u32::try_from(slots.len()).unwrap_or(1))
    })?;
    wakeups::capacity_freed(queue.table.to_u32(), freed);
    Ok(())
}

// In this order: what is moved beyond meanwhile is met by the second. Run by triggers,
// under the search_path of the session.
const EMPTY: [&str; 2] = [
    "update fetchq.lease_slots s set subject = null
     where s.queue_id {=} $1 and s.slot {<} $2
         and s.subject is not null",
    "delete from fetchq.lease_slots s
     where s.queue_id {=} $1 and s.slot {>=} $2",
];

/// All documents are gone.
pub fn documents_truncated(queue: &Queue) -> Result<()> {
    if queue.policy.max_active.is_none() {
        return Ok(());
    }
    let args = [Arg::from(queue.id), Arg::from(BEYOND)];
    spi::connect(|spi| {
        for sql in EMPTY {
            spi.once(sql, &args);
        }
        refuse_unseen(spi, &queue.name, &ANY_PLACE, &args[..1])
    })
}

/// The triggers of a capped queue. They are the user's view of it too: what a console
/// does by plain SQL counts.
const CAP_TRIGGERS: [(&str, &str); 4] = [
    (
        "fetchq_cap_insert",
        "create trigger fetchq_cap_insert after insert on {docs}
         for each row when (new.status = {active}) execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_update",
        "create trigger fetchq_cap_update after update on {docs}
         for each row when ((old.status = {active}) <> (new.status = {active}) or old.status = {active} and old.subject <> new.subject)
         execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_delete",
        "create trigger fetchq_cap_delete after delete on {docs}
         for each row when (old.status = {active}) execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_truncate",
        "create trigger fetchq_cap_truncate after truncate on {docs}
         for each statement execute function fetchq.trigger_docs_cap()",
    ),
];

const SET_MAX_ACTIVE: &str = "update fetchq.queues set max_active = $2 where name = $1";

const NO_PLACES: &str = "delete from fetchq.lease_slots where queue_id = $1";

// Made anew, so that no transaction with an older snapshot can lock one of them.
const MAKE_PLACES: &str = "insert into fetchq.lease_slots (queue_id, slot, subject)
    select $1, coalesce(free.slot, $3 + a.seq), a.subject
    from (
        select d.subject, d.seq, row_number() over (order by d.next_iteration, d.seq) as n
        from {docs} d where d.status = {active}) a
    full join generate_series(1, $2::bigint) as free (slot) on free.slot = a.n";

fn make_places(spi: &Spi, name: &QueueName, id: i32, max: i32) {
    spi.once(NO_PLACES, &[Arg::from(id)]);
    let args = [Arg::from(id), Arg::from(i64::from(max)), Arg::from(BEYOND)];
    spi.once(&render(MAKE_PLACES, name), &args);
    set_triggers(spi, name, &CAP_TRIGGERS, true);
}

const MORE_PLACES: &str = "insert into fetchq.lease_slots (queue_id, slot)
    select $1, n.slot from generate_series(1, $2::bigint) as n (slot)
    where not exists (select from fetchq.lease_slots s where s.queue_id = $1 and s.slot = n.slot)";

const MAX_ACTIVE: &str = "select max_active from fetchq.queues where name = $1";

/// Sets how many documents can be active at a time.
pub fn set_max_active(name: &QueueName, max: Option<i32>) -> Result<i32> {
    const FUNCTION: &str = "fetchq.queue_set_max_active";
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot(FUNCTION));
    }
    let id = queue::lock_now(name)?;
    let key = Arg::from(name.as_str());
    let is_raised = spi::connect(|spi| {
        let before: Option<i32> = spi.once(MAX_ACTIVE, &[key]).get(0, 1);
        before.is_some_and(|before| max.is_some_and(|max| before <= max))
            && has_triggers(spi, name, &CAP_TRIGGERS)
    });
    // More places need no lock on the documents. For fewer, nobody may be about to pick,
    // or to settle: each would wait for the other.
    if !is_raised {
        lock_documents(name, FUNCTION)?;
    }
    Ok(spi::connect(|spi| {
        match max {
            Some(max) if is_raised => {
                let args = [Arg::from(id), Arg::from(i64::from(max))];
                spi.once(MORE_PLACES, &args);
            }
            Some(max) => make_places(spi, name, id, max),
            None => {
                spi.once(NO_PLACES, &[Arg::from(id)]);
                set_triggers(spi, name, &CAP_TRIGGERS, false);
            }
        }
        spi.once(SET_MAX_ACTIVE, &[key, Arg::from(max)]).affected()
    }))
}

// Two statements, so that the second one sees what was committed before the first had
// its locks.
const STALE_PLACES: &str = "select s.slot from fetchq.lease_slots s
    where s.queue_id = $1 and s.subject is not null
        and not exists (select from {docs} d where d.subject = s.subject and d.status + 0 = {active})
    for update skip locked";

const FREE_STALE: &str = "update fetchq.lease_slots s set subject = null
    where s.queue_id = $1 and s.slot = any ($3) and s.slot < $2
        and not exists (select from {docs} d where d.subject = s.subject and d.status + 0 = {active})";

const REMOVE_STALE: &str = "delete from fetchq.lease_slots s
    where s.queue_id = $1 and s.slot = any ($3) and s.slot >= $2
        and not exists (select from {docs} d where d.subject = s.subject and d.status + 0 = {active})";

const WITHOUT_PLACE: &str = "select d.subject::text, d.seq from {docs} d
    where d.status = {active}
        and not exists (select from fetchq.lease_slots s where s.queue_id = $1 and s.subject = d.subject)
    order by d.subject
    for update skip locked";

const STILL_WITHOUT: &str =
    "select from fetchq.lease_slots s where s.queue_id = $1 and s.subject = $2";

pub fn repair_places(spi: &Spi, queue: &Queue, max: i32) {
    let id = Arg::from(queue.id);
    if !has_triggers(spi, &queue.name, &CAP_TRIGGERS) {
        if relation::try_lock(queue.table, LockMode::Writers) {
            make_places(spi, &queue.name, queue.id, max);
        }
        return;
    }
    let rows = queue.once(spi, STALE_PLACES, &[id]);
    let slots: Vec<i64> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    if !slots.is_empty() {
        let args = [id, Arg::from(BEYOND), Arg::from(slots)];
        queue.once(spi, FREE_STALE, &args);
        queue.once(spi, REMOVE_STALE, &args);
        wakeups::capacity_freed(queue.table.to_u32(), u32::MAX);
    }
    let rows = queue.once(spi, WITHOUT_PLACE, &[id]);
    for row in 0..rows.len() {
        if let (Some(subject), Some(seq)) = (rows.get::<String>(row, 1), rows.get(row, 2)) {
            let args = [id, Arg::from(subject.as_str())];
            if spi.once(STILL_WITHOUT, &args).affected() == 0 {
                document_activated(queue, &subject, seq);
            }
        }
    }
}
