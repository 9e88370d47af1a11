//! Bringing failed documents back into work (`queue_redrive`): those that were killed, and those
//! that were moved to a dead-letter queue.
//!
//! What says where a document came from is in the document itself, and a manager of a dead-letter
//! queue can write it. So documents go back only to a queue whose dead-letter queue this one is, and
//! into which the caller may push.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use pgrx::notice;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::wording::shorten;
use crate::error::{Error, Result};
use crate::pg::documents::Column;
use crate::pg::spi;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::documents::bookkeeping::documents_ready;
use crate::store::documents::doc_selection::{self, BulkRequest, Origin, Selected, Selection};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::settle::dead_letters::{PART, REVIVE, queue_created_at, without_dead_letters};
use crate::store::settle::move_documents::{Columns, Moving, move_documents};
use crate::store::settle::restore;

// Which documents of a dead-letter queue can return to a queue: $21 its name, $22 its id, $23 subjects of
// documents that stay, because their own subjects are in use where they came from. Anybody may write an
// origin. One whose subject is too long is not used. What failed in a queue that was dropped does not
// return to another one of that name, which may be another role's.
macro_rules! can_return {
    ($also:literal) => {
        concat!(
            "and d.origin {->>} 'queue'::pg_catalog.text {=} $21
    and d.origin {->>} 'queue_created_at'::pg_catalog.text {=} (
            select ",
            queue_created_at!(),
            " from fetchq.queues q where q.id {=} $22)
    and pg_catalog.length(d.origin {->>} 'subject'::pg_catalog.text) {<=} {subject_max}
    and d.subject {<>} all ($23)",
            $also
        )
    };
}
const CAN_RETURN: &str = can_return!("");

// Of the names, too, which of them are still those of the same queues.
const LIST_ORIGINS: &str = concat!(
    "select o.queue, exists (
        select from fetchq.queues q where q.name {=} o.queue and o.created_at {=} ",
    queue_created_at!(),
    ")
    from (
        select distinct d.origin {->>} 'queue'::pg_catalog.text as queue,
            d.origin {->>} 'queue_created_at'::pg_catalog.text as created_at
        from only {docs} d
        where d.origin is not null and d.status {=} any (array[{planned}, {pending}])
    ) o
    order by 1, 2"
);

// The times that the server has written, as they are in the JSON of a time. A manager may have
// written anything, and a text that is no time must not keep the other documents.
const ORIGIN_CREATED_AT: &str =
    "case when (d.origin {->>} 'created_at'::pg_catalog.text) {~} '^((?!0000)[0-9]{4}-(\
        (0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|\
        02-(0[1-9]|1[0-9]|2[0-8]))|\
        ([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?\
        [+-](0[0-9]|1[0-5])(:[0-5][0-9]){0,2}$'
            then (d.origin {->>} 'created_at'::pg_catalog.text)::pg_catalog.timestamptz
            when pg_catalog.isfinite(d.created_at) then d.created_at else pg_catalog.now() end";

// The documents as they were when they failed, without their attempts.
const RETURNED: Columns = Columns {
    changed: &[
        (
            Column::Subject,
            "(d.origin {->>} 'subject'::pg_catalog.text) collate pg_catalog.\"C\"",
        ),
        (Column::Status, "{pending}"),
        (
            Column::Iterations,
            "case when (d.origin {->>} 'iterations'::pg_catalog.text) {~} '^[0-9]{1,18}$'
                then (d.origin {->>} 'iterations'::pg_catalog.text)::pg_catalog.int8
                else 0 end",
        ),
        (Column::NextIteration, "pg_catalog.now()"),
        (Column::CreatedAt, ORIGIN_CREATED_AT),
        (Column::LastIteration, "null"),
        (Column::LastError, "null"),
        (Column::Origin, "d.origin {->} 'origin'::pg_catalog.text"),
    ],
    are_put: false,
};

/// Brings failed documents back into work, at most as many as the request allows, and returns
/// how many; with `dry_run` it only counts them. First killed documents of the queue and of its history, then those that it moved to its dead-letter
/// queue, then, where the queue is a dead-letter queue itself, those of other queues. The caller has
/// the right to work on the queue.
///
/// A notice tells which documents stay, and why. Fails with `Error::NoRight` when the caller may not
/// work on the dead-letter queue, with `Error::DeadLetterGone`, with `Error::DeadLetterElsewhere`,
/// with `Error::NoNumbers`, and with `Error::NotRemoved`.
pub fn redrive(queue: &Rc<Queue>, request: &BulkRequest) -> Result<i32> {
    let dead_letter_queue = match &queue.policy.dead_letter {
        Some(target) => Some(
            Queue::open_for(target, Right::Work)
                .map_err(|e| without_dead_letters(e, &queue.name, target))?,
        ),
        None => None,
    };
    if dead_letter_queue.is_some() {
        rights::require_on(&queue.name, queue.table, Right::Push)?;
    }
    let origins = open_origins(queue)?;
    // All at once: two redrives over the same queues would wait for each other otherwise.
    let opened = dead_letter_queue.iter().chain(&origins);
    let all: Vec<&Queue> = std::iter::once(queue)
        .chain(opened)
        .map(|queue| &**queue)
        .collect();
    if !request.dry_run {
        doc_selection::serialize_bulk_actions(&all);
    }

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
        n += return_to_origin(queue, origin, request, request.limit - n)?;
    }
    Ok(n)
}

