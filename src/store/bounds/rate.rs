//! The rate of a queue (`rate_limit` per `rate_interval`): how many of its documents may be
//! picked within an interval.
//!
//! A queue with a rate has `rate_limit` rows in `fetchq.rate_permits`. A permit has the time
//! from which on it can be used.
//!
//! limits.rs locks the permits for a pick (`admit`), and says why their locks make the rate exact.
//! This file uses them up, and sets the rate.

use pgrx::pg_sys::Oid;

use crate::pg::spi::{self, Spi};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::store::bounds::cap::is_locked;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue::DELETE_PERMITS;
use crate::store::queues::statement::Statement;

/// Locks free permits. $1: the id of the queue, $2: the time of the pick, $3: how many.
// Index: rate_permits_free_idx, a range that ends with now.
pub static LOCK_PERMITS: Statement = Statement::new(
    "select from fetchq.rate_permits r
     where r.queue_id {=} $1 and r.free_at {<=} $2
     order by r.free_at
     limit $3
     for update skip locked",
);

// Index: rate_permits_free_idx, and a Tid Scan for the update.
static USE_PERMITS: Statement = Statement::new(
    "update fetchq.rate_permits t set free_at = $4
     where t.ctid {=} any (array(
         select r.ctid from fetchq.rate_permits r
         where r.queue_id {=} $1 and r.free_at {<=} $2
         order by r.free_at
         limit $3
         for update skip locked))",
);

/// Uses `n` permits, which the caller has locked with `LOCK_PERMITS` at the same `now`, in
/// microseconds since 2000. They were free when the time of the pick began, and are free
/// again an interval after this moment. No interval therefore has more picks than the rate
/// allows, by either of the two times. It is an ERROR of the server when fewer are free.
pub fn use_permits(queue: &Queue, n: i32, now: i64) {
    let (free_at, _) = latest(queue, time::clock());
    let args = [
        Arg::from(queue.id),
        Arg::timestamp(now),
        Arg::from(i64::from(n)),
        Arg::timestamp(free_at),
    ];
    let used = spi::connect(|spi| queue.run(spi, &USE_PERMITS, &args).affected());
    if used != n {
        pgrx::error!(
            "only {used} of {n} rate permits of queue {} could be used",
            queue.name
        );
    }
}

// Index: the primary key. $2: the time. A row for each number in `xmax`, as for the lease slots.
const USE_OF_PERMITS: &str = "select r.free_at {<=} $2, (pg_catalog.array_agg(r.ctid))[1],
        pg_catalog.count(*), pg_catalog.min(r.free_at)
    from fetchq.rate_permits r
    where r.queue_id {=} $1
    group by 1, r.xmax";

const INTERVAL: &str =
    "select q.rate_interval::pg_catalog.text from fetchq.queues q where q.id {=} $1";

/// The permits of a queue with a rate.
pub struct UseOfPermits {
    /// How many can be used now.
    pub free: i64,
    /// When the next one is free.
    pub next: Option<i64>,
    /// The interval of the rate.
    pub interval: String,
}

/// Which rate permits of a queue are free at a time, in microseconds since 2000, and not locked by an
/// open transaction of another session, which uses them. Locks nothing. `queue`: its id. `permits`: the table of the
/// permits, which is locked.
pub fn use_of_permits(spi: &Spi, permits: Oid, queue: i32, now: i64) -> UseOfPermits {
    let interval = spi.once_latest(INTERVAL, &[Arg::from(queue)]).get(0, 1);
    let mut found = UseOfPermits {
        free: 0,
        next: None,
        interval: interval.unwrap_or_default(),
    };
    let rows = spi.once_latest(USE_OF_PERMITS, &[Arg::from(queue), Arg::timestamp(now)]);
    for row in 0..rows.len() {
        if rows.get(row, 1) != Some(true) {
            let next = rows.timestamp(row, 4).into_iter();
            found.next = next.chain(found.next).min();
        } else if !is_locked(permits, &rows, row, 2) {
            found.free += rows.get(row, 3).unwrap_or(0);
        }
    }
    found
}

/// Permits that become free later than this after an interval from now were used before the clock was
/// set back, or on a server whose clock was ahead: microseconds. Another session may have used permits
/// a moment after this one read the clock.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;

/// When permits that are used now become free, by `clock`; and the latest time that a permit can have.
fn latest(queue: &Queue, clock: i64) -> (i64, i64) {
    let free_at = clock.saturating_add(queue.policy.rate_interval);
    (free_at, free_at.saturating_add(CLOCK_TOLERANCE_US))
}

