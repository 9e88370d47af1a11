//! The sessions of workers (`fetchq.worker_sessions`): which documents they have leased, and
//! what happens to the leases of a session that has ended.

use std::collections::BTreeMap;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::relation::{self, LockMode};
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::pg::{planner, subtransaction, time};
use crate::ready::key::PickKey;
use crate::settings::Binding;
use crate::signals::wakeups;
use crate::store::bounds::keys::as_maintenance;
use crate::store::counters::counter_log;
use crate::store::counters::counter_segments;
use crate::store::counters::counter_segments::SEGMENTS;
use crate::store::documents::bookkeeping::{
    documents_ready, leases_taken, note_entry, note_waiting_again,
};
use crate::store::documents::late_leases;
use crate::store::documents::leases;
use crate::store::documents::queued::all_queued;
use crate::store::documents::stop_requests;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::Scope;
use crate::store::queues::statement::{self, Statement, render};
use crate::store::upkeep::maintenance::put_queued;

const LIST_QUEUES_OF: &str = "select distinct q.name::pg_catalog.text
    from fetchq.worker_sessions w
    join fetchq.queues q on q.id {=} w.queue_id
    where w.name {=} $1 order by 1";

/// The queues that a worker of this name has picked from, and whose documents the caller may
/// work on.
pub fn queues_of(worker: &str) -> Vec<QueueName> {
    spi::connect(|spi| {
        let rows = spi.once(LIST_QUEUES_OF, &[Arg::from(worker)]);
        let names = (0..rows.len()).filter_map(|row| rows.get::<String>(row, 1));
        names
            .filter_map(|name| QueueName::parse(&name).ok())
            .filter(|name| rights::has(name, Right::Work))
            .collect()
    })
}

// Index: the due index, all leased documents. A document that another session is settling is
// skipped.
const RELEASE: &str = "update only {docs} d set
        status = {pending}, next_iteration = pg_catalog.now(), attempts = greatest(d.attempts {-} 1, 0)
    where d.ctid {=} any (array(
        select c.ctid from only {docs} c
        where c.status {=} {active} and c.lock_upgrade is null
            and c.worker_session {=} any ($1)
        order by c.next_iteration, c.seq
        for update skip locked))
    returning d.version, d.priority, d.next_iteration, d.attempts, d.seq, d.queued,
        d.subject::pg_catalog.text, d.worker_session";

/// A row of `RELEASE`.
struct ReleasedDoc {
    version: i32,
    priority: i32,
    key: PickKey,
}

fn released_doc(rows: &Rows, row: usize) -> ReleasedDoc {
    let int = |column| rows.get(row, column).unwrap_or(0);
    ReleasedDoc {
        version: int(1),
        priority: int(2),
        key: PickKey::new(
            rows.timestamp(row, 3).unwrap_or(i64::MIN),
            int(4),
            rows.get(row, 5).unwrap_or(i64::MIN),
        ),
    }
}

const LIST_SESSIONS_OF: &str = "select w.id from fetchq.worker_sessions w
    where w.name {=} $1 and w.queue_id {=} $2";

/// Returns the documents of a queue that a worker has leased, as if they had not been picked.
/// Returns how many.
pub fn release(queue: &Queue, worker: &str) -> i32 {
    let args = [Arg::from(worker), Arg::from(queue.id)];
    let sessions = spi::connect(|spi| ids(&spi.once(LIST_SESSIONS_OF, &args)));
    release_leases(queue, &sessions, true)
}

/// Returns the documents of a queue that sessions have leased, as if they had not been picked. `waits`:
/// for those who have locked keys of them; otherwise these documents stay as they are.
/// Returns how many.
fn release_leases(queue: &Queue, sessions: &[i64], waits: bool) -> i32 {
    spi::connect(|spi| {
        let args = [Arg::from(sessions.to_vec())];
        let rows = match waits {
            true => queue.once(spi, RELEASE, &args),
            // Leases that are bound to a session or a call are never late.
            false => as_maintenance(|| spi.once(&render(RELEASE, &queue.name), &args)),
        };
        let mut versions: BTreeMap<i32, i32> = BTreeMap::new();
        for row in 0..rows.len() {
            let doc = released_doc(&rows, row);
            note_entry(queue, doc.version, doc.priority, Status::Pending, doc.key);
            *versions.entry(doc.version).or_default() += 1;
        }
        if !versions.is_empty() {
            note_waiting_again(queue);
        }
        for (version, n) in versions {
            documents_ready(queue, version, Status::Pending, n);
        }
        let n = rows.affected();
        // The event does not say who has returned the documents.
        wakeups::leases_taken(queue.table.to_u32(), n.unsigned_abs());
        leases_taken(queue, &rows, 8);
        counter_log::record_event(queue, 0, n, Event::ReturnPending);
        put_queued(queue, &all_queued(&rows, 7, 6));
        n
    })
}

