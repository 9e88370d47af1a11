//! Moving documents from one queue to another: to a dead-letter queue, back from one, and by
//! `docs_move`; and from the history of a queue back into it. All of them are one statement, and differ
//! in what becomes of some columns.
//!
//! A move inserts the documents into the other queue first and removes them afterwards, in the order
//! of subjects. Of two moves in opposite directions, each then finds its subject in use. If they were
//! removed first, each would wait for the other.

use std::collections::{HashMap, HashSet};

use crate::domain::counter_events::Event;
use crate::domain::document::InHistory;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::Column;
use crate::pg::session;
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::documents_ready;
use crate::store::documents::doc_selection::{self, Groups, Selected};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::render;

/// What becomes of columns in a move: SQL expressions over the document `d`, its name in the other queue
/// `i.name`, and the further parameters, from $4 on.
type Expressions = &'static [(Column, &'static str)];

/// What a move changes beside what every move does.
pub(in crate::store) struct Columns {
    pub changed: Expressions,
    /// The documents arrive as if they were put: nothing that only workers and fetchq itself write comes
    /// with them.
    pub are_put: bool,
}

/// An entry of a history becomes the document that was settled.
const RESTORED: Columns = Columns {
    changed: &[
        (
            Column::Status,
            "case when d.outcome {=} any (array['killed', 'cancelled', 'expired']) then {killed} else {completed} end",
        ),
        (Column::LastIteration, "d.settled_at"),
    ],
    are_put: false,
};

/// Every column stays as it is.
pub(in crate::store) const UNCHANGED: Columns = Columns {
    changed: &[],
    are_put: false,
};

/// A planned or pending document arrives as if it were put.
pub(in crate::store) const AS_PUT: Columns = Columns {
    changed: &[
        (
            Column::Status,
            "case when d.next_iteration {<=} pg_catalog.now() then {pending} else {planned} end",
        ),
        (Column::CreatedAt, "pg_catalog.now()"),
        (Column::Payload, "coalesce(d.payload, '{}')"),
    ],
    are_put: true,
};

/// What every move does.
///
/// The tables of the first queue are its managers' to write. What the calls that add documents would
/// refuse does not get into the other queue by any move: headers that are no object, a `max_attempts`
/// below 1, and an ordering key that is too long for an index. A time of creation that no document can
/// have becomes that of the move.
const ALWAYS: Expressions = &[
    (Column::Seq, "i.seq"),
    (Column::Attempts, "0"),
    (Column::LockUpgrade, "null"),
    (
        Column::CreatedAt,
        "case when pg_catalog.isfinite(d.created_at) then d.created_at else pg_catalog.now() end",
    ),
    (
        Column::OrderingKey,
        "pg_catalog.left(d.ordering_key, {subject_max})",
    ),
    (
        Column::MaxAttempts,
        "case when d.max_attempts {>} 0 then d.max_attempts end",
    ),
    // Their attempts are 0 now, and they have begun all the same.
    (
        Column::ExpiresAt,
        "case when d.attempts {=} 0 then d.expires_at end",
    ),
    (
        Column::Headers,
        "case when pg_catalog.jsonb_typeof(d.headers) {=} 'object' then d.headers end",
    ),
];

// $1, $2, $3: what names the documents, the subjects in the other queue, and the numbers there, in the
// order that the documents had.
const INSERT_MOVED: &str = "insert into {other} ({columns})
    overriding system value
    select {values}
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))
        as i (source, name, seq)
    join {source}
    order by {order}
    on conflict (subject) do nothing
    returning seq, version, status";

/// Where documents come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The table of documents. They are named by their subjects. Index: the primary key.
    Docs,
    /// The history. They are named by the numbers of their entries. Index: (subject, id).
    History,
}

impl Source {
    fn sql(self) -> &'static str {
        match self {
            Self::Docs => "only {docs} d on d.subject {=} i.source",
            Self::History => "only {history} d on d.subject {=} i.name and d.id {=} i.source",
        }
    }
}

