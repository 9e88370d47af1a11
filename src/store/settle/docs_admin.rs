//! Bulk actions on the documents that a filter matches: retry, kill, drop, move, and set the time or
//! the priority. `doc_selection.rs` chooses and locks the documents.

use std::collections::{HashMap, HashSet};

use Status::{Active, Completed, Killed, Pending, Planned};
use pgrx::notice;

use crate::domain::counter_events::Event;
use crate::domain::settlement::Action;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::bounds::keys::holding_keys;
use crate::store::documents::bookkeeping::{document_locked, documents_ready, subjects_settled};
use crate::store::documents::doc_put::put_all_queued;
use crate::store::documents::doc_selection::{
    BulkRequest, Selected, Selection, group, group_returned, record_events, serialize_bulk_actions,
    sorted_subjects, total,
};
use crate::store::documents::error_log::log_failure;
use crate::store::documents::history::{self, Outcome};
use crate::store::documents::history_worker::By;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::Statement;
use crate::store::settle::doc_settle;
use crate::store::settle::move_documents::{AS_PUT, Columns, Moving, UNCHANGED, move_documents};
use crate::store::settle::restore;
use crate::store::settle::settlement::Settlement;

// Index of this statement and the two that follow: the primary key, once for each subject. The
// rows are locked already.
static RETRY: Statement = Statement::new(
    "update only {docs} d set
         status = {pending}, next_iteration = pg_catalog.now(),
         attempts = case when d.status {=} any (array[{killed}, {completed}]) then 0 else d.attempts end,
         expires_at = case when d.status {<>} all (array[{killed}, {completed}]) then d.expires_at end,
         last_error = case when d.status {=} any (array[{killed}, {completed}])
             then null else d.last_error end
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

// Without the worker session, the lease number tells the worker of an active document that it was
// cancelled: see `doc_extend::IS_CANCELLED`.
// $2: why. $3: the payload, NULL to leave it as it is.
static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, attempts = 0, last_iteration = pg_catalog.now(), result = null,
         last_error = $2, payload = coalesce($3, d.payload),
         worker_session = case when d.status {<>} {active} then d.worker_session end
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

static SET_PRIORITY: Statement = Statement::new(
    "update only {docs} d set priority = $2
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

// Index: the primary key, once for each subject. The rows are locked already. A document that waits
// for its retry stays pending, so that it keeps its place where its key has an order. $2: the time,
// $3: the status that goes with it.
static SET_DUE: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2, expires_at = {moved_expiry},
         status = case when d.status {=} {pending} and d.attempts {>} 0 then d.status else $3 end
     where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text, d.status",
);

// Index: the primary key.
static LOCK_ONE: Statement = Statement::new(
    "select d.subject::pg_catalog.text, d.status, d.version, d.next_iteration, d.priority
     from only {docs} d
     where d.subject {=} $1
     for update",
);

/// Says which of the selected documents an action has settled: those that a statement returned, and
/// that were neither completed nor killed before.
fn note_settled(queue: &Queue, selected: &[Selected], rows: &Rows) {
    let returned: HashSet<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    let settled = selected.iter().filter(|doc| {
        ![Completed, Killed].contains(&doc.status) && returned.contains(&doc.subject)
    });
    subjects_settled(queue, settled.map(|doc| doc.subject.as_str()));
}

/// The subjects of those that are active, a `text[]`.
fn active_subjects(selected: &[Selected]) -> Arg {
    let active = selected.iter().filter(|doc| doc.status == Active);
    Arg::from(active.map(|doc| doc.subject.as_str()).collect::<Vec<_>>())
}

/// Puts what was queued on active documents, which an action has just settled.
fn put_queued(queue: &Queue, selected: &[Selected]) {
    let active = selected.iter().filter(|doc| doc.status == Active);
    let queued = active.filter_map(|doc| Some((&*doc.subject, doc.queued.as_deref()?)));
    put_all_queued(queue, &queued.collect::<Vec<_>>());
}

/// Locks the documents of a selection, at most as many as the request allows, and runs `action` on
/// them, which returns how many it has changed. A dry run counts them.
fn act(
    queue: &Queue,
    request: &BulkRequest,
    selection: &Selection,
    action: impl FnOnce(&Spi, &[Selected]) -> i32,
) -> Result<i32> {
    spi::connect(|spi| {
        if request.dry_run {
            return request.count(spi, queue, selection, Some(request.limit));
        }
        let selected = request.lock(spi, queue, selection, request.limit)?;
        Ok(match selected.is_empty() {
            true => 0,
            false => action(spi, &selected),
        })
    })
}

/// Makes documents due now: planned ones, killed ones, pending ones that wait for their time,
/// and completed ones where the filter names that status; first those of the table, then killed and
/// completed ones of the history. What has expired came too late, and is brought back one by one only, by
/// `doc_revive`. Returns how many. Fails with
/// `Error::BadDuration`, as every action here does, when an age of the filter is not a
/// duration.
pub fn retry(queue: &Queue, request: &BulkRequest) -> Result<i32> {
    let default = [Planned, Pending, Killed];
    let selection = Selection {
        statuses: request.filter.codes(&default, &[Completed]),
        // A document that is blocked by its ordering key does not wait for its time.
        condition: "and (d.status {<>} {pending}
            or d.lock_upgrade is null and d.next_iteration {>} pg_catalog.now())
            and not (d.status {=} {killed} and d.attempts {=} 0 and d.last_error {=} 'expired'
                and coalesce(d.expires_at {<=} d.last_iteration, false))",
        args: &[],
        other: None,
    };
    spi::connect(|spi| {
        if request.dry_run {
            let n = request.count(spi, queue, &selection, Some(request.limit))?;
            let limit = request.limit - n;
            return Ok(n + restore::count(spi, queue, request, &selection.statuses, limit)?);
        }
        let selected = restore::restore_and_lock(spi, queue, request, &selection)?;
        Ok(retry_selected(spi, queue, &selected))
    })
}