/// The leased documents of a queue, in the order of their subjects. $1: its name, $2: the subject
/// after which the page begins, $3: how many, NULL for all.
// Index: the due index, whose condition is that of the first part. It has no other documents than
// those, and planned ones.
pub const LEASED: &str = "with leased as materialized (
        select d.subject, d.version, d.attempts, d.lease, d.picked_at, d.next_iteration,
            d.worker_session
        from only {docs} d
        where d.status {=} {active} and d.lock_upgrade is null
    ), page as materialized (
        select l.* from leased l
        where $2 is null or l.subject {>} $2
        order by l.subject
        limit $3
    )
    select q.name, p.subject, p.version, p.attempts, p.lease,
        w.name as worker, w.pid,
        p.picked_at, p.next_iteration,
        case when w.binding {=} 1 then 'return' when w.binding {=} 2 then 'keep'
            when w.binding {=} 3 then 'call' else 'off' end,
        p.worker_session
    from page p
    join fetchq.queues q on q.name {=} $1
    left join fetchq.worker_sessions w on w.id {=} p.worker_session
    order by p.subject";

/// The sessions of a queue whose leases are bound to them.
#[derive(Debug, Default)]
pub struct BoundSessions {
    /// Sessions that run, and whose leases last as long as they do, or as long as a call that runs.
    pub alive: Vec<i64>,
    /// Calls that have ended, in sessions that run: their documents are to be given back.
    pub over: Vec<i64>,
    /// Sessions that have ended: their leases are to be taken back.
    pub ended: Vec<i64>,
}

/// Whether the call that the row `w` stands for is over in its session `a`: the session does not run
/// the statement that began when the call did. Both times come from the same variable, so this says
/// which statement it is, and no clock is compared. NULL where the role may not see that, or the
/// session does not track it (`track_activities`).
macro_rules! is_over {
    () => {
        "(w.binding {=} 3 and a.state {<>} 'disabled'
            and not (a.state {=} any ('{active,fastpath function call}'::pg_catalog.text[])
                and a.query_start {=} w.query_start))"
    };
}

// Index: (binding, queue_id), which needs all bindings. The sessions that run and have leased documents
// of a queue.
const COUNT_SESSIONS: &str = "select pg_catalog.count(distinct w.pid)
    from fetchq.worker_sessions w
    join pg_catalog.pg_stat_get_activity(null) a
        on a.pid {=} w.pid and coalesce(a.backend_start {=} w.backend_start, true)
    where w.binding {=} any ('{0,1,2,3}'::pg_catalog.int4[]) and w.queue_id {=} $1";

// Index: (binding, queue_id), which needs all bindings. The queues of which sessions have leased documents
// that have a transaction open. $1: the ids of queues.
const LIST_BUSY: &str = "select distinct w.queue_id
    from fetchq.worker_sessions w
    join pg_catalog.pg_stat_get_activity(null) a
        on a.pid {=} w.pid and coalesce(a.backend_start {=} w.backend_start, true)
    where w.binding {=} any ('{0,1,2,3}'::pg_catalog.int4[]) and w.queue_id {=} any ($1)
        and a.pid {<>} pg_catalog.pg_backend_pid() and coalesce(a.state {<>} 'idle', true)";

/// Of some queues, given by their ids, those of which other sessions have leased documents that have a
/// transaction open now: it may have leased a document. Where the state of a session is hidden, it counts.
pub fn with_open_transactions(queues: Vec<i32>) -> Vec<i32> {
    spi::connect(|spi| {
        let rows = spi.once_latest(LIST_BUSY, &[Arg::from(queues)]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    })
}

/// How many leased documents are looked at for their versions. Not measured: some milliseconds.
const MAX_LEASED: i64 = 10_000;

// Index: the due index.
const LEASED_VERSIONS: &str = "select distinct l.version from (
        select d.version from only {docs} d
        where d.status {=} {active} and d.lock_upgrade is null
        limit $1) l";

