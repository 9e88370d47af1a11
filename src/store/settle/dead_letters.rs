//! Dead-letter queues: moving documents that failed too often there, and reviving one
//! (`doc_revive`). `redrive.rs` brings many back.
//!
//! Workers need no rights on the dead-letter queue. The role that has set it has to manage the queue
//! and to be able to push there, at that time and at the time of the move.

use std::collections::HashMap;
use std::rc::Rc;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::subjects;
use crate::domain::timing::Tally;
use crate::error::{Error, Result};
use crate::pg::documents::Column;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{role, session, time};
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{documents_ready, subjects_settled};
use crate::store::documents::history::{self, Outcome};
use crate::store::documents::history_worker::By;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::Statement;
use crate::store::settle::move_documents::{Columns, Moving, move_documents};
use crate::store::settle::restore::restore_one;

/// How many subjects are generated for a document whose own subject is in use in the
/// dead-letter queue. One is enough, unless a transaction that is invisible to this one uses
/// it too.
const MAX_RETRIES: usize = 10;

/// SQL for when the queue `q` was created, which tells it from those that had its name before it: a dump,
/// a restore and `fetchq move` keep it, unlike the id. As text in UTC, whatever the time zone of a session.
macro_rules! queue_created_at {
    () => {
        "pg_catalog.to_char(pg_catalog.timezone('UTC', q.created_at), 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    };
}
pub(in crate::store) use queue_created_at;

// $4: the name of the queue. $5: the payload that the worker passed, or NULL. $6: how many iterations
// are not counted yet. $7: why the worker has killed them, or NULL. $8: the id of the queue.
const DEAD_LETTER: Columns = Columns {
    changed: &[
        (Column::Subject, "i.name collate pg_catalog.\"C\""),
        (Column::Status, "{pending}"),
        (Column::Iterations, "0"),
        (Column::NextIteration, "pg_catalog.now()"),
        (Column::LastIteration, "pg_catalog.now()"),
        (Column::Payload, "coalesce($5, d.payload)"),
        (Column::LastError, "coalesce($7, d.last_error)"),
        (Column::Origin, ORIGIN),
        (Column::Result, "null"),
        (Column::Queued, "null"),
        (Column::ExpiresAt, "null"),
    ],
    are_put: false,
};

const ORIGIN: &str = concat!("pg_catalog.jsonb_build_object(
            'queue', $4, 'queue_created_at', (select ",
        queue_created_at!(),
        " from fetchq.queues q where q.id {=} $8),
            'subject', d.subject, 'version', d.version, 'attempts', d.attempts,
            'iterations', least(d.iterations, 9223372036854775806) {+} $6, 'created_at', d.created_at,
            'killed_at', pg_catalog.now(), 'error', coalesce($7, d.last_error))
        {||} case when d.origin is null then '{}'::pg_catalog.jsonb
            else pg_catalog.jsonb_build_object('origin', d.origin) end");

/// Opens the dead-letter queue of a queue, to move documents there. Maintenance does not wait for it.
///
/// Fails with `Error::DeadLetterGone` when it was dropped, with `Error::DeadLetterElsewhere` when it
/// lives on another server, with `Error::TableBusy`, and with `Error::MayNotMove`.
fn open_dead_letter_queue(queue: &Queue, target: &QueueName, by: Settler) -> Result<Rc<Queue>> {
    let waits = matches!(by, Settler::Worker { .. });
    let opened = Queue::open_for_others(target, waits)
        .map_err(|e| without_dead_letters(e, &queue.name, target))?
        .ok_or_else(|| Error::TableBusy {
            table: target.relation("docs"),
        })?;
    check_setter(queue, &opened)?;
    Ok(opened)
}

/// Checks that the role that has set the dead-letter queue of a queue could do so again.
///
/// Fails with `Error::MayNotMove`.
fn check_setter(queue: &Queue, target: &Queue) -> Result<()> {
    let Some(name) = &queue.policy.dead_letter_by else {
        return Ok(());
    };
    let reason = match role::of_name(name) {
        None => "no longer exists",
        Some(role) if !rights::role_has(role, queue.table, Right::Manage) => "no longer manages it",
        Some(role) if !rights::role_has(role, target.table, Right::Push) => "may not push there",
        Some(_) => return Ok(()),
    };
    Err(Error::MayNotMove {
        queue: queue.name.to_string(),
        role: name.clone(),
        target: target.name.to_string(),
        reason,
    })
}

/// The error for a dead-letter queue that could not be opened. It says whose it is where the queue
/// is not in this database.
pub(in crate::store) fn without_dead_letters(
    error: Error,
    source: &QueueName,
    target: &QueueName,
) -> Error {
    let (queue, target) = (source.to_string(), target.to_string());
    match error {
        Error::UnknownQueue(_) => Error::DeadLetterGone { queue, target },
        Error::QueueElsewhere { place, .. } => Error::DeadLetterElsewhere {
            queue,
            target,
            place,
        },
        other => other,
    }
}

/// Who settles documents that have failed.
#[derive(Clone, Copy)]
pub enum Settler {
    /// The worker of this session. `run`: the bucket of the run of its document.
    Worker { run: Option<i16> },
    /// Maintenance found that their leases had expired.
    Maintenance,
}

/// How many documents are moved from one queue to another by one statement.
pub(in crate::store) const PART: usize = 500;

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
    target: &Queue,
    subjects: &[String],
    by_worker: ByWorker,
) -> Result<HashMap<i32, i32>> {
    let args = [
        Arg::from(queue.name.as_str()),
        Jsonb::arg(by_worker.payload),
        Arg::from(by_worker.iterations),
        Arg::from(by_worker.error),
        Arg::from(queue.id),
    ];
    let mut versions: HashMap<i32, i32> = HashMap::new();
    let mut remaining: Vec<Moving> = subjects.iter().map(|s| Moving::unnamed(s)).collect();
    remaining.sort_unstable();
    for _ in 0..MAX_RETRIES {
        let moved = move_documents(spi, queue, target, &DEAD_LETTER, &remaining, &args)?;
        add_up(&mut versions, moved.versions);
        remaining = moved
            .staying
            .into_iter()
            .map(|subject| Moving {
                subject,
                name: subjects::generate(time::clock(), session::number()),
            })
            .collect();
        if remaining.is_empty() {
            break;
        }
    }
    if let Some(doc) = remaining.into_iter().next() {
        return Err(Error::HiddenDocument {
            queue: target.name.to_string(),
            subject: doc.subject,
        });
    }
    counter_log::record_event(queue, 0, versions.values().sum(), Event::DeadLetter);
    Ok(versions)
}

fn add_up(versions: &mut HashMap<i32, i32>, more: HashMap<i32, i32>) {
    for (version, n) in more {
        *versions.entry(version).or_default() += n;
    }
}

/// Settles documents that this transaction has just killed because they failed too often:
/// moves them to the dead-letter queue or to the history, removes them, or leaves them in the
/// table, and records that for the counters. `stay` and `removed` are the events of documents
/// that stay and that leave.
///
/// Fails as `open_dead_letter_queue` and `move_to_dead_letters` do, and for maintenance as
/// `Queue::require_table` does for the history.
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
        Settler::Maintenance => None,
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
                add_up(&mut versions, moved);
            }
            versions
        }
        (None, Keep::InTable) => {
            let n = i32::try_from(subjects.len()).unwrap_or(i32::MAX);
            record_settled(queue, 0, n, stay, run);
            return Ok(());
        }
        (None, keep) => {
            if matches!(by, Settler::Maintenance) && keep == Keep::InHistory {
                queue.require_table("history")?;
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

/// Moves a document that the caller has locked to the dead-letter queue `target`, because its worker
/// kills it. `payload` replaces its payload, and `error` its last error. Counting it is for the caller.
/// Fails as `open_dead_letter_queue` and `move_to_dead_letters` do.
pub fn kill(
    queue: &Queue,
    target: &QueueName,
    subject: &str,
    payload: Option<Jsonb>,
    error: Option<&str>,
) -> Result<()> {
    let target = open_dead_letter_queue(queue, target, Settler::Worker { run: None })?;
    let by_worker = ByWorker {
        payload,
        error,
        iterations: 1,
    };
    let subjects = [subject.to_owned()];
    spi::connect(|spi| move_to_dead_letters(spi, queue, &target, &subjects, by_worker)).map(drop)
}

// Index of this statement and the next one: the primary key.
static LOCK_DOCUMENT: Statement = Statement::new(
    "select d.status, d.version from only {docs} d
     where d.subject {=} $1
     for update",
);

/// Makes settled documents pending or planned again. $1: subjects, $2: the status, $3: when they
/// are due.
pub(in crate::store) static REVIVE: Statement = Statement::new(
    "update only {docs} d set
         status = $2, next_iteration = $3, attempts = 0, last_error = null, expires_at = null
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

/// Makes a completed or killed document pending or planned again, also one of the history, however it was
/// settled. `next_iteration`: when it is
/// due, in microseconds since 2000. Returns 1. Fails with `Error::NotSettled`, and as
/// `restore_one` does.
pub fn revive(queue: &Queue, subject: &str, next_iteration: i64) -> Result<i32> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    spi::connect(|spi| {
        let mut rows = queue.run(spi, &LOCK_DOCUMENT, &[Arg::from(subject)]);
        if rows.is_empty() {
            // Another session may have taken it out of the history meanwhile, or have put it.
            restore_one(spi, queue, subject)?;
            rows = queue.run(spi, &LOCK_DOCUMENT, &[Arg::from(subject)]);
        }
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
