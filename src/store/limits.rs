//! Which documents that are ready may be picked: none of a queue that is paused, so many
//! at a time of one with `max_active`, so many within an interval of one with a rate.
//!
//! Both limits are rows, so that their locks make them exact: a place (`lease_slots`) is
//! free or has the subject of an active document, a turn (`rate_permits`) says from when on
//! it can be taken. A pick locks as many as it may need, skips those that others have
//! locked, and then claims as many documents. So nobody waits, and what is rolled back,
//! or ends with its session, has taken nothing.

use crate::pg::value::Arg;
use crate::pg::{spi, subtransaction};
use crate::store::cap::{BEYOND, LOCK_PLACES, OVER, repair_places};
use crate::store::open_queue::Queue;
use crate::store::plans;
use crate::store::rate::{LOCK_TURNS, MISSING_TURNS, next_turn, take_turns};
use crate::store::readiness::{self, Readiness};
use crate::store::statement::Statement;

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
    subtransaction::roll_back_unless_kept(|| {
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

static IS_ACTIVE: Statement =
    Statement::new("select q.is_active from fetchq.queues q where q.id {=} $1");

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
            let is_free = subtransaction::roll_back_unless_kept(|| {
                (admit(queue, Use::Lease, 1, now) > 0, false)
            });
            if is_free {
                return Readiness::Now;
            }
            Readiness::NotBefore(next_turn(queue, now).min(now + RETRY))
        }
        other => other,
    }
}

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
