//! Bringing failed documents back into work (`queue_redrive`): those that were killed, and those
//! that were moved to a dead-letter queue.
//!
//! Each queue is read and written with the rights of its owner: the two may not trust each other.
//! So the documents are read from one queue in one statement, and written into the other one in
//! the next.

use std::collections::HashSet;

use pgrx::notice;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::role::Privilege;
use crate::pg::spi::{self, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::bookkeeping::documents_ready;
use crate::store::counter_log;
use crate::store::dead_letters::{PART, REVIVE, inserted_numbers};
use crate::store::doc_selection::{self, BulkRequest, Origin, Selected, Selection};
use crate::store::history;
use crate::store::open_queue::Queue;
use crate::store::owned_queue::{OwnedQueue, without_dead_letters};
use crate::store::rights;

// Anybody may write an origin. One whose subject is too long is not used. $15: subjects of
// documents that stay, because their own subjects are in use where they came from.
const CAN_RETURN: &str = "and d.origin {->>} 'queue'::pg_catalog.text {=} $14
    and pg_catalog.length(d.origin {->>} 'subject'::pg_catalog.text) {<=} {subject_max}
    and d.subject {<>} all ($15)";

const LIST_ORIGINS: &str = "select distinct d.origin {->>} 'queue'::pg_catalog.text
    from only {docs} d
    where d.origin is not null and d.status {=} any (array[{planned}, {pending}])
    order by 1";

// The documents as they were when they failed, without their attempts, an array for each column.
// All columns have types of PostgreSQL, as in `dead_letters::READ_DEAD_LETTERS`.
// $1, $2: subjects in the dead-letter queue, and numbers in the queue of origin.
const READ_RETURNED: &str = "with doc as (
        select d.origin {->>} 'subject'::pg_catalog.text as subject, i.seq, d.version, d.priority,
            case when (d.origin {->>} 'iterations'::pg_catalog.text) {~} '^[0-9]{1,18}$'
                then (d.origin {->>} 'iterations'::pg_catalog.text)::pg_catalog.int8
                else 0 end as iterations,
            coalesce(
                (d.origin {->>} 'created_at'::pg_catalog.text)::pg_catalog.timestamptz,
                d.created_at) as created_at,
            d.payload, d.ordering_key, d.max_attempts,
            d.headers, d.due_at, d.picked_at, d.result, d.progress, d.lease, d.worker_session,
            d.origin {->} 'origin'::pg_catalog.text as origin
        from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as i (subject, seq)
        join only {docs} d on d.subject {=} i.subject)
    select pg_catalog.array_agg(t.subject::pg_catalog.text),
        pg_catalog.array_agg(t.seq),
        pg_catalog.array_agg(t.version::pg_catalog.int4),
        pg_catalog.array_agg(t.priority::pg_catalog.int4),
        pg_catalog.array_agg(t.iterations::pg_catalog.int8),
        pg_catalog.array_agg(t.created_at::pg_catalog.timestamptz),
        pg_catalog.array_agg(t.payload::pg_catalog.jsonb),
        pg_catalog.array_agg(t.ordering_key::pg_catalog.text),
        pg_catalog.array_agg(t.max_attempts::pg_catalog.int4),
        pg_catalog.array_agg(t.origin::pg_catalog.jsonb),
        pg_catalog.array_agg(t.headers::pg_catalog.jsonb),
        pg_catalog.array_agg(t.due_at::pg_catalog.timestamptz),
        pg_catalog.array_agg(t.picked_at::pg_catalog.timestamptz),
        pg_catalog.array_agg(t.result::pg_catalog.jsonb),
        pg_catalog.array_agg(t.progress::pg_catalog.jsonb),
        pg_catalog.array_agg(t.lease::pg_catalog.int8),
        pg_catalog.array_agg(t.worker_session::pg_catalog.int8)
    from doc t";