impl Columns {
    /// The expression for a column in the other queue.
    fn value(&self, source: Source, column: Column) -> String {
        let of = |list: Expressions| list.iter().find(|(of, _)| *of == column);
        if let Some((_, expression)) = of(self.changed).or_else(|| of(ALWAYS)) {
            return (*expression).to_owned();
        }
        let def = column.def();
        let is_unknown = source == Source::History && def.in_history == InHistory::No;
        match is_unknown || self.are_put && !def.is_put {
            true => def.default.unwrap_or("null").to_owned(),
            false => format!("d.{}", def.name),
        }
    }

    fn sql(&self, source: Source, from: &Queue, to: &Queue) -> String {
        let names = Column::ALL.map(Column::name);
        let values = Column::ALL.map(|column| self.value(source, column));
        let sql = INSERT_MOVED
            .replace("{source}", source.sql())
            .replace("{columns}", &names.join(", "))
            .replace("{values}", &values.join(", "));
        render(&doc_selection::render_order(&sql, to), &from.name)
            .replace("{other}", &to.name.qualified("docs"))
    }
}

/// A document that is to be moved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct Moving {
    pub subject: String,
    /// Its subject in the other queue, for `i.name`.
    pub name: String,
}

impl Moving {
    /// A document that keeps its subject.
    pub fn unnamed(subject: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            name: subject.to_owned(),
        }
    }
}

/// What a move has done.
#[derive(Default)]
pub(in crate::store) struct Moved {
    /// The subjects of the documents that were moved.
    pub subjects: Vec<String>,
    /// Those of the documents whose subject is in use in the other queue.
    pub staying: Vec<String>,
    /// How many were moved of each version.
    pub versions: HashMap<i32, i32>,
}

/// Moves documents that the caller has locked, except those whose subject is in use in the other
/// queue. Records what that means for the other queue; what it means for the first one is for the
/// caller.
///
/// Fails with `Error::NoNumbers`, and with `Error::NotRemoved`.
pub(in crate::store) fn move_documents(
    spi: &Spi,
    from: &Queue,
    to: &Queue,
    columns: &Columns,
    docs: &[Moving],
    args: &[Arg],
) -> Result<Moved> {
    let mut moved = Moved::default();
    if docs.is_empty() {
        return Ok(moved);
    }
    let numbers = doc_selection::next_numbers(to, docs.len())?;
    let subjects: Vec<&str> = docs.iter().map(|doc| doc.subject.as_str()).collect();
    let names: Vec<&str> = docs.iter().map(|doc| doc.name.as_str()).collect();
    let mut all_args = vec![
        Arg::from(subjects),
        Arg::from(names),
        Arg::from(numbers.clone()),
    ];
    all_args.extend(args);
    let rows = spi.once(&columns.sql(Source::Docs, from, to), &all_args);
    let mut groups = Groups::new();
    let mut inserted: HashSet<i64> = HashSet::new();
    for row in 0..rows.len() {
        let (version, status) = (rows.get(row, 2).unwrap_or(0), rows.get(row, 3).unwrap_or(0));
        *groups.entry((status, version)).or_default() += 1;
        *moved.versions.entry(version).or_default() += 1;
        inserted.extend(rows.get::<i64>(row, 1));
    }
    for (doc, number) in docs.iter().zip(numbers) {
        match inserted.contains(&number) {
            true => moved.subjects.push(doc.subject.clone()),
            false => moved.staying.push(doc.subject.clone()),
        }
    }
    doc_selection::remove_documents(spi, from, moved.subjects.clone())?;
    for ((status, version), n) in groups {
        if let Some(status) = Status::from_code(status) {
            counter_log::record_event(to, version, n, Event::place(status));
            documents_ready(to, version, status, n);
        }
    }
    Ok(moved)
}

/// An entry of a history.
pub(in crate::store) struct Entry {
    pub id: i64,
    pub subject: String,
}

// Index: (subject, id).
const REMOVE_ENTRIES: &str = "delete from only {history} h
    using rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as i (id, subject)
    where h.subject {=} i.subject and h.id {=} i.id";