/// Makes documents due now that are locked. Returns how many.
fn retry_selected(spi: &Spi, queue: &Queue, selected: &[Selected]) -> i32 {
    if selected.is_empty() {
        return 0;
    }
    let rows = queue.run(spi, &RETRY, &[sorted_subjects(selected)]);
    let groups = group_returned(selected, &rows);
    record_events(queue, &groups, |from| match from {
        Planned => Some(Event::MakePending),
        from => Event::revive(from, Pending),
    });
    for ((_, version), n) in &groups {
        documents_ready(queue, *version, Pending, *n);
    }
    total(&groups)
}

/// Kills planned and pending documents, and active ones where the filter names that status: their
/// workers can no longer settle them. Returns how many. Fails with `Error::BadDuration` when an age
/// of the filter is not a duration.
pub fn kill(queue: &Queue, request: &BulkRequest) -> Result<i32> {
    let selection = Selection {
        statuses: request.filter.codes(&[Planned, Pending], &[Active]),
        condition: "",
        args: &[],
        other: None,
    };
    act(queue, request, &selection, |spi, selected| {
        let kill = || kill_selected(spi, queue, selected, None, None);
        holding_keys(queue, || active_subjects(selected), kill)
    })
}

/// Kills documents that are locked. `message`: why. Returns how many.
fn kill_selected(
    spi: &Spi,
    queue: &Queue,
    selected: &[Selected],
    message: Option<&str>,
    payload: Option<Jsonb>,
) -> i32 {
    let args = [
        sorted_subjects(selected),
        Arg::from(message.unwrap_or(history::CANCELLED)),
        Jsonb::arg(payload),
    ];
    let rows = queue.run(spi, &KILL, &args);
    let groups = group_returned(selected, &rows);
    record_events(queue, &groups, Event::cancel);
    note_settled(queue, selected, &rows);
    // Active ones stay in the table, so that their workers get an error that says so.
    let not_active = selected.iter().filter(|doc| doc.status != Active);
    let not_active: Vec<String> = not_active.map(|doc| doc.subject.clone()).collect();
    history::cancelled(spi, queue, &not_active);
    put_queued(queue, selected);
    total(&groups)
}

