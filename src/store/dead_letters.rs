//! Dead-letter queues: moving documents that failed too often there, and reviving one
//! (`doc_revive`). `redrive.rs` brings many back.
//!
//! The owners of the two queues may not trust each other, and workers of the one need no rights on
//! the other. So the documents are read from one queue in one statement, as the worker who settles
//! them or for maintenance as the owner, and written into the other one in the next, as its owner,
//! whoever settles them. The owner of the first queue must be able to push into the other one.
//!
//! A move inserts the document into the other queue first and removes it afterwards, in the
//! order of subjects. Of two moves in opposite directions, each then finds its subject in use
//! and generates another one. If the document were removed first, each would wait for the
//! other.

use std::collections::{HashMap, HashSet};

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::subjects;
use crate::domain::timing::Tally;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{session, time};
use crate::store::bookkeeping::{documents_ready, subjects_settled};
use crate::store::counter_log;
use crate::store::doc_selection;
use crate::store::history::{self, Outcome};
use crate::store::history_worker::By;
use crate::store::lease_check::{LeasedDoc, lease_error};
use crate::store::open_queue::Queue;
use crate::store::owned_queue::OwnedQueue;
use crate::store::policy::Keep;
use crate::store::statement::Statement;

/// How many subjects are generated for a document whose own subject is in use in the
/// dead-letter queue. One is enough, unless a transaction that is invisible to this one uses
/// it too.
const MAX_RETRIES: usize = 10;

// The documents as the dead-letter queue gets them, an array for each column. All columns have
// types of PostgreSQL: a cast of a type that the owner of the queue has given to a column runs here,
// and not as the owner of the dead-letter queue. $1, $2, $3: the
// subjects, the subjects in the dead-letter queue, and the numbers there. $4: the name of the
// queue. $5: the payload that the worker passed, or NULL. $6: how many iterations are not counted
// yet. $7: why the worker has killed them, or NULL.
const READ_DEAD_LETTERS: &str = "with doc as (
        select i.name, i.seq, d.version, d.priority, d.created_at,
            coalesce($5, d.payload::pg_catalog.jsonb) as payload, d.ordering_key, d.max_attempts,
            coalesce($7, d.last_error::pg_catalog.text) as last_error,
            d.headers, d.due_at, d.picked_at, d.progress, d.lease, d.worker_session,
            pg_catalog.jsonb_build_object(
                'queue', $4, 'subject', d.subject, 'version', d.version, 'attempts', d.attempts,
                'iterations', d.iterations {+} $6, 'created_at', d.created_at,
                'killed_at', pg_catalog.now(),
                'error', coalesce($7, d.last_error::pg_catalog.text))
            {||} case when d.origin is null then '{}'::pg_catalog.jsonb
                else pg_catalog.jsonb_build_object('origin', d.origin) end as origin
        from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))
            as i (subject, name, seq)
        join only {docs} d on d.subject {=} i.subject)
    select pg_catalog.array_agg(t.name),
        pg_catalog.array_agg(t.seq),
        pg_catalog.array_agg(t.version::pg_catalog.int4),
        pg_catalog.array_agg(t.priority::pg_catalog.int4),
        pg_catalog.array_agg(t.payload),
        pg_catalog.array_agg(t.ordering_key::pg_catalog.text),
        pg_catalog.array_agg(t.max_attempts::pg_catalog.int4),
        pg_catalog.array_agg(t.last_error::pg_catalog.text),
        pg_catalog.array_agg(t.origin::pg_catalog.jsonb),
        pg_catalog.array_agg(t.headers::pg_catalog.jsonb),
        pg_catalog.array_agg(t.due_at::pg_catalog.timestamptz),
        pg_catalog.array_agg(t.picked_at::pg_catalog.timestamptz),
        pg_catalog.array_agg(t.progress::pg_catalog.jsonb),
        pg_catalog.array_agg(t.lease::pg_catalog.int8),
        pg_catalog.array_agg(t.worker_session::pg_catalog.int8)
    from doc t";

// The parameters are the columns of READ_DEAD_LETTERS.
const INSERT_DEAD_LETTERS: &str =
    "insert into {docs} (subject, version, priority, status, attempts, iterations,
        next_iteration, created_at, payload, ordering_key, max_attempts, last_error, origin, seq,
        headers, due_at, picked_at, progress, lease, worker_session)
    overriding system value
    select i.name, i.version, i.priority, {pending}, 0, 0,
        pg_catalog.now(), pg_catalog.now(), i.payload, i.ordering_key, i.max_attempts,
        i.last_error, i.origin, i.seq, i.headers, i.due_at, i.picked_at, i.progress,
        i.lease, i.worker_session
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),
            pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6),
            pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9),
            pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12),
            pg_catalog.unnest($13), pg_catalog.unnest($14), pg_catalog.unnest($15))
        as i (name, seq, version, priority, payload, ordering_key, max_attempts, last_error, origin,
            headers, due_at, picked_at, progress, lease, worker_session)
    order by i.name collate pg_catalog.\"C\"
    on conflict (subject) do nothing
    returning seq, version";

