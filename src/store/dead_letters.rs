//! Dead-letter queues: moving documents that failed too often there, and bringing them back
//! (`queue_redrive`, `doc_revive`).
//!
//! A move inserts the document into the other queue first and removes it afterwards, in the
//! order of subjects. Of two moves in opposite directions, each then finds its subject in use
//! and generates another one. If the document were removed first, each would wait for the
//! other.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use pgrx::notice;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::subjects;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::pg::{session, time};
use crate::store::bookkeeping::documents_ready;
use crate::store::counter_log;
use crate::store::doc_selection::{self, BulkRequest, Selected, Selection};
use crate::store::history::{self, Outcome};
use crate::store::lease_check::{LeasedDoc, lease_error};
use crate::store::open_queue::Queue;
use crate::store::policy::Keep;
use crate::store::statement::{Statement, render};

/// How many subjects are generated for a document whose own subject is in use in the
/// dead-letter queue. One is enough, unless a transaction that is invisible to this one uses
/// it too.
const MAX_RETRIES: usize = 10;

// $1, $2, $3: the subjects, the subjects in the dead-letter queue, and the numbers there. $4:
// the name of the queue. $5: the payload that the worker passed, or NULL. $6: how many
// iterations are not counted yet.
const INSERT_DEAD_LETTERS: &str =
    "insert into {other} (subject, version, priority, status, attempts, iterations,
        next_iteration, created_at, payload, ordering_key, max_attempts, last_error, origin, seq)
    overriding system value
    select i.name, d.version, d.priority, {pending}, 0, 0,
        pg_catalog.now(), pg_catalog.now(), coalesce($5, d.payload), d.ordering_key, d.max_attempts,
        d.last_error,
        pg_catalog.jsonb_build_object(
            'queue', $4, 'subject', d.subject, 'version', d.version, 'attempts', d.attempts,
            'iterations', d.iterations {+} $6, 'created_at', d.created_at,
            'killed_at', pg_catalog.now(), 'error', d.last_error)
        {||} case when d.origin is null then '{}'::pg_catalog.jsonb
            else pg_catalog.jsonb_build_object('origin', d.origin) end,
        i.seq
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))
        as i (subject, name, seq)
    join only {docs} d on d.subject {=} i.subject
    order by i.name collate pg_catalog.\"C\"
    on conflict (subject) do nothing
    returning seq, version";

/// Opens the dead-letter queue of a queue. Fails with `Error::DeadLetterGone` when it was
/// dropped.
fn open_dead_letter_queue(queue: &Queue, target: &QueueName) -> Result<Rc<Queue>> {
    Queue::open(target).map_err(|e| match e {
        Error::UnknownQueue(_) => Error::DeadLetterGone {
            queue: queue.name.to_string(),
            target: target.to_string(),
        },
        other => other,
    })
}

/// A document that is to be moved to a dead-letter queue.
struct Move {
    subject: String,
    /// Its subject in the dead-letter queue.
    target_subject: String,
}

