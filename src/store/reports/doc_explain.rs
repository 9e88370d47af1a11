//! Why a document does not run (`doc_explain`). It reads the facts; `domain/src/reason.rs` says what
//! follows from them.
//!
//! It locks no row and waits for no lock of a table: what is locked is a reason. Everything is read as of
//! now, whatever snapshot the transaction keeps.

use pgrx::pg_sys::{ItemPointerData, Oid, TransactionId};

use crate::domain::names::QueueName;
use crate::domain::reason::{self, Cap, Doc, Facts, Holder, KeyFacts, Place, Rate, Workers};
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::index_look::ReadLock;
use crate::pg::row_holder::row_holder;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{operators, planner, relation, session, time};
use crate::signals::waiters::waiters;
use crate::store::bounds::{cap, keys, rate};
use crate::store::documents::late_leases;
use crate::store::queues::queue_catalog::{self, QueueInfo};
use crate::store::queues::queue_places;
use crate::store::queues::queue_shape;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::render;
use crate::store::reports::read;
use crate::store::upkeep::worker_sessions;

/// Adds a row for each reason why a document does not run to a result.
///
/// Fails with `Error::UnknownQueue`, `Error::NoRight`, `Error::AlteredColumn`, and with
/// `Error::RegistryBusy` when the registry is locked, or what is counted of a limit of the queue.
pub fn explain(name: &QueueName, subject: &str, out: &mut RowSink) -> Result<()> {
    read::lock_registry()?;
    let found = rights::with_existing(name, Right::Read, || {
        planner::with_short_lock_waits(|| {
            planner::with_index_scans(|| spi::connect(|spi| read_facts(spi, name, subject)))
        })
    })?;
    let at = |time: Option<i64>| time.map_or_else(Arg::no_timestamp, Arg::timestamp);
    for because in reason::explain(&found) {
        out.push(&[
            Arg::from(because.reason.code()),
            at(because.since),
            at(because.until),
            Arg::from(because.detail.as_str()),
            Arg::from(because.hint.as_str()),
        ]);
    }
    Ok(())
}

/// Locks the tables of a queue as a reader does. Returns the one that another session has locked.
fn lock_tables(name: &QueueName) -> std::result::Result<Vec<ReadLock>, Oid> {
    let tables = queue_tables::columns().map(|(suffix, _)| name.relation(suffix));
    let tables = tables
        .iter()
        .filter_map(|table| relation::lookup_data_table(table));
    tables
        .map(|table| ReadLock::try_take(table).ok_or(table))
        .collect()
}

fn read_facts<'a>(spi: &Spi, name: &'a QueueName, subject: &'a str) -> Result<Facts<'a>> {
    let now = time::clock();
    let mut facts = Facts {
        queue: name.as_str(),
        subject,
        now,
        is_paused: false,
        is_dead_letter_queue: false,
        cap: None,
        rate: None,
        workers: None,
        place: Place::Nowhere,
    };
    let _locks = match lock_tables(name) {
        Ok(locks) => locks,
        Err(table) => {
            facts.place = Place::Locked(locker(spi, table));
            return Ok(facts);
        }
    };
    let sessions = Sessions::try_lock();
    let table = relation::lookup_data_table(&name.relation("docs"));
    let found = table.and_then(|table| Some((table, queue_catalog::read(name, table)?)));
    let (table, queue) = found.ok_or_else(|| queue_places::unknown(name))?;
    queue_shape::require(name)?;
    facts.place = place(spi, name, subject, table, &queue, &sessions)?;
    if let Place::Table(doc) = &facts.place
        && doc.is_waiting()
    {
        let policy = &queue.policy;
        facts.is_paused = !policy.is_active;
        if let Some(max_active) = policy.max_active {
            let slots = lock("lease_slots")?;
            let (active, locked) = cap::use_of_slots(spi, slots.relation(), queue.id);
            facts.cap = Some(Cap {
                max_active,
                active,
                locked,
            });
        }
        if let Some(limit) = policy.rate_limit {
            let permits = lock("rate_permits")?;
            let used = rate::use_of_permits(spi, permits.relation(), queue.id, now);
            facts.rate = Some(Rate {
                limit,
                interval: used.interval,
                free: used.free,
                next: used.next,
            });
        }
        facts.workers = workers(spi, name, &queue, table.to_u32(), &sessions);
        let sources = spi.once_latest(FIND_SOURCE, &[Arg::from(name.as_str())]);
        facts.is_dead_letter_queue = !sources.is_empty();
    }
    Ok(facts)
}

// A queue whose dead letters go to the queue $1.
const FIND_SOURCE: &str = "select from fetchq.queues q where q.dead_letter {=} $1 limit 1";

/// Locks a table of the catalog as a reader does. Fails with `Error::RegistryBusy` when that must wait.
fn lock(table: &str) -> Result<ReadLock> {
    let found = relation::lookup("fetchq", table).and_then(ReadLock::try_take);
    found.ok_or_else(|| Error::RegistryBusy(format!("fetchq.{table}")))
}

