//! Maintenance of documents: what has become due, leases that ran out. Hot, because
//! it runs ten times a second for each queue. Rows that another session holds are
//! skipped: maintenance never waits for a worker.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::{Result, raise};
use crate::pg::value::Arg;
use crate::pg::{spi, subtransaction, time};
use crate::ready::key::Key;
use crate::store::open_queue::Queue;
use crate::store::ordering::as_maintenance;
use crate::store::statement::Statement;
use crate::store::{counter_log, dead_letters};

// Index of the four: due, a range of one status up to now.
static MARK_DEAD: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, lease = null, worker_session = null,
         last_error = pg_catalog.format('the lease of attempt %s ran out', d.attempts)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($3, $4)
             and c.attempts {>=} coalesce(c.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
         order by c.next_iteration, c.seq
         limit $2
         for update skip locked))
     returning d.subject::pg_catalog.text",
);

static RESCHEDULE_ORPHANS: Statement = Statement::new(
    "update only {docs} d set
         status = {pending}, lease = null, worker_session = null,
         last_error = pg_catalog.format('the lease of attempt %s ran out', d.attempts)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($3, $4)
             and c.attempts {<} coalesce(c.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
         order by c.next_iteration, c.seq
         limit $2
         for update skip locked))",
);

// Both in one pass: with a million lost leases, of which few are at their last attempt,
// looking for those alone would read all of them each time.
static EXPIRE: Statement = Statement::new(
    "update only {docs} d set
         status = case when d.attempts {>=} coalesce(d.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
             then -1 else 1 end,
         lease = null, worker_session = null,
         last_error = pg_catalog.format('the lease of attempt %s ran out', d.attempts)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($3, $4)
         order by c.next_iteration, c.seq
         limit $2
         for update skip locked))
     returning d.status, d.subject::pg_catalog.text",
);

static MAKE_PENDING: Statement = Statement::new(
    "update only {docs} d set status = {pending}
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {planned}
             and c.lock_upgrade is null
             and c.next_iteration {<=} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($2, $3)
         order by c.next_iteration, c.seq
         limit $1
         for update skip locked))",
);

// For an ordered queue: what was chosen, in order, and whether it could be changed. $4:
// keys that another transaction has.
static MAKE_PENDING_BY_KEY: Statement = Statement::new(
    "with chosen as (
         select c.ctid, c.subject, c.next_iteration, c.seq, c.ordering_key from only {docs} c
         where c.status {=} {planned}
             and c.lock_upgrade is null
             and c.next_iteration {<=} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($2, $3)
             and (c.ordering_key is null or c.ordering_key {<>} all ($4))
         order by c.next_iteration, c.seq
         limit $1
         for update skip locked),
     changed as (
         update only {docs} d set status = {pending}
         where d.ctid {=} any (array(select c.ctid from chosen c))
         returning d.subject)
     select c.ordering_key, c.next_iteration, c.seq, u.subject is not null
     from chosen c
     left join changed u on u.subject {=} c.subject
     order by c.next_iteration, c.seq",
);

/// Kills documents whose lease ran out at their last attempt.
pub fn mark_dead(queue: &Queue, limit: i32) -> Result<i32> {
    let Some(floor) = floor(queue, Status::Active) else {
        return Ok(0);
    };
    let args = [
        Arg::from(queue.id),
        Arg::from(i64::from(limit)),
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.seq),
    ];
    spi::connect(|spi| {
        let rows = as_maintenance(|| queue.run(spi, &MARK_DEAD, &args));
        let killed: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        dead(queue, &killed)?;
        Ok(rows.affected())
    })
}

/// What becomes of documents that this statement has killed.
fn dead(queue: &Queue, subjects: &[String]) -> Result<()> {
    dead_letters::settle_failed(queue, subjects, Event::Dead, Event::DeadRemoved, false)
}

/// Returns documents whose lease ran out.
pub fn reschedule_orphans(queue: &Queue, limit: i32) -> i32 {
    let own = [Arg::from(queue.id), Arg::from(i64::from(limit))];
    run(
        queue,
        Status::Active,
        &RESCHEDULE_ORPHANS,
        &own,
        Event::Orphan,
    )
}

/// What became of documents whose lease ran out.
#[derive(Debug, Default, Clone)]
pub struct Expired {
    pub returned: i32,
    pub killed: i32,
    /// Why none was killed.
    pub failure: Option<String>,
}

