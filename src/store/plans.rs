//! Sets of prepared plans, kept for the life of the session, and the set of those
//! statements that name no queue. `open_queue.rs` keeps a set for each queue.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::session;
use crate::pg::spi::{Plan, Rows, Spi};
use crate::pg::value::Arg;
use crate::store::statement::Statement;

thread_local! {
    // Never dropped: when a session exits, there is no SPI left to free plans with.
    static FIXED: ManuallyDrop<PlanSet> = ManuallyDrop::new(PlanSet::default());
}

/// Plans by the addresses of their statements.
#[derive(Default)]
pub struct PlanSet(RefCell<Vec<(usize, Rc<Plan>)>>);

impl PlanSet {
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    pub fn get(&self, key: usize, prepare: impl FnOnce() -> Plan) -> Rc<Plan> {
        if let Some((_, plan)) = self.0.borrow().iter().find(|(k, _)| *k == key) {
            return plan.clone();
        }
        // Not borrowed while preparing: that can raise an error.
        let plan = Rc::new(prepare());
        self.0.borrow_mut().push((key, plan.clone()));
        plan
    }
}

pub fn fixed(spi: &Spi, statement: &'static Statement, args: &[Arg]) -> Rc<Plan> {
    FIXED.with(|set| set.get(statement.key(), || spi.prepare(&statement.text(), args)))
}

/// Runs a hot read that names no queue as of this instant.
pub fn run_latest<'s>(spi: &'s Spi, statement: &'static Statement, args: &[Arg]) -> Rows<'s> {
    spi.run_latest(&fixed(spi, statement, args), args)
}

/// Fails in a transaction whose snapshot is too old to see a row that a statement finds
/// as of now.
pub(super) fn refuse_unseen(
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
