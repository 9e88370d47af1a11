//! Who holds documents, and what becomes of those whose session has ended.

use std::collections::BTreeMap;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::call::RowSink;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{relation, time};
use crate::ready::key::Key;
use crate::store::bookkeeping::{documents_ready, note_entry};
use crate::store::open_queue::Queue;
use crate::store::statement::{self, Statement};
use crate::store::{counter_log, plans, queue};

// The sessions that run now. Who may not see when another role's session began is shown
// no time: then the number of the process has to do.
const OF_A_NAME: &str = "select distinct q.name::text
    from fetchq.worker_sessions h
    join fetchq.queues q on q.id = h.queue_id
    where h.name = $1 order by 1";

/// The queues that a worker has picked from.
pub fn queues_of(worker: &str) -> Vec<QueueName> {
    spi::connect(|spi| {
        let rows = spi.once(OF_A_NAME, &[Arg::from(worker)]);
        let names = (0..rows.len()).filter_map(|row| rows.get::<String>(row, 1));
        names
            .filter_map(|name| QueueName::parse(&name).ok())
            .collect()
    })
}

// Index: due. What another session is settling is its own.
const RELEASE: &str = "update only {docs} d set
        status = {pending}, next_iteration = now(), attempts = greatest(d.attempts - 1, 0),
        lease = null, worker_session = null
    where d.ctid = any (array(
        select c.ctid from only {docs} c
        where c.status = {active} and c.lock_upgrade is null
            and c.worker_session = any (array(
                select h.id from fetchq.worker_sessions h where h.name = $1 and h.queue_id = $2))
        order by c.next_iteration, c.seq
        for update skip locked))
    returning d.version, d.priority, d.next_iteration, d.attempts, d.seq";

/// Hands back what a worker holds of a queue, as if it had not been picked; says how
/// many documents.
pub fn release(queue: &Queue, worker: &str) -> i32 {
    spi::connect(|spi| {
        let args = [Arg::from(worker), Arg::from(queue.id)];
        let rows = queue.once(spi, RELEASE, &args);
        let mut versions: BTreeMap<i32, i32> = BTreeMap::new();
        for row in 0..rows.len() {
            let int = |column| rows.get(row, column).unwrap_or(0);
            let key = Key::new(
                rows.timestamp(row, 3).unwrap_or(i64::MIN),
                int(4),
                rows.get(row, 5).unwrap_or(i64::MIN),
            );
            note_entry(queue, int(1), int(2), Status::Pending, key);
            *versions.entry(int(1)).or_default() += 1;
        }
        for (version, n) in versions {
            documents_ready(queue, version, Status::Pending, n);
        }
        let n = rows.affected();
        counter_log::record_event(queue, 0, n, Event::ReturnPending);
        n
    })
}

const STOP: &str = "insert into fetchq.stop_requests (name, since) values ($1, clock_timestamp())
    on conflict (name) do update set since = excluded.since";

/// Asks a worker to stop: all its sessions that have begun by now.
pub fn request_stop(worker: &str) {
    spi::connect(|spi| {
        spi.once(STOP, &[Arg::from(worker)]);
    });
}

/// The documents of a queue that are leased. The lease tells when it was given: its
/// number is the time, in microseconds since 2000, and twelve bits more.
pub const LEASED: &str = "select q.name, d.subject, d.version, d.attempts, d.lease,
        h.name as worker, h.pid,
        '2000-01-01 00:00:00+00'::timestamptz + ((d.lease >> 12) / 1000000) * interval '1 second'
            + ((d.lease >> 12) % 1000000) * interval '1 microsecond',
        d.next_iteration,
        case h.binding when 1 then 'return' when 2 then 'keep' else 'off' end,
        d.worker_session
    from only {docs} d
    join fetchq.queues q on q.name = $1
    left join fetchq.worker_sessions h on h.id = d.worker_session
    where d.status = {active}
    order by d.next_iteration, d.seq";

/// Sessions whose leases are bound to them, of one queue.
#[derive(Debug, Default)]
pub struct BoundSessions {
    pub alive: Vec<i64>,
    pub ended: Vec<i64>,
}

static BOUND: Statement = Statement::new(
    "select q.name::pg_catalog.text, h.id, h.binding, a.pid is not null
     from fetchq.worker_sessions h
     join fetchq.queues q on q.id {=} h.queue_id
     left join pg_catalog.pg_stat_get_activity(null) a
         on a.pid {=} h.pid
         and coalesce(a.backend_start {=} h.backend_start, true)
     where h.binding {>} 0
         and ($1 is null or h.queue_id {=} $1)",
);

/// Whether the caller may know who holds documents.
pub fn may_read() -> bool {
    relation::lookup("fetchq", "worker_sessions").is_some_and(relation::may_read)
}