/// Removes documents that are not active, and active ones where the filter names that status.
/// Returns how many. Fails with `Error::BadDuration` when an age of the filter is not a duration.
pub fn drop(queue: &Queue, request: &BulkRequest) -> Result<i32> {
    let default = [Planned, Pending, Completed, Killed];
    let selection = Selection {
        statuses: request.filter.codes(&default, &[Active]),
        condition: "",
        args: &[],
        other: None,
    };
    act(queue, request, &selection, |spi, selected| {
        let drop = || drop_selected(spi, queue, selected);
        holding_keys(queue, || active_subjects(selected), drop)
    })
}

/// Removes documents that are locked. Returns how many.
fn drop_selected(spi: &Spi, queue: &Queue, selected: &[Selected]) -> i32 {
    let subjects: Vec<String> = selected.iter().map(|doc| doc.subject.clone()).collect();
    let removed = history::archive(spi, queue, &subjects, Outcome::Dropped, By::Session);
    let groups = group_returned(selected, &removed);
    record_events(queue, &groups, |from| Some(Event::remove(from)));
    note_settled(queue, selected, &removed);
    put_queued(queue, selected);
    total(&groups)
}

/// Settles a document as its action says, which may also be one that nobody has leased: if the caller
/// names no lease, a planned or pending one is killed as [`kill`] does, and dropped as [`drop`] does, which
/// takes a completed or killed one as well.
///
/// Fails as `doc_settle::settle_one` does.
pub fn settle_or_remove(queue: &Queue, doc: &Settlement) -> Result<()> {
    let error = match doc_settle::settle_one(queue, doc) {
        Err(error @ Error::NotActive { .. }) => error,
        other => return other,
    };
    let takes: &[Status] = match doc.action {
        Action::Kill => &[Planned, Pending],
        Action::Drop => &[Planned, Pending, Completed, Killed],
        _ => &[],
    };
    let settled = spi::connect(|spi| {
        let found = lock_one(spi, queue, &doc.subject).ok()?;
        // Another session has leased it in between.
        if found.document.status == Active {
            return Some(doc_settle::settle_one(queue, doc));
        }
        if !takes.contains(&found.document.status) {
            return None;
        }
        let selected = [found.document];
        let n = match doc.action {
            Action::Kill => kill_selected(spi, queue, &selected, doc.last_error(), doc.payload),
            _ => drop_selected(spi, queue, &selected),
        };
        // A trigger of the user's may keep it.
        (n > 0).then_some(Ok(()))
    });
    match settled {
        Some(Ok(())) => {}
        Some(failed) => return failed,
        None => return Err(error),
    }
    if let Some(message) = &doc.message {
        let ref_id = doc.ref_id.as_deref();
        log_failure(queue, &doc.subject, message, doc.details, ref_id, None);
    }
    Ok(())
}

/// Sets the priority of planned and pending documents that have another one. Returns how many
/// were changed. Fails with `Error::BadDuration` when an age of the filter is not a duration.
pub fn set_priority(queue: &Queue, priority: i32, request: &BulkRequest) -> Result<i32> {
    let priority = [Arg::from(priority)];
    let selection = Selection {
        statuses: request.filter.codes(&[Planned, Pending], &[]),
        condition: "and d.priority {<>} $21",
        args: &priority,
        other: None,
    };
    act(queue, request, &selection, |spi, selected| {
        let args = [sorted_subjects(selected), priority[0]];
        queue.run(spi, &SET_PRIORITY, &args).affected()
    })
}

/// Gives planned and pending documents another time, in microseconds since 2000. Returns how many were
/// changed. Fails with `Error::BadDuration` when an age of the filter is not a duration.
pub fn set_due(queue: &Queue, next_iteration: i64, request: &BulkRequest) -> Result<i32> {
    let time = [Arg::timestamp(next_iteration)];
    let selection = Selection {
        statuses: request.filter.codes(&[Planned, Pending], &[]),
        condition: "and d.next_iteration {<>} $21",
        args: &time,
        other: None,
    };
    act(queue, request, &selection, |spi, selected| {
        set_due_of(spi, queue, selected, next_iteration)
    })
}