/// The worker sessions, as long as they are locked for reading. Nothing is known of them while another
/// session has locked their table. They only say who it is, so all else is reported then.
struct Sessions(Option<ReadLock>);

// Index: worker_sessions_id_idx.
const SESSION_BY_ID: &str = "select s.name, s.pid from fetchq.worker_sessions s
    where s.queue_id {=} $1 and s.id {=} $2
    limit 1";

// Index: (binding, queue_id), which needs all bindings.
const WORKER_OF_PROCESS: &str = "select w.name from fetchq.worker_sessions w
    where w.binding {=} any ('{0,1,2,3}'::pg_catalog.int4[])
        and w.queue_id {=} $1 and w.pid {=} $2
    order by w.since desc
    limit 1";

impl Sessions {
    fn try_lock() -> Self {
        Self(lock("worker_sessions").ok())
    }

    fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// The worker of a session of a queue, and its process.
    fn worker(&self, spi: &Spi, queue: i32, id: i64) -> Option<(String, i32)> {
        self.0.as_ref()?;
        let rows = spi.once_latest(SESSION_BY_ID, &[Arg::from(queue), Arg::from(id)]);
        (!rows.is_empty()).then(|| rows.get(0, 1).zip(rows.get(0, 2)))?
    }

    /// The worker that a process has been last for a queue.
    fn worker_of(&self, spi: &Spi, queue: i32, pid: i32) -> Option<String> {
        self.0.as_ref()?;
        let rows = spi.once_latest(WORKER_OF_PROCESS, &[Arg::from(queue), Arg::from(pid)]);
        (!rows.is_empty()).then(|| rows.get(0, 1))?
    }
}

/// Who works on a queue. None on a standby, which does not see the sessions of the primary.
fn workers(
    spi: &Spi,
    name: &QueueName,
    queue: &QueueInfo,
    table: u32,
    known: &Sessions,
) -> Option<Workers> {
    if session::is_standby() || !known.are_known() {
        return None;
    }
    let (sessions, leased) = worker_sessions::workers_of(spi, name, queue.id);
    let awaited = waiters().map(|waiters| waiters.awaited_versions(session::database(), table));
    Some(Workers {
        sessions,
        awaited,
        leased,
    })
}

// Index: the primary key. $1: the subject, $2: the max_attempts of the queue.
const FIND: &str = "select d.status, d.next_iteration, d.attempts, coalesce(d.max_attempts, $2),
        d.version, d.lock_upgrade is not null, coalesce(d.lock_upgrade {=} 'infinity', false),
        d.ordering_key, d.seq, d.picked_at, d.last_iteration, d.last_error,
        {leased_by}, d.ctid, d.expires_at
    from only {docs} d
    where d.subject {=} $1";

// Index: (subject, id).
const FIND_IN_HISTORY: &str =
    "select h.outcome::pg_catalog.text, h.settled_at from only {history} h
    where h.subject {=} $1
    order by h.id desc
    limit 1";

fn place(
    spi: &Spi,
    name: &QueueName,
    subject: &str,
    table: Oid,
    queue: &QueueInfo,
    sessions: &Sessions,
) -> Result<Place> {
    let args = [Arg::from(subject), Arg::from(queue.policy.max_attempts)];
    late_leases::before_reading(name);
    let rows = spi.once_latest(&render(FIND, name), &args);
    if !rows.is_empty() {
        let doc = document(spi, name, table, queue, &rows, sessions)?;
        return Ok(Place::Table(Box::new(doc)));
    }
    if let Some(place) = in_dead_letters(spi, name, subject, queue) {
        return Ok(place);
    }
    if queue_tables::has_history(name) {
        let rows = spi.once_latest(&render(FIND_IN_HISTORY, name), &args[..1]);
        if !rows.is_empty() {
            return Ok(Place::History {
                outcome: rows.get(0, 1).unwrap_or_default(),
                at: rows.timestamp(0, 2).unwrap_or(i64::MIN),
            });
        }
    }
    Ok(Place::Nowhere)
}

