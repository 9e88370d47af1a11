//! Which documents that are ready may be picked: none of a queue that is paused, so many
//! at a time of one with `max_active`, so many within an interval of one with a rate.
//!
//! Both limits are rows, so that their locks make them exact: a place (`lease_slots`) is
//! free or has the subject of an active document, a turn (`rate_slots`) says from when on
//! it can be taken. A pick locks as many as it may need, skips those that others have
//! locked, and then claims as many documents. So nobody waits, and what is rolled back,
//! or ends with its session, has taken nothing.

use super::plans::{self, Queue, Statement, render};
use super::readiness::{self, Readiness};
use super::registry;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{self, Arg, Rows, Spi};
use crate::pg::time::{self, Interval};
use crate::pg::{session, subtransaction};
use crate::worker::waiters;

/// What a document is picked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It becomes active, and counts as such.
    Lease,
    /// It is gone at once: only the rate counts it.
    Pop,
}

/// Picks documents of a version within the limits of the queue: `pick` is told how many
/// it may pick, and says how many it has. What it did is undone when that is none.
pub fn pick(
    queue: &Queue,
    what: Use,
    version: i32,
    limit: i32,
    now: i64,
    pick: impl FnOnce(i32) -> i32,
) -> i32 {
    let policy = &queue.policy;
    if !policy.is_active {
        return 0;
    }
    let is_capped = policy.max_active.is_some() && what == Use::Lease;
    if !is_capped && policy.rate_limit.is_none() {
        return pick(limit);
    }
    // Not more than there is something to do with: all that is locked stays locked until
    // the transaction ends.
    let wanted = readiness::available(queue, version, now, limit);
    if wanted == 0 {
        return 0;
    }
    // Undone, or a session that waits would keep locked what it can not use.
    subtransaction::trial(|| {
        let allowed = admit(queue, what, wanted, now);
        if allowed == 0 {
            return (0, false);
        }
        let picked = pick(allowed);
        if picked > 0 && policy.rate_limit.is_some() {
            take_turns(queue, picked, now);
        }
        (picked, picked > 0)
    })
}

/// Places beyond the limit are numbered from here, by the `seq` of their documents.
const BEYOND: i64 = 1 << 40;

// Places beyond the limit: of documents that were active when it was lowered, or that
// were made active by hand.
static OVER: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from fetchq.lease_slots s
     where s.queue_id operator(pg_catalog.=) $1 and s.slot operator(pg_catalog.>=) $2",
);
static LOCK_PLACES: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id operator(pg_catalog.=) $1 and s.subject is null
         and s.slot operator(pg_catalog.<) $2
     order by s.slot
     limit $3
     for update skip locked",
);
static LOCK_TURNS: Statement = Statement::new(
    "select from fetchq.rate_slots r
     where r.queue_id operator(pg_catalog.=) $1 and r.free_at operator(pg_catalog.<=) $2
     order by r.free_at
     limit $3
     for update skip locked",
);

/// Locks places and turns for up to so many documents; says for how many.
fn admit(queue: &Queue, what: Use, wanted: i32, now: i64) -> i32 {
    let id = Arg::from(queue.id);
    let mut allowed = wanted;
    spi::connect(|spi| {
        if queue.policy.max_active.is_some() && what == Use::Lease {
            let beyond = Arg::from(BEYOND);
            // As many free places stay free, and locked, as there are beyond the limit.
            // Two picks lock different ones, so this holds for both together. Counted
            // when the locks are had: who lowers the limit touches what is free.
            let mut over = 0;
            loop {
                let limit = Arg::from(i64::from(wanted) + i64::from(over));
                let locked = queue
                    .run(spi, &LOCK_PLACES, &[id, beyond, limit])
                    .affected();
                let counted = queue.run(spi, &OVER, &[id, beyond]).get(0, 1).unwrap_or(0);
                if counted <= over || locked < wanted + over {
                    allowed = wanted.min(locked - counted);
                    break;
                }
                over = counted;
            }
        }
        if allowed > 0 && queue.policy.rate_limit.is_some() {
            let args = [id, Arg::timestamp(now), Arg::from(i64::from(allowed))];
            allowed = allowed.min(queue.run(spi, &LOCK_TURNS, &args).affected());
        }
    });
    allowed.max(0)
}

