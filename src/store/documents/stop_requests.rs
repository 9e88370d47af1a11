//! Requests to stop (`fetchq.stop_requests`): workers were asked to end.
//!
//! A request stops the sessions of a worker that did not know of it when they began. So each of them
//! remembers the numbers of the requests that it could see then. The order of the numbers says nothing: a
//! request may get its number before a session begins, and be committed afterwards. The clock says
//! nothing either, because it may be set back.

use std::cell::RefCell;

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{relation, session};
use crate::signals::wakeups;
use crate::store::queues::plans;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::Statement;

/// Returns a number that no request has.
fn next_number() -> i64 {
    match relation::lookup("fetchq", "stop_requests_number_seq") {
        Some(sequence) => relation::next_identity(sequence),
        None => pgrx::error!(
            "sequence fetchq.stop_requests_number_seq is missing: reinstall the extension"
        ),
    }
}

// Index: the primary key. One number for all rows of a request, so that there are few to remember.
static KNOWN: Statement = Statement::new(
    "select pg_catalog.array_agg(distinct s.number) from fetchq.stop_requests s
     where $1 is null or s.name {=} $1",
);

/// Returns the numbers of the requests to a worker, or to all, that are committed by now.
pub fn known(worker: Option<&str>) -> Vec<i64> {
    spi::connect(|spi| {
        // Nearly always no worker is stopped.
        if plans::run_latest(spi, &IS_ANY_STOPPED, &[]).is_empty() {
            return Vec::new();
        }
        let numbers = plans::run_latest(spi, &KNOWN, &[Arg::from(worker)]).get(0, 1);
        numbers.unwrap_or_default()
    })
}

// The queue 0 stands for all queues.
const REQUEST_STOP: &str = "insert into fetchq.stop_requests (name, queue_id, since, number)
    select $1, 0, pg_catalog.clock_timestamp(), $4 where $2
    union all
    select $1, q.id, pg_catalog.clock_timestamp(), $4 from fetchq.queues q
    where not $2 and q.name {=} any ($3)
    on conflict (name, queue_id) do update set since = excluded.since, number = excluded.number";

/// Asks a worker to stop: all its sessions that have begun before this transaction commits, and that work
/// on queues on whose documents the caller may work.
///
/// Fails as `rights::over` does.
pub fn request_stop(worker: &str) -> Result<()> {
    rights::over(None, Right::Work, |queues| {
        let [is_everything, queues] = queues.args();
        let args = [
            Arg::from(worker),
            is_everything,
            queues,
            Arg::from(next_number()),
        ];
        spi::connect(|spi| spi.once(REQUEST_STOP, &args).affected());
        wakeups::worker_called(worker);
        Ok(())
    })
}

// Nearly always no worker is stopped, so this is asked first.
static IS_ANY_STOPPED: Statement = Statement::new("select from fetchq.stop_requests limit 1");

// Indexes: the id of the session, and the primary key of the requests.
static IS_STOPPED: Statement = Statement::new(
    "select from fetchq.worker_sessions w
     join fetchq.stop_requests s on s.name {=} w.name
         and (s.queue_id {=} 0 or s.queue_id {=} w.queue_id)
     where w.id {=} $1
         and s.number {<>} all (w.known_stops)",
);

/// Returns whether a worker session was asked to stop.
pub fn is_stopped(spi: &Spi, worker_session: i64) -> bool {
    plans::run_latest(spi, &IS_ANY_STOPPED, &[]).affected() > 0
        && plans::run_latest(spi, &IS_STOPPED, &[Arg::from(worker_session)]).affected() > 0
}

// A worker asks this before each document. Index: the primary key.
static IS_STOP_REQUESTED: Statement = Statement::new(
    "select from fetchq.stop_requests s
     where s.name {=} $1 and s.since {>=} $2 and s.number {<>} all ($4)
         and (s.queue_id {=} 0
             or s.queue_id {=} (select q.id from fetchq.queues q where q.name {=} $3))
     limit 1",
);

thread_local! {
    /// The statement in which `fetchq.work` runs, by its mark, and the requests that it knows.
    static WORK: RefCell<(i64, Vec<i64>)> = const { RefCell::new((0, Vec::new())) };
}

/// Remembers that `fetchq.work` begins in the statement that runs.
pub fn work_begins() {
    WORK.set((session::statement_mark(), known(None)));
}

/// Returns the requests that were there when `fetchq.work` began in the statement that runs. None: it does
/// not run.
pub fn known_to_work() -> Option<Vec<i64>> {
    WORK.with_borrow(|(mark, known)| (*mark == session::statement_mark()).then(|| known.clone()))
}

/// Returns whether a worker of a queue was asked to stop at or after `since`, in microseconds since
/// 2000, by a request that is not among those `known`.
pub fn is_stop_requested(queue: &QueueName, worker: &str, since: i64, known: Vec<i64>) -> bool {
    spi::connect(|spi| {
        let args = [
            Arg::from(worker),
            Arg::timestamp(since),
            Arg::from(queue.as_str()),
            Arg::from(known),
        ];
        !plans::run_latest(spi, &IS_STOP_REQUESTED, &args).is_empty()
    })
}

// Index: the primary key.
static FIRST_NEW: Statement = Statement::new(
    "select s.number, q.name::pg_catalog.text
     from fetchq.stop_requests s
     left join fetchq.queues q on q.id {=} s.queue_id
     where s.name {=} $1 and s.number {<>} all ($2)
         and (s.queue_id {=} 0 or q.name {=} any ($3))
     order by s.number
     limit 1",
);

/// A request to stop.
pub struct StopRequest {
    pub number: i64,
    /// The queue on which the worker is to stop. None: on all.
    pub queue: Option<String>,
}

/// The first request that is not among those `known` and that a worker stops, on all queues or on one of
/// these.
pub fn first_new(worker: &str, known: &[i64], queues: &[&str]) -> Option<StopRequest> {
    spi::connect(|spi| {
        // Nearly always no worker is stopped.
        if plans::run_latest(spi, &IS_ANY_STOPPED, &[]).affected() == 0 {
            return None;
        }
        let args = [
            Arg::from(worker),
            Arg::from(known.to_vec()),
            Arg::from(queues.to_vec()),
        ];
        let rows = plans::run_latest(spi, &FIRST_NEW, &args);
        (!rows.is_empty()).then(|| StopRequest {
            number: rows.get(0, 1).unwrap_or(0),
            queue: rows.get(0, 2),
        })
    })
}

const TRIM: &str = "delete from fetchq.stop_requests s
    where s.since {<} (pg_catalog.now() {-} interval '1 day')
        and not exists (
            select from fetchq.worker_sessions w
            where w.name {=} s.name and s.number {<>} all (w.known_stops))";

/// Deletes old requests for which no session is left that they would stop.
pub fn delete_old(spi: &Spi) {
    spi.once(TRIM, &[]);
}
