//! Waiting for a document without polling.

use std::rc::Rc;
use std::time::Duration;

use super::board;
use super::waiters::{self, Waiting};
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::procedure::Transactions;
use crate::pg::worker::sleep_in_session;
use crate::pg::{session, time, transaction};
use crate::store::docs::{self, Readiness};
use crate::store::plans::Queue;

/// How often a session looks that nobody can wake: there is no shared memory, or no
/// place in it.
const POLL: i64 = 100_000;
/// How often all others look, told or not: a prepared transaction is committed without
/// a word.
const LOOK: i64 = 5_000_000;

/// When to look again where a document was ready after it could not be picked.
const AGAIN: i64 = 2_000;

/// A place among those who wait, for some tables.
#[derive(Default)]
struct Place(Option<(Vec<u32>, Waiting)>);

impl Place {
    /// From now on a commit wakes this session, and what was committed before is seen by
    /// who looks now.
    fn listens(&mut self, tables: Vec<u32>) {
        // The first time, or when a queue was made anew.
        if self.0.as_ref().is_none_or(|(before, _)| *before != tables) {
            drop(self.0.take());
            self.0 = board().and_then(|board| {
                let now = time::clock();
                let place = Waiting::begin(&board.waiters, session::database(), &tables, now)?;
                Some((tables, place))
            });
        }
        if let Some((_, waiting)) = &self.0 {
            waiting.listens();
        }
    }

    /// Sleeps until woken, or until a time.
    fn sleeps(&self, until: i64) {
        let waiting = self.0.as_ref().map(|(_, waiting)| waiting);
        let look = time::clock() + if waiting.is_some() { LOOK } else { POLL };
        let until = until.min(look);
        while !waiting.is_some_and(Waiting::was_woken) {
            let left = until - time::clock();
            if left <= 0 {
                break;
            }
            sleep_in_session(Duration::from_micros(left.unsigned_abs()));
        }
    }

    fn found(self) {
        if let Some((_, waiting)) = self.0 {
            waiting.found();
        }
    }
}

/// Waits until a document of one of the queues can be picked; says which. None when
/// that did not happen in time (`until`: microseconds since 2000).
/// No snapshot is held, and no lock, while it waits.
pub fn wait(
    transactions: &Transactions,
    names: &[QueueName],
    version: i32,
    until: i64,
) -> Result<Option<usize>> {
    transaction::on_exit(waiters::give_back);
    let mut place = Place::default();
    loop {
        let queues: Vec<Rc<Queue>> =
            transactions.statement(|| names.iter().map(Queue::open).collect::<Result<_>>())?;
        place.listens(queues.iter().map(|queue| queue.table.to_u32()).collect());
        let mut next = i64::MAX;
        for (at, queue) in queues.iter().enumerate() {
            match transactions.statement(|| docs::readiness(queue, version, time::clock())) {
                Readiness::Now => {
                    place.found();
                    return Ok(Some(at));
                }
                Readiness::NotBefore(time) => next = next.min(time),
            }
        }
        drop(queues);
        transactions.commit();
        if time::clock() >= until {
            return Ok(None);
        }
        place.sleeps(next.min(until));
    }
}

/// Picks as soon as that gives a document; `pick` says how many it got of what is due
/// at a time. Ends without one when there is none in time.
pub fn pick(
    name: &QueueName,
    version: i32,
    until: i64,
    mut pick: impl FnMut(&Queue, i64) -> i32,
) -> Result<()> {
    transaction::on_exit(waiters::give_back);
    let mut place = Place::default();
    loop {
        let queue = Queue::open(name)?;
        place.listens(vec![queue.table.to_u32()]);
        let now = time::clock();
        if pick(&queue, now) > 0 {
            place.found();
            return Ok(());
        }
        if now >= until {
            return Ok(());
        }
        let next = match docs::readiness(&queue, version, time::clock()) {
            // It came since; or it is there and cannot be had.
            Readiness::Now => time::clock() + AGAIN,
            Readiness::NotBefore(time) => time,
        };
        place.sleeps(next.min(until));
    }
}