/// Moves documents that the caller has locked to the dead-letter queue, all of them. Returns
/// how many there were of each version. Fails with `Error::HiddenDocument` when no subject is
/// free there, and with `Error::NotRemoved` when a document cannot be removed.
fn move_to_dead_letters(
    spi: &Spi,
    queue: &Queue,
    target: &Queue,
    subjects: &[String],
    payload: Option<Jsonb>,
    iterations: i64,
) -> Result<HashMap<i32, i32>> {
    let mut subjects = subjects.to_vec();
    subjects.sort_unstable();
    let sql =
        render(INSERT_DEAD_LETTERS, &queue.name).replace("{other}", &target.name.qualified("docs"));
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
            Jsonb::arg(payload),
            Arg::from(iterations),
        ];
        let rows = spi.once(&sql, &args);
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
fn inserted_numbers(rows: &Rows) -> HashSet<i64> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Settles documents that this transaction has just killed because they failed too often:
/// moves them to the dead-letter queue or to the history, removes them, or leaves them in the
/// table, and records that for the counters. `stay` and `removed` are the events of documents
/// that stay and that leave. `by_worker`: a worker rejected them; otherwise maintenance found
/// that their leases had expired.
///
/// Fails with `Error::DeadLetterGone`, and as `move_to_dead_letters` does.
pub fn settle_failed(
    queue: &Queue,
    subjects: &[String],
    stay: Event,
    removed: Event,
    by_worker: bool,
) -> Result<()> {
    if subjects.is_empty() {
        return Ok(());
    }
    let versions = match (&queue.policy.dead_letter, queue.policy.killed) {
        (Some(target), _) => {
            let target = open_dead_letter_queue(queue, target)?;
            spi::connect(|spi| move_to_dead_letters(spi, queue, &target, subjects, None, 0))?
        }
        (None, Keep::InTable) => {
            let n = i32::try_from(subjects.len()).unwrap_or(i32::MAX);
            counter_log::record_event(queue, 0, n, stay);
            return Ok(());
        }
        (None, Keep::Nowhere | Keep::InHistory) => spi::connect(|spi| {
            let rows = history::archive(spi, queue, subjects, Outcome::Killed, by_worker);
            history::count_by_version(&rows)
        }),
    };
    queue.announce(Status::Killed);
    for (version, n) in versions {
        counter_log::record_event(queue, version, n, removed);
    }
    Ok(())
}

/// Returns whether documents that fail too often leave the table of the queue.
pub fn removes_failed(queue: &Queue) -> bool {
    queue.policy.dead_letter.is_some() || queue.policy.killed != Keep::InTable
}

// Index: the primary key. `{is_leased}` keeps the due index out.
static LOCK_LEASED: Statement = Statement::new(
    "select d.subject::pg_catalog.text from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     for update",
);

/// Moves an active document to the dead-letter queue `target`, because its worker kills it.
/// `payload` replaces its payload. Fails as `lease_error` says when the worker has no lease on
/// it, with `Error::DeadLetterGone`, and as `move_to_dead_letters` does.
pub fn kill(
    queue: &Queue,
    target: &QueueName,
    doc: LeasedDoc,
    payload: Option<Jsonb>,
) -> Result<()> {
    spi::connect(|spi| {
        let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
        if queue.run(spi, &LOCK_LEASED, &args).is_empty() {
            return Err(lease_error(spi, queue, doc));
        }
        let target = open_dead_letter_queue(queue, target)?;
        let subjects = [doc.subject.to_owned()];
        for (version, n) in move_to_dead_letters(spi, queue, &target, &subjects, payload, 1)? {
            counter_log::record_event(queue, version, n, Event::Drop);
        }
        Ok(())
    })
}

// Index of this statement and the next one: the primary key.
static LOCK_DOCUMENT: Statement = Statement::new(
    "select d.status, d.version from only {docs} d
     where d.subject {=} $1
     for update",
);