/// Opens the dead-letter queue of a queue. Maintenance does not wait for it.
fn open_dead_letter_queue(queue: &Queue, target: &QueueName, by: Settler) -> Result<OwnedQueue> {
    let waits = matches!(by, Settler::Worker { .. });
    OwnedQueue::open_dead_letters(queue, target, waits)
}

/// Who settles documents that have failed.
#[derive(Clone, Copy)]
pub enum Settler<'a> {
    /// The worker of this session, with its rights. `run`: the bucket of the run of its
    /// document.
    Worker { run: Option<i16> },
    /// Maintenance found that their leases had expired. It acts with the rights of the owner.
    Maintenance(&'a OwnedQueue),
}

/// A document that is to be moved to a dead-letter queue.
struct Move {
    subject: String,
    /// Its subject in the dead-letter queue.
    target_subject: String,
}

/// How many documents are moved from one queue to another by one statement: they are all in memory
/// between the two, in arrays of one gigabyte at most.
pub(super) const PART: usize = 500;

/// What a worker that kills a document says about it.
#[derive(Clone, Copy, Default)]
struct ByWorker<'a> {
    /// None: the payload stays.
    payload: Option<Jsonb>,
    /// Why. None: the last error stays.
    error: Option<&'a str>,
    /// How many iterations are not counted yet.
    iterations: i64,
}

/// Moves documents that the caller has locked to the dead-letter queue, all of them. Returns
/// how many there were of each version. Fails with `Error::HiddenDocument` when no subject is
/// free there, and with `Error::NotRemoved` when a document cannot be removed.
fn move_to_dead_letters(
    spi: &Spi,
    queue: &Queue,
    target: &OwnedQueue,
    subjects: &[String],
    by_worker: ByWorker,
) -> Result<HashMap<i32, i32>> {
    let mut subjects = subjects.to_vec();
    subjects.sort_unstable();
    let mut versions: HashMap<i32, i32> = HashMap::new();
    let mut remaining: Vec<Move> = subjects
        .iter()
        .map(|subject| Move {
            subject: subject.clone(),
            target_subject: subject.clone(),
        })
        .collect();
    for _ in 0..MAX_RETRIES {
        let numbers = doc_selection::next_numbers(target, remaining.len())?;
        let own: Vec<&str> = remaining.iter().map(|m| m.subject.as_str()).collect();
        let new: Vec<&str> = remaining
            .iter()
            .map(|m| m.target_subject.as_str())
            .collect();
        let args = [
            Arg::from(own),
            Arg::from(new),
            Arg::from(numbers.clone()),
            Arg::from(queue.name.as_str()),
            Jsonb::arg(by_worker.payload),
            Arg::from(by_worker.iterations),
            Arg::from(by_worker.error),
        ];
        let read = queue.once(spi, READ_DEAD_LETTERS, &args);
        let rows = target.act(|| target.once(spi, INSERT_DEAD_LETTERS, &read.args(0)));
        for (version, n) in history::count_by_version(&rows) {
            *versions.entry(version).or_default() += n;
        }
        let inserted = inserted_numbers(&rows);
        let mut numbers = numbers.iter();
        remaining.retain(|_| numbers.next().is_none_or(|n| !inserted.contains(n)));
        if remaining.is_empty() {
            break;
        }
        for doc in &mut remaining {
            doc.target_subject = subjects::generate(time::clock(), session::number());
        }
    }
    if let Some(doc) = remaining.into_iter().next() {
        return Err(Error::HiddenDocument {
            queue: target.name.to_string(),
            subject: doc.subject,
        });
    }
    doc_selection::remove_documents(spi, queue, subjects)?;
    for (version, n) in &versions {
        counter_log::record_event(target, *version, *n, Event::PushPending);
        documents_ready(target, *version, Status::Pending, *n);
    }
    counter_log::record_event(queue, 0, versions.values().sum(), Event::DeadLetter);
    Ok(versions)
}

