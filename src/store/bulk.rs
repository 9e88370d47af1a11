//! Many documents at once: one statement for the list, one counter row for each kind
//! of event. Lists keep their order: of two documents of one moment, the earlier one in
//! the list is picked first.

use std::collections::{HashMap, HashSet};

use super::counters;
use super::docs::{end_iteration, note};
use super::plans::{self, Queue, Statement};
use crate::domain::counters::Event;
use crate::domain::push_many::Item;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::{Access, Change, Column, Documents, Row};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg, Rows, Spi};
use crate::pg::time;
use crate::ready::Key;

/// What a statement planned or made pending: the first place of each level, for the
/// ready floors, and how many documents, for the counters.
#[derive(Default)]
struct Planned {
    first: HashMap<(i32, i32, i32), Key>,
    counts: HashMap<(i32, i32), i32>,
}

impl Planned {
    fn add(&mut self, version: i32, priority: i32, status: Status, key: Key) {
        let first = self
            .first
            .entry((version, priority, status.code()))
            .or_insert(key);
        *first = key.min(*first);
        *self.counts.entry((version, status.code())).or_default() += 1;
    }

    fn note(&self, queue: &Queue) {
        for ((version, priority, status), key) in &self.first {
            if let Some(status) = Status::from_code(*status) {
                note(queue, *version, *priority, status, *key);
            }
        }
    }

    fn count(&self, queue: &Queue, event: impl Fn(Status) -> Event) {
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                counters::note(queue.id, *version, *n, event(status));
            }
        }
    }
}

// One statement for the whole list; the first of equal subjects wins.
static PUSH_ITEMS: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, i.priority, $2, $3, pg_catalog.now(), i.payload::pg_catalog.jsonb
     from rows from (pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6))
          as i (subject, priority, payload)
     on conflict (subject) do nothing
     returning priority, seq",
);

/// Plans a list of documents for one point in time; says how many were new.
pub fn push_items(queue: &Queue, version: i32, next_iteration: i64, items: &[Item]) -> i32 {
    let status = Status::planned_or_pending(next_iteration <= time::now());
    let subjects: Vec<&str> = items.iter().map(|i| i.subject.as_str()).collect();
    let priorities: Vec<i32> = items.iter().map(|i| i.priority).collect();
    let payloads: Vec<&str> = items.iter().map(|i| i.payload.as_str()).collect();
    spi::connect(|spi| {
        let args = [
            Arg::from(version),
            Arg::from(status.code()),
            Arg::timestamp(next_iteration),
            Arg::from(subjects),
            Arg::from(priorities),
            Arg::from(payloads),
        ];
        let rows = queue.run_noting(spi, &PUSH_ITEMS, &args);
        let mut planned = Planned::default();
        for row in 0..rows.len() {
            let seq = rows.get(row, 2).unwrap_or(i64::MIN);
            let key = Key::new(next_iteration, 0, seq);
            planned.add(version, rows.get(row, 1).unwrap_or(0), status, key);
        }
        planned.note(queue);
        planned.count(queue, Event::push);
        rows.affected()
    })
}

/// Documents that share version, priority and time. The arrays are `text[]` and
/// `jsonb[]`, as long as each other; without payloads each is `{}`.
pub struct Batch {
    pub version: i32,
    pub priority: i32,
    pub next_iteration: i64,
    pub subjects: Arg,
    pub payloads: Arg,
}

static PUSH_BATCH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(i.payload, '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($6)) as i (subject, payload)
     on conflict (subject) do nothing
     returning seq",
);
// Generated subjects are new: no arbiter.
static APPEND_BATCH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(i.payload, '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($6)) as i (subject, payload)
     returning seq",
);

/// Plans the documents; says how many were new.
pub fn push(queue: &Queue, batch: &Batch) -> i32 {
    insert(queue, batch, &PUSH_BATCH)
}

/// Adds documents whose subjects were generated.
pub fn append(queue: &Queue, batch: &Batch) -> i32 {
    insert(queue, batch, &APPEND_BATCH)
}

