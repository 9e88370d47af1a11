//! Settled documents that do not stay in the table of documents. They are removed at once, or
//! moved to the history of the queue, from which they are removed after a time. The statement
//! that settles a document also removes it, so that the table of a busy queue stays small, and
//! its subject is free again.

use std::collections::HashMap;

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::Error;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::store::counters::counter_log;
use crate::store::counters::metrics;
use crate::store::documents::history_worker::{By, session_name};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::queue_tables;
use crate::store::queues::statement::{Scope, Statement};

/// The last error of a document that was cancelled without a reason.
pub const CANCELLED: &str = "cancelled";

/// How a document was settled: the column `outcome` of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Completed,
    Killed,
    Dropped,
    Popped,
    Cancelled,
    Expired,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Completed,
        Self::Killed,
        Self::Dropped,
        Self::Popped,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The word in the history.
    pub fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Killed => "killed",
            Self::Dropped => "dropped",
            Self::Popped => "popped",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// Reads a word of the history.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }

    /// The status that such a document has where it is kept in the table. None: it leaves the table.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Completed => Some(Status::Completed),
            Self::Killed | Self::Cancelled | Self::Expired => Some(Status::Killed),
            Self::Dropped | Self::Popped => None,
        }
    }

    /// What the queue is set to do with documents of this outcome.
    pub fn keep(self, queue: &Queue) -> Keep {
        match self {
            Self::Completed => queue.policy.completed,
            Self::Killed | Self::Cancelled | Self::Expired => queue.policy.killed,
            Self::Dropped | Self::Popped => queue.policy.dropped,
        }
    }
}

/// A statement that removes documents and writes them into the history. The arguments: what
/// follows `delete from … d`; the columns that the history has as the statement names them, those
/// that are `settled` in `domain/src/document.rs`; the outcome; the name of the worker; whether the
/// document has run until now.
macro_rules! into_history {
    ($condition:literal, $settled:literal, $outcome:literal, $worker:literal, $has_run:literal) => {
        concat!(
            "with removed as (
                 delete from only {docs} d ",
            $condition,
            "
                 returning {kept_as_it_is}, ",
            $settled,
            ", d.seq, d.worker_session as leased_by, d.queued, d.max_attempts as most),
             kept as (
                 insert into {history} (outcome, worker, ran, {kept})
                 select ",
            $outcome,
            ", ",
            $worker,
            ", case when ",
            $has_run,
            " then greatest(pg_catalog.clock_timestamp() {-} r.picked_at, interval '0') end, {kept}
                 from removed r order by r.seq)
             select r.subject::pg_catalog.text, r.version, r.picked_at, r.attempts, r.priority, r.seq, r.queued, r.most
             from removed r"
        )
    };
}

/// Settles leased documents by moving them into the history. `effect.rs` replaces `{list}`, `{outcome}`
/// and `{settled}`, what an action writes. $1: subjects, $2: the lease. It returns what the other statements of an
/// action return. Index: the primary key, once for each subject. `{is_leased}` keeps the due index out.
pub(in crate::store) const SETTLE: &str = into_history!(
    "using {list}
     where d.subject {=} i.subject
         and {is_leased}",
    "{settled}",
    "{outcome}",
    // Who had the lease: this session, $3, if it is one of the worker sessions $4. Nothing is read for
    // those.
    "coalesce((select w.name from fetchq.worker_sessions w
         where r.leased_by {<>} all ($4) and w.id {=} r.leased_by
         limit 1), $3)",
    "true"
);

/// The parameters of `SETTLE` before those of the action.
pub(in crate::store) const SETTLE_PARAMETERS: usize = 4;

// As `SETTLE`, for documents that are settled already, or that the caller has locked.
static ARCHIVE: Statement = Statement::new(into_history!(
    "where d.subject {=} any ($1)",
    "d.payload, d.iterations, d.last_error, d.due_at, d.picked_at, d.result, d.progress, d.worker_session",
    "case when $2 {=} 'killed' and r.last_error {=} any ('{cancelled,expired}'::pg_catalog.text[])
         then r.last_error else $2 end",
    "$3",
    "$4"
));

// Index: the primary key, once for each subject.
static REMOVE: Statement = Statement::new(
    "delete from only {docs} d where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text, d.version",
);

// A Tid Scan: the caller has locked the rows and knows where they are.
static POP: Statement = Statement::new(into_history!(
    "where d.ctid {=} any ($1)",
    "d.payload, {next_iterations} as iterations, d.last_error, d.next_iteration as due_at,
     pg_catalog.now() as picked_at, null::pg_catalog.jsonb as result,
     null::pg_catalog.jsonb as progress, d.worker_session",
    "'popped'",
    "$2",
    "true"
))
.in_scope(Scope::Nothing);