/// The numbers of the rows that a statement has inserted: its first column.
pub(super) fn inserted_numbers(rows: &Rows) -> HashSet<i64> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Settles documents that this transaction has just killed because they failed too often:
/// moves them to the dead-letter queue or to the history, removes them, or leaves them in the
/// table, and records that for the counters. `stay` and `removed` are the events of documents
/// that stay and that leave. The caller acts with the rights of the owner where `by` says so.
///
/// Fails as `OwnedQueue::open_dead_letters` and `move_to_dead_letters` do, and for maintenance as
/// `OwnedQueue::require_table` does for the history.
pub fn settle_failed(
    queue: &Queue,
    subjects: &[String],
    stay: Event,
    removed: Event,
    by: Settler,
) -> Result<()> {
    if subjects.is_empty() {
        return Ok(());
    }
    subjects_settled(queue, subjects.iter().map(String::as_str));
    let run = match by {
        Settler::Worker { run } => run,
        Settler::Maintenance(_) => None,
    };
    let versions = match (&queue.policy.dead_letter, queue.policy.killed) {
        (Some(target), _) => {
            let target = open_dead_letter_queue(queue, target, by)?;
            let mut subjects = subjects.to_vec();
            // In order, as each part is.
            subjects.sort_unstable();
            let mut versions: HashMap<i32, i32> = HashMap::new();
            for part in subjects.chunks(PART) {
                let settled = ByWorker::default();
                let moved =
                    spi::connect(|spi| move_to_dead_letters(spi, queue, &target, part, settled))?;
                for (version, n) in moved {
                    *versions.entry(version).or_default() += n;
                }
            }
            versions
        }
        (None, Keep::InTable) => {
            let n = i32::try_from(subjects.len()).unwrap_or(i32::MAX);
            record_settled(queue, 0, n, stay, run);
            return Ok(());
        }
        (None, keep) => {
            if let Settler::Maintenance(owned) = by
                && keep == Keep::InHistory
            {
                owned.require_table("history", &[])?;
            }
            let by = match (by, subjects) {
                (Settler::Worker { .. }, [subject, ..]) => By::Lease(subject),
                _ => By::Maintenance,
            };
            spi::connect(|spi| {
                let rows = history::archive(spi, queue, subjects, Outcome::Killed, by);
                history::count_by_version(&rows)
            })
        }
    };
    queue.announce(Status::Killed);
    for (version, n) in versions {
        record_settled(queue, version, n, removed, run);
    }
    Ok(())
}

/// Records an event of documents that all ran equally long, for all that is known.
fn record_settled(queue: &Queue, version: i32, n: i32, event: Event, run: Option<i16>) {
    let mut runs = Tally::new();
    (0..n).for_each(|_| runs.add(run));
    counter_log::record_timed(queue, version, event, &runs);
}

/// Returns whether documents that fail too often leave the table of the queue.
pub fn removes_failed(queue: &Queue) -> bool {
    queue.policy.dead_letter.is_some() || queue.policy.killed != Keep::InTable
}

// Index: the primary key. `{is_leased}` keeps the due index out.
static LOCK_LEASED: Statement = Statement::new(
    "select d.picked_at from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     for update",
);

/// Moves an active document to the dead-letter queue `target`, because its worker kills it.
/// `payload` replaces its payload, and `error` its last error. Fails as `lease_error` says when the
/// worker has no lease on it, and as `OwnedQueue::open_dead_letters` and `move_to_dead_letters` do.
pub fn kill(
    queue: &Queue,
    target: &QueueName,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
    error: Option<&str>,
) -> Result<()> {
    spi::connect(|spi| {
        let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
        let rows = queue.run(spi, &LOCK_LEASED, &args);
        if rows.is_empty() {
            return Err(lease_error(spi, queue, doc));
        }
        let run = counter_log::run_bucket(time::clock(), rows.timestamp(0, 1));
        let target = open_dead_letter_queue(queue, target, Settler::Worker { run })?;
        let subjects = [doc.subject.to_owned()];
        let by_worker = ByWorker {
            payload,
            error,
            iterations: 1,
        };
        for (version, n) in move_to_dead_letters(spi, queue, &target, &subjects, by_worker)? {
            record_settled(queue, version, n, Event::KillRemoved, run);
        }
        subjects_settled(queue, [doc.subject]);
        Ok(())
    })
}

// Index of this statement and the next one: the primary key.
static LOCK_DOCUMENT: Statement = Statement::new(
    "select d.status, d.version from only {docs} d
     where d.subject {=} $1
     for update",
);

/// Makes settled documents pending or planned again. $1: subjects, $2: the status, $3: when they
/// are due.
pub(super) static REVIVE: Statement = Statement::new(
    "update only {docs} d set
         status = $2, next_iteration = $3, attempts = 0, last_error = null
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

/// Makes a completed or killed document pending or planned again. `next_iteration`: when it is
/// due, in microseconds since 2000. Returns 1. Fails with `Error::NotSettled`.
pub fn revive(queue: &Queue, subject: &str, next_iteration: i64) -> Result<i32> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    spi::connect(|spi| {
        let rows = queue.run(spi, &LOCK_DOCUMENT, &[Arg::from(subject)]);
        let found = (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code));
        let event = found.flatten().and_then(|from| Event::revive(from, to));
        let Some(event) = event else {
            return Err(Error::NotSettled {
                queue: queue.name.to_string(),
                subject: subject.to_owned(),
                found,
            });
        };
        let version = rows.get(0, 2).unwrap_or(0);
        let args = [
            Arg::from(vec![subject]),
            Arg::from(to.code()),
            Arg::timestamp(next_iteration),
        ];
        let n = queue.run(spi, &REVIVE, &args).affected();
        counter_log::record_event(queue, 0, n, event);
        documents_ready(queue, version, to, n);
        Ok(n)
    })
}
