//! Sets of prepared plans, which are kept for the life of the session, and the set of the
//! statements that name no queue. `open_queue.rs` keeps one set for each queue.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::session;
use crate::pg::snapshot::Snapshot;
use crate::pg::spi::{Plan, Rows, Spi};
use crate::pg::value::Arg;
use crate::store::queues::statement::Statement;

thread_local! {
    // Never dropped: when a session exits, there is no SPI left to free plans with.
    static SHARED: ManuallyDrop<PlanSet> = ManuallyDrop::new(PlanSet::default());
}

/// Plans by the keys of their statements. A set has a few dozen plans at most, so a list is
/// searched faster than a map.
#[derive(Default)]
pub struct PlanSet(RefCell<Vec<(usize, Rc<Plan>)>>);

impl PlanSet {
    /// Returns whether the set has no plan.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Forgets all plans. A plan that is in use is freed after its use.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Returns the plan of a statement, by [`Statement::key`]. Calls `prepare` for a plan
    /// that the set does not have, and keeps the result.
    pub fn get_or_prepare(&self, key: usize, prepare: impl FnOnce() -> Plan) -> Rc<Plan> {
        if let Some((_, plan)) = self.0.borrow().iter().find(|(k, _)| *k == key) {
            return plan.clone();
        }
        // The set is not borrowed during the preparation, which can raise an error.
        let plan = Rc::new(prepare());
        self.0.borrow_mut().push((key, plan.clone()));
        plan
    }
}

/// Returns the plan of a statement that names no queue. `args` give the types of its
/// parameters.
pub fn shared_plan(spi: &Spi, statement: &'static Statement, args: &[Arg]) -> Rc<Plan> {
    SHARED.with(|set| set.get_or_prepare(statement.key(), || spi.prepare(&statement.text(), args)))
}

/// Runs a hot read that names no queue as of this instant, even in a transaction that keeps
/// one snapshot.
pub fn run_latest<'s>(spi: &'s Spi, statement: &'static Statement, args: &[Arg]) -> Rows<'s> {
    spi.run_latest(&shared_plan(spi, statement, args), args)
}

/// Runs a read that names no queue with this snapshot.
pub fn run_in<'s>(
    spi: &'s Spi,
    statement: &'static Statement,
    args: &[Arg],
    snapshot: &Snapshot,
) -> Rows<'s> {
    spi.run_in(&shared_plan(spi, statement, args), args, snapshot)
}

/// Fails with `Error::OlderSnapshot` in a transaction that keeps one snapshot, if
/// `statement` finds a row as of now. The caller has not found that row with the snapshot
/// of the transaction.
pub(in crate::store) fn refuse_unseen(
    spi: &Spi,
    queue: &QueueName,
    statement: &'static Statement,
    args: &[Arg],
) -> Result<()> {
    if session::keeps_snapshot() && run_latest(spi, statement, args).affected() > 0 {
        return Err(Error::OlderSnapshot(queue.to_string()));
    }
    Ok(())
}