// The parameters are the columns of READ_RETURNED.
const INSERT_RETURNED: &str =
    "insert into {docs} (subject, version, priority, next_iteration, status, attempts,
        iterations, created_at, payload, ordering_key, max_attempts, origin, seq,
        headers, due_at, picked_at, result, progress, lease, worker_session)
    overriding system value
    select i.subject collate pg_catalog.\"C\", i.version, i.priority,
        pg_catalog.now(), {pending}, 0, i.iterations, i.created_at,
        i.payload, i.ordering_key, i.max_attempts, i.origin, i.seq,
        i.headers, i.due_at, i.picked_at, i.result, i.progress, i.lease, i.worker_session
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),
            pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6),
            pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9),
            pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12),
            pg_catalog.unnest($13), pg_catalog.unnest($14), pg_catalog.unnest($15),
            pg_catalog.unnest($16), pg_catalog.unnest($17))
        as i (subject, seq, version, priority, iterations, created_at, payload, ordering_key,
            max_attempts, origin, headers, due_at, picked_at, result, progress, lease,
            worker_session)
    order by {order}
    on conflict (subject) do nothing
    returning seq, version";

/// Brings failed documents back into work, at most as many as the request allows, and returns
/// how many; with `dry_run` it only counts them. First killed documents of the queue, then those that it moved to its dead-letter
/// queue, then, where the queue is a dead-letter queue itself, those of other queues. Each queue is
/// read and written with the rights of its owner.
///
/// A notice tells which documents stay, and why; so does a warning where a role that could have
/// forged them may not push into their queue. If that is the queue that the caller names, fails
/// with `Error::MayNotCarry`. Fails with `Error::NoRight` when the caller
/// has not the right to do it, with `Error::DeadLetterGone`, with `Error::DeadLetterElsewhere`, with
/// `Error::NoNumbers`, and with
/// `Error::NotRemoved`.
pub fn redrive(queue: &OwnedQueue, request: &BulkRequest) -> Result<i32> {
    queue.authorize(&[Privilege::Select, Privilege::Update])?;
    let dead_letter_queue = match &queue.policy.dead_letter {
        Some(target) => Some(
            OwnedQueue::open(target).map_err(|e| without_dead_letters(e, &queue.name, target))?,
        ),
        None => None,
    };
    let origins = open_origins(queue)?;
    // All at once: two redrives over the same queues would wait for each other otherwise.
    let opened = dead_letter_queue
        .iter()
        .chain(origins.iter().flat_map(|origin| &origin.queue));
    let all: Vec<&Queue> = std::iter::once(queue)
        .chain(opened)
        .map(|queue| &**queue)
        .collect();
    if !request.dry_run {
        doc_selection::serialize_bulk_actions(&all);
    }

    let mut n = queue.act(|| revive_killed(queue, request))?;
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
            Ok(origin) => match return_to_origin(queue, origin, request, request.limit - n) {
                Ok(returned) => n += returned,
                // One document with a forged origin must not keep the others from returning.
                Err(e @ Error::MayNotCarry { .. }) => e.warn(),
                Err(other) => return Err(other),
            },
            Err(reason) => notice!(
                "documents of queue \"{}\" stay, because queue \"{}\", where they came from, {reason}",
                queue.name,
                origin.name
            ),
        }
    }
    Ok(n)
}

/// A queue that documents of a dead-letter queue came from.
struct OriginQueue {
    name: String,
    /// Or why documents do not go back there: it was dropped, it lives on another server, or its
    /// name is none of a queue.
    queue: std::result::Result<OwnedQueue, String>,
}