/// How many sessions are connected that have leased documents of a queue, and the versions of the
/// documents that are leased.
pub fn workers_of(spi: &Spi, name: &QueueName, queue: i32) -> (i64, Vec<i32>) {
    late_leases::before_reading(name);
    let sessions = spi.once_latest(COUNT_SESSIONS, &[Arg::from(queue)]);
    let versions = spi.once_latest(&render(LEASED_VERSIONS, name), &[Arg::from(MAX_LEASED)]);
    let leased = (0..versions.len()).filter_map(|row| versions.get(row, 1));
    (sessions.get(0, 1).unwrap_or(0), leased.collect())
}

// The sessions that meet a condition, which selects those with bound leases. A role that may not see when a session of
// another role began gets NULL for that time. The process number alone then tells whether the
// session runs.
macro_rules! list_bound {
    ($condition:literal) => {
        concat!(
            "select q.name::pg_catalog.text, w.id, w.binding, a.pid is not null, ",
            is_over!(),
            " from fetchq.worker_sessions w
             join fetchq.queues q on q.id {=} w.queue_id
             left join pg_catalog.pg_stat_get_activity(null) a
                 on a.pid {=} w.pid
                 and coalesce(a.backend_start {=} w.backend_start, true)
             where ",
            $condition,
        )
    };
}

// Index of both: (binding, queue_id). No row of a session without bound leases is read, and for one
// queue none of another queue.
static LIST_BOUND: Statement = Statement::new(list_bound!("w.binding {>} 0"));
static LIST_BOUND_OF: Statement = Statement::new(list_bound!(
    "w.binding {=} any ('{1,2,3}'::pg_catalog.int4[]) and w.queue_id {=} $1"
));

/// The least `binding` of a session whose leases are extended.
const BINDING_KEEP: i32 = Binding::Keep as i32;

/// A row of `LIST_BOUND`.
struct BoundSession {
    queue: String,
    id: i64,
    binding: i32,
    is_alive: bool,
    is_over: bool,
}

fn bound_session(rows: &Rows, row: usize) -> Option<BoundSession> {
    Some(BoundSession {
        queue: rows.get(row, 1)?,
        id: rows.get(row, 2)?,
        binding: rows.get(row, 3).unwrap_or(0),
        is_alive: rows.get(row, 4) == Some(true),
        is_over: rows.get(row, 5) == Some(true),
    })
}

/// The sessions with bound leases, by queue. `queue`: the id of one queue; None for all.
pub fn bound_sessions(queue: Option<i32>) -> BTreeMap<String, BoundSessions> {
    spi::connect(|spi| {
        let rows = match queue {
            Some(queue) => plans::run_latest(spi, &LIST_BOUND_OF, &[Arg::from(queue)]),
            None => plans::run_latest(spi, &LIST_BOUND, &[]),
        };
        let mut found: BTreeMap<String, BoundSessions> = BTreeMap::new();
        for session in (0..rows.len()).filter_map(|row| bound_session(&rows, row)) {
            let bound = found.entry(session.queue).or_default();
            if !session.is_alive {
                bound.ended.push(session.id);
            } else if session.is_over {
                bound.over.push(session.id);
            } else if session.binding >= BINDING_KEEP {
                bound.alive.push(session.id);
            }
        }
        found
    })
}

// Index of this statement and the next one: the due index. The leases expire, and maintenance
// takes them back as such.
static EXPIRE_LEASES: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {>} $2
             and c.worker_session {=} any ($1)
         for update skip locked))",
)
.in_scope(Scope::Nothing);

// $4: `max_run`, after which nothing extends a lease.
static EXTEND_LEASES: Statement = Statement::new(
    "update only {docs} d set next_iteration = least($2, d.picked_at {+} $4)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} $3
             and ($4 is null or c.next_iteration {<} (c.picked_at {+} $4))
             and c.worker_session {=} any ($1)
         for update skip locked))",
)
.in_scope(Scope::Nothing);

/// For how long a lease of a session that runs is extended. It outlasts several rounds of
/// maintenance.
const EXTENSION_US: i64 = 60_000_000;

/// A lease is extended when it would expire within this time.
const EXTEND_WITHIN_US: i64 = 30_000_000;