/// Gives documents that are locked another time. Returns how many were changed.
fn set_due_of(spi: &Spi, queue: &Queue, selected: &[Selected], next_iteration: i64) -> i32 {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let args = [
        sorted_subjects(selected),
        Arg::timestamp(next_iteration),
        Arg::from(to.code()),
    ];
    let rows = queue.run(spi, &SET_DUE, &args);
    let now: HashMap<String, Option<Status>> = (0..rows.len())
        .filter_map(|row| {
            Some((
                rows.get(row, 1)?,
                rows.get(row, 2).and_then(Status::from_code),
            ))
        })
        .collect();
    let changed = |doc: &&Selected| now.get(&doc.subject).copied().flatten();
    for to in [Planned, Pending] {
        let of_status = selected.iter().filter(|doc| changed(doc) == Some(to));
        let groups = group(of_status);
        record_events(queue, &groups, |from| Event::upsert(from, to));
        for ((_, version), n) in &groups {
            documents_ready(queue, *version, to, *n);
        }
    }
    rows.affected()
}

/// Gives a planned or pending document another time, in microseconds since 2000. Returns 0 when it has
/// that time already. Waits for the lock on the document.
///
/// Fails with `Error::NotWaiting`.
pub fn set_due_of_one(queue: &Queue, subject: &str, next_iteration: i64) -> Result<i32> {
    spi::connect(|spi| {
        let found = lock_waiting(spi, queue, subject)?;
        Ok(match found.next_iteration == Some(next_iteration) {
            true => 0,
            false => set_due_of(spi, queue, &[found.document], next_iteration),
        })
    })
}

/// Sets the priority of a planned or pending document. Returns 0 when it has that priority already.
/// Waits for the lock on the document.
///
/// Fails with `Error::NotWaiting`.
pub fn set_priority_of_one(queue: &Queue, subject: &str, priority: i32) -> Result<i32> {
    spi::connect(|spi| {
        let found = lock_waiting(spi, queue, subject)?;
        if found.priority == priority {
            return Ok(0);
        }
        let args = [sorted_subjects(&[found.document]), Arg::from(priority)];
        Ok(queue.run(spi, &SET_PRIORITY, &args).affected())
    })
}

/// A document that is locked.
struct Locked {
    document: Selected,
    /// When it is due, in microseconds since 2000.
    next_iteration: Option<i64>,
    priority: i32,
}

/// Locks a document. An error is its status: None where there is no such document, and Some(None) for one
/// that is unknown.
fn lock_one(
    spi: &Spi,
    queue: &Queue,
    subject: &str,
) -> std::result::Result<Locked, Option<Option<Status>>> {
    let rows = queue.run(spi, &LOCK_ONE, &[Arg::from(subject)]);
    if rows.is_empty() {
        return Err(None);
    }
    let Some(status) = rows.get(0, 2).and_then(Status::from_code) else {
        return Err(Some(None));
    };
    Ok(Locked {
        document: Selected {
            subject: rows.get(0, 1).unwrap_or_default(),
            status,
            version: rows.get(0, 3).unwrap_or(0),
            // Only one that is leased has something there, and none of those is changed.
            queued: None,
        },
        next_iteration: rows.timestamp(0, 4),
        priority: rows.get(0, 5).unwrap_or(0),
    })
}

/// Locks a planned or pending document. Fails with `Error::NotWaiting`.
fn lock_waiting(spi: &Spi, queue: &Queue, subject: &str) -> Result<Locked> {
    let found = match lock_one(spi, queue, subject) {
        Ok(found) => match found.document.status {
            status @ (Planned | Pending) => {
                document_locked(queue, found.document.version, status);
                return Ok(found);
            }
            other => Some(Some(other)),
        },
        Err(None) => match history::error_if_settled(spi, queue, subject, None) {
            Some(error) => return Err(error),
            None => None,
        },
        Err(found) => found,
    };
    Err(Error::NotWaiting {
        queue: queue.name.to_string(),
        subject: subject.to_owned(),
        found,
    })
}

