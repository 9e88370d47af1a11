//! Which leases and settlements a crash may lose after their commit, so that the commit need not wait for
//! the disk.
//!
//! A document whose lease is lost is pending again, as if it had not been leased: it is leased
//! again with another number, and a worker that holds the lost number can no longer settle it. So
//! documents are processed at least once, as always, and nobody settles what another one has
//! leased. What a commit that waits has settled is never lost with them, because the server loses
//! only the end of its write-ahead log.
//!
//! A settlement may be lost only where somebody has chosen that (`fetchq.synchronous_settling`): its
//! document is leased until the lease ends, and is then processed again.

use crate::pg::{durability, relation, session};
use crate::settings;
use crate::signals::board::{Board, board};
use crate::signals::commit;
use crate::store::bounds::limits::PickKind;
use crate::store::documents::leases::Lease;
use crate::store::queues::open_queue::Queue;

/// Runs `work`, a pick that returns how many documents it has picked. A transaction that does nothing but
/// lease documents commits asynchronously where a crash may lose it: not in a queue with a cap or a rate,
/// which have rows of their own, and not where a trigger of the user's may write anything. Popped
/// documents are gone, so that a crash must not bring them back. And not soon after a crash, which a
/// document may have caused: without shared memory nobody knows of it.
pub fn pick(queue: &Queue, kind: PickKind, work: impl FnOnce() -> i32) -> i32 {
    let could_be_lost = kind == PickKind::Lease
        && !settings::synchronous_leases()
        && !others_write_at_commit()
        && !queue.policy.is_limited()
        && queue.runs_nothing_else();
    if could_be_lost && board().is_some_and(Board::may_lose_leases) {
        return durability::may_be_lost(work);
    }
    let picked = work();
    if could_be_lost && picked > 0 {
        commit::lease_given();
    }
    picked
}

/// Runs `work`, which settles documents of a queue and does nothing else. Its transaction commits
/// asynchronously where a crash may lose it: not where code of the user's may write anything, and not soon
/// after a crash, as in [`pick`].
pub fn settle<R>(queue: &Queue, work: impl FnOnce() -> R) -> R {
    let could_be_lost = !settings::synchronous_settling()
        && !others_write_at_commit()
        && queue.runs_nothing_else()
        && !["history", "logs"]
            .map(|table| queue.name.relation(table))
            .iter()
            .any(|table| relation::runs_code(table))
        && board().is_some_and(Board::may_lose_leases);
    match could_be_lost {
        true => durability::may_be_lost(work),
        false => work(),
    }
}

/// Has the commit of a settlement wait for the disk where losing it would lose more than time: a
/// document that has had all its attempts would be killed, though it was processed, and one that moves to
/// another queue meets the triggers there.
pub fn settled_for_good() {
    durability::must_not_be_lost();
}

/// Returns whether a library is preloaded that writes when a transaction commits, and that fetchq does
/// not see do so.
///
/// The libraries that were loaded last are called first before a commit. So what those write that were
/// loaded before fetchq is written when fetchq has decided whether the commit waits. Citus has to be the
/// first library, and writes there the records by which it recovers transactions of several nodes.
pub(super) fn others_write_at_commit() -> bool {
    thread_local! {
        static IS_SO: bool = session::preloads("citus");
    }
    IS_SO.with(|is_so| *is_so)
}

/// Has the commit of a lease wait for the disk where the attempt has to count after a crash.
///
/// A document that must run only once has one attempt, and a crash must not give it another one. And
/// where the lease is bound to its session, the work may be done in the session, and be what crashes
/// the server: a document that does so must run out of attempts. `max_attempts`: of the document; None
/// for that of the queue.
pub fn attempt_begun(queue: &Queue, lease: &Lease, attempts: i32, max_attempts: Option<i32>) {
    if lease.is_bound() || attempts >= max_attempts.unwrap_or(queue.policy.max_attempts) {
        durability::must_not_be_lost();
    }
}
