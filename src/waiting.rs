//! Sessions that wait without polling: for a document to pick, in `queue_wait`, and
//! until a document is settled, in `doc_await`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::procedure::Transactions;
use crate::pg::process::sleep_in_session;
use crate::pg::{session, time, transaction};
use crate::signals::board::board;
use crate::signals::settlements;
use crate::signals::wakeups::{self, Registration};
use crate::store::bounds::limits::readiness;
use crate::store::bounds::readiness::Readiness;
use crate::store::documents::doc_await::{self, Look, Outcome, Unsettled};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// How often a session looks that no commit can wake, because there is no shared memory or no
/// free slot in it: microseconds.
const POLL_INTERVAL_US: i64 = 100_000;

/// How often a session looks that a commit can wake: microseconds. What other programs do to the tables,
/// such as a subscription that applies prepared transactions, wakes no session.
const CHECK_INTERVAL_US: i64 = 5_000_000;

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
        match &self.registration {
            Some((_, registration)) => {
                sleep_until_woken(until, CHECK_INTERVAL_US, || registration.is_woken());
            }
            None => sleep_until_woken(until, POLL_INTERVAL_US, || false),
        }
    }
}

/// Sleeps until a commit has woken this session, until a time in microseconds since 2000, or for an
/// interval in microseconds. The interval ends on time though the clock is set back meanwhile.
fn sleep_until_woken(until: i64, interval: i64, is_woken: impl Fn() -> bool) {
    let end = Instant::now() + micros(interval);
    while !is_woken() {
        let left = end
            .saturating_duration_since(Instant::now())
            .min(micros(until.saturating_sub(time::clock())));
        if left.is_zero() {
            break;
        }
        sleep_in_session(left);
    }
}

/// A duration in microseconds; none if it is negative.
fn micros(duration: i64) -> Duration {
    Duration::from_micros(duration.max(0).unsigned_abs())
}

/// When a wait ends: by the clock, and on time though the clock is set back meanwhile.
struct End {
    /// Microseconds since 2000.
    until: i64,
    /// The same. None: too far away to be counted.
    instant: Option<Instant>,
}

impl End {
    fn at(until: i64) -> Self {
        let left = micros(until.saturating_sub(time::clock()));
        let instant = Instant::now().checked_add(left);
        Self { until, instant }
    }

    fn is_over(&self) -> bool {
        time::clock() >= self.until || self.instant.is_some_and(|end| Instant::now() >= end)
    }
}

/// Gives back what this session has in shared memory when it exits.
fn release_slots() {
    wakeups::release_slots();
    settlements::release_slot();
}

/// How many queues are looked at in one transaction. Each is locked until it ends.
const QUEUES_AT_ONCE: usize = 16;

/// A look at all queues of a wait.
enum Ready {
    /// The position of a queue of which a document can be picked.
    Queue(usize),
    /// None: look again at this time at the latest, in microseconds since 2000.
    NotBefore(i64),
}

/// Looks whether a document of one of the queues can be picked. `tables` gets their docs tables.
fn look(
    transactions: &Transactions,
    names: &[QueueName],
    version: i32,
    tables: &mut Vec<u32>,
) -> Result<Ready> {
    tables.clear();
    let mut next = i64::MAX;
    for part in names.chunks(QUEUES_AT_ONCE) {
        let first = tables.len();
        let open = |name| Queue::open_for(name, Right::Read);
        let queues: Vec<Rc<Queue>> =
            transactions.statement(|| part.iter().map(open).collect::<Result<_>>())?;
        tables.extend(queues.iter().map(|queue| queue.table.to_u32()));
        for (at, queue) in queues.iter().enumerate() {
            match transactions.statement(|| readiness(queue, version, time::clock())) {
                Readiness::Now => return Ok(Ready::Queue(first + at)),
                Readiness::NotBefore(time) => next = next.min(time),
            }
        }
        drop(queues);
        transactions.commit();
    }
    Ok(Ready::NotBefore(next))
}

/// Waits until a document of one of the queues can be picked, and returns the position of the
/// queue in `names`. None when that did not happen until `until`, in microseconds since 2000.
/// The session has no snapshot and no lock while it waits.
///
/// Fails with the errors of `Queue::open`, such as `Error::UnknownQueue`, and with `Error::NoRight`
/// when the caller may not read the documents.
pub fn wait(
    transactions: &Transactions,
    names: &[QueueName],
    version: i32,
    until: i64,
) -> Result<Option<usize>> {
    transaction::on_exit(release_slots);
    let end = End::at(until);
    let mut waiter = Waiter::new(version);
    let mut tables: Vec<u32> = Vec::new();
    loop {
        // This must precede the first snapshot, because some isolation levels keep it for the
        // whole transaction. So the first look is without it.
        if !tables.is_empty() {
            waiter.arm(&tables);
        }
        let mut opened = Vec::new();
        let next = match look(transactions, names, version, &mut opened)? {
            Ready::Queue(at) => return Ok(Some(at)),
            Ready::NotBefore(next) => next,
        };
        if end.is_over() {
            return Ok(None);
        }
        // Else it was the first look, or a queue was dropped and created again.
        if opened == tables {
            waiter.sleep(next.min(until));
        }
        tables = opened;
    }
}

/// Waits until a document is settled, and returns what became of it; when that did not happen until
/// `until`, in microseconds since 2000, its status. The session has no snapshot and no lock while it
/// waits.
///
/// Fails as `doc_await::look` does.
pub fn settlement(
    transactions: &Transactions,
    name: &QueueName,
    subject: &str,
    until: i64,
) -> Result<Outcome> {
    transaction::on_exit(release_slots);
    let end = End::at(until);
    let mut registration: Option<settlements::Registration> = None;
    // As it was seen first.
    let mut document: Option<Unsettled> = None;
    loop {
        // As in `wait`, this precedes the first snapshot.
        if let Some(document) = &document {
            if registration.is_none() {
                registration = settlements::Registration::new(document.table, subject);
            }
            if let Some(registration) = &registration {
                registration.arm();
            }
        }
        let look = transactions.statement(|| doc_await::look(name, subject, document.as_ref()))?;
        let found = match look {
            Look::Settled(outcome) => return Ok(outcome),
            Look::Unsettled(found) => found,
        };
        transactions.commit();
        if end.is_over() {
            return Ok(found.outcome());
        }
        match &registration {
            _ if document.is_none() => {}
            Some(registration) => {
                sleep_until_woken(until, CHECK_INTERVAL_US, || registration.is_woken());
            }
            None => sleep_until_woken(until, POLL_INTERVAL_US, || false),
        }
        document = document.or(Some(found));
    }
}
