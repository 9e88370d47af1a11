//! Requests to stop (`fetchq.stop_requests`): workers were asked to end.
//!
//! Whether a request came before or after a worker began is decided by numbers of one sequence. The
//! clock cannot tell, because it may be set back.

use std::cell::Cell;

use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{relation, session};
use crate::signals::wakeups;
use crate::store::queues::plans;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::Statement;

/// Returns a number that is greater than those of all requests by now, and smaller than those of all
/// later ones.
pub fn next_number() -> i64 {
    match relation::lookup("fetchq", "stop_requests_number_seq") {
        Some(sequence) => relation::next_identity(sequence),
        None => pgrx::error!(
            "sequence fetchq.stop_requests_number_seq is missing: reinstall the extension"
        ),
    }
}

// The queue 0 stands for all queues.
const REQUEST_STOP: &str = "insert into fetchq.stop_requests (name, queue_id, since)
    select $1, 0, pg_catalog.clock_timestamp() where $2
    union all
    select $1, q.id, pg_catalog.clock_timestamp() from fetchq.queues q
    where not $2 and q.name {=} any ($3)
    on conflict (name, queue_id) do update set since = excluded.since, number = excluded.number";

/// Asks a worker to stop: all its sessions that have begun before now, and that work on queues
/// on whose documents the caller may work.
///
/// Fails as `rights::over` does.
pub fn request_stop(worker: &str) -> Result<()> {
    rights::over(None, Right::Work, |queues| {
        let [is_everything, queues] = queues.args();
        let args = [Arg::from(worker), is_everything, queues];
        spi::connect(|spi| spi.once(REQUEST_STOP, &args).affected());
        wakeups::worker_called(worker);
        Ok(())
    })
}

// Nearly always no worker is stopped, so this is asked first.
static IS_ANY_STOPPED: Statement = Statement::new("select from fetchq.stop_requests limit 1");

// A request stops the sessions that registered before it. Indexes: the id of the session, and the
// primary key of the requests.
static IS_STOPPED: Statement = Statement::new(
    "select from fetchq.worker_sessions w
     join fetchq.stop_requests s on s.name {=} w.name
         and (s.queue_id {=} 0 or s.queue_id {=} w.queue_id)
     where w.id {=} $1
         and w.number {<} s.number",
);

/// Returns whether a worker session was asked to stop.
pub fn is_stopped(spi: &Spi, worker_session: i64) -> bool {
    plans::run_latest(spi, &IS_ANY_STOPPED, &[]).affected() > 0
        && plans::run_latest(spi, &IS_STOPPED, &[Arg::from(worker_session)]).affected() > 0
}

// A worker asks this before each document. Index: the primary key.
static IS_STOP_REQUESTED: Statement = Statement::new(
    "select from fetchq.stop_requests s
     where s.name {=} $1 and s.since {>=} $2 and s.number {>} $4
         and (s.queue_id {=} 0
             or s.queue_id {=} (select q.id from fetchq.queues q where q.name {=} $3))
     limit 1",
);

thread_local! {
    /// The statement in which `fetchq.work` runs, by its mark, and a number from when it began.
    static WORK: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// Remembers that `fetchq.work` begins in the statement that runs.
pub fn work_begins() {
    // Where no session can write, no worker works, and there are no numbers.
    let number = match session::is_read_only() {
        true => i64::MAX,
        false => next_number(),
    };
    WORK.set((session::statement_mark(), number));
}

/// Returns the number from when `fetchq.work` began in the statement that runs. None: it does not run.
pub fn work_number() -> Option<i64> {
    let (mark, number) = WORK.get();
    (mark == session::statement_mark()).then_some(number)
}

/// Returns whether a worker of a queue was asked to stop at or after `since`, in microseconds since
/// 2000, and after `number` was given.
pub fn is_stop_requested(queue: &QueueName, worker: &str, since: i64, number: i64) -> bool {
    spi::connect(|spi| {
        let args = [
            Arg::from(worker),
            Arg::timestamp(since),
            Arg::from(queue.as_str()),
            Arg::from(number),
        ];
        !plans::run_latest(spi, &IS_STOP_REQUESTED, &args).is_empty()
    })
}

// Index: the primary key.
static FIRST_AFTER: Statement = Statement::new(
    "select s.number, q.name::pg_catalog.text
     from fetchq.stop_requests s
     left join fetchq.queues q on q.id {=} s.queue_id
     where s.name {=} $1 and s.number {>} $2
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

/// The first request after `number` that a worker stops, on all queues or on one of these.
pub fn first_after(worker: &str, number: i64, queues: &[&str]) -> Option<StopRequest> {
    spi::connect(|spi| {
        // Nearly always no worker is stopped.
        if plans::run_latest(spi, &IS_ANY_STOPPED, &[]).affected() == 0 {
            return None;
        }
        let args = [
            Arg::from(worker),
            Arg::from(number),
            Arg::from(queues.to_vec()),
        ];
        let rows = plans::run_latest(spi, &FIRST_AFTER, &args);
        (!rows.is_empty()).then(|| StopRequest {
            number: rows.get(0, 1).unwrap_or(number),
            queue: rows.get(0, 2),
        })
    })
}

const TRIM: &str = "delete from fetchq.stop_requests s
    where s.since {<} (pg_catalog.now() {-} interval '1 day')
        and not exists (
            select from fetchq.worker_sessions w
            where w.name {=} s.name and w.number {<} s.number)";

/// Deletes old requests for which no session is left that they would stop.
pub fn delete_old(spi: &Spi) {
    spi.once(TRIM, &[]);
}