// Index: rate_permits_free_idx, a range that begins in the future and is empty nearly always. $1: the
// id of the queue, $2: the latest time that a permit can have.
static LOCK_LATE_PERMIT: Statement = Statement::new(
    "select from fetchq.rate_permits r
     where r.queue_id {=} $1 and r.free_at {>} $2
     limit 1
     for update skip locked",
);

// The interval is that of the registry: that of this session may be older than the permits. Index:
// as above, and a Tid Scan for the update.
static CLAMP_PERMITS: Statement = Statement::new(
    "update fetchq.rate_permits t set free_at = $3
     where t.ctid {=} any (array(
         select r.ctid from fetchq.rate_permits r
         where r.queue_id {=} $1 and r.free_at {>} $2
             and exists (
                 select from fetchq.queues q where q.id {=} $1 and q.rate_interval {=} $4)
         for update skip locked))",
);

/// Returns whether a pick would find permits that cannot be legitimate, and locks one of them.
pub fn has_late_permits(queue: &Queue) -> bool {
    let (_, latest) = latest(queue, time::clock());
    let args = [Arg::from(queue.id), Arg::timestamp(latest)];
    spi::connect(|spi| queue.run(spi, &LOCK_LATE_PERMIT, &args).affected() > 0)
}

/// Has permits that cannot be legitimate become free an interval from now on, as if they were used
/// now: nobody knows when they were. They would become free when the clock has caught up.
pub fn clamp_permits(queue: &Queue) {
    let (free_at, latest) = latest(queue, time::clock());
    let args = [
        Arg::from(queue.id),
        Arg::timestamp(latest),
        Arg::timestamp(free_at),
        Interval::of(Some(queue.policy.rate_interval)),
    ];
    spi::connect(|spi| {
        queue.run(spi, &CLAMP_PERMITS, &args);
    });
}

// Index: rate_permits_free_idx, the first entry after now.
static NEXT_PERMIT: Statement = Statement::new(
    "select r.free_at from fetchq.rate_permits r
     where r.queue_id {=} $1 and r.free_at {>} $2
     order by r.free_at
     limit 1",
);

/// The time when the next permit becomes free, in microseconds since 2000; `i64::MAX` when
/// the queue has no rate, or when no permit becomes free after `now`.
pub fn next_permit(queue: &Queue, now: i64) -> i64 {
    if queue.policy.rate_limit.is_none() {
        return i64::MAX;
    }
    spi::connect(|spi| {
        let args = [Arg::from(queue.id), Arg::timestamp(now)];
        let rows = queue.run(spi, &NEXT_PERMIT, &args);
        if rows.is_empty() {
            return i64::MAX;
        }
        rows.timestamp(0, 1).unwrap_or(i64::MAX)
    })
}

// The last picks count for the new rate as well: the permits that were used last are used
// ones of the new rate. $3: the interval that it had before.
const RECREATE_PERMITS: &str = "with
    deleted as (delete from fetchq.rate_permits where queue_id {=} $1 returning free_at),
    last as (select free_at, pg_catalog.row_number() over (order by free_at desc) as n from deleted)
    insert into fetchq.rate_permits (queue_id, permit, free_at)
    select $1, t.permit, coalesce(
        l.free_at {-} $3::interval
            {+} (select q.rate_interval from fetchq.queues q where q.id {=} $1),
        '-infinity')
    from pg_catalog.generate_series(1, $2) as t (permit)
    left join last l on l.n {=} t.permit";

/// A rate, as it is in the registry.
#[derive(Debug, PartialEq)]
pub struct Rate {
    /// How many documents may be picked. None: there is no rate.
    pub picks: Option<i32>,
    /// Within which interval, as text.
    pub per: Option<String>,
}

/// Makes the permits of a queue, whose row in the registry has the new rate already. The caller
/// has locked that row.
pub(in crate::store) fn change(queue_id: i32, before: &Rate, after: &Rate) {
    if before == after {
        return;
    }
    let id = Arg::from(queue_id);
    spi::connect(|spi| match after.picks {
        Some(picks) => {
            let args = [id, Arg::from(picks), Arg::from(before.per.as_deref())];
            spi.once(RECREATE_PERMITS, &args);
        }
        None => {
            spi.once(DELETE_PERMITS, &[id]);
        }
    });
}

/// Adds the permits that a queue lacks, as ones that were just used. $1: the id of the
/// queue, $2: its `rate_limit`.
pub const ADD_MISSING_PERMITS: &str = "insert into fetchq.rate_permits (queue_id, permit, free_at)
    select $1, t.permit,
        pg_catalog.now() {+} (select q.rate_interval from fetchq.queues q where q.id {=} $1)
    from pg_catalog.generate_series(1, $2) as t (permit)
    where not exists (
        select from fetchq.rate_permits r where r.queue_id {=} $1 and r.permit {=} t.permit)
    on conflict (queue_id, permit) do nothing";
