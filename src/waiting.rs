//! Sessions that wait without polling: for a document to pick, in `queue_wait`; for anything that a worker
//! has to know, in `worker_wait`; and until a document is settled, in `doc_await`.

use std::collections::{BTreeMap, HashSet};
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
use crate::store::documents::bookkeeping::{lease_key, waiter_key};
use crate::store::documents::doc_await::{self, Outcome, Unsettled};
use crate::store::documents::lease_check::{self, NamedLease};
use crate::store::documents::stop_requests::{self, StopRequest};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};

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
    /// Something else has happened. A commit that has woken this session is left to the others that wait
    /// for the same.
    Instead(T),
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
/// session has no snapshot and no lock while it sleeps. It gets whether anything may have been committed
/// that wakes the session, since the look before.
fn wait_for<T>(until: i64, mut look: impl FnMut(bool) -> Result<Look<T>>) -> Result<T> {
    transaction::on_exit(waiters::release);
    let end = End::at(until);
    let mut registration: Option<Registration> = None;
    let mut registered: Vec<Key> = Vec::new();
    loop {
        // This must precede the first snapshot, because some isolation levels keep it for the
        // whole transaction. So the first look is without it.
        let is_new = registration.is_none();
        registration = registration.or_else(|| Registration::new(&registered));
        let was_woken = registration.as_ref().is_some_and(Registration::arm);
        let (keys, next, result) = match look(is_new || was_woken)? {
            Look::Done(result) => return Ok(result),
            Look::Instead(result) => {
                if let Some(registration) = registration.filter(|_| was_woken) {
                    registration.pass_on();
                }
                return Ok(result);
            }
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
/// queue. `right`: what the caller needs on each. `visit` gets each queue before the look at it.
fn look(
    transactions: &Transactions,
    names: &[QueueName],
    version: i32,
    right: Right,
    mut visit: impl FnMut(usize, &Queue),
) -> Result<Look<Option<usize>>> {
    let mut keys = Vec::with_capacity(names.len());
    let mut next = i64::MAX;
    for part in names.chunks(QUEUES_AT_ONCE) {
        let first = keys.len();
        let open = |name| Queue::open_for(name, right);
        let queues: Vec<Rc<Queue>> =
            transactions.statement(|| part.iter().map(open).collect::<Result<_>>())?;
        keys.extend(queues.iter().map(|queue| {
            let key = waiter_key(queue, version);
            // Who can take no document must not be woken in place of somebody who can.
            match right == Right::Work || rights::has_on(queue.table, Right::Work) {
                true => key,
                false => key.only_looking(),
            }
        }));
        for (at, queue) in queues.iter().enumerate() {
            visit(first + at, queue);
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
    wait_for(until, |_| {
        look(transactions, names, version, Right::Read, |_, _| {})
    })
}

/// What a worker waits for.
pub struct Worker<'a> {
    pub name: &'a str,
    /// The queues of whose documents it wants to know.
    pub queues: &'a [QueueName],
    pub version: i32,
    /// The leases that it has, by queue.
    pub leases: &'a BTreeMap<QueueName, Vec<NamedLease>>,
    /// The numbers of the requests to stop that it knows.
    pub known_stops: &'a [i64],
}

/// Of how many worker sessions one call of a worker is woken when their leases end. Those that a process
/// has are a few, but a lease can name any worker, and the slots are for all sessions of the server.
const MAX_SESSIONS: usize = 1000;

/// How often a worker looks with leases of more sessions than that: microseconds. Not measured.
const MANY_SESSIONS_INTERVAL_US: i64 = 1_000_000;

/// What has happened that a worker has to know.
pub enum News {
    /// A document of a queue can be picked. The position of the queue.
    Ready(usize),
    /// A queue that was paused when the wait began was resumed, and has no document that can be picked.
    Resumed(usize),
    /// The worker was asked to stop, on a queue, or on all.
    Stop(StopRequest),
    /// These documents of a queue were cancelled.
    Cancelled(QueueName, Vec<String>),
    /// These leases of documents of a queue do not hold any more.
    Lost(QueueName, Vec<String>),
}

impl Worker<'_> {
    /// Looks for what concerns the worker alone. Adds what makes the session look again to `keys`.
    fn look_at_own(
        &self,
        transactions: &Transactions,
        keys: &mut Vec<Key>,
    ) -> Result<Option<News>> {
        keys.push(Key::worker(self.name));
        let queues: Vec<&str> = (self.queues.iter().chain(self.leases.keys()))
            .map(QueueName::as_str)
            .collect();
        let stop = transactions
            .statement(|| stop_requests::first_new(self.name, self.known_stops, &queues));
        if let Some(stop) = stop {
            return Ok(Some(News::Stop(stop)));
        }
        for (name, leases) in self.leases {
            let held = transactions.statement(|| {
                Queue::with(name, Right::Work, |queue| {
                    let held = lease_check::look_at(queue, leases);
                    let sessions = held.sessions.iter();
                    keys.extend(sessions.map(|session| lease_key(queue, *session)));
                    Ok(held)
                })
            })?;
            if !held.cancelled.is_empty() {
                return Ok(Some(News::Cancelled(name.clone(), held.cancelled)));
            }
            if !held.lost.is_empty() {
                return Ok(Some(News::Lost(name.clone(), held.lost)));
            }
        }
        transactions.commit();
        Ok(None)
    }
}

/// Waits until a worker has to know something; None when that did not happen until `until`, in
/// microseconds since 2000. The session has no snapshot and no lock while it waits.
///
/// Fails with the errors of `Queue::open`, such as `Error::UnknownQueue`, and with `Error::NoRight`
/// when the caller may not work on the documents.
pub fn worker(transactions: &Transactions, worker: &Worker, until: i64) -> Result<Option<News>> {
    let mut paused: HashSet<usize> = HashSet::new();
    let mut own_keys = Vec::new();
    wait_for(until, |is_told| {
        // What other programs do to a lease wakes nobody. A worker without leases is idle, and hundreds of
        // those look every few seconds.
        if is_told || !worker.leases.is_empty() {
            own_keys.clear();
            if let Some(news) = worker.look_at_own(transactions, &mut own_keys)? {
                return Ok(Look::Instead(Some(news)));
            }
        }
        let mut resumed = None;
        let visit = |at: usize, queue: &Queue| match queue.policy.is_active {
            true if paused.remove(&at) => resumed = Some(at),
            true => {}
            false => _ = paused.insert(at),
        };
        let (queues, version) = (worker.queues, worker.version);
        Ok(
            match look(transactions, queues, version, Right::Work, visit)? {
                Look::Done(at) | Look::Instead(at) => Look::Done(at.map(News::Ready)),
                Look::NotYet { mut keys, next, .. } => match resumed {
                    Some(at) => Look::Instead(Some(News::Resumed(at))),
                    None => {
                        // One key is that of its name.
                        let watched = own_keys.len().min(MAX_SESSIONS + 1);
                        let next = match watched < own_keys.len() {
                            true => next.min(time::clock() + MANY_SESSIONS_INTERVAL_US),
                            false => next,
                        };
                        keys.extend(&own_keys[..watched]);
                        let result = None;
                        Look::NotYet { keys, next, result }
                    }
                },
            },
        )
    })
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
    wait_for(until, |_| {
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