/// Opens the other queues that the documents of a queue came from, and to which they may return.
/// A notice tells which other queues there are, and why documents stay.
fn open_origins(queue: &Queue) -> Result<Vec<Rc<Queue>>> {
    let named: Vec<(String, bool)> = spi::connect(|spi| {
        let rows = queue.once(spi, LIST_ORIGINS, &[]);
        (0..rows.len())
            .filter_map(|row| Some((rows.get(row, 1)?, rows.get(row, 2)?)))
            .collect()
    });
    let mut origins = Vec::with_capacity(named.len());
    let mut staying: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, is_same) in named {
        let reason = match open_origin(queue, &name)? {
            Ok(Some(origin)) if is_same => {
                origins.push(origin);
                continue;
            }
            Ok(Some(_)) => "was dropped, and is another one now".to_owned(),
            Ok(None) => continue,
            Err(reason) => reason,
        };
        staying.entry(reason).or_default().insert(name);
    }
    for (reason, names) in staying {
        tell_origins(queue, &reason, &names);
    }
    Ok(origins)
}

/// Opens a queue of which the origin of documents has the name: None for the queue itself. An error
/// says why documents stay.
fn open_origin(
    queue: &Queue,
    name: &str,
) -> Result<std::result::Result<Option<Rc<Queue>>, String>> {
    let gone = || Ok(Err("no longer exists".to_owned()));
    let Ok(parsed) = QueueName::parse(name) else {
        return gone();
    };
    if parsed == queue.name {
        return Ok(Ok(None));
    }
    match Queue::open_for(&parsed, Right::Push) {
        Ok(origin) if origin.policy.dead_letter.as_ref() == Some(&queue.name) => {
            Ok(Ok(Some(origin)))
        }
        Ok(_) => Ok(Err("has another dead-letter queue now, or none".to_owned())),
        Err(Error::UnknownQueue(_)) => gone(),
        Err(Error::QueueElsewhere { place, .. }) => {
            Ok(Err(format!("lives on another server: {place}")))
        }
        Err(Error::NoRight { .. }) => Ok(Err("is not one into which you may push".to_owned())),
        Err(other) => Err(other),
    }
}

/// How many names of queues a notice has at most.
const MAX_NAMES: usize = 5;

/// Tells that documents stay which came from these queues.
fn tell_origins(queue: &Queue, reason: &str, names: &BTreeSet<String>) {
    let shown: Vec<String> = names
        .iter()
        .take(MAX_NAMES)
        .map(|name| format!("\"{}\"", shorten(name)))
        .collect();
    let more = match names.len() - shown.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    notice!(
        "documents of queue \"{}\" stay where the queue that they came from {reason}: {}{more}",
        queue.name,
        shown.join(", ")
    );
}