fn insert(queue: &Queue, batch: &Batch, statement: &'static Statement) -> i32 {
    let status = Status::planned_or_pending(batch.next_iteration <= time::now());
    spi::connect(|spi| {
        let args = [
            Arg::from(batch.version),
            Arg::from(batch.priority),
            Arg::from(status.code()),
            Arg::timestamp(batch.next_iteration),
            batch.subjects,
            batch.payloads,
        ];
        let rows = queue.run_noting(spi, statement, &args);
        if !rows.is_empty() {
            // Numbered in the order of insertion: the first is the least.
            let seq = rows.get(0, 1).unwrap_or(i64::MIN);
            let key = Key::new(batch.next_iteration, 0, seq);
            note(queue, batch.version, batch.priority, status, key);
        }
        let n = rows.affected();
        counters::note(queue.id, batch.version, n, Event::push(status));
        n
    })
}

// The first element of a list that is no document.
static CHECK_DOCS: Statement = Statement::new(
    "select e.n, pg_catalog.jsonb_typeof(e.doc), e.doc operator(pg_catalog.->>) 'subject',
         (select k.key from pg_catalog.jsonb_object_keys(case when pg_catalog.jsonb_typeof(e.doc) operator(pg_catalog.=) 'object' then e.doc else '{}' end) k (key)
          where k.key operator(pg_catalog.<>) all ('{subject,payload,version,priority,next_iteration}'::pg_catalog.text[]) limit 1)
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     where case when pg_catalog.jsonb_typeof(e.doc) operator(pg_catalog.<>) 'object' then true
         else (e.doc operator(pg_catalog.->>) 'subject') is null
             or pg_catalog.char_length(e.doc operator(pg_catalog.->>) 'subject') operator(pg_catalog.>) 50
             or (e.doc operator(pg_catalog.-) '{subject,payload,version,priority,next_iteration}'::pg_catalog.text[]) operator(pg_catalog.<>) '{}'::pg_catalog.jsonb
         end
     limit 1",
);
static IS_ARRAY: Statement =
    Statement::new("select pg_catalog.jsonb_typeof($1) operator(pg_catalog.=) 'array'");

/// Refuses a list of documents that is none, and says where.
fn check(spi: &Spi, docs: Arg) -> Result<()> {
    let bad = |at: i64, reason: String| Err(Error::BadDocument { at, reason });
    if plans::run_latest(spi, &IS_ARRAY, &[docs]).get(0, 1) != Some(true) {
        return Err(Error::NoList);
    }
    let rows = plans::run_latest(spi, &CHECK_DOCS, &[docs]);
    if rows.is_empty() {
        return Ok(());
    }
    let at = rows.get(0, 1).unwrap_or(0);
    let kind: String = rows.get(0, 2).unwrap_or_default();
    if kind != "object" {
        return bad(at, format!("it is a JSON {kind}, not an object"));
    }
    match rows.get::<String>(0, 3) {
        None => bad(at, "it has no subject".into()),
        Some(subject) => {
            crate::domain::names::check_subject(&subject)?;
            let key: String = rows.get(0, 4).unwrap_or_default();
            bad(at, format!("it has an unknown key {key:?}"))
        }
    }
}

static PUSH_DOCS: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, coalesce(i.version, 0), coalesce(i.priority, 0),
         case when coalesce(i.next_iteration, pg_catalog.now()) operator(pg_catalog.<=) pg_catalog.now() then 1 else 0 end,
         coalesce(i.next_iteration, pg_catalog.now()), pg_catalog.now(), coalesce(i.payload, '{}')
     from pg_catalog.jsonb_to_recordset($1) as i (
         subject pg_catalog.text, version pg_catalog.int4, priority pg_catalog.int4,
         next_iteration pg_catalog.timestamptz, payload pg_catalog.jsonb)
     on conflict (subject) do nothing
     returning version, priority, status, next_iteration, seq",
);

