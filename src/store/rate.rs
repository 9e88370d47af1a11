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
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{session, spi};
use crate::store::open_queue::Queue;
use crate::store::queue;
use crate::store::statement::Statement;

pub static LOCK_TURNS: Statement = Statement::new(
    "select from fetchq.rate_permits r
     where r.queue_id {=} $1 and r.free_at {<=} $2
     order by r.free_at
     limit $3
     for update skip locked",
);

static TAKE_TURNS: Statement = Statement::new(
    "update fetchq.rate_permits t set free_at = $4
     where t.ctid {=} any (array(
         select r.ctid from fetchq.rate_permits r
         where r.queue_id {=} $1 and r.free_at {<=} $2
         order by r.free_at
         limit $3
         for update skip locked))",
);

/// Takes turns that `admit` has locked. They were free when the pick's time began, and
/// are free again an interval after this moment: so no interval has more picks, whether
/// they are told by the one or by the other.
pub fn take_turns(queue: &Queue, n: i32, now: i64) {
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

static NEXT_TURN: Statement = Statement::new(
    "select r.free_at from fetchq.rate_permits r
     where r.queue_id {=} $1 and r.free_at {>} $2
     order by r.free_at
     limit 1",
);

/// When the next turn of the rate is free, if that is what has to be waited for.
pub fn next_turn(queue: &Queue, now: i64) -> i64 {
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

const SET_RATE: &str =
    "update fetchq.queues set rate_limit = $2, rate_interval = $3 where name = $1";

const NO_TURNS: &str = "delete from fetchq.rate_permits where queue_id = $1";

// The last picks count for the new rate as well.
const MAKE_TURNS: &str = "with gone as (delete from fetchq.rate_permits where queue_id = $1 returning free_at),
    last as (select free_at, row_number() over (order by free_at desc) as n from gone)
    insert into fetchq.rate_permits (queue_id, permit, free_at)
    select $1, t.permit, coalesce(l.free_at - (select q.rate_interval from fetchq.queues q where q.id = $1) + $3::interval, '-infinity')
    from generate_series(1, $2) as t (permit) left join last l on l.n = t.permit";

/// Sets how many documents can be picked within an interval.
pub fn set_rate(name: &QueueName, rate: Option<(i32, Interval)>) -> Result<i32> {
    if session::keeps_snapshot() {
        return Err(Error::KeepsSnapshot("fetchq.queue_set_rate"));
    }
    let id = Arg::from(queue::lock_now(name)?);
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

pub const MISSING_TURNS: &str = "insert into fetchq.rate_permits (queue_id, permit, free_at)
    select $1, t.permit, now() + (select q.rate_interval from fetchq.queues q where q.id = $1)
    from generate_series(1, $2) as t (permit)
    where not exists (select from fetchq.rate_permits r where r.queue_id = $1 and r.permit = t.permit)
    on conflict (queue_id, permit) do nothing";