/// Makes killed documents of a queue pending again, also those of its history. Returns how many.
fn revive_killed(queue: &Queue, request: &BulkRequest) -> Result<i32> {
    let selection = Selection {
        statuses: request.filter.codes(&[Status::Killed], &[]),
        condition: "",
        args: &[],
        other: None,
    };
    let statuses = &selection.statuses;
    spi::connect(|spi| {
        if request.dry_run {
            let n = request.count(spi, queue, &selection, Some(request.limit))?;
            return Ok(n + restore::count(spi, queue, request, statuses, request.limit - n)?);
        }
        let selected = restore::restore_and_lock(spi, queue, request, &selection)?;
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
    dead_letter_queue: &Queue,
    origin: &Queue,
    request: &BulkRequest,
    limit: i32,
) -> Result<i32> {
    if request.dry_run {
        return count_returning(dead_letter_queue, origin, request, limit);
    }
    spi::connect(|spi| {
        doc_selection::serialize_bulk_actions(&[dead_letter_queue, origin]);
        let mut n = 0;
        let mut staying: Vec<String> = Vec::new();
        while n < limit {
            let args = [
                Arg::from(origin.name.as_str()),
                Arg::from(origin.id),
                Arg::from(staying.clone()),
            ];
            let selection = Selection {
                statuses: request
                    .filter
                    .codes(&[Status::Planned, Status::Pending], &[]),
                condition: CAN_RETURN,
                args: &args,
                other: None,
            };
            let selected = request.lock(spi, dead_letter_queue, &selection, limit - n)?;
            if selected.is_empty() {
                break;
            }
            for part in selected.chunks(PART) {
                let stay = move_to_origin(dead_letter_queue, origin, part)?;
                n += i32::try_from(part.len() - stay.len()).unwrap_or(i32::MAX);
                staying.extend(stay);
            }
        }
        if !staying.is_empty() && n < limit {
            tell_staying(dead_letter_queue, origin, staying.len());
        }
        Ok(n)
    })
}

// Those after the document with the number $24.
const CAN_RETURN_AFTER: &str = can_return!(" and d.seq {>} $24");

// Index: the primary key.
const LIST_EXISTING: &str = "select o.subject::pg_catalog.text from only {docs} o
    where o.subject {=} any ($1)";

/// Counts the documents that `return_to_origin` would move, at most `limit`. Changes and locks nothing.
fn count_returning(
    dead_letter_queue: &Queue,
    origin: &Queue,
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
                Arg::from(origin.id),
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
            let found: Vec<Origin> =
                request.list_origins(spi, dead_letter_queue, &selection, PART)?;
            let Some(end) = found.last() else {
                break;
            };
            last = end.seq;
            let subjects: Vec<&str> = found.iter().map(|one| one.subject.as_str()).collect();
            let rows = origin.once(spi, LIST_EXISTING, &[Arg::from(subjects)]);
            let existing: HashSet<String> =
                (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
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

/// Moves documents that are locked. Returns the subjects of those whose own subject is in use in the
/// queue of origin.
fn move_to_origin(
    dead_letter_queue: &Queue,
    origin: &Queue,
    selected: &[Selected],
) -> Result<Vec<String>> {
    let docs: Vec<Moving> = selected
        .iter()
        .map(|doc| Moving::unnamed(&doc.subject))
        .collect();
    let moved =
        spi::connect(|spi| move_documents(spi, dead_letter_queue, origin, &RETURNED, &docs, &[]))?;
    let subjects: HashSet<&str> = moved.subjects.iter().map(String::as_str).collect();
    let left = selected
        .iter()
        .filter(|doc| subjects.contains(doc.subject.as_str()));
    let groups = doc_selection::group(left);
    doc_selection::record_events(dead_letter_queue, &groups, |from| Some(Event::remove(from)));
    Ok(moved.staying)
}
