//! Documents that are settled and do not stay in the table of documents: they go at
//! once, or into the queue's history, from which they are trimmed after a time. Either
//! way the statement that settles them removes them, so that the table of a busy queue
//! stays small and their subjects are free again.

use std::collections::{HashMap, HashSet};

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::call::RowSink;
use crate::pg::session;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::settings;
use crate::store::open_queue::Queue;
use crate::store::policy::Keep;
use crate::store::statement::{self, Statement};
use crate::store::{counter_log, leases, metrics, queue, queue_tables};

/// How a document ended, as the history has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Completed,
    Killed,
    Dropped,
    Popped,
    Cancelled,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Completed,
        Self::Killed,
        Self::Dropped,
        Self::Popped,
        Self::Cancelled,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Killed => "killed",
            Self::Dropped => "dropped",
            Self::Popped => "popped",
            Self::Cancelled => "cancelled",
        }
    }

    /// The setting that says what becomes of it.
    pub fn keep(self, queue: &Queue) -> Keep {
        match self {
            Self::Completed => queue.policy.completed,
            Self::Killed | Self::Cancelled => queue.policy.killed,
            Self::Dropped | Self::Popped => queue.policy.dropped,
        }
    }
}

/// A statement that removes documents and writes them into the history: what it removes,
/// the condition included; payload, iterations and error that are written; the outcome.
macro_rules! into_history {
    ($gone:literal, $payload:literal, $iterations:literal, $error:literal, $outcome:literal, $worker:literal) => {
        concat!(
            "with gone as (
                 delete from only {docs} d ",
            $gone,
            "
                 returning d.subject, d.version, d.priority, d.attempts, ",
            $iterations,
            " as iterations, d.created_at, ",
            $payload,
            " as payload, ",
            $error,
            " as last_error, d.ordering_key, d.origin, d.seq),
             kept as (
                 insert into {history} (outcome, subject, version, priority, attempts, iterations,
                     created_at, payload, last_error, ordering_key, origin, worker)
                 select ",
            $outcome,
            ", g.subject, g.version, g.priority, g.attempts, g.iterations,
                     g.created_at, g.payload, g.last_error, g.ordering_key, g.origin, ",
            $worker,
            "
                 from gone g order by g.seq)
             select g.subject::pg_catalog.text, g.version from gone g"
        )
    };
}

// Index: primary key, once for each subject. Nothing else can prove `status + 0 = 2`.
static SETTLE: Statement = Statement::new(into_history!(
    "using rows from (pg_catalog.unnest($1), pg_catalog.unnest($3)) as i (subject, payload)
     where d.subject {=} i.subject
         and {is_leased}",
    "coalesce(i.payload, d.payload)",
    "d.iterations {+} 1",
    "case when $4 {<>} 'completed' then d.last_error end",
    "$4",
    "$5"
));

// The same for documents that are settled, or were locked by the caller.
static TAKE: Statement = Statement::new(into_history!(
    "where d.subject {=} any ($1)",
    "d.payload",
    "d.iterations",
    "d.last_error",
    "case when $2 {=} 'killed' and g.last_error {=} 'cancelled'
         then 'cancelled' else $2 end",
    "$3"
));

static REMOVE: Statement = Statement::new(
    "delete from only {docs} d where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text, d.version",
);

// Tid Scan.
static POP: Statement = Statement::new(into_history!(
    "where d.ctid {=} any ($1)",
    "d.payload",
    "d.iterations {+} 1",
    "d.last_error",
    "'popped'",
    "$2"
));

/// The session that settles, as the history names it.
fn worker() -> String {
    leases::shown_name(&settings::worker_name(), &session::application())
}

/// Settles active documents by moving them into the history, counts them, and gives the
/// subjects of those that were active. `payloads`: a `jsonb[]` as long as the list.
pub fn settle(
    queue: &Queue,
    subjects: &[&str],
    lease: Option<i64>,
    payloads: Option<Arg>,
    outcome: Outcome,
) -> HashSet<String> {
    let mut sorted = subjects.to_vec();
    if payloads.is_none() {
        sorted.sort_unstable();
    }
    let worker = worker();
    let args = [
        Arg::from(sorted),
        Arg::from(lease),
        payloads.unwrap_or_else(Arg::no_json_array),
        Arg::from(outcome.word()),
        Arg::from(worker.as_str()),
    ];
    spi::connect(|spi| {
        let rows = queue.run(spi, &SETTLE, &args);
        for (version, n) in versions(&rows) {
            counter_log::record_event(queue, version, n, Event::Drop);
        }
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    })
}

