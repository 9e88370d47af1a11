//! Which ready documents may be picked: none of a queue that is paused, no more than the cap
//! at a time of a queue with `max_active`, and no more than the rate within an interval of a
//! queue with a rate limit.
//!
//! Both limits are rows, so that row locks make them exact. A lease slot (`lease_slots`) is
//! free or has the subject of an active document. A rate permit (`rate_permits`) says from
//! when on it is free. A pick locks as many slots and permits as it may need, skips those that
//! other sessions have locked, and then claims no more documents than it has locks. So no pick
//! waits for another, and a pick that is rolled back, or ends with its session, uses up
//! nothing.

use crate::pg::value::Arg;
use crate::pg::{spi, subtransaction};
use crate::store::bounds::cap::{
    COUNT_EXTRA_SLOTS, FIRST_EXTRA_SLOT, LOCK_FREE_SLOTS, repair_slots,
};
use crate::store::bounds::rate::{
    ADD_MISSING_PERMITS, LOCK_PERMITS, clamp_permits, has_late_permits, next_permit, use_permits,
};
use crate::store::bounds::readiness::{self, Readiness};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans;
use crate::store::queues::statement::Statement;

/// What a document is picked for, as far as the limits go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickKind {
    /// It becomes active: cap and rate count it.
    Lease,
    /// It is removed at once: only the rate counts it.
    Pop,
}

/// Picks documents of a version within the limits of the queue. `limit` is the largest number
/// of documents, `now` the time of the pick in microseconds since 2000. `pick` gets the number
/// that it may pick, and returns the number that it picked. In a queue with a cap or a rate,
/// a pick of none is undone.
pub fn pick(
    queue: &Queue,
    kind: PickKind,
    version: i32,
    limit: i32,
    now: i64,
    pick: impl FnOnce(i32) -> i32,
) -> i32 {
    let policy = &queue.policy;
    if !policy.is_active {
        return 0;
    }
    let is_capped = policy.max_active.is_some() && kind == PickKind::Lease;
    if !is_capped && policy.rate_limit.is_none() {
        return pick(limit);
    }
    // No more slots and permits are locked than there are documents, because they stay locked
    // until the transaction ends.
    let wanted = readiness::available(queue, version, now, limit);
    if wanted == 0 {
        return 0;
    }
    // A pick of none is undone, because a waiter would otherwise keep slots and permits locked
    // that it cannot use.
    let picked = subtransaction::roll_back_unless_kept(|| {
        let allowed = admit(queue, kind, wanted, now);
        if allowed == 0 {
            return (0, false);
        }
        let picked = pick(allowed);
        if picked > 0 && policy.rate_limit.is_some() {
            use_permits(queue, picked, now);
        }
        (picked, picked > 0)
    });
    if picked < wanted && policy.rate_limit.is_some() {
        clamp_permits(queue);
    }
    picked
}

/// Locks lease slots and rate permits for up to `wanted` documents, and returns for how many it
/// has locked them.
fn admit(queue: &Queue, kind: PickKind, wanted: i32, now: i64) -> i32 {
    let id = Arg::from(queue.id);
    let mut allowed = wanted;
    spi::connect(|spi| {
        if queue.policy.max_active.is_some() && kind == PickKind::Lease {
            let beyond = Arg::from(FIRST_EXTRA_SLOT);
            // For each slot in use beyond the cap, one free slot is locked and stays free. Two
            // picks lock different slots, so this holds for both together. Slots beyond the
            // cap are counted under the locks, because a session that lowers the cap changes
            // the free slots.
            let mut over = 0;
            loop {
                let limit = Arg::from(i64::from(wanted) + i64::from(over));
                let locked = queue
                    .run(spi, &LOCK_FREE_SLOTS, &[id, beyond, limit])
                    .affected();
                let counted = queue
                    .run(spi, &COUNT_EXTRA_SLOTS, &[id, beyond])
                    .get(0, 1)
                    .unwrap_or(0);
                if counted <= over || locked < wanted + over {
                    allowed = wanted.min(locked - counted);
                    break;
                }
                over = counted;
            }
        }
        if allowed > 0 && queue.policy.rate_limit.is_some() {
            let args = [id, Arg::timestamp(now), Arg::from(i64::from(allowed))];
            allowed = allowed.min(queue.run(spi, &LOCK_PERMITS, &args).affected());
        }
    });
    allowed.max(0)
}

static IS_ACTIVE: Statement =
    Statement::new("select q.is_active from fetchq.queues q where q.id {=} $1");

/// When to look again at a queue that was just resumed: 2 ms, by when the other sessions have
/// learned of it.
const RESUMED_RETRY_US: i64 = 2_000;

/// When to look again where all lease slots are in use, or other sessions have locked the free
/// slots and permits: 50 ms.
const LIMITED_RETRY_US: i64 = 50_000;

/// Returns whether a document of a version can be picked at the time `now`, in microseconds since
/// 2000: one is ready, and the queue allows it.
pub fn readiness(queue: &Queue, version: i32, now: i64) -> Readiness {
    if !queue.policy.is_active {
        // Read as of now and not from the cache of this session, because a commit wakes the
        // waiters before it informs the sessions of the change.
        let is_active = spi::connect(|spi| {
            let rows = plans::run_latest(spi, &IS_ACTIVE, &[Arg::from(queue.id)]);
            !rows.is_empty() && rows.get(0, 1) == Some(true)
        });
        return Readiness::NotBefore(if is_active {
            now + RESUMED_RETRY_US
        } else {
            i64::MAX
        });
    }
    match readiness::readiness(queue, version, now) {
        Readiness::Now if queue.policy.is_limited() => {
            // Slots and permits are locked and released again, because only a lock shows
            // whether another session uses them.
            let is_free = subtransaction::roll_back_unless_kept(|| {
                let is_free = admit(queue, PickKind::Lease, 1, now) > 0
                    // A pick is needed to clamp them, because a waiter must keep no lock.
                    || queue.policy.rate_limit.is_some() && has_late_permits(queue);
                (is_free, false)
            });
            if is_free {
                return Readiness::Now;
            }
            Readiness::NotBefore(next_permit(queue, now).min(now + LIMITED_RETRY_US))
        }
        other => other,
    }
}

/// Repairs the lease slots of a capped queue, and the rate permits of one with a rate, after
/// triggers were disabled or rows were lost.
pub fn repair(queue: &Queue) {
    let id = Arg::from(queue.id);
    spi::connect(|spi| {
        if let Some(max) = queue.policy.max_active {
            repair_slots(spi, queue, max);
        }
        if let Some(picks) = queue.policy.rate_limit {
            spi.once(ADD_MISSING_PERMITS, &[id, Arg::from(picks)]);
        }
    });
}