/// Removes documents that the caller has locked, and writes them into the history where the
/// queue keeps this outcome there. `by`: whom the history names. Returns a row for each removed
/// document: its subject and its version.
pub fn archive<'s>(
    spi: &'s Spi,
    queue: &Queue,
    subjects: &[String],
    outcome: Outcome,
    by: By,
) -> Rows<'s> {
    let mut sorted: Vec<&str> = subjects.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let subjects = Arg::from(sorted);
    if outcome.keep(queue) != Keep::InHistory {
        return queue.run(spi, &REMOVE, &[subjects]);
    }
    let worker = by.name(spi, queue);
    let args = [
        subjects,
        Arg::from(outcome.word()),
        Arg::from(worker.as_deref()),
        Arg::from(matches!(by, By::Lease(_))),
    ];
    queue.run(spi, &ARCHIVE, &args)
}

/// Removes documents that were cancelled while they were planned or pending, and are killed
/// now, and records that for the counters. Does nothing where the queue keeps killed documents
/// in its table.
pub fn cancelled(spi: &Spi, queue: &Queue, subjects: &[String]) {
    killed_waiting(spi, queue, subjects, Outcome::Cancelled, By::Session);
}

/// As [`cancelled`], for documents that have expired.
pub fn expired(spi: &Spi, queue: &Queue, subjects: &[String]) {
    killed_waiting(spi, queue, subjects, Outcome::Expired, By::Maintenance);
}

fn killed_waiting(spi: &Spi, queue: &Queue, subjects: &[String], outcome: Outcome, by: By) {
    if queue.policy.killed == Keep::InTable || subjects.is_empty() {
        return;
    }
    let removed = archive(spi, queue, subjects, outcome, by);
    for (version, n) in count_by_version(&removed) {
        counter_log::record_event(queue, version, n, Event::RemoveKilled);
    }
}

/// Moves pending documents that the caller has locked into the history: a pop, where the queue
/// keeps dropped documents there. `tids`: where the rows are, a `tid[]`. Returns how many.
pub fn pop(spi: &Spi, queue: &Queue, tids: Arg) -> i32 {
    let worker = session_name();
    queue
        .run(spi, &POP, &[tids, Arg::from(worker.as_str())])
        .affected()
}

/// How many rows there are of each version. The version is their second column.
pub fn count_by_version(rows: &Rows) -> HashMap<i32, i32> {
    let mut versions = HashMap::new();
    for row in 0..rows.len() {
        *versions.entry(rows.get(row, 2).unwrap_or(0)).or_default() += 1;
    }
    versions
}

// Index: (subject, id).
const LAST_OUTCOME: &str = "select h.outcome from only {history} h
    where h.subject {=} $1
    order by h.id desc
    limit 1";

/// How the last document with this subject was settled that is in the history. None: there is none.
pub fn last_outcome(spi: &Spi, queue: &Queue, subject: &str) -> Option<String> {
    if !queue_tables::has_history(&queue.name) {
        return None;
    }
    let rows = queue.once(spi, LAST_OUTCOME, &[Arg::from(subject)]);
    (!rows.is_empty()).then(|| rows.get(0, 1)).flatten()
}

/// The error for a document that is not in the table, if it is in the history. `lease`: the one that the
/// caller names.
pub fn error_if_settled(
    spi: &Spi,
    queue: &Queue,
    subject: &str,
    lease: Option<i64>,
) -> Option<Error> {
    let outcome = last_outcome(spi, queue, subject)?;
    Some(Error::InHistory {
        queue: queue.name.to_string(),
        subject: subject.to_owned(),
        lease,
        outcome,
    })
}

// Index: the primary key, a range after a subject. A document that was cancelled while it was
// leased, which has a lease number and no worker session, stays until its worker has had the time to
// ask for it.
static FIND_SETTLED: Statement = Statement::new(
    "with walked as materialized (
         select d.subject::pg_catalog.text as subject, d.status,
             d.lease is null or d.worker_session is not null or d.next_iteration {<} pg_catalog.now() as is_over
         from only {docs} d
         where d.subject {>} $1
         order by d.subject
         limit $2)
     select pg_catalog.count(*),
         (select x.subject from walked x order by x.subject collate pg_catalog.\"C\" desc limit 1),
         pg_catalog.array_agg(w.subject) filter (where w.status {=} {completed} and $3),
         pg_catalog.array_agg(w.subject) filter (where w.status {=} {killed} and w.is_over and $4)
     from walked w",
)
.in_scope(Scope::Nothing);

/// The row of `FIND_SETTLED`.
struct Walk {
    /// How many documents it has read.
    documents: i64,
    /// The last one of them.
    last: Option<String>,
    completed: Vec<String>,
    killed: Vec<String>,
}