/// Removes documents that are locked, by way of the history where the queue keeps such
/// an outcome there; gives subjects and versions of those that went.
pub fn archive<'s>(
    spi: &'s Spi,
    queue: &Queue,
    subjects: &[String],
    outcome: Outcome,
    by_worker: bool,
) -> Rows<'s> {
    let mut sorted: Vec<&str> = subjects.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let subjects = Arg::from(sorted);
    if outcome.keep(queue) != Keep::InHistory {
        return queue.run(spi, &REMOVE, &[subjects]);
    }
    let worker = by_worker.then(worker);
    let args = [
        subjects,
        Arg::from(outcome.word()),
        Arg::from(worker.as_deref()),
    ];
    queue.run(spi, &TAKE, &args)
}

/// Removes documents that were cancelled while they waited, and are killed now, where the
/// queue does not keep them in its table; and counts that.
pub fn cancelled(spi: &Spi, queue: &Queue, subjects: &[String]) {
    if queue.policy.killed == Keep::InTable || subjects.is_empty() {
        return;
    }
    let gone = archive(spi, queue, subjects, Outcome::Cancelled, true);
    for (version, n) in versions(&gone) {
        counter_log::record_event(queue, version, n, Event::RemoveKilled);
    }
}

/// Moves pending documents that were locked at these places into the history: what a pop
/// does where the queue keeps what is dropped. Says how many.
pub fn pop(spi: &Spi, queue: &Queue, tids: Arg) -> i32 {
    let worker = worker();
    queue
        .run(spi, &POP, &[tids, Arg::from(worker.as_str())])
        .affected()
}

/// How many rows there are of each version, which is their second column.
pub fn versions(rows: &Rows) -> HashMap<i32, i32> {
    let mut versions = HashMap::new();
    for row in 0..rows.len() {
        *versions.entry(rows.get(row, 2).unwrap_or(0)).or_default() += 1;
    }
    versions
}

// A part of the documents in the order of the primary key. A cancelled one keeps the
// number of its lease until its worker has had time to learn of it.
static WALK: Statement = Statement::new(
    "with walked as materialized (
         select d.subject::pg_catalog.text as subject, d.status,
             d.lease is null or d.next_iteration {<} pg_catalog.now() as is_over
         from only {docs} d
         where d.subject {>} $1
         order by d.subject
         limit $2)
     select pg_catalog.count(*), (select x.subject from walked x order by x.subject collate pg_catalog.\"C\" desc limit 1),
         pg_catalog.array_agg(w.subject) filter (where w.status {=} {completed} and $3),
         pg_catalog.array_agg(w.subject) filter (where w.status {=} {killed} and w.is_over and $4)
     from walked w",
);

static LOCK_SETTLED: Statement = Statement::new(
    "select d.subject::pg_catalog.text from only {docs} d
     where d.subject {=} any ($1)
         and d.status {+} 0 {=} $2
         and (d.lease is null or d.next_iteration {<} pg_catalog.now())
     order by d.subject
     for update skip locked",
);

/// What a part of a sweep did.
pub struct Swept {
    pub removed: i32,
    /// Where the next part begins; None: this was the last one.
    pub next: Option<String>,
}

/// Removes settled documents that the queue does not keep in its table (any more), of at
/// most so many documents behind a subject.
pub fn sweep(queue: &Queue, after: &str, limit: i32) -> Swept {
    let policy = &queue.policy;
    let completed = policy.completed != Keep::InTable;
    let killed = policy.killed != Keep::InTable;
    spi::connect(|spi| {
        let args = [
            Arg::from(after),
            Arg::from(i64::from(limit)),
            Arg::from(completed),
            Arg::from(killed),
        ];
        let rows = queue.run(spi, &WALK, &args);
        let walked: i64 = rows.get(0, 1).unwrap_or(0);
        let last: Option<String> = rows.get(0, 2);
        let mut removed = 0;
        for (column, status, outcome) in [
            (3, Status::Completed, Outcome::Completed),
            (4, Status::Killed, Outcome::Killed),
        ] {
            let found: Option<Vec<String>> = rows.get(0, column);
            if let Some(found) = found {
                let args = [Arg::from(found), Arg::from(status.code())];
                let locked = queue.run(spi, &LOCK_SETTLED, &args);
                let subjects: Vec<String> = (0..locked.len())
                    .filter_map(|row| locked.get(row, 1))
                    .collect();
                let gone = archive(spi, queue, &subjects, outcome, false);
                for (version, n) in versions(&gone) {
                    counter_log::record_event(queue, version, n, Event::remove(status));
                }
                removed += gone.affected();
            }
        }
        Swept {
            removed,
            next: last.filter(|_| walked >= i64::from(limit)),
        }
    })
}