/// The other queues that the documents of a queue came from.
fn open_origins(queue: &OwnedQueue) -> Result<Vec<OriginQueue>> {
    let names: Vec<String> = queue.act(|| {
        spi::connect(|spi| {
            let rows = queue.once(spi, LIST_ORIGINS, &[]);
            (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
        })
    });
    let gone = || "no longer exists".to_owned();
    let mut origins = Vec::with_capacity(names.len());
    for name in names {
        let opened = match QueueName::parse(&name) {
            Ok(parsed) if parsed == queue.name => continue,
            Ok(parsed) => match OwnedQueue::open(&parsed) {
                Ok(queue) => Ok(queue),
                Err(Error::UnknownQueue(_)) => Err(gone()),
                Err(Error::QueueElsewhere { place, .. }) => {
                    Err(format!("lives on another server: {place}"))
                }
                // Anybody may write an origin, also one on which the caller has no rights, or whose owner
                // has altered its tables.
                Err(e @ (Error::NoRight { .. } | Error::AlteredColumn { .. })) => {
                    e.warn();
                    continue;
                }
                Err(other) => return Err(other),
            },
            Err(_) => Err(gone()),
        };
        origins.push(OriginQueue {
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
        if request.dry_run {
            return request.count(spi, queue, &selection, Some(request.limit));
        }
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
/// `limit`. Returns how many. Documents whose subject is in use there stay.
fn return_to_origin(
    dead_letter_queue: &OwnedQueue,
    origin: &OwnedQueue,
    request: &BulkRequest,
    limit: i32,
) -> Result<i32> {
    dead_letter_queue.authorize(&[Privilege::Select, Privilege::Update, Privilege::Delete])?;
    origin.authorize(&[Privilege::Insert])?;
    if request.dry_run {
        return count_returning(dead_letter_queue, origin, request, limit);
    }
    spi::connect(|spi| {
        doc_selection::serialize_bulk_actions(&[dead_letter_queue, origin]);
        let mut n = 0;
        let mut staying: Vec<String> = Vec::new();
        while n < limit {
            let args = [Arg::from(origin.name.as_str()), Arg::from(staying.clone())];
            let selection = Selection {
                statuses: request
                    .filter
                    .codes(&[Status::Planned, Status::Pending], &[]),
                condition: CAN_RETURN,
                args: &args,
                other: None,
            };
            let selected = dead_letter_queue
                .act(|| request.lock(spi, dead_letter_queue, &selection, limit - n))?;
            if selected.is_empty() {
                break;
            }
            check_return(dead_letter_queue, origin)?;
            for part in selected.chunks(PART) {
                let moved =
                    spi::connect(|spi| move_to_origin(spi, dead_letter_queue, origin, part))?;
                n += moved.n;
                staying.extend(moved.staying);
            }
        }
        if !staying.is_empty() && n < limit {
            tell_staying(dead_letter_queue, origin, staying.len());
        }
        Ok(n)
    })
}

// As CAN_RETURN, for those after the document with the number $16.
const CAN_RETURN_AFTER: &str = "and d.origin {->>} 'queue'::pg_catalog.text {=} $14
    and pg_catalog.length(d.origin {->>} 'subject'::pg_catalog.text) {<=} {subject_max}
    and d.subject {<>} all ($15) and d.seq {>} $16";

// Index: the primary key.
const LIST_EXISTING: &str = "select o.subject::pg_catalog.text from only {docs} o
    where o.subject {=} any ($1)";

/// Counts the documents that `return_to_origin` would move, at most `limit`. Changes and locks nothing.
fn count_returning(
    dead_letter_queue: &OwnedQueue,
    origin: &OwnedQueue,
    request: &BulkRequest,
    limit: i32,
) -> Result<i32> {
    spi::connect(|spi| {
        let mut returning: HashSet<String> = HashSet::new();
        let (mut staying, mut last) = (0, i64::MIN);
        while (returning.len() as i64) < i64::from(limit) {
            let none: Vec<String> = Vec::new();
            let args = [
                Arg::from(origin.name.as_str()),
                Arg::from(none),
                Arg::from(last),
            ];
            let selection = Selection {
                statuses: request
                    .filter
                    .codes(&[Status::Planned, Status::Pending], &[]),
                condition: CAN_RETURN_AFTER,
                args: &args,
                other: None,
            };
            let found: Vec<Origin> = dead_letter_queue
                .act(|| request.list_origins(spi, dead_letter_queue, &selection, PART))?;
            let Some(end) = found.last() else {
                break;
            };
            check_return(dead_letter_queue, origin)?;
            last = end.seq;
            let subjects: Vec<&str> = found.iter().map(|one| one.subject.as_str()).collect();
            let existing: HashSet<String> = origin.act(|| {
                let rows = origin.once(spi, LIST_EXISTING, &[Arg::from(subjects)]);
                (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
            });
            for one in found {
                if (returning.len() as i64) >= i64::from(limit) {
                    break;
                }
                if existing.contains(&one.subject) || !returning.insert(one.subject) {
                    staying += 1;
                }
            }
        }
        let n = i32::try_from(returning.len()).unwrap_or(i32::MAX);
        if staying > 0 && n < limit {
            tell_staying(dead_letter_queue, origin, staying);
        }
        Ok(n)
    })
}

/// Tells how many documents stay in a dead-letter queue, because their subjects are in use.
fn tell_staying(dead_letter_queue: &Queue, origin: &Queue, n: usize) {
    notice!(
        "documents of queue \"{}\" that stay, because their subjects are in use in queue \"{}\": {n}",
        dead_letter_queue.name,
        origin.name
    );
}

/// Checks that whoever can write into a dead-letter queue could push into the queue that its
/// documents came from. Where a document came from is written in the document itself, and so is
/// what it says: without this, a producer of the dead-letter queue would push wherever the caller
/// may.
///
/// Fails with `Error::MayNotCarry`.
fn check_return(dead_letter_queue: &OwnedQueue, origin: &OwnedQueue) -> Result<()> {
    match rights::find_stranger(dead_letter_queue.table, origin.table) {
        None => Ok(()),
        Some(stranger) => Err(stranger.keeps_documents(&dead_letter_queue.name, &origin.name)),
    }
}

/// What became of documents that were to return.
struct Returned {
    /// How many were moved.
    n: i32,
    /// The subjects of those whose own subject is in use in the queue of origin.
    staying: Vec<String>,
}

/// Moves documents that are locked.
fn move_to_origin(
    spi: &Spi,
    dead_letter_queue: &OwnedQueue,
    origin: &OwnedQueue,
    selected: &[Selected],
) -> Result<Returned> {
    let numbers = doc_selection::next_numbers(origin, selected.len())?;
    let subjects: Vec<&str> = selected.iter().map(|doc| doc.subject.as_str()).collect();
    let args = [Arg::from(subjects), Arg::from(numbers.clone())];
    let read = dead_letter_queue.act(|| dead_letter_queue.once(spi, READ_RETURNED, &args));
    let sql = doc_selection::render_order(INSERT_RETURNED, origin);
    let rows = origin.act(|| origin.once(spi, &sql, &read.args(0)));
    let inserted = inserted_numbers(&rows);
    let (moved, staying): (Vec<_>, Vec<_>) = selected
        .iter()
        .zip(&numbers)
        .partition(|(_, number)| inserted.contains(number));
    let subjects = moved.iter().map(|(doc, _)| doc.subject.clone()).collect();
    dead_letter_queue.act(|| doc_selection::remove_documents(spi, dead_letter_queue, subjects))?;
    let groups = doc_selection::group(moved.iter().map(|(doc, _)| *doc));
    doc_selection::record_events(dead_letter_queue, &groups, |from| Some(Event::remove(from)));
    for (version, n) in history::count_by_version(&rows) {
        counter_log::record_event(origin, version, n, Event::PushPending);
        documents_ready(origin, version, Status::Pending, n);
    }
    Ok(Returned {
        n: doc_selection::total(&groups),
        staying: staying
            .into_iter()
            .map(|(doc, _)| doc.subject.clone())
            .collect(),
    })
}