static REVIVE: Statement = Statement::new(
    "update only {docs} d set
         status = $2, next_iteration = $3, attempts = 0, last_error = null,
         lease = null, worker_session = null
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

// Anybody may write an origin. One whose subject is too long is not used.
const CAN_RETURN: &str = "and d.origin {->>} 'queue'::pg_catalog.text {=} $14
    and pg_catalog.length(d.origin {->>} 'subject'::pg_catalog.text) {<=} {subject_max}
    and not exists (select from only {other} o
        where o.subject {=} (d.origin {->>} 'subject'::pg_catalog.text))";

const SUBJECT_IS_IN_USE: &str = "and d.origin {->>} 'queue'::pg_catalog.text {=} $14
    and exists (select from only {other} o
        where o.subject {=} (d.origin {->>} 'subject'::pg_catalog.text))";

const LIST_ORIGINS: &str = "select distinct d.origin {->>} 'queue'::pg_catalog.text
    from only {docs} d
    where d.origin is not null and d.status {=} any (array[{planned}, {pending}])
    order by 1";

// The document as it was when it failed, without its attempts. $1, $2: subjects in the
// dead-letter queue, and numbers in the queue of origin.
const INSERT_RETURNED: &str =
    "insert into {other} (subject, version, priority, next_iteration, status, attempts,
        iterations, created_at, payload, ordering_key, max_attempts, origin, seq)
    overriding system value
    select (d.origin {->>} 'subject'::pg_catalog.text) collate pg_catalog.\"C\", d.version, d.priority,
        pg_catalog.now(), {pending}, 0,
        case when (d.origin {->>} 'iterations'::pg_catalog.text) {~} '^[0-9]{1,18}$'
            then (d.origin {->>} 'iterations'::pg_catalog.text)::pg_catalog.int8 else 0 end,
        coalesce((d.origin {->>} 'created_at'::pg_catalog.text)::pg_catalog.timestamptz, d.created_at),
        d.payload, d.ordering_key, d.max_attempts,
        d.origin {->} 'origin'::pg_catalog.text, i.seq
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as i (subject, seq)
    join only {docs} d on d.subject {=} i.subject
    order by {order}
    on conflict (subject) do nothing
    returning seq, version";

/// Brings failed documents back into work, at most as many as the request allows, and returns
/// how many. First killed documents of the queue, then those that it moved to its dead-letter
/// queue, then, where the queue is a dead-letter queue itself, those of other queues.
///
/// A notice tells which documents stay, and why. Fails with `Error::DeadLetterGone`, with
/// `Error::NoNumbers`, and with `Error::NotRemoved`.
pub fn redrive(queue: &Queue, request: &BulkRequest) -> Result<i32> {
    let dead_letter_queue = match &queue.policy.dead_letter {
        Some(target) => Some(open_dead_letter_queue(queue, target)?),
        None => None,
    };
    let origins = open_origins(queue)?;
    // All at once: two redrives over the same queues would wait for each other otherwise.
    let opened = dead_letter_queue
        .iter()
        .chain(origins.iter().flat_map(|origin| &origin.queue));
    let all: Vec<&Queue> = std::iter::once(queue)
        .chain(opened.map(|queue| &**queue))
        .collect();
    spi::connect(|spi| doc_selection::serialize_bulk_actions(spi, &all));

    let mut n = revive_killed(queue, request)?;
    if let Some(dead_letter_queue) = &dead_letter_queue
        && n < request.limit
    {
        n += return_to_origin(dead_letter_queue, queue, request, request.limit - n)?;
    }
    for origin in &origins {
        if n >= request.limit {
            break;
        }
        match &origin.queue {
            Some(origin) => n += return_to_origin(queue, origin, request, request.limit - n)?,
            None => notice!(
                "documents of queue \"{}\" stay, because queue \"{}\", where they came from, no longer exists",
                queue.name,
                origin.name
            ),
        }
    }
    Ok(n)
}

/// A queue that documents of a dead-letter queue came from.
struct Origin {
    name: String,
    /// None: it was dropped, or its name is none of a queue.
    queue: Option<Rc<Queue>>,
}

