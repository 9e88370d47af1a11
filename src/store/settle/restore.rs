//! Taking settled documents back out of the history, so that what acts on settled documents of the table
//! acts on these as well: `docs_retry`, `queue_redrive`, `doc_revive`.
//!
//! Only the newest entry of a subject counts, as for `doc_get`, and only while no document of the table has
//! that subject. The entry is removed in the transaction that makes it a document again.

use std::collections::HashSet;

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::spi::{Rows, Spi};
use crate::pg::value::Arg;
use crate::store::documents::doc_selection::{self, BulkRequest, Selected, Selection, conditions};
use crate::store::documents::history::Outcome;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue_tables;
use crate::store::queues::statement::render;
use crate::store::settle::move_documents::{Entry, Restored, from_history};

/// Where nothing newer has the subject of the entry `d`.
macro_rules! is_newest {
    () => {
        "not exists (select from only {history} n where n.subject {=} d.subject and n.id {>} d.id)
        and not exists (select from only {docs} o where o.subject {=} d.subject)"
    };
}

// $1: outcomes. The others are those of `BulkRequest::args`. No index fits: all entries of the outcomes are
// read, and for each that matches, the index (subject, id).
const FOUND: &str = concat!(
    "from only {history} d
    where d.outcome {=} any ($1)
        and ",
    conditions!("d.settled_at", "d.ran"),
    "
        and ",
    is_newest!()
);

const COUNT: &str = "select pg_catalog.count(*) from (select {found} limit $20) c";

const LOCK: &str = "select d.id, d.subject::pg_catalog.text, d.outcome
    {found}
    order by d.settled_at, d.id
    limit $20
    for update of d skip locked";

// Index: (subject, id).
const LOCK_ONE: &str = concat!(
    "select d.id, d.subject::pg_catalog.text, d.outcome
    from only {history} d
    where d.subject {=} $1
        and ",
    is_newest!(),
    "
    for update of d"
);

/// The outcomes of documents that have one of these statuses in the table.
fn outcomes(statuses: &[i32]) -> Vec<String> {
    let has = |status: Status| statuses.contains(&status.code());
    // What was cancelled has not failed, and what has expired would come too late. They are brought back
    // one by one only, by `doc_revive`.
    let has_failed = |outcome: &Outcome| ![Outcome::Cancelled, Outcome::Expired].contains(outcome);
    let wanted = |outcome: &Outcome| has_failed(outcome) && outcome.status().is_some_and(has);
    let wanted = Outcome::ALL.into_iter().filter(wanted);
    wanted.map(|outcome| outcome.word().to_owned()).collect()
}

/// The arguments for a request. None: there is nothing that it could match.
fn args(
    spi: &Spi,
    queue: &Queue,
    request: &BulkRequest,
    statuses: &[i32],
    limit: i32,
) -> Result<Option<Vec<Arg>>> {
    let outcomes = outcomes(statuses);
    if limit <= 0 || outcomes.is_empty() || !queue_tables::has_history(&queue.name) {
        return Ok(None);
    }
    let selection = Selection {
        statuses: Vec::new(),
        condition: "",
        args: &[],
        other: None,
    };
    let mut args = request.args(spi, &selection, Some(i64::from(limit)))?;
    args[0] = Arg::from(outcomes);
    Ok(Some(args))
}

fn sql(sql: &str, queue: &Queue) -> String {
    render(&sql.replace("{found}", FOUND), &queue.name)
}

/// Counts the documents that [`restore`] would take. Fails as that does.
pub(in crate::store) fn count(
    spi: &Spi,
    queue: &Queue,
    request: &BulkRequest,
    statuses: &[i32],
    limit: i32,
) -> Result<i32> {
    let Some(args) = args(spi, queue, request, statuses, limit)? else {
        return Ok(0);
    };
    let n: Option<i64> = spi.once(&sql(COUNT, queue), &args).get(0, 1);
    Ok(i32::try_from(n.unwrap_or(0)).unwrap_or(i32::MAX))
}

/// Takes documents out of the history that match a filter and had one of these statuses when they were
/// settled, the oldest first, at most `limit`. They are in the table again as they were settled, and
/// locked. Entries that another session has locked are left.
///
/// Fails with `Invalid::Filter`, with `Error::NoNumbers`, with `Error::NotRemoved`, and with
/// `Error::OlderHistory`.
fn restore(
    spi: &Spi,
    queue: &Queue,
    request: &BulkRequest,
    statuses: &[i32],
    limit: i32,
) -> Result<Vec<Selected>> {
    let mut restored = Vec::new();
    loop {
        let limit = limit.saturating_sub(count_of(&restored));
        let Some(args) = args(spi, queue, request, statuses, limit)? else {
            return Ok(restored);
        };
        let rows = spi.once(&sql(LOCK, queue), &args);
        let taken = take(spi, queue, &rows)?;
        restored.extend(taken.docs);
        if !taken.was_older {
            return Ok(restored);
        }
    }
}

fn count_of(docs: &[Selected]) -> i32 {
    i32::try_from(docs.len()).unwrap_or(i32::MAX)
}

/// Locks the documents of a selection, and takes those out of the history that the filter matches and that
/// had one of its statuses: at most as many as the request allows, first documents of the table. Fails as
/// [`restore`] does.
///
/// What is taken out is added to the table, which may wait for a producer of the same subject. So that comes
/// before documents are locked, for which that producer may wait.
pub(in crate::store) fn restore_and_lock(
    spi: &Spi,
    queue: &Queue,
    request: &BulkRequest,
    selection: &Selection,
) -> Result<Vec<Selected>> {
    let statuses = &selection.statuses;
    doc_selection::serialize_bulk_actions(&[queue]);
    let mut restored = Vec::new();
    if queue_tables::has_history(&queue.name) && !outcomes(statuses).is_empty() {
        let in_table = request.count(spi, queue, selection, Some(request.limit))?;
        restored = restore(spi, queue, request, statuses, request.limit - in_table)?;
    }
    let limit = request.limit - count_of(&restored);
    let known: HashSet<String> = restored.iter().map(|doc| doc.subject.clone()).collect();
    let locked = request.lock(spi, queue, selection, limit)?;
    // Those that were restored match again. They are the last ones of the table.
    restored.extend(
        locked
            .into_iter()
            .filter(|doc| !known.contains(&doc.subject)),
    );
    Ok(restored)
}

/// Takes one document out of the history, however it was settled. None: it is not there.
///
/// Fails as [`restore`] does.
pub(in crate::store) fn restore_one(
    spi: &Spi,
    queue: &Queue,
    subject: &str,
) -> Result<Option<Selected>> {
    if !queue_tables::has_history(&queue.name) {
        return Ok(None);
    }
    loop {
        let rows = spi.once(&sql(LOCK_ONE, queue), &[Arg::from(subject)]);
        let mut taken = take(spi, queue, &rows)?;
        if !taken.was_older {
            return Ok(taken.docs.pop());
        }
    }
}

/// Makes documents of entries that are locked.
fn take(spi: &Spi, queue: &Queue, rows: &Rows) -> Result<Restored> {
    let entry = |row| {
        Some(Entry {
            id: rows.get(row, 1)?,
            subject: rows.get(row, 2)?,
        })
    };
    let entries: Vec<Entry> = (0..rows.len()).filter_map(entry).collect();
    let restored = from_history(spi, queue, &entries)?;
    let groups = doc_selection::group(restored.docs.iter());
    doc_selection::record_events(queue, &groups, |status| Some(Event::place(status)));
    Ok(restored)
}
