//! Sessions that wait for a document without polling: `queue_wait` and `doc_pick_wait`.

use std::rc::Rc;
use std::time::Duration;

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::procedure::Transactions;
use crate::pg::process::sleep_in_session;
use crate::pg::{relation, session, time, transaction};
use crate::signals::board::board;
use crate::signals::wakeups::{self, Registration};
use crate::store::limits::readiness;
use crate::store::open_queue::Queue;
use crate::store::readiness::Readiness;
use crate::store::rights::Right;

/// How often a session looks that no commit can wake, because there is no shared memory or no
/// free slot in it: microseconds.
const POLL_INTERVAL_US: i64 = 100_000;

/// How often a session looks that a commit can wake: microseconds. COMMIT PREPARED wakes no
/// session.
const CHECK_INTERVAL_US: i64 = 5_000_000;

/// When a pick is tried again after a document was ready that could not be picked:
/// microseconds.
const RETRY_AFTER_US: i64 = 2_000;

/// This session as a waiter for documents of a version. It has a slot in shared memory, if there
/// is one.
struct Waiter {
    version: i32,
    /// The tables that the registration is for.
    registration: Option<(Vec<u32>, Registration)>,
}

impl Waiter {
    fn new(version: i32) -> Self {
        Self {
            version,
            registration: None,
        }
    }

    /// Has the next commit of documents of these tables wake this session. A snapshot that is
    /// taken after this call sees what was committed before it.
    fn arm(&mut self, tables: &[u32]) {
        let is_new = self
            .registration
            .as_ref()
            .is_none_or(|(registered, _)| registered != tables);
        if is_new {
            drop(self.registration.take());
            self.registration = board().and_then(|board| {
                let (database, now) = (session::database(), time::clock());
                let registration =
                    Registration::new(&board.waiters, database, self.version, tables, now)?;
                Some((tables.to_vec(), registration))
            });
        }
        if let Some((_, registration)) = &self.registration {
            registration.arm();
        }
    }

    /// Sleeps until a commit wakes this session, and until a time in microseconds since 2000 at
    /// most.
    fn sleep(&self, until: i64) {
        let registration = self
            .registration
            .as_ref()
            .map(|(_, registration)| registration);
        let interval = match registration {
            Some(_) => CHECK_INTERVAL_US,
            None => POLL_INTERVAL_US,
        };
        let until = until.min(time::clock() + interval);
        while !registration.is_some_and(Registration::is_woken) {
            let left = until - time::clock();
            if left <= 0 {
                break;
            }
            sleep_in_session(Duration::from_micros(left.unsigned_abs()));
        }
    }
}

/// Waits until a document of one of the queues can be picked, and returns the position of the
/// queue in `names`. None when that did not happen until `until`, in microseconds since 2000.
/// The session has no snapshot and no lock while it waits.
///
/// Fails with the errors of `Queue::open`, such as `Error::UnknownQueue`.
pub fn wait(
    transactions: &Transactions,
    names: &[QueueName],
    version: i32,
    until: i64,
) -> Result<Option<usize>> {
    transaction::on_exit(wakeups::release_slot);
    let mut waiter = Waiter::new(version);
    let mut tables: Vec<u32> = Vec::new();
    loop {
        // This must precede the first snapshot, because some isolation levels keep it for the
        // whole transaction.
        if !tables.is_empty() {
            waiter.arm(&tables);
        }
        let queues: Vec<Rc<Queue>> =
            transactions.statement(|| names.iter().map(Queue::open).collect::<Result<_>>())?;
        let opened: Vec<u32> = queues.iter().map(|queue| queue.table.to_u32()).collect();
        if opened != tables {
            // It is the first round, or a queue was dropped and created again.
            tables = opened;
            waiter.arm(&tables);
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
        waiter.sleep(next.min(until));
    }
}

/// Calls `pick` until it returns a document, or until `until`, in microseconds since 2000.
/// `pick` gets the queue and the current time, and returns how many documents it has picked.
///
/// Fails with the errors of `Queue::open`, such as `Error::UnknownQueue`.
pub fn pick(
    name: &QueueName,
    version: i32,
    until: i64,
    mut pick: impl FnMut(&Queue, i64) -> i32,
) -> Result<()> {
    transaction::on_exit(wakeups::release_slot);
    let mut waiter = Waiter::new(version);
    loop {
        // The settings of the queue may have changed since the last round.
        relation::accept_invalidations();
        let queue = Queue::open_for(name, Right::Work)?;
        waiter.arm(&[queue.table.to_u32()]);
        let now = time::clock();
        if queue.explain_denial(Right::Work, || pick(&queue, now)) > 0 || now >= until {
            return Ok(());
        }
        let next = match readiness(&queue, version, time::clock()) {
            // It became ready after the pick, or it cannot be picked now.
            Readiness::Now => time::clock() + RETRY_AFTER_US,
            Readiness::NotBefore(time) => time,
        };
        waiter.sleep(next.min(until));
    }
}
