//! Sessions that wait without polling: for a document to pick, in `queue_wait`, and
//! until a document is settled, in `doc_await`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::procedure::Transactions;
use crate::pg::process::sleep_in_session;
use crate::pg::{time, transaction};
use crate::signals::waiters::{self, Key, Registration};
use crate::store::bounds::limits::readiness;
use crate::store::bounds::readiness::Readiness;
use crate::store::documents::bookkeeping::waiter_key;
use crate::store::documents::doc_await::{self, Outcome, Unsettled};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// How often a session looks that no commit can wake, because there is no shared memory or no
/// free slot in it: microseconds.
const POLL_INTERVAL_US: i64 = 100_000;

/// How often a session looks that a commit can wake: microseconds. What other programs do to the tables,
/// such as a subscription that applies prepared transactions, wakes no session.
const CHECK_INTERVAL_US: i64 = 5_000_000;

/// Sleeps until a commit has woken this session, until a time in microseconds since 2000, or until
/// it has to look. It looks on time though the clock is set back meanwhile.
fn sleep_until_woken(until: i64, registration: Option<&Registration>) {
    let interval = registration.map_or(POLL_INTERVAL_US, |_| CHECK_INTERVAL_US);
    let end = Instant::now() + micros(interval);
    while !registration.is_some_and(Registration::is_woken) {
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

/// What a look of a session found.
enum Look<T> {
    /// What the session waits for has happened.
    Done(T),
    /// It has not happened.
    NotYet {
        /// What has the session look again.
        keys: Vec<Key>,
        /// Look again at this time at the latest, in microseconds since 2000.
        next: i64,
        /// The result if the wait ends now.
        result: T,
    },
}

/// Looks until what this session waits for has happened, or until a time in microseconds since 2000. A
/// commit of what a look has named makes the session look again. `look` ends its transaction: the
/// session has no snapshot and no lock while it sleeps.
fn wait_for<T>(until: i64, mut look: impl FnMut() -> Result<Look<T>>) -> Result<T> {
    transaction::on_exit(waiters::release);
    let end = End::at(until);
    let mut registration: Option<Registration> = None;
    let mut registered: Vec<Key> = Vec::new();
    loop {
        // This must precede the first snapshot, because some isolation levels keep it for the
        // whole transaction. So the first look is without it.
        registration = registration.or_else(|| Registration::new(&registered));
        if let Some(registration) = &registration {
            registration.arm();
        }
        let (keys, next, result) = match look()? {
            Look::Done(result) => return Ok(result),
            Look::NotYet { keys, next, result } => (keys, next, result),
        };
        if end.is_over() {
            return Ok(result);
        }
        // Else it was the first look, or a queue was dropped and created again.
        if keys == registered {
            sleep_until_woken(next.min(until), registration.as_ref());
        } else {
            registration = None;
            registered = keys;
        }
    }
}

/// How many queues are looked at in one transaction. Each is locked until it ends.
const QUEUES_AT_ONCE: usize = 16;

/// Looks whether a document of one of the queues can be picked. The result is the position of that
/// queue.
fn look(
    transactions: &Transactions,
    names: &[QueueName],
    version: i32,
) -> Result<Look<Option<usize>>> {
    let mut keys = Vec::with_capacity(names.len());
    let mut next = i64::MAX;
    for part in names.chunks(QUEUES_AT_ONCE) {
        let first = keys.len();
        let open = |name| Queue::open_for(name, Right::Read);
        let queues: Vec<Rc<Queue>> =
            transactions.statement(|| part.iter().map(open).collect::<Result<_>>())?;
        keys.extend(queues.iter().map(|queue| waiter_key(queue, version)));
        for (at, queue) in queues.iter().enumerate() {
            match transactions.statement(|| readiness(queue, version, time::clock())) {
                Readiness::Now => return Ok(Look::Done(Some(first + at))),
                Readiness::NotBefore(time) => next = next.min(time),
            }
        }
        drop(queues);
        transactions.commit();
    }
    let result = None;
    Ok(Look::NotYet { keys, next, result })
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
    wait_for(until, || look(transactions, names, version))
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
    // As it was seen first.
    let mut document: Option<Unsettled> = None;
    wait_for(until, || {
        let look = || doc_await::look(name, subject, document.as_ref());
        let found = match transactions.statement(look)? {
            doc_await::Look::Settled(outcome) => return Ok(Look::Done(outcome)),
            doc_await::Look::Unsettled(found) => found,
        };
        transactions.commit();
        let table = document.get_or_insert(found).table;
        Ok(Look::NotYet {
            keys: vec![Key::settled(table, subject)],
            next: i64::MAX,
            result: found.outcome(),
        })
    })
}