/// Whether there is anything to sweep, by the counters.
pub fn needs_sweep(queue: &Queue) -> bool {
    let policy = &queue.policy;
    let (completed, killed) = (policy.completed, policy.killed);
    if completed == Keep::InTable && killed == Keep::InTable {
        return false;
    }
    let counted = metrics::get_many(&queue.name, &["cpl", "kll"]);
    let some = |at: usize| counted.get(at).is_some_and(|n| *n > 0);
    completed != Keep::InTable && some(0) || killed != Keep::InTable && some(1)
}

// Index: (outcome, settled_at).
const TRIM: &str = "delete from {history} where ctid = any (array(
    select h.ctid from {history} h
    where h.outcome = $1 and h.settled_at < now() - coalesce($2, interval '0')
    order by h.settled_at
    limit $3
    for update skip locked))";

const KEPT: &str =
    "select keep_completed, keep_killed, keep_dropped from fetchq.queues where id = $1";

/// Removes what has been in the history for longer than the queue keeps it, the oldest
/// first, and not more than so many lines; says how many. What is not to be kept goes
/// too.
pub fn trim(queue: &Queue, limit: i32) -> i32 {
    if !queue_tables::has_history(&queue.name) {
        return 0;
    }
    spi::connect(|spi| {
        let rows = spi.once(KEPT, &[Arg::from(queue.id)]);
        let mut left = limit;
        for outcome in Outcome::ALL {
            let column = match outcome {
                Outcome::Completed => 1,
                Outcome::Killed | Outcome::Cancelled => 2,
                Outcome::Dropped | Outcome::Popped => 3,
            };
            let age = rows.interval_arg(0, column);
            let args = [Arg::from(outcome.word()), age, Arg::from(i64::from(left))];
            left -= queue.once(spi, TRIM, &args).affected();
        }
        limit - left
    })
}

/// How many documents one part of a sweep walks over, and how many lines are trimmed at
/// once.
pub const BATCH: i32 = 10_000;

/// The queues whose history the caller may read.
pub fn readable() -> Vec<QueueName> {
    spi::connect(|spi| {
        let rows = spi.once(READABLE, &[]);
        let names = (0..rows.len()).filter_map(|row| rows.get::<String>(row, 1));
        names
            .filter_map(|name| QueueName::parse(&name).ok())
            .collect()
    })
}

const READABLE: &str = "select q.name::text from fetchq.queues q
    join pg_class c on c.relname = q.name || '__history'
        and c.relnamespace = 'fetchq_data'::regnamespace
    where has_table_privilege(c.oid, 'select')
    order by q.name";

/// The history of a queue, as `queue_history` shows it.
pub const ROWS: &str = "select $1::varchar, h.id, h.settled_at, h.outcome, h.subject, h.version,
        h.priority, h.attempts, h.iterations, h.created_at, h.payload, h.last_error,
        h.ordering_key, h.origin, h.worker
    from {history} h";

/// Adds the history of one queue to a result. Without a name it adds the histories of all
/// queues that the caller may read.
///
/// Fails with `UnknownQueue` when there is no such queue. A queue that has never kept a
/// history has no table for it, and adds nothing.
pub fn list(name: Option<&QueueName>, out: &mut RowSink) -> Result<()> {
    let names = match name {
        Some(name) => {
            queue::id(name)?;
            match queue_tables::has_history(name) {
                true => vec![name.clone()],
                false => Vec::new(),
            }
        }
        None => readable(),
    };
    for name in names {
        let sql = statement::render(ROWS, &name);
        spi::connect(|spi| out.extend(&spi.once(&sql, &[Arg::from(name.as_str())])));
    }
    Ok(())
}