/// Plans documents, each with its own version, priority, time and payload; says how
/// many were new.
pub fn push_docs(queue: &Queue, docs: Jsonb) -> Result<i32> {
    spi::connect(|spi| {
        let docs = Jsonb::arg(Some(docs));
        check(spi, docs)?;
        let rows = queue.run_noting(spi, &PUSH_DOCS, &[docs]);
        let planned = planned(&rows, 1);
        planned.note(queue);
        planned.count(queue, Event::push);
        Ok(rows.affected())
    })
}

/// Reads version, priority, status, next_iteration and seq, from a column on.
fn planned(rows: &Rows, column: i32) -> Planned {
    let mut planned = Planned::default();
    for row in 0..rows.len() {
        let int = |at| rows.get(row, column + at).unwrap_or(0);
        if let Some(status @ (Status::Planned | Status::Pending)) = Status::from_code(int(2)) {
            let key = Key::new(
                rows.timestamp(row, column + 3).unwrap_or(i64::MIN),
                0,
                rows.get(row, column + 4).unwrap_or(i64::MIN),
            );
            planned.add(int(0), int(1), status, key);
        }
    }
    planned
}

/// What an upsert did with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Created,
    Updated,
    Skipped,
}

impl Action {
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Skipped => "skipped",
        }
    }
}

// The last one of equal subjects counts.
static SUBJECTS: Statement = Statement::new(
    "select e.doc operator(pg_catalog.->>) 'subject'
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     order by e.n",
);
static UPSERT_CREATE: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, coalesce(i.version, 0), coalesce(i.priority, 0),
         case when coalesce(i.next_iteration, pg_catalog.now()) operator(pg_catalog.<=) pg_catalog.now() then 1 else 0 end,
         coalesce(i.next_iteration, pg_catalog.now()), pg_catalog.now(), coalesce(i.payload, '{}')
     from (
         select distinct on (x.subject) x.*
         from rows from (pg_catalog.jsonb_to_recordset($1) as (
             subject pg_catalog.text, version pg_catalog.int4, priority pg_catalog.int4,
             next_iteration pg_catalog.timestamptz, payload pg_catalog.jsonb)) with ordinality
             as x (subject, version, priority, next_iteration, payload, n)
         where x.subject operator(pg_catalog.=) any (select pg_catalog.unnest($2))
         order by x.subject, x.n desc) i
     order by i.n
     on conflict (subject) do nothing
     returning version, priority, status, next_iteration, seq, subject",
);
// In the order of the subjects, so that two lists never lock one another out.
static UPSERT_LOCK: Statement = Statement::new(
    "select d.subject, d.status from only {docs} d
     where d.subject operator(pg_catalog.=) any ($1)
     order by d.subject
     for update",
);
static UPSERT_UPDATE: Statement = Statement::new(
    "update only {docs} d set
         priority = coalesce(i.priority, 0), payload = coalesce(i.payload, '{}'),
         next_iteration = coalesce(i.next_iteration, pg_catalog.now()),
         status = case
             when d.status not in (0, 1) then d.status
             when coalesce(i.next_iteration, pg_catalog.now()) operator(pg_catalog.<=) pg_catalog.now() then 1
             else 0 end
     from (
         select distinct on (x.subject) x.*
         from rows from (pg_catalog.jsonb_to_recordset($1) as (
             subject pg_catalog.text, version pg_catalog.int4, priority pg_catalog.int4,
             next_iteration pg_catalog.timestamptz, payload pg_catalog.jsonb)) with ordinality
             as x (subject, version, priority, next_iteration, payload, n)
         where x.subject operator(pg_catalog.=) any (select pg_catalog.unnest($2))
         order by x.subject, x.n desc) i
     where d.subject operator(pg_catalog.=) i.subject
         and d.status operator(pg_catalog.<>) 2 and d.lock_upgrade is null
     returning d.version, d.priority, d.status, d.next_iteration, d.seq, d.subject, d.attempts",
);

/// How often it starts again because documents were removed between its statements.
const UPSERT_TURNS: usize = 100;