/// Returns or kills documents whose lease ran out, the oldest first. Where the dead leave
/// the table that may fail, and must not keep the others from coming back.
pub fn expire(queue: &Queue, limit: i32) -> Result<Expired> {
    let Some(floor) = floor(queue, Status::Active) else {
        return Ok(Expired::default());
    };
    let args = [
        Arg::from(queue.id),
        Arg::from(i64::from(limit)),
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.seq),
    ];
    if !dead_letters::removes_failed(queue) {
        return expire_from(queue, &args);
    }
    match subtransaction::attempt(|| raise(expire_from(queue, &args))) {
        Ok(expired) => Ok(expired),
        Err(message) => Ok(Expired {
            returned: reschedule_orphans(queue, limit),
            killed: 0,
            failure: Some(message),
        }),
    }
}

fn expire_from(queue: &Queue, args: &[Arg]) -> Result<Expired> {
    spi::connect(|spi| {
        let rows = as_maintenance(|| queue.run(spi, &EXPIRE, args));
        let subjects: Vec<String> = (0..rows.len())
            .filter(|row| rows.get(*row, 1) == Some(Status::Killed.code()))
            .filter_map(|row| rows.get(row, 2))
            .collect();
        let killed = i32::try_from(subjects.len()).unwrap_or(i32::MAX);
        let returned = rows.affected() - killed;
        dead(queue, &subjects)?;
        counter_log::record_event(queue, 0, returned, Event::Orphan);
        Ok(Expired {
            returned,
            killed,
            failure: None,
        })
    })
}

/// Makes planned documents pending when their time has come.
pub fn make_pending(queue: &Queue, limit: i32) -> i32 {
    if queue.policy.is_ordered {
        return make_pending_by_key(queue, limit);
    }
    let own = [Arg::from(i64::from(limit))];
    run(
        queue,
        Status::Planned,
        &MAKE_PENDING,
        &own,
        Event::MakePending,
    )
}

/// How often it looks behind documents that can not be changed now.
const ROUNDS: usize = 20;

/// The same for an ordered queue: documents of a key that another transaction has stay
/// as they are, and those behind them come instead.
fn make_pending_by_key(queue: &Queue, limit: i32) -> i32 {
    let Some(mut floor) = floor(queue, Status::Planned) else {
        return 0;
    };
    let mut busy: Vec<String> = Vec::new();
    let mut n = 0;
    spi::connect(|spi| {
        for _ in 0..ROUNDS {
            let args = [
                Arg::from(i64::from(limit - n)),
                Arg::timestamp(floor.next_iteration),
                Arg::from(floor.seq),
                Arg::from(busy.clone()),
            ];
            let rows = as_maintenance(|| queue.run(spi, &MAKE_PENDING_BY_KEY, &args));
            let chosen = rows.affected();
            let mut changed = 0;
            for row in 0..rows.len() {
                if rows.get(row, 4) == Some(true) {
                    changed += 1;
                } else if let Some(key) = rows.get::<String>(row, 1)
                    && !busy.contains(&key)
                {
                    busy.push(key);
                }
            }
            n += changed;
            // (nothing was in the way, or there is nothing behind it)
            if changed == chosen || n >= limit || rows.is_empty() {
                break;
            }
            let last = rows.len() - 1;
            floor.next_iteration = rows.timestamp(last, 2).unwrap_or(i64::MAX);
            floor.seq = rows.get(last, 3).unwrap_or(i64::MAX);
        }
        counter_log::record_event(queue, 0, n, Event::MakePending);
    });
    n
}

/// When the next document is due, planned or leased; the past when it is something that
/// cannot be had now. None where the floors are not known.
pub fn next_due(queue: &Queue) -> Option<i64> {
    let floors = queue.floors()?;
    let now = time::now();
    let planned = floors.due(Status::Planned.code(), now)?;
    let leased = floors.due(Status::Active.code(), now)?;
    Some(planned.next_iteration.min(leased.next_iteration))
}

/// Where maintenance begins to look; None when nothing is due.
fn floor(queue: &Queue, from: Status) -> Option<Key> {
    let now = time::now();
    let known = queue.floors().and_then(|s| s.due(from.code(), now));
    match known {
        Some(floor) if floor >= Key::until(now) => None,
        Some(floor) => Some(floor),
        None => Some(Key::FIRST),
    }
}

/// Runs a statement with its own arguments and, behind them, the floor.
fn run(
    queue: &Queue,
    from: Status,
    statement: &'static Statement,
    own: &[Arg],
    event: Event,
) -> i32 {
    let Some(floor) = floor(queue, from) else {
        return 0;
    };
    let mut args = own.to_vec();
    args.extend([Arg::timestamp(floor.next_iteration), Arg::from(floor.seq)]);
    spi::connect(|spi| {
        let n = as_maintenance(|| queue.run(spi, statement, &args)).affected();
        counter_log::record_event(queue, 0, n, event);
        n
    })
}