/// The sessions with bound leases: of one queue, or of all.
pub fn bound_sessions(queue: Option<i32>) -> BTreeMap<String, BoundSessions> {
    spi::connect(|spi| {
        let rows = plans::run_latest(spi, &BOUND, &[Arg::from(queue)]);
        let mut found: BTreeMap<String, BoundSessions> = BTreeMap::new();
        for row in 0..rows.len() {
            let (Some(name), Some(id)) = (rows.get(row, 1), rows.get(row, 2)) else {
                continue;
            };
            let bound = found.entry(name).or_default();
            if rows.get(row, 4) != Some(true) {
                bound.ended.push(id);
            } else if rows.get(row, 3) == Some(2) {
                bound.alive.push(id);
            }
        }
        found
    })
}

// Index: due. They are taken back as leases that ran out.
static END: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {>} $2
             and c.worker_session {=} any ($1)
         for update skip locked))",
);

static EXTEND: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} $3
             and c.worker_session {=} any ($1)
         for update skip locked))",
);

/// How long a kept lease lasts at least, once it has been extended; and what is left of
/// one that is due to be: microseconds.
const KEPT_FOR: i64 = 60_000_000;

const LEFT: i64 = 30_000_000;

/// Ends the leases of sessions that have ended, and extends those that last as long as
/// their sessions; says how many documents that were.
pub fn apply_bindings(queue: &Queue, bound: &BoundSessions) -> i32 {
    let now = time::clock();
    let mut n = 0;
    spi::connect(|spi| {
        if !bound.ended.is_empty() {
            // In the past as this transaction sees it, which may take them back at once.
            let args = [
                Arg::from(bound.ended.clone()),
                Arg::timestamp(time::now() - 1),
            ];
            let ended = queue.run(spi, &END, &args).affected();
            if ended == 0 && may_trim(spi) {
                trim_ended(spi, queue);
            }
            n += ended;
        }
        if !bound.alive.is_empty() {
            let args = [
                Arg::from(bound.alive.clone()),
                Arg::timestamp(now + KEPT_FOR),
                Arg::timestamp(now + LEFT),
            ];
            n += queue.run(spi, &EXTEND, &args).affected();
        }
    });
    n
}

// Those that hold nothing of the queue: of sessions that have ended, and those that were
// written down anew since.
const TRIM: &str = "delete from fetchq.worker_sessions h
    where h.queue_id = $1
        and (not exists (
                select from pg_stat_get_activity(null) a
                where a.pid = h.pid and coalesce(a.backend_start = h.backend_start, true))
            or exists (
                select from fetchq.worker_sessions n
                where n.queue_id = $1 and n.pid = h.pid and n.backend_start = h.backend_start
                    and n.name = h.name and n.binding = h.binding and n.since > h.since))
        and not exists (select from only {docs} d where d.status = {active} and d.worker_session = h.id)";

const TRIM_GONE: &str = "delete from fetchq.worker_sessions h
    where not exists (select from fetchq.queues q where q.id = h.queue_id)";

const TRIM_STOPS: &str = "delete from fetchq.stop_requests s
    where s.since < now() - interval '1 day'
        and not exists (select from fetchq.worker_sessions h where h.name = s.name and h.since < s.since)";

const MAY_TRIM: &str = "select has_table_privilege('fetchq.worker_sessions', 'delete')
    and has_table_privilege('fetchq.stop_requests', 'delete')";

fn may_trim(spi: &Spi) -> bool {
    spi.once(MAY_TRIM, &[]).get(0, 1).unwrap_or(false)
}

fn trim_ended(spi: &Spi, queue: &Queue) {
    queue.once(spi, TRIM, &[Arg::from(queue.id)]);
}

/// Forgets who holds nothing any more, where the caller may do that.
pub fn delete_stale(queue: &Queue) {
    spi::connect(|spi| {
        if may_trim(spi) {
            trim_ended(spi, queue);
            spi.once(TRIM_GONE, &[]);
            spi.once(TRIM_STOPS, &[]);
        }
    });
}

/// Returns all documents that a worker has leased, of any queue, as if they had not been
/// picked. Gives their number, or `None` when no worker of that name has picked anything.
pub fn release_all(worker: &str) -> Result<Option<i32>> {
    let queues = queues_of(worker);
    if queues.is_empty() {
        return Ok(None);
    }
    let mut released = 0;
    for name in queues {
        match Queue::open(&name) {
            Ok(queue) => released += release(&queue, worker),
            // The queue was dropped after its name was read.
            Err(Error::UnknownQueue(_)) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(Some(released))
}

/// Adds the leased documents of all queues that the caller may read to a result.
pub fn list_leases(out: &mut RowSink) {
    for name in queue::all() {
        let table = relation::lookup_data_table(&name.relation("docs"));
        if table.is_some_and(relation::may_read) {
            let sql = statement::render(LEASED, &name);
            spi::connect(|spi| out.extend(&spi.once(&sql, &[Arg::from(name.as_str())])));
        }
    }
}