/// Plans documents, or changes priority, payload and time of those that exist: what
/// `docs::upsert` does for one. Says for each of the list what became of it.
pub fn upsert_docs(queue: &Queue, docs: Jsonb) -> Result<Vec<(String, Action)>> {
    spi::connect(|spi| {
        let docs = Jsonb::arg(Some(docs));
        check(spi, docs)?;
        let rows = plans::run_latest(spi, &SUBJECTS, &[docs]);
        let listed: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        let mut done: HashMap<String, Action> = HashMap::new();
        let mut missing: HashSet<String> = listed.iter().cloned().collect();
        for _ in 0..UPSERT_TURNS {
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
        // Of equal subjects the last one was taken.
        let mut out: Vec<(String, Action)> = Vec::with_capacity(listed.len());
        for subject in listed.into_iter().rev() {
            let action = done.remove(&subject).unwrap_or(Action::Skipped);
            out.push((subject, action));
        }
        out.reverse();
        Ok(out)
    })
}

fn in_order(subjects: &HashSet<String>) -> Arg {
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
    let rows = queue.run_noting(spi, &UPSERT_CREATE, &[docs, in_order(missing)]);
    let planned = planned(&rows, 1);
    planned.note(queue);
    planned.count(queue, Event::push);
    for row in 0..rows.len() {
        if let Some(subject) = rows.get::<String>(row, 6) {
            missing.remove(&subject);
            done.insert(subject, Action::Created);
        }
    }
}

/// Changes those that exist.
fn update(
    spi: &Spi,
    queue: &Queue,
    docs: Arg,
    missing: &mut HashSet<String>,
    done: &mut HashMap<String, Action>,
) {
    let rows = queue.run(spi, &UPSERT_LOCK, &[in_order(missing)]);
    let mut before: HashMap<String, Option<Status>> = HashMap::new();
    for row in 0..rows.len() {
        if let Some(subject) = rows.get::<String>(row, 1) {
            before.insert(subject, rows.get(row, 2).and_then(Status::from_code));
        }
    }
    let found: HashSet<String> = before.keys().cloned().collect();
    let rows = queue.run(spi, &UPSERT_UPDATE, &[docs, in_order(&found)]);
    let mut events: HashMap<(i32, i16), (i32, Event)> = HashMap::new();
    for row in 0..rows.len() {
        let Some(subject) = rows.get::<String>(row, 6) else {
            continue;
        };
        let from = before.get(&subject).copied().flatten();
        let to = rows.get(row, 3).and_then(Status::from_code);
        let version = rows.get(row, 1).unwrap_or(0);
        if let (Some(from), Some(to)) = (from, to)
            && let Some(event) = Event::upsert(from, to)
        {
            let entry = events.entry((version, event.code())).or_insert((0, event));
            entry.0 += 1;
        }
        done.insert(subject, Action::Updated);
    }
    for ((version, _), (n, event)) in events {
        counters::note(queue.id, version, n, event);
    }
    for subject in found {
        missing.remove(&subject);
        done.entry(subject).or_insert(Action::Skipped);
    }
}

// Index of the four: primary key, once for each subject.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = 3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $2
     where d.subject operator(pg_catalog.=) any ($1)
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.subject::pg_catalog.text",
);
static COMPLETE_WITH: Statement = Statement::new(
    "update only {docs} d set
         status = 3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $2,
         payload = coalesce(i.payload, d.payload)
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($3)) as i (subject, payload)
     where d.subject operator(pg_catalog.=) i.subject
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.subject::pg_catalog.text",
);
static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $2,
         payload = coalesce(i.payload, d.payload)
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($4)) as i (subject, payload)
     where d.subject operator(pg_catalog.=) i.subject
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.subject::pg_catalog.text, d.version, d.priority, d.status, d.next_iteration, d.seq",
);
static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject operator(pg_catalog.=) any ($1)
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.subject::pg_catalog.text, d.version",
);

/// What was settled without a statement, and what is left for one to decide.
struct Rowwise<'a> {
    settled: HashSet<String>,
    /// How many of each version.
    versions: HashMap<i32, i32>,
    rest: Vec<&'a str>,
}