const IS_NEW_IN_TARGET: &str = "and not exists (
    select from only {other} o where o.subject {=} d.subject)";

const IS_KNOWN_IN_TARGET: &str = "and exists (
    select from only {other} o where o.subject {=} d.subject)";

/// Moves documents that are not active to another queue, where they keep their status. Those
/// whose subject exists there stay, and a notice tells how many. Returns how many were moved.
///
/// The managers of the first queue can write anything into its documents, and a producer of the other
/// one may only add documents there. So where the caller does not manage that, only planned and pending
/// documents move, as if they were put, and a notice tells how many others stay.
///
/// Fails with `Error::BadValue` when the target is the queue itself, with `Error::NoNumbers`,
/// and with `Error::NotRemoved`.
pub fn move_to(queue: &Queue, target: &Queue, request: &BulkRequest) -> Result<i32> {
    if queue.table == target.table {
        return Err(Error::BadValue {
            argument: "target",
            value: target.name.to_string(),
            rule: "another queue",
        });
    }
    let (movable, staying, columns): (&[Status], &[Status], _) =
        match rights::has_on(target.table, Right::Manage) {
            true => (&[Planned, Pending, Completed, Killed], &[], &UNCHANGED),
            false => (&[Planned, Pending], &[Completed, Killed], &AS_PUT),
        };
    let selection = |statuses, condition| Selection {
        statuses: request.filter.codes(statuses, &[]),
        condition,
        args: &[],
        other: Some(&target.name),
    };
    spi::connect(|spi| {
        let new = selection(movable, IS_NEW_IN_TARGET);
        let moved = if request.dry_run {
            request.count(spi, queue, &new, Some(request.limit))?
        } else {
            serialize_bulk_actions(&[queue, target]);
            let selected = request.lock(spi, queue, &new, request.limit)?;
            move_selected(spi, queue, target, columns, &selected)?
        };
        let tell = |selection, reason| {
            let stay = request.count(spi, queue, &selection, None)?;
            if stay > 0 {
                notice!(
                    "documents of queue \"{}\" that stay, because {reason} queue \"{}\": {stay}",
                    queue.name,
                    target.name
                );
            }
            Ok::<_, Error>(())
        };
        if moved < request.limit {
            tell(
                selection(movable, IS_KNOWN_IN_TARGET),
                "their subjects are in use in",
            )?;
            tell(
                selection(staying, IS_NEW_IN_TARGET),
                "they are completed or killed and you do not manage",
            )?;
        }
        Ok(moved)
    })
}

/// Moves documents that are locked. Those whose subject another transaction has inserted
/// meanwhile stay. Returns how many were moved.
fn move_selected(
    spi: &Spi,
    queue: &Queue,
    target: &Queue,
    columns: &Columns,
    selected: &[Selected],
) -> Result<i32> {
    if selected.is_empty() {
        return Ok(0);
    }
    let docs: Vec<Moving> = selected
        .iter()
        .map(|doc| Moving::unnamed(&doc.subject))
        .collect();
    let moved = move_documents(spi, queue, target, columns, &docs, &[])?;
    let subjects: HashSet<&str> = moved.subjects.iter().map(String::as_str).collect();
    let left: Vec<&Selected> = selected
        .iter()
        .filter(|doc| subjects.contains(doc.subject.as_str()))
        .collect();
    let groups = group(left.iter().copied());
    record_events(queue, &groups, |from| Some(Event::remove(from)));
    let unsettled = left
        .iter()
        .filter(|doc| ![Completed, Killed].contains(&doc.status));
    subjects_settled(queue, unsettled.map(|doc| doc.subject.as_str()));
    Ok(total(&groups))
}