static TAKE_TURNS: Statement = Statement::new(
    "update fetchq.rate_slots t set free_at = $4
     where t.ctid operator(pg_catalog.=) any (array(
         select r.ctid from fetchq.rate_slots r
         where r.queue_id operator(pg_catalog.=) $1 and r.free_at operator(pg_catalog.<=) $2
         order by r.free_at
         limit $3
         for update skip locked))",
);

/// Takes turns that `admit` has locked. They were free when the pick's time began, and
/// are free again an interval after this moment: so no interval has more picks, whether
/// they are told by the one or by the other.
fn take_turns(queue: &Queue, n: i32, now: i64) {
    let free_at = time::clock().saturating_add(queue.policy.rate_interval);
    let args = [
        Arg::from(queue.id),
        Arg::timestamp(now),
        Arg::from(i64::from(n)),
        Arg::timestamp(free_at),
    ];
    let taken = spi::connect(|spi| queue.run(spi, &TAKE_TURNS, &args).affected());
    if taken != n {
        pgrx::error!(
            "only {taken} of {n} turns of the rate of queue {} could be taken",
            queue.name
        );
    }
}

static OCCUPY: Statement = Statement::new(
    "with free as (
         select f.slot, pg_catalog.row_number() over () as n from (
             select s.slot from fetchq.lease_slots s
             where s.queue_id operator(pg_catalog.=) $1 and s.subject is null
                 and s.slot operator(pg_catalog.<) $2
             order by s.slot
             limit pg_catalog.cardinality($3)
             for update skip locked) f)
     update fetchq.lease_slots s set subject = u.subject
     from free
     join pg_catalog.unnest($3) with ordinality as u (subject, n) on u.n operator(pg_catalog.=) free.n
     where s.queue_id operator(pg_catalog.=) $1 and s.slot operator(pg_catalog.=) free.slot",
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
     where s.queue_id operator(pg_catalog.=) $1 and s.subject operator(pg_catalog.=) $2
     limit 1
     for update skip locked",
);
static TAKE_PLACE: Statement = Statement::new(
    "update fetchq.lease_slots t set subject = $3
     where t.ctid operator(pg_catalog.=) any (array(
         select s.ctid from fetchq.lease_slots s
         where s.queue_id operator(pg_catalog.=) $1 and s.subject is null
             and s.slot operator(pg_catalog.<) $2
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
     where s.queue_id operator(pg_catalog.=) $1 and s.subject operator(pg_catalog.=) $2
     for update",
);
static FREE_PLACE: Statement = Statement::new(
    "update fetchq.lease_slots s set subject = null
     where s.queue_id operator(pg_catalog.=) $1 and s.slot operator(pg_catalog.=) $2",
);
static REMOVE_PLACE: Statement = Statement::new(
    "delete from fetchq.lease_slots s
     where s.queue_id operator(pg_catalog.=) $1 and s.slot operator(pg_catalog.=) $2",
);

/// A document has become active: fetchq's own picks have given it a place before.
pub fn activated(queue: &Queue, subject: &str, seq: i64) {
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
     where s.queue_id operator(pg_catalog.=) $1 and s.subject operator(pg_catalog.=) $2
     limit 1",
);
static ANY_PLACE: Statement = Statement::new(
    "select from fetchq.lease_slots s
     where s.queue_id operator(pg_catalog.=) $1 and s.subject is not null
     limit 1",
);

/// Fails in a transaction whose snapshot is too old to see a row that a statement finds
/// as of now.
pub(super) fn refuse_unseen(
    spi: &Spi,
    queue: &Queue,
    statement: &'static Statement,
    args: &[Arg],
) -> Result<()> {
    if session::keeps_snapshot() && plans::run_latest(spi, statement, args).affected() > 0 {
        return Err(Error::OlderSnapshot(queue.name.to_string()));
    }
    Ok(())
}

/// A document is not active any more.
pub fn released(queue: &Queue, subject: &str) -> Result<()> {
    if queue.policy.max_active.is_none() {
        return Ok(());
    }
    let id = Arg::from(queue.id);
    let freed = spi::connect(|spi| {
        let args = [id, Arg::from(subject)];
        let rows = queue.run(spi, &LOCK_PLACE, &args);
        let slots: Vec<i64> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        if slots.is_empty() {
            refuse_unseen(spi, queue, &PLACE_OF, &args)?;
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
    waiters::has_room(queue.table.to_u32(), freed);
    Ok(())
}

// In this order: what is moved beyond meanwhile is met by the second. Run by triggers,
// under the search_path of the session.
const EMPTY: [&str; 2] = [
    "update fetchq.lease_slots s set subject = null
     where s.queue_id operator(pg_catalog.=) $1 and s.slot operator(pg_catalog.<) $2
         and s.subject is not null",
    "delete from fetchq.lease_slots s
     where s.queue_id operator(pg_catalog.=) $1 and s.slot operator(pg_catalog.>=) $2",
];

/// All documents are gone.
pub fn emptied(queue: &Queue) -> Result<()> {
    if queue.policy.max_active.is_none() {
        return Ok(());
    }
    let args = [Arg::from(queue.id), Arg::from(BEYOND)];
    spi::connect(|spi| {
        for sql in EMPTY {
            spi.once(sql, &args);
        }
        refuse_unseen(spi, queue, &ANY_PLACE, &args[..1])
    })
}

static IS_ACTIVE: Statement =
    Statement::new("select q.is_active from fetchq.queues q where q.id operator(pg_catalog.=) $1");
static NEXT_TURN: Statement = Statement::new(
    "select r.free_at from fetchq.rate_slots r
     where r.queue_id operator(pg_catalog.=) $1 and r.free_at operator(pg_catalog.>) $2
     order by r.free_at
     limit 1",
);

/// When to look again at a queue that was just resumed, as other sessions are about to
/// learn: microseconds.
const RESUMED: i64 = 2_000;
/// The same where all places are taken, or others have locked what is free.
const RETRY: i64 = 50_000;

/// Whether a document of a version can be picked at this time: one is ready, and the
/// queue allows it.
pub fn readiness(queue: &Queue, version: i32, now: i64) -> Readiness {
    if !queue.policy.is_active {
        // As it is now, and not as this session remembers it: a commit wakes those who
        // wait before it tells the sessions what has changed.
        let is_active = spi::connect(|spi| {
            let rows = plans::run_latest(spi, &IS_ACTIVE, &[Arg::from(queue.id)]);
            !rows.is_empty() && rows.get(0, 1) == Some(true)
        });
        return Readiness::NotBefore(if is_active { now + RESUMED } else { i64::MAX });
    }
    match readiness::readiness(queue, version, now) {
        Readiness::Now if queue.policy.is_limited() => {
            // Tried and given back: only a lock can tell who else has it.
            let is_free = subtransaction::trial(|| (admit(queue, Use::Lease, 1, now) > 0, false));
            if is_free {
                return Readiness::Now;
            }
            Readiness::NotBefore(next_turn(queue, now).min(now + RETRY))
        }
        other => other,
    }
}

/// When the next turn of the rate is free, if that is what has to be waited for.
fn next_turn(queue: &Queue, now: i64) -> i64 {
    if queue.policy.rate_limit.is_none() {
        return i64::MAX;
    }
    spi::connect(|spi| {
        let args = [Arg::from(queue.id), Arg::timestamp(now)];
        let rows = queue.run(spi, &NEXT_TURN, &args);
        if rows.is_empty() {
            return i64::MAX;
        }
        rows.timestamp(0, 1).unwrap_or(i64::MAX)
    })
}

const SET_ACTIVE: &str =
    "update fetchq.queues set is_active = $2 where name = $1 and is_active <> $2";

/// Pauses or resumes a queue; says whether that changed something.
pub fn set_active(name: &QueueName, is_active: bool) -> Result<bool> {
    registry::lock_now(name)?;
    let args = [Arg::from(name.as_str()), Arg::from(is_active)];
    Ok(spi::connect(|spi| {
        spi.once(SET_ACTIVE, &args).affected() > 0
    }))
}

/// The triggers of a capped queue. They are the user's view of it too: what a console
/// does by plain SQL counts.
const CAP_TRIGGERS: [(&str, &str); 4] = [
    (
        "fetchq_cap_insert",
        "create trigger fetchq_cap_insert after insert on {docs}
         for each row when (new.status = 2) execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_update",
        "create trigger fetchq_cap_update after update on {docs}
         for each row when ((old.status = 2) <> (new.status = 2) or old.status = 2 and old.subject <> new.subject)
         execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_delete",
        "create trigger fetchq_cap_delete after delete on {docs}
         for each row when (old.status = 2) execute function fetchq.trigger_docs_cap()",
    ),
    (
        "fetchq_cap_truncate",
        "create trigger fetchq_cap_truncate after truncate on {docs}
         for each statement execute function fetchq.trigger_docs_cap()",
    ),
];

const TRIGGERS: &str = "select tgname::text, tgenabled <> 'D' from pg_trigger
    where tgrelid = to_regclass($1) and tgname = any ($2)";

/// Makes those of some triggers that are missing, or drops those that are there.
pub(super) fn set_triggers(spi: &Spi, name: &QueueName, triggers: &[(&str, &str)], on: bool) {
    let table = name.qualified("docs");
    let names: Vec<&str> = triggers.iter().map(|(trigger, _)| *trigger).collect();
    let rows = spi.once(TRIGGERS, &[Arg::from(table.as_str()), Arg::from(names)]);
    let there: Vec<(String, bool)> = (0..rows.len())
        .filter_map(|row| Some((rows.get(row, 1)?, rows.get(row, 2)?)))
        .collect();
    for (trigger, create) in triggers {
        let sql = match there.iter().find(|(name, _)| name == trigger) {
            None if on => render(create, name),
            Some((_, false)) if on => format!("alter table {table} enable trigger {trigger}"),
            Some(_) if !on => format!("drop trigger {trigger} on {table}"),
            _ => continue,
        };
        spi.once(&sql, &[]);
    }
}

/// Whether all of some triggers are there, and switched on.
pub(super) fn has_triggers(spi: &Spi, name: &QueueName, triggers: &[(&str, &str)]) -> bool {
    let table = name.qualified("docs");
    let names: Vec<&str> = triggers.iter().map(|(trigger, _)| *trigger).collect();
    let args = [Arg::from(table.as_str()), Arg::from(names)];
    let rows = spi.once(TRIGGERS, &args);
    let on = (0..rows.len()).filter(|row| rows.get(*row, 2) == Some(true));
    on.count() == triggers.len()
}

/// Keeps the writers of a queue's documents away; its id. They hold nothing then that
/// the caller would wait for.
pub(super) fn lock_documents(name: &QueueName, function: &'static str) -> Result<i32> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot(function));
    }
    let id = registry::lock_now(name)?;
    let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
        return Err(Error::UnknownQueue(name.to_string()));
    };
    relation::lock_writers(table);
    Ok(id)
}

const SET_MAX_ACTIVE: &str = "update fetchq.queues set max_active = $2 where name = $1";
const NO_PLACES: &str = "delete from fetchq.lease_slots where queue_id = $1";
// Made anew, so that no transaction with an older snapshot can lock one of them.
const MAKE_PLACES: &str = "insert into fetchq.lease_slots (queue_id, slot, subject)
    select $1, coalesce(free.slot, $3 + a.seq), a.subject
    from (
        select d.subject, d.seq, row_number() over (order by d.next_iteration, d.seq) as n
        from {docs} d where d.status = 2) a
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
    let id = registry::lock_now(name)?;
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

const SET_RATE: &str =
    "update fetchq.queues set rate_limit = $2, rate_interval = $3 where name = $1";
const NO_TURNS: &str = "delete from fetchq.rate_slots where queue_id = $1";
// The last picks count for the new rate as well.
const MAKE_TURNS: &str = "with gone as (delete from fetchq.rate_slots where queue_id = $1 returning free_at),
    last as (select free_at, row_number() over (order by free_at desc) as n from gone)
    insert into fetchq.rate_slots (queue_id, slot, free_at)
    select $1, t.slot, coalesce(l.free_at - (select q.rate_interval from fetchq.queues q where q.id = $1) + $3::interval, '-infinity')
    from generate_series(1, $2) as t (slot) left join last l on l.n = t.slot";

/// Sets how many documents can be picked within an interval.
pub fn set_rate(name: &QueueName, rate: Option<(i32, Interval)>) -> Result<i32> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_set_rate"));
    }
    let id = Arg::from(registry::lock_now(name)?);
    let key = Arg::from(name.as_str());
    Ok(spi::connect(|spi| {
        let (picks, interval) = match rate {
            Some((picks, interval)) => {
                let args = [id, Arg::from(picks), interval.arg()];
                spi.once(MAKE_TURNS, &args);
                (Some(picks), interval.arg())
            }
            None => {
                spi.once(NO_TURNS, &[id]);
                (None, Interval::none())
            }
        };
        spi.once(SET_RATE, &[key, Arg::from(picks), interval])
            .affected()
    }))
}

const DROP: [&str; 3] = [
    "delete from fetchq.lease_slots where queue_id = $1",
    "delete from fetchq.rate_slots where queue_id = $1",
    "delete from fetchq.ordering_keys where queue_id = $1",
];

/// Forgets what belongs to a queue that is dropped: it has places, turns, lines. (Who
/// has never used them needs no rights on their tables.)
pub fn drop_of(spi: &Spi, id: i32, has: [bool; 3]) {
    for (sql, _) in DROP.iter().zip(has).filter(|(_, has)| *has) {
        spi.once(sql, &[Arg::from(id)]);
    }
}

// Two statements, so that the second one sees what was committed before the first had
// its locks.
const STALE_PLACES: &str = "select s.slot from fetchq.lease_slots s
    where s.queue_id = $1 and s.subject is not null
        and not exists (select from {docs} d where d.subject = s.subject and d.status + 0 = 2)
    for update skip locked";
const FREE_STALE: &str = "update fetchq.lease_slots s set subject = null
    where s.queue_id = $1 and s.slot = any ($3) and s.slot < $2
        and not exists (select from {docs} d where d.subject = s.subject and d.status + 0 = 2)";
const REMOVE_STALE: &str = "delete from fetchq.lease_slots s
    where s.queue_id = $1 and s.slot = any ($3) and s.slot >= $2
        and not exists (select from {docs} d where d.subject = s.subject and d.status + 0 = 2)";
const WITHOUT_PLACE: &str = "select d.subject::text, d.seq from {docs} d
    where d.status = 2
        and not exists (select from fetchq.lease_slots s where s.queue_id = $1 and s.subject = d.subject)
    order by d.subject
    for update skip locked";
const STILL_WITHOUT: &str =
    "select from fetchq.lease_slots s where s.queue_id = $1 and s.subject = $2";
const MISSING_TURNS: &str = "insert into fetchq.rate_slots (queue_id, slot, free_at)
    select $1, t.slot, now() + (select q.rate_interval from fetchq.queues q where q.id = $1)
    from generate_series(1, $2) as t (slot)
    where not exists (select from fetchq.rate_slots r where r.queue_id = $1 and r.slot = t.slot)
    on conflict (queue_id, slot) do nothing";

/// Repairs the places of a capped queue, and the turns of one with a rate: where triggers
/// were switched off, or rows were lost.
pub fn repair(queue: &Queue) {
    let id = Arg::from(queue.id);
    spi::connect(|spi| {
        if let Some(max) = queue.policy.max_active {
            repair_places(spi, queue, max);
        }
        if let Some(picks) = queue.policy.rate_limit {
            spi.once(MISSING_TURNS, &[id, Arg::from(picks)]);
        }
    });
}

fn repair_places(spi: &Spi, queue: &Queue, max: i32) {
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
        waiters::has_room(queue.table.to_u32(), u32::MAX);
    }
    let rows = queue.once(spi, WITHOUT_PLACE, &[id]);
    for row in 0..rows.len() {
        if let (Some(subject), Some(seq)) = (rows.get::<String>(row, 1), rows.get(row, 2)) {
            let args = [id, Arg::from(subject.as_str())];
            if spi.once(STILL_WITHOUT, &args).affected() == 0 {
                activated(queue, &subject, seq);
            }
        }
    }
}