/// Finds settled documents to remove among the `limit` documents after a subject.
fn find_settled(spi: &Spi, queue: &Queue, after: &str, limit: i32) -> Walk {
    let args = [
        Arg::from(after),
        Arg::from(i64::from(limit)),
        Arg::from(queue.policy.completed != Keep::InTable),
        Arg::from(queue.policy.killed != Keep::InTable),
    ];
    let rows = queue.run(spi, &FIND_SETTLED, &args);
    Walk {
        documents: rows.get(0, 1).unwrap_or(0),
        last: rows.get(0, 2),
        completed: rows.get(0, 3).unwrap_or_default(),
        killed: rows.get(0, 4).unwrap_or_default(),
    }
}

// Index: the primary key, because of `status + 0`.
static LOCK_SETTLED: Statement = Statement::new(
    "select d.subject::pg_catalog.text from only {docs} d
     where d.subject {=} any ($1)
         and d.status {+} 0 {=} $2
         and (d.lease is null or d.worker_session is not null or d.next_iteration {<} pg_catalog.now())
     order by d.subject
     for update skip locked",
);

/// What a part of a sweep did.
pub struct Swept {
    /// How many documents it removed.
    pub removed: i32,
    /// The subject after which the next part begins; None after the last part.
    pub next: Option<String>,
}

/// Removes settled documents that the queue does not, or no longer, keep in its table. It
/// reads the `limit` documents after a subject, and records what it removes for the counters.
pub fn sweep(queue: &Queue, after: &str, limit: i32) -> Swept {
    spi::connect(|spi| {
        let walk = find_settled(spi, queue, after, limit);
        let mut removed = 0;
        for (subjects, status, outcome) in [
            (walk.completed, Status::Completed, Outcome::Completed),
            (walk.killed, Status::Killed, Outcome::Killed),
        ] {
            if !subjects.is_empty() {
                removed += remove_settled(spi, queue, subjects, status, outcome);
            }
        }
        Swept {
            removed,
            next: walk.last.filter(|_| walk.documents >= i64::from(limit)),
        }
    })
}

/// Removes those of the documents that can be locked without waiting, and still have the
/// status. Returns how many.
fn remove_settled(
    spi: &Spi,
    queue: &Queue,
    subjects: Vec<String>,
    status: Status,
    outcome: Outcome,
) -> i32 {
    let args = [Arg::from(subjects), Arg::from(status.code())];
    let rows = queue.run(spi, &LOCK_SETTLED, &args);
    let locked: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    let removed = archive(spi, queue, &locked, outcome, By::Maintenance);
    for (version, n) in count_by_version(&removed) {
        counter_log::record_event(queue, version, n, Event::remove(status));
    }
    removed.affected()
}

/// Returns whether the counters say that there is anything to sweep.
pub fn needs_sweep(queue: &Queue) -> bool {
    let policy = &queue.policy;
    let (completed, killed) = (policy.completed, policy.killed);
    if completed == Keep::InTable && killed == Keep::InTable {
        return false;
    }
    let counted = metrics::get_many(&queue.name, &["cpl", "kll"]);
    let is_above_zero = |at: usize| counted.get(at).is_some_and(|n| *n > 0);
    completed != Keep::InTable && is_above_zero(0) || killed != Keep::InTable && is_above_zero(1)
}

/// Returns whether a sweep of the queue moves documents into its history.
pub fn archives_settled(queue: &Queue) -> bool {
    let policy = &queue.policy;
    [policy.completed, policy.killed].contains(&Keep::InHistory)
}

// Index: (outcome, settled_at).
const TRIM: &str = "delete from {history} where ctid {=} any (array(
    select h.ctid from {history} h
    where h.outcome {=} $1 and h.settled_at {<} (pg_catalog.now() {-} coalesce($2, interval '0'))
    order by h.settled_at
    limit $3
    for update skip locked))";

const GET_KEEP: &str =
    "select keep_completed, keep_killed, keep_dropped from fetchq.queues where id {=} $1";

/// Removes documents that have been in the history for longer than the queue keeps them, the
/// oldest first, at most `limit`. Where the queue keeps none of an outcome, all of it is
/// removed. Returns how many. The caller has locked the history.
pub fn trim(queue: &Queue, limit: i32) -> i32 {
    spi::connect(|spi| {
        let rows = spi.once(GET_KEEP, &[Arg::from(queue.id)]);
        let mut remaining = limit;
        for outcome in Outcome::ALL {
            let column = match outcome {
                Outcome::Completed => 1,
                Outcome::Killed | Outcome::Cancelled | Outcome::Expired => 2,
                Outcome::Dropped | Outcome::Popped => 3,
            };
            let age = rows.interval_arg(0, column);
            let args = [
                Arg::from(outcome.word()),
                age,
                Arg::from(i64::from(remaining)),
            ];
            remaining -= queue.once(spi, TRIM, &args).affected();
        }
        limit - remaining
    })
}

/// How many documents one part of a sweep reads, and how many rows one statement removes from
/// a history, so that each transaction stays short.
pub const BATCH: i32 = 10_000;