fn document(
    spi: &Spi,
    name: &QueueName,
    table: Oid,
    queue: &QueueInfo,
    rows: &Rows,
    sessions: &Sessions,
) -> Result<Doc> {
    let status = Status::from_code(rows.get(0, 1).unwrap_or(i32::MAX));
    let at = rows.timestamp(0, 2).unwrap_or(i64::MIN);
    let is_held_back = rows.get(0, 6).unwrap_or(false);
    let waits_for_key = status == Some(Status::Pending)
        && rows.get(0, 7).unwrap_or(false)
        && queue.policy.key_order.blocks();
    let key = rows.get::<String>(0, 8).filter(|_| waits_for_key);
    let key = match key {
        None => None,
        Some(key) => {
            let _lock = lock("ordering_keys")?;
            let seq = rows.get(0, 9).unwrap_or(i64::MAX);
            let (first, previous) = keys::before(spi, name, queue.id, &key, (at, seq));
            Some(KeyFacts {
                key,
                places: queue.policy.key_order.places(),
                first,
                previous,
            })
        }
    };
    let worker = rows.get::<i64>(0, 13);
    let tid = rows.get::<ItemPointerData>(0, 14);
    let held = tid.and_then(|tid| row_holder(table, tid));
    Ok(Doc {
        status,
        at,
        attempts: rows.get(0, 3).unwrap_or(0),
        max_attempts: rows.get(0, 4).unwrap_or(0),
        version: rows.get(0, 5).unwrap_or(0),
        picked_at: rows.timestamp(0, 10),
        settled_at: rows.timestamp(0, 11),
        expires_at: rows.timestamp(0, 15),
        last_error: rows.get(0, 12),
        worker: worker.and_then(|id| sessions.worker(spi, queue.id, id)),
        is_set_aside: is_held_back && key.is_none(),
        key,
        is_only_locked: held.is_some_and(|held| held.is_lock),
        holder: held.map(|held| holder(spi, held.transaction, queue.id, sessions)),
    })
}

// Index: the primary key. A dead letter has the subject of the document, unless that was taken.
const FIND_DEAD_LETTER: &str = "select d.created_at from only {docs} d
    where d.subject {=} $1 and d.origin {->>} 'queue'::pg_catalog.text {=} $2
        and d.origin {->>} 'subject'::pg_catalog.text {=} $1";

/// The document in the dead-letter queue, if the caller may read that.
fn in_dead_letters(spi: &Spi, name: &QueueName, subject: &str, queue: &QueueInfo) -> Option<Place> {
    let target = queue.policy.dead_letter.as_ref()?;
    let table = relation::lookup_data_table(&target.relation("docs"))?;
    if !rights::has_on(table, Right::Read) {
        return None;
    }
    let _locks = lock_tables(target).ok()?;
    queue_shape::require(target).ok()?;
    let args = [Arg::from(subject), Arg::from(name.as_str())];
    let rows = spi.once_latest(&render(FIND_DEAD_LETTER, target), &args);
    (!rows.is_empty()).then(|| Place::DeadLetter {
        queue: target.to_string(),
        at: rows.timestamp(0, 1).unwrap_or(i64::MIN),
    })
}

// The session or the prepared transaction that has the lock of a transaction. $1: the transaction.
const HOLDER: &str = "select l.pid, p.gid, p.prepared
    from pg_catalog.pg_locks l
    left join pg_catalog.pg_prepared_xacts p
        on l.pid is null and p.transaction {=} l.transactionid
    where l.locktype {=} 'transactionid' and l.granted
        and l.transactionid::pg_catalog.text {=} $1
    limit 1";

fn holder(spi: &Spi, transaction: TransactionId, queue: i32, sessions: &Sessions) -> Holder {
    if session::is_standby() {
        return Holder::Unknown;
    }
    let transaction = transaction.to_string();
    let rows = spi.once_latest(HOLDER, &[Arg::from(transaction.as_str())]);
    if rows.is_empty() {
        return Holder::Unknown;
    }
    if let Some(gid) = rows.get(0, 2) {
        let since = rows.timestamp(0, 3);
        return Holder::Prepared { gid, since };
    }
    match rows.get(0, 1) {
        Some(pid) => session_of(spi, pid, sessions.worker_of(spi, queue, pid)),
        None => Holder::Unknown,
    }
}

// The session that has locked a table against readers. $1: the table.
const LOCKER: &str = "select l.pid from pg_catalog.pg_locks l
    where l.locktype {=} 'relation' and l.granted and l.mode {=} 'AccessExclusiveLock'
        and l.database {=} (
            select b.oid from pg_catalog.pg_database b
            where b.datname {=} pg_catalog.current_database())
        and l.relation {=} $1
    limit 1";

fn locker(spi: &Spi, table: Oid) -> Option<Holder> {
    let rows = spi.once_latest(LOCKER, &[Arg::oid(table)]);
    // Its transaction may have ended since.
    let pid = (!rows.is_empty()).then(|| rows.get(0, 1))??;
    Some(session_of(spi, pid, None))
}

// With the rights of the caller, who may not see since when a transaction of another role is open.
const SESSION: &str = "select a.application_name, a.xact_start
    from pg_catalog.pg_stat_activity a where a.pid {=} $1";

fn session_of(spi: &Spi, pid: i32, worker: Option<String>) -> Holder {
    let rows = spi.once_as_caller(&operators::expand(SESSION), &[Arg::from(pid)]);
    let application = || {
        let name: Option<String> = rows.get(0, 1);
        let name = name.filter(|name| !name.is_empty())?;
        Some(format!("\"{name}\""))
    };
    let (application, since) = match rows.is_empty() {
        true => (None, None),
        false => (application(), rows.timestamp(0, 2)),
    };
    let worker = worker.map(|name| format!("worker \"{name}\""));
    Holder::Session {
        pid,
        name: worker.or(application),
        since,
    }
}