// Those of the entries of which the history has a newer one. Index: (subject, id).
const LIST_OLDER: &str = "select i.id
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as i (id, subject)
    where exists (
        select from only {history} h
        where h.subject {=} i.subject and h.id {>} i.id)";

/// Documents that were entries of the history.
#[derive(Default)]
pub(in crate::store) struct Restored {
    /// As they are now.
    pub docs: Vec<Selected>,
    /// Of some entries there was a newer one by now. They are entries still.
    pub was_older: bool,
}

/// Makes documents of entries of the history that the caller has locked, except those whose subject is in
/// use, or of which there is a newer entry. Counting them is for the caller.
///
/// Fails with `Error::NoNumbers`, with `Error::NotRemoved`, and with `Error::OlderHistory` if the snapshot
/// of the transaction is too old to see a newer entry.
pub(in crate::store) fn from_history(
    spi: &Spi,
    queue: &Queue,
    entries: &[Entry],
) -> Result<Restored> {
    if entries.is_empty() {
        return Ok(Restored::default());
    }
    let numbers = doc_selection::next_numbers(queue, entries.len())?;
    let ids: Vec<i64> = entries.iter().map(|entry| entry.id).collect();
    let names: Vec<&str> = entries.iter().map(|entry| &*entry.subject).collect();
    let args = [Arg::from(ids), Arg::from(names), Arg::from(numbers.clone())];
    let rows = spi.once(&RESTORED.sql(Source::History, queue, queue), &args);
    let mut inserted: HashMap<i64, (Status, i32)> = HashMap::new();
    for row in 0..rows.len() {
        let status = rows.get(row, 3).and_then(Status::from_code);
        if let (Some(seq), Some(status)) = (rows.get(row, 1), status) {
            inserted.insert(seq, (status, rows.get(row, 2).unwrap_or(0)));
        }
    }
    let (mut restored, mut ids) = (Vec::new(), Vec::new());
    for (entry, number) in entries.iter().zip(numbers) {
        if let Some((status, version)) = inserted.get(&number) {
            restored.push(Selected {
                subject: entry.subject.clone(),
                status: *status,
                version: *version,
                queued: None,
            });
            ids.push(entry.id);
        }
    }
    let was_older = take_older_back(spi, queue, &mut restored, &mut ids)?;
    let subjects: Vec<&str> = restored.iter().map(|doc| &*doc.subject).collect();
    let args = [Arg::from(ids), Arg::from(subjects)];
    let removed = queue.once(spi, REMOVE_ENTRIES, &args).affected();
    let removed = usize::try_from(removed).unwrap_or(0);
    if removed == restored.len() {
        let docs = restored;
        return Ok(Restored { docs, was_older });
    }
    Err(Error::NotRemoved {
        queue: queue.name.to_string(),
        n: restored.len().saturating_sub(removed),
    })
}

/// Removes documents again of whose entries there is a newer one: somebody has put and settled a document
/// of that subject after the look at the history, and before this transaction has added it. Now nobody else
/// can. Returns whether there were any.
fn take_older_back(
    spi: &Spi,
    queue: &Queue,
    restored: &mut Vec<Selected>,
    ids: &mut Vec<i64>,
) -> Result<bool> {
    let subjects: Vec<&str> = restored.iter().map(|doc| &*doc.subject).collect();
    let args = [Arg::from(ids.clone()), Arg::from(subjects)];
    let rows = spi.once_latest(&render(LIST_OLDER, &queue.name), &args);
    let older: HashSet<i64> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    if older.is_empty() {
        return Ok(false);
    }
    if session::keeps_snapshot() {
        return Err(Error::OlderHistory(queue.name.to_string()));
    }
    let is_older: Vec<bool> = ids.iter().map(|id| older.contains(id)).collect();
    let mut taken_back = Vec::new();
    let mut flags = is_older.iter();
    restored.retain(|doc| {
        let is_older = flags.next() == Some(&true);
        if is_older {
            taken_back.push(doc.subject.clone());
        }
        !is_older
    });
    ids.retain(|id| !older.contains(id));
    doc_selection::remove_documents(spi, queue, taken_back)?;
    Ok(true)
}