/// Lets the leases of sessions that have ended expire, gives back those of calls that have ended, and
/// extends those that last as long as their sessions or calls, with the rights of the owner. Returns
/// how many leases were changed.
pub fn apply_bindings(queue: &Queue, bound: &BoundSessions) -> i32 {
    let mut n = 0;
    let mut has_stale = false;
    if !bound.ended.is_empty() {
        let expired = expire_leases(queue, &bound.ended);
        has_stale = expired == 0;
        n += expired;
    }
    if !bound.over.is_empty() {
        let released = release_leases(queue, &bound.over, false);
        has_stale |= released == 0;
        n += released;
    }
    if has_stale {
        trim_sessions(queue);
    }
    if !bound.alive.is_empty() {
        n += extend_leases(queue, &bound.alive);
    }
    n
}

fn expire_leases(queue: &Queue, sessions: &[i64]) -> i32 {
    // In the past of this transaction, which may take the leases back itself.
    let args = [
        Arg::from(sessions.to_vec()),
        Arg::timestamp(time::now() - 1),
    ];
    spi::connect(|spi| queue.run(spi, &EXPIRE_LEASES, &args).affected())
}

fn extend_leases(queue: &Queue, sessions: &[i64]) -> i32 {
    let now = time::clock();
    let args = [
        Arg::from(sessions.to_vec()),
        Arg::timestamp(now + EXTENSION_US),
        Arg::timestamp(now + EXTEND_WITHIN_US),
        Interval::of(queue.policy.max_run),
    ];
    spi::connect(|spi| queue.run(spi, &EXTEND_LEASES, &args).affected())
}

// The names of functions are qualified here, because mnt_run() runs under the search_path of its
// caller. Sessions that need no row unless they have a leased document of the queue: those that have
// ended, calls that have ended, those that have been registered again since, and those that a session
// has forgotten ($2: how many it remembers). The ids of a session grow whatever the clock says. A
// session that has a transaction ID may still commit a lease of a call that is over. So may a
// transaction that was prepared since, whether its session still runs or not.
// Index: (binding, queue_id).
static LIST_STALE: Statement = Statement::new(concat!(
    "select w.id
     from (
         select w.*,
             pg_catalog.max(w.id) over (partition by w.pid, w.backend_start, w.name, w.binding) as last_id,
             pg_catalog.row_number() over (partition by w.pid, w.backend_start order by w.id desc) as place
         from fetchq.worker_sessions w
         where w.binding {=} any ('{0,1,2,3}'::pg_catalog.int4[]) and w.queue_id {=} $1
     ) w
     left join pg_catalog.pg_stat_get_activity(null) a
         on a.pid {=} w.pid and coalesce(a.backend_start {=} w.backend_start, true)
     where (a.pid is null
         or w.id {<} w.last_id
         or w.place {>} $2
         or a.backend_xid is null and ",
    is_over!(),
    ") and not exists (
         select from pg_catalog.pg_prepared_xact() p
         join pg_catalog.pg_database d on d.oid {=} p.dbid and d.datname {=} pg_catalog.current_database()
         where p.prepared {>=} w.since)",
));

// Index: the due index, all leased documents. $1: sessions.
const LIST_LEASING: &str = "select distinct d.worker_session from only {docs} d
    where d.status {=} {active} and d.worker_session {=} any ($1)";

const DELETE_SESSIONS: &str =
    "delete from fetchq.worker_sessions w where w.queue_id {=} $1 and w.id {=} any ($2)";

const LIST_OLDER_QUEUES: &str = "select from fetchq.queues q where q.id {<} $1 limit 1";

const TRIM_SESSIONS_OF_DROPPED: &str = "delete from fetchq.worker_sessions w
    where not exists (select from fetchq.queues q where q.id {=} w.queue_id)";

fn ids(rows: &Rows) -> Vec<i64> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Deletes the rows of sessions that need none and have no leased document. The documents are
/// read with the rights of their owner, and after the sessions: what a session has picked before
/// it ended is visible then.
fn trim_sessions(queue: &Queue) {
    spi::connect(|spi| {
        let id = Arg::from(queue.id);
        let remembered = Arg::from(leases::MAX_REGISTRATIONS as i64);
        // As of now, also in a transaction that keeps one snapshot: a session that has ended since may
        // have leased documents meanwhile.
        let mut stale = ids(&plans::run_latest(spi, &LIST_STALE, &[id, remembered]));
        if stale.is_empty() {
            return;
        }
        queue.before_scope(Scope::Reading);
        let args = [Arg::from(stale.clone())];
        let leasing = statement::render(LIST_LEASING, &queue.name);
        let leasing = ids(&spi.once_latest(&leasing, &args));
        stale.retain(|session| !leasing.contains(session));
        spi.once(DELETE_SESSIONS, &[id, Arg::from(stale)]);
    });
}

