//! Waiting for a document without polling.

use std::rc::Rc;
use std::time::Duration;

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::procedure::Transactions;
use crate::pg::process::sleep_in_session;
use crate::pg::{relation, session, time, transaction};
use crate::signals::board::board;
use crate::signals::wakeups::{self, Waiting};
use crate::store::limits::readiness;
use crate::store::open_queue::Queue;
use crate::store::readiness::Readiness;

/// How often a session looks that nobody can wake: there is no shared memory, or no
/// place in it.
const POLL: i64 = 100_000;

/// How often all others look, told or not: a prepared transaction is committed without
/// a word.
const LOOK: i64 = 5_000_000;

/// When to look again where a document was ready after it could not be picked.
const AGAIN: i64 = 2_000;

/// A place among those who wait, for a version in some tables.
struct Place {
    version: i32,
    taken: Option<(Vec<u32>, Waiting)>,
}

impl Place {
    fn new(version: i32) -> Self {
        Self {
            version,
            taken: None,
        }
    }

    /// From now on a commit wakes this session, and what was committed before is seen by
    /// who takes a snapshot now.
    fn listens(&mut self, tables: &[u32]) {
        let is_new = self
            .taken
            .as_ref()
            .is_none_or(|(before, _)| before != tables);
        if is_new {
            drop(self.taken.take());
            self.taken = board().and_then(|board| {
                let (database, now) = (session::database(), time::clock());
                let place = Waiting::begin(&board.waiters, database, self.version, tables, now)?;
                Some((tables.to_vec(), place))
            });
        }
        if let Some((_, waiting)) = &self.taken {
            waiting.listens();
        }
    }

    /// Sleeps until woken, or until a time.
    fn sleeps(&self, until: i64) {
        let waiting = self.taken.as_ref().map(|(_, waiting)| waiting);
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
    transaction::on_exit(wakeups::release_slot);
    let mut place = Place::new(version);
    let mut tables: Vec<u32> = Vec::new();
    loop {
        // Before the first snapshot, which an isolation level may keep for all.
        if !tables.is_empty() {
            place.listens(&tables);
        }
        let queues: Vec<Rc<Queue>> =
            transactions.statement(|| names.iter().map(Queue::open).collect::<Result<_>>())?;
        let opened: Vec<u32> = queues.iter().map(|queue| queue.table.to_u32()).collect();
        if opened != tables {
            // The first time, or a queue was made anew.
            tables = opened;
            place.listens(&tables);
            if session::keeps_snapshot() {
                drop(queues);
                transactions.commit();
                continue;
            }
        }
        let mut next = i64::MAX;
        for (at, queue) in queues.iter().enumerate() {
            match transactions.statement(|| readiness(queue, version, time::clock())) {
                Readiness::Now => return Ok(Some(at)),
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
    transaction::on_exit(wakeups::release_slot);
    let mut place = Place::new(version);
    loop {
        // What the queue is set to may have changed since the last look.
        relation::accept_invalidations();
        let queue = Queue::open(name)?;
        place.listens(&[queue.table.to_u32()]);
        let now = time::clock();
        if pick(&queue, now) > 0 || now >= until {
            return Ok(());
        }
        let next = match readiness(&queue, version, time::clock()) {
            // It came since; or it is there and cannot be had.
            Readiness::Now => time::clock() + AGAIN,
            Readiness::NotBefore(time) => time,
        };
        place.sleeps(next.min(until));
    }
}
