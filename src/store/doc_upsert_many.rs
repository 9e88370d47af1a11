//! Upserts a list of documents. New documents keep the order of the list: of two documents of
//! one moment, the earlier one in the list is picked first.

use std::collections::{HashMap, HashSet};

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::store::bookkeeping::planned_entries;
use crate::store::doc_list;
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;
use crate::store::{counter_log, plans};

/// What an upsert did with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Created,
    Updated,
    /// It is active, or its `lock_upgrade` is set, or an equal subject follows in the list.
    Skipped,
}

impl Action {
    /// The word in the result of `doc_upsert_many`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Skipped => "skipped",
        }
    }
}

static SUBJECTS: Statement = Statement::new(
    "select e.doc {->>} 'subject'
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     order by e.n",
);

// Index of this one and those below: primary key. Of equal subjects the last one counts.
static CREATE: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, coalesce(i.version, 0), coalesce(i.priority, 0),
         case when coalesce(i.next_iteration, pg_catalog.now()) {<=} pg_catalog.now() then {pending} else {planned} end,
         coalesce(i.next_iteration, pg_catalog.now()), pg_catalog.now(), coalesce(i.payload, '{}')
     from (
         select distinct on (x.subject) x.*
         from rows from (pg_catalog.jsonb_to_recordset($1) as (
             subject pg_catalog.text, version pg_catalog.int4, priority pg_catalog.int4,
             next_iteration pg_catalog.timestamptz, payload pg_catalog.jsonb)) with ordinality
             as x (subject, version, priority, next_iteration, payload, n)
         where x.subject {=} any (select pg_catalog.unnest($2))
         order by x.subject, x.n desc) i
     order by i.n
     on conflict (subject) do nothing
     returning version, priority, status, next_iteration, seq, subject",
);

// In the order of the subjects, so that two lists never deadlock.
static LOCK: Statement = Statement::new(
    "select d.subject, d.status from only {docs} d
     where d.subject {=} any ($1)
     order by d.subject
     for update",
);

static UPDATE: Statement = Statement::new(
    "update only {docs} d set
         priority = coalesce(i.priority, 0), payload = coalesce(i.payload, '{}'),
         next_iteration = coalesce(i.next_iteration, pg_catalog.now()),
         status = case
             when d.status {<>} all (array[{planned}, {pending}]) then d.status
             when coalesce(i.next_iteration, pg_catalog.now()) {<=} pg_catalog.now() then {pending}
             else {planned} end
     from (
         select distinct on (x.subject) x.*
         from rows from (pg_catalog.jsonb_to_recordset($1) as (
             subject pg_catalog.text, version pg_catalog.int4, priority pg_catalog.int4,
             next_iteration pg_catalog.timestamptz, payload pg_catalog.jsonb)) with ordinality
             as x (subject, version, priority, next_iteration, payload, n)
         where x.subject {=} any (select pg_catalog.unnest($2))
         order by x.subject, x.n desc) i
     where d.subject {=} i.subject
         and d.status {<>} {active}
         and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')
     returning d.subject, d.version, d.status",
);

/// How often an upsert starts again because documents were removed between its statements.
/// After more retries, they are assumed to exist and to be invisible.
const MAX_RETRIES: usize = 100;

/// Adds the documents of a JSON array, or changes priority, payload and time of those that
/// exist, as `doc_upsert::upsert` does for one. Returns the subject of each, and what was done
/// with it.
///
/// Fails as `doc_list::check_push` does, and with `Error::HiddenDocument` if a document can
/// neither be added nor found.
pub fn upsert_docs(queue: &Queue, docs: Jsonb) -> Result<Vec<(String, Action)>> {
    spi::connect(|spi| {
        let docs = Jsonb::arg(Some(docs));
        doc_list::check_push(spi, docs)?;
        let rows = plans::run_latest(spi, &SUBJECTS, &[docs]);
        let listed: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        let mut done: HashMap<String, Action> = HashMap::new();
        let mut missing: HashSet<String> = listed.iter().cloned().collect();
        for _ in 0..MAX_RETRIES {
            if missing.is_empty() {
                break;
            }
            create(spi, queue, docs, &mut missing, &mut done);
            if !missing.is_empty() {
                update(spi, queue, docs, &mut missing, &mut done);
            }
        }
        if let Some(subject) = missing.into_iter().next() {
            return Err(Error::HiddenDocument {
                queue: queue.name.to_string(),
                subject,
            });
        }
        // Of equal subjects the last one gets the action, and those before it were skipped.
        let mut out: Vec<(String, Action)> = Vec::with_capacity(listed.len());
        for subject in listed.into_iter().rev() {
            let action = done.remove(&subject).unwrap_or(Action::Skipped);
            out.push((subject, action));
        }
        out.reverse();
        Ok(out)
    })
}

/// The subjects as a sorted `text[]`.
fn sorted(subjects: &HashSet<String>) -> Arg {
    let mut subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    subjects.sort_unstable();
    Arg::from(subjects)
}

/// Adds the documents that do not exist.
fn create(
    spi: &Spi,
    queue: &Queue,
    docs: Arg,
    missing: &mut HashSet<String>,
    done: &mut HashMap<String, Action>,
) {
    let rows = queue.run_noting(spi, &CREATE, &[docs, sorted(missing)]);
    let planned = planned_entries(&rows, 1);
    planned.signal(queue);
    planned.count(queue, Event::push);
    for row in 0..rows.len() {
        if let Some(subject) = rows.get::<String>(row, 6) {
            missing.remove(&subject);
            done.insert(subject, Action::Created);
        }
    }
}

/// Changes the documents that exist.
fn update(
    spi: &Spi,
    queue: &Queue,
    docs: Arg,
    missing: &mut HashSet<String>,
    done: &mut HashMap<String, Action>,
) {
    let rows = queue.run(spi, &LOCK, &[sorted(missing)]);
    let mut before: HashMap<String, Option<Status>> = HashMap::new();
    for row in 0..rows.len() {
        if let Some(subject) = rows.get::<String>(row, 1) {
            before.insert(subject, rows.get(row, 2).and_then(Status::from_code));
        }
    }
    let found: HashSet<String> = before.keys().cloned().collect();
    let rows = queue.run(spi, &UPDATE, &[docs, sorted(&found)]);
    let mut events: HashMap<(i32, i16), (i32, Event)> = HashMap::new();
    for row in 0..rows.len() {
        let Some(subject) = rows.get::<String>(row, 1) else {
            continue;
        };
        let from = before.get(&subject).copied().flatten();
        let to = rows.get(row, 3).and_then(Status::from_code);
        let version = rows.get(row, 2).unwrap_or(0);
        if let (Some(from), Some(to)) = (from, to)
            && let Some(event) = Event::upsert(from, to)
        {
            let entry = events.entry((version, event.code())).or_insert((0, event));
            entry.0 += 1;
        }
        done.insert(subject, Action::Updated);
    }
    for ((version, _), (n, event)) in events {
        counter_log::record_event(queue, version, n, event);
    }
    for subject in found {
        missing.remove(&subject);
        done.entry(subject).or_insert(Action::Skipped);
    }
}