/// Deletes the rows of sessions of a queue that are no longer needed. For the oldest queue, also those
/// of queues that were dropped, and old requests to stop: this reads the rows of all queues, so one
/// of them does it for the others.
pub fn delete_stale(queue: &Queue) {
    trim_sessions(queue);
    spi::connect(|spi| {
        if spi
            .once(LIST_OLDER_QUEUES, &[Arg::from(queue.id)])
            .affected()
            == 0
        {
            spi.once(TRIM_SESSIONS_OF_DROPPED, &[]);
            stop_requests::delete_old(spi);
        }
    });
}

/// Returns all documents that a worker has leased, of any queue, as if they had not been
/// picked. Returns how many, or `None` when no worker of that name has picked anything.
/// Fails as `Queue::open` does, except for a queue that was dropped meanwhile.
pub fn release_all(worker: &str) -> Result<Option<i32>> {
    let queues = queues_of(worker);
    if queues.is_empty() {
        return Ok(None);
    }
    let mut released = 0;
    for name in queues {
        match Queue::open_for(&name, Right::Work) {
            Ok(queue) => released += release(&queue, worker),
            // The queue was dropped after its name was read, or is that of another role by now.
            Err(e) if e.is_missing_queue() || matches!(e, Error::NoRight { .. }) => {}
            // One owner must not keep the caller from the queues of the others.
            Err(e @ Error::AlteredColumn { .. }) => e.warn(),
            Err(other) => return Err(other),
        }
    }
    Ok(Some(released))
}

// The counters are exact, so a queue that is not among these has no leased document. Only plain SQL
// can make them wrong, until the next recount.
const LIST_LEASING_QUEUES: &str = "select m.queue::pg_catalog.text from fetchq.metrics_exact m
    where m.metric {=} 'act' and m.value {<>} 0
    order by 1";

/// The tables of the counters, beside their segments.
const COUNTERS: [&str; 4] = [
    "metrics",
    "counter_events",
    "counter_log",
    "counter_segments",
];

/// The queues that have leased documents by the counters, in the order of their names. None where
/// another session has locked the counters. Waits for nobody, and keeps no lock.
fn leasing_queues() -> Option<Vec<QueueName>> {
    let tables = COUNTERS
        .iter()
        .map(|table| relation::lookup("fetchq", table));
    let segments = (1..=SEGMENTS).map(counter_segments::table);
    let mut tables = tables.chain(segments);
    let names: Option<Vec<String>> = subtransaction::roll_back_unless_kept(|| {
        let is_locked = tables
            .all(|table| table.is_some_and(|table| relation::try_lock(table, LockMode::Readers)));
        let names = is_locked.then(|| {
            spi::connect(|spi| {
                let rows = spi.once(LIST_LEASING_QUEUES, &[]);
                (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
            })
        });
        (names, false)
    });
    let parsed = names?
        .into_iter()
        .filter_map(|name| QueueName::parse(&name).ok());
    Some(parsed.collect())
}

/// Adds the leased documents of one queue to a result, or of all that the caller may read: at most
/// `limit` of them, in the order of queues and subjects. `after`: the subject after which those of
/// the one queue begin.
///
/// Fails with `Error::UnknownQueue` and `Error::NoRight` for a queue that is named.
pub fn list_leases(
    name: Option<&QueueName>,
    limit: Option<i32>,
    after: Option<&str>,
    out: &mut RowSink,
) -> Result<()> {
    out.prepare();
    let mut read = |name: &QueueName, limit: Option<i32>| {
        late_leases::before_reading(name);
        let sql = statement::render(LEASED, name);
        let limit = Arg::from(limit.map(i64::from));
        let args = [Arg::from(name.as_str()), Arg::from(after), limit];
        planner::with_index_scans(|| {
            spi::connect(|spi| {
                let rows = spi.once(&sql, &args);
                out.extend(&rows);
                rows.affected()
            })
        })
    };
    if let Some(name) = name {
        return rights::with_existing(name, Right::Read, || {
            queue::id(name)?;
            read(name, limit);
            Ok(())
        });
    }
    let names = match leasing_queues() {
        Some(names) => names,
        None => rights::list(Right::Read),
    };
    let mut remaining = limit;
    for name in names {
        if remaining == Some(0) {
            break;
        }
        let found = queue::read_alone(&name, Right::Read, &[], || read(&name, remaining));
        remaining = remaining.map(|n| n - found.unwrap_or(0));
    }
    Ok(())
}