/// The other queues that the documents of a queue came from.
fn open_origins(queue: &Queue) -> Result<Vec<Origin>> {
    let names: Vec<String> = spi::connect(|spi| {
        let rows = queue.once(spi, LIST_ORIGINS, &[]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    });
    let mut origins = Vec::with_capacity(names.len());
    for name in names {
        let opened = match QueueName::parse(&name) {
            Ok(parsed) if parsed == queue.name => continue,
            Ok(parsed) => match Queue::open(&parsed) {
                Ok(queue) => Some(queue),
                Err(Error::UnknownQueue(_)) => None,
                // Anybody may write an origin, also one on which the caller has no rights.
                Err(e @ Error::NoRight { .. }) => {
                    e.warn();
                    continue;
                }
                Err(other) => return Err(other),
            },
            Err(_) => None,
        };
        origins.push(Origin {
            name,
            queue: opened,
        });
    }
    Ok(origins)
}

/// Makes killed documents of a queue pending again. Returns how many.
fn revive_killed(queue: &Queue, request: &BulkRequest) -> Result<i32> {
    let selection = Selection {
        statuses: request.filter.codes(&[Status::Killed], &[]),
        condition: "",
        args: &[],
        other: None,
    };
    spi::connect(|spi| {
        let selected = request.lock(spi, queue, &selection, request.limit)?;
        if selected.is_empty() {
            return Ok(0);
        }
        let args = [
            doc_selection::sorted_subjects(&selected),
            Arg::from(Status::Pending.code()),
            Arg::timestamp(time::now()),
        ];
        let rows = queue.run(spi, &REVIVE, &args);
        let groups = doc_selection::group_returned(&selected, &rows);
        doc_selection::record_events(queue, &groups, |from| Event::revive(from, Status::Pending));
        for ((_, version), n) in &groups {
            documents_ready(queue, *version, Status::Pending, *n);
        }
        Ok(doc_selection::total(&groups))
    })
}

/// Moves documents of a dead-letter queue back to the queue that they came from, at most
/// `limit`. Returns how many.
fn return_to_origin(
    dead_letter_queue: &Queue,
    origin: &Queue,
    request: &BulkRequest,
    limit: i32,
) -> Result<i32> {
    let args = [Arg::from(origin.name.as_str())];
    let selection = |condition| Selection {
        statuses: request
            .filter
            .codes(&[Status::Planned, Status::Pending], &[]),
        condition,
        args: &args,
        other: Some(&origin.name),
    };
    spi::connect(|spi| {
        doc_selection::serialize_bulk_actions(spi, &[dead_letter_queue, origin]);
        let selected = request.lock(spi, dead_letter_queue, &selection(CAN_RETURN), limit)?;
        let n = move_to_origin(spi, dead_letter_queue, origin, &selected)?;
        if n < limit {
            let in_use = selection(SUBJECT_IS_IN_USE);
            let stay = request.count(spi, dead_letter_queue, &in_use, None)?;
            if stay > 0 {
                notice!(
                    "documents of queue \"{}\" that stay, because their subjects are in use in queue \"{}\": {stay}",
                    dead_letter_queue.name,
                    origin.name
                );
            }
        }
        Ok(n)
    })
}

/// Moves documents that are locked. Those whose subject another transaction has inserted
/// meanwhile stay. Returns how many were moved.
fn move_to_origin(
    spi: &Spi,
    dead_letter_queue: &Queue,
    origin: &Queue,
    selected: &[Selected],
) -> Result<i32> {
    if selected.is_empty() {
        return Ok(0);
    }
    let numbers = doc_selection::next_numbers(origin, selected.len())?;
    let subjects: Vec<&str> = selected.iter().map(|doc| doc.subject.as_str()).collect();
    let sql = doc_selection::render_order(INSERT_RETURNED, origin);
    let sql =
        render(&sql, &dead_letter_queue.name).replace("{other}", &origin.name.qualified("docs"));
    let rows = spi.once(&sql, &[Arg::from(subjects), Arg::from(numbers.clone())]);
    let inserted = inserted_numbers(&rows);
    let moved: Vec<&Selected> = selected
        .iter()
        .zip(&numbers)
        .filter(|(_, number)| inserted.contains(number))
        .map(|(doc, _)| doc)
        .collect();
    let subjects = moved.iter().map(|doc| doc.subject.clone()).collect();
    doc_selection::remove_documents(spi, dead_letter_queue, subjects)?;
    let groups = doc_selection::group(moved.into_iter());
    doc_selection::record_events(dead_letter_queue, &groups, |from| Some(Event::remove(from)));
    for (version, n) in history::count_by_version(&rows) {
        counter_log::record_event(origin, version, n, Event::PushPending);
        documents_ready(origin, version, Status::Pending, n);
    }
    Ok(doc_selection::total(&groups))
}