/// Settles active documents without a statement, in the order of their subjects: two
/// sessions with some of the same do not wait for each other in a circle.
fn settle_rows<'a>(
    queue: &Queue,
    subjects: &'a [String],
    access: Access,
    settle: impl Fn(&mut Documents, &mut Row) -> Change,
) -> Rowwise<'a> {
    let mut done = Rowwise {
        settled: HashSet::with_capacity(subjects.len()),
        versions: HashMap::new(),
        rest: subjects.iter().map(String::as_str).collect(),
    };
    let Some(mut documents) = queue.documents(access) else {
        return done;
    };
    let mut sorted = std::mem::take(&mut done.rest);
    sorted.sort_unstable();
    sorted.dedup();
    for subject in sorted {
        let row = documents.find(subject);
        let active = row.filter(|row| row.int4(Column::Status) == Status::Active.code());
        if let Some(mut row) = active
            && settle(&mut documents, &mut row) == Change::Done
        {
            *done.versions.entry(row.int4(Column::Version)).or_default() += 1;
            done.settled.insert(subject.to_owned());
        } else {
            done.rest.push(subject);
        }
    }
    done
}

/// The subjects that a settling statement returned in its first column.
fn settled(rows: &Rows) -> HashSet<String> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Settles active documents as done; gives the subjects that were active.
pub fn complete(queue: &Queue, subjects: &[String], payloads: Option<Arg>) -> HashSet<String> {
    let at = Arg::timestamp(time::COMPLETED_AT);
    let Some(payloads) = payloads else {
        return complete_as_they_are(queue, subjects, at);
    };
    spi::connect(|spi| {
        let args = [Arg::from(subjects.to_vec()), at, payloads];
        let rows = queue.run_noting(spi, &COMPLETE_WITH, &args);
        counters::note(queue.id, 0, rows.affected(), Event::Complete);
        settled(&rows)
    })
}

fn complete_as_they_are(queue: &Queue, subjects: &[String], at: Arg) -> HashSet<String> {
    let no_payload = Jsonb::arg(None);
    let mut done = settle_rows(queue, subjects, Access::Update, |documents, row| {
        end_iteration(row, Status::Completed, &no_payload);
        row.set(Column::NextIteration, &at);
        documents.replace(row, true)
    });
    if !done.rest.is_empty() {
        spi::connect(|spi| {
            let rows = queue.run_noting(spi, &COMPLETE, &[Arg::from(done.rest), at]);
            done.settled.extend(settled(&rows));
        });
    }
    let n = i32::try_from(done.settled.len()).unwrap_or(i32::MAX);
    counters::note(queue.id, 0, n, Event::Complete);
    done.settled
}

/// Plans the next iteration of active documents; gives those that were active.
pub fn reschedule(
    queue: &Queue,
    subjects: Arg,
    next_iteration: i64,
    payloads: Arg,
) -> HashSet<String> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    spi::connect(|spi| {
        let args = [
            subjects,
            Arg::timestamp(next_iteration),
            Arg::from(to.code()),
            payloads,
        ];
        let rows = queue.run_noting(spi, &RESCHEDULE, &args);
        planned(&rows, 2).note(queue);
        counters::note(queue.id, 0, rows.affected(), Event::reschedule(to));
        settled(&rows)
    })
}

/// Settles active documents by removing them; gives those that were active.
pub fn drop(queue: &Queue, subjects: &[String]) -> HashSet<String> {
    let mut done = settle_rows(queue, subjects, Access::Delete, |documents, row| {
        documents.remove(row)
    });
    if !done.rest.is_empty() {
        spi::connect(|spi| {
            let rows = queue.run_noting(spi, &DROP, &[Arg::from(done.rest)]);
            for row in 0..rows.len() {
                let version = rows.get(row, 2).unwrap_or(0);
                *done.versions.entry(version).or_default() += 1;
            }
            done.settled.extend(settled(&rows));
        });
    }
    for (version, n) in done.versions {
        counters::note(queue.id, version, n, Event::Drop);
    }
    done.settled
}
