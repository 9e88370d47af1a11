//! Many documents at once: one statement for the list, one counter row for each kind
//! of event. Lists keep their order: of two documents of one moment, the earlier one in
//! the list is picked first.

use std::collections::{HashMap, HashSet};

use super::counters;
use super::docs::{NewDoc, came, new_row, note};
use super::history::{self, Outcome};
use super::plans::{self, Queue, Statement};
use super::policy::Keep;
use super::settle::{end_iteration, is_held};
use crate::domain::counters::Event;
use crate::domain::push_many::Item;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::{Access, Change, Column, Documents, Row};
use crate::pg::json::{self, Jsonb};
use crate::pg::spi::{self, Arg, Rows, Spi};
use crate::pg::time;
use crate::ready::Key;

/// What a statement planned or made pending: the first place of each level, for the
/// ready floors, and how many documents, for the counters.
#[derive(Default)]
pub(super) struct Planned {
    first: HashMap<(i32, i32, i32), Key>,
    counts: HashMap<(i32, i32), i32>,
}

impl Planned {
    pub(super) fn add(&mut self, version: i32, priority: i32, status: Status, key: Key) {
        let first = self
            .first
            .entry((version, priority, status.code()))
            .or_insert(key);
        *first = key.min(*first);
        *self.counts.entry((version, status.code())).or_default() += 1;
    }

    pub(super) fn note(&self, queue: &Queue) {
        for ((version, priority, status), key) in &self.first {
            if let Some(status) = Status::from_code(*status) {
                note(queue, *version, *priority, status, *key);
            }
        }
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                came(queue, *version, status, *n);
            }
        }
    }

    fn count(&self, queue: &Queue, event: impl Fn(Status) -> Event) {
        for ((version, status), n) in &self.counts {
            if let Some(status) = Status::from_code(*status) {
                counters::note(queue, *version, *n, event(status));
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
static APPEND_BATCH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(i.payload, '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($6)) as i (subject, payload)
     on conflict (subject) do nothing
     returning seq, subject::pg_catalog.text",
);
// Some of a list; $7 says which. To look a payload up by its
// number takes time for each that is before it, so this is not for the whole list.
static BATCH_REST: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(($6)[i.n], '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($7)) as i (subject, n)
     on conflict (subject) do nothing
     returning seq, subject::pg_catalog.text",
);

/// Up to so many documents that are left are looked up by their numbers.
const FEW: usize = 16;

/// Plans the documents; says how many were new.
pub fn push(queue: &Queue, batch: &mut Batch, subjects: &[String]) -> i32 {
    let (added, rest) = push_rows(queue, batch, subjects);
    if rest.is_empty() {
        return added;
    }
    let pushed = spi::connect(|spi| {
        if rest.len() <= FEW {
            let few: Vec<&str> = rest.iter().map(|at| subjects[*at].as_str()).collect();
            batch.subjects = Arg::from(few);
            let numbers = Arg::from(numbers(&rest));
            insert(spi, queue, batch, &BATCH_REST, Some(numbers)).affected()
        } else {
            // (those that were added are not new any more)
            batch.subjects = Arg::from(subjects.to_vec());
            insert(spi, queue, batch, &PUSH_BATCH, None).affected()
        }
    });
    added + pushed
}

/// What SQL calls the elements of an array at these places.
fn numbers(places: &[usize]) -> Vec<i32> {
    places.iter().map(|at| *at as i32 + 1).collect()
}

/// Adds the documents of a list whose subjects nobody has, without a statement; says
/// how many, and which are left for one to decide.
fn push_rows(queue: &Queue, batch: &Batch, subjects: &[String]) -> (i32, Vec<usize>) {
    let mut rest: Vec<usize> = Vec::new();
    let added = add_rows(queue, batch, subjects.len(), |documents, at, doc| {
        let subject = subjects[at].as_str();
        // An attempt in vain leaves a dead row: after the first, look before.
        let exists = !rest.is_empty() && documents.find(subject).is_some();
        let mut added = None;
        if !exists {
            let (mut row, seq) = new_row(queue, &NewDoc { subject, ..doc })?;
            added = documents.add_if_new(&mut row).then_some(seq);
        }
        if added.is_none() {
            rest.push(at);
        }
        added
    });
    match added {
        Some(added) => (added, rest),
        None => (0, (0..subjects.len()).collect()),
    }
}

/// Calls `add` for each document of a list, whose subject is for `add` to fill in; it
/// gives the `seq` of what it added. None: that needs a statement.
fn add_rows(
    queue: &Queue,
    batch: &Batch,
    n: usize,
    mut add: impl FnMut(&mut Documents, usize, NewDoc) -> Option<i64>,
) -> Option<i32> {
    if !queue.numbers_rows() {
        return None;
    }
    let mut documents = queue.documents(Access::Insert)?;
    let payloads = json::elements(&batch.payloads);
    let empty = Jsonb::parse("{}");
    let doc = NewDoc {
        subject: "",
        version: batch.version,
        priority: batch.priority,
        next_iteration: batch.next_iteration,
        payload: empty,
        ordering_key: None,
        max_attempts: None,
    };
    let mut first = None;
    let mut added = 0;
    for at in 0..n {
        let payload = payloads.get(at).copied().flatten().unwrap_or(empty);
        if let Some(seq) = add(&mut documents, at, NewDoc { payload, ..doc }) {
            first.get_or_insert(seq);
            added += 1;
        }
    }
    if let Some(seq) = first {
        let (status, key) = (doc.status(), Key::new(doc.next_iteration, 0, seq));
        note(queue, doc.version, doc.priority, status, key);
        came(queue, doc.version, status, added);
        counters::note(queue, doc.version, added, Event::push(status));
    }
    Some(added)
}

/// How many subjects are made up for a document that is to be appended.
const APPEND_TURNS: usize = 10;

/// Adds documents whose subjects were generated, and generates another one for each
/// that exists all the same.
pub fn append(
    queue: &Queue,
    batch: &mut Batch,
    subjects: &mut [String],
    generate: impl Fn() -> String,
) {
    let added = add_rows(queue, batch, subjects.len(), |documents, at, doc| {
        for _ in 0..APPEND_TURNS {
            let subject = subjects[at].as_str();
            let (mut row, seq) = new_row(queue, &NewDoc { subject, ..doc })?;
            if documents.add(&mut row) {
                return Some(seq);
            }
            subjects[at] = generate();
        }
        None
    });
    if added.is_none() {
        append_by_statement(queue, batch, subjects, generate);
    }
}

fn append_by_statement(
    queue: &Queue,
    batch: &mut Batch,
    subjects: &mut [String],
    generate: impl Fn() -> String,
) {
    spi::connect(|spi| {
        batch.subjects = Arg::from(subjects.to_vec());
        let rows = insert(spi, queue, batch, &APPEND_BATCH, None);
        let mut added = rows;
        let mut rest: Vec<usize> = (0..subjects.len()).collect();
        for _ in 1..APPEND_TURNS {
            if added.len() == rest.len() {
                return;
            }
            let found: HashSet<String> = (0..added.len())
                .filter_map(|row| added.get(row, 2))
                .collect();
            rest.retain(|at| !found.contains(&subjects[*at]));
            for at in &rest {
                subjects[*at] = generate();
            }
            let again: Vec<&str> = rest.iter().map(|at| subjects[*at].as_str()).collect();
            batch.subjects = Arg::from(again);
            let numbers = Arg::from(numbers(&rest));
            added = insert(spi, queue, batch, &BATCH_REST, Some(numbers));
        }
    });
}

fn insert<'s>(
    spi: &'s Spi,
    queue: &Queue,
    batch: &Batch,
    statement: &'static Statement,
    numbers: Option<Arg>,
) -> Rows<'s> {
    let status = Status::planned_or_pending(batch.next_iteration <= time::now());
    let mut args = vec![
        Arg::from(batch.version),
        Arg::from(batch.priority),
        Arg::from(status.code()),
        Arg::timestamp(batch.next_iteration),
        batch.subjects,
        batch.payloads,
    ];
    args.extend(numbers);
    let rows = queue.run_noting(spi, statement, &args);
    if !rows.is_empty() {
        // Numbered in the order of insertion: the first is the least.
        let seq = rows.get(0, 1).unwrap_or(i64::MIN);
        let key = Key::new(batch.next_iteration, 0, seq);
        note(queue, batch.version, batch.priority, status, key);
        came(queue, batch.version, status, rows.affected());
    }
    let n = rows.affected();
    counters::note(queue, batch.version, n, Event::push(status));
    rows
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
    check_by(spi, docs, &CHECK_DOCS)
}

/// The same for documents with other keys.
pub(super) fn check_by(spi: &Spi, docs: Arg, statement: &'static Statement) -> Result<()> {
    let bad = |at: i64, reason: String| Err(Error::BadDocument { at, reason });
    if plans::run_latest(spi, &IS_ARRAY, &[docs]).get(0, 1) != Some(true) {
        return Err(Error::NoList);
    }
    let rows = plans::run_latest(spi, statement, &[docs]);
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
             when d.status operator(pg_catalog.<>) all ('{0,1}'::pg_catalog.int4[]) then d.status
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
         and d.status operator(pg_catalog.<>) 2
         and (d.lock_upgrade is null or d.lock_upgrade operator(pg_catalog.=) 'infinity')
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
        counters::note(queue, version, n, event);
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
         last_iteration = pg_catalog.now(), next_iteration = $3,
         lease = null, holder = null, last_error = null
     where d.subject operator(pg_catalog.=) any ($1)
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.subject::pg_catalog.text",
);
static COMPLETE_WITH: Statement = Statement::new(
    "update only {docs} d set
         status = 3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce(i.payload, d.payload),
         lease = null, holder = null, last_error = null
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($4)) as i (subject, payload)
     where d.subject operator(pg_catalog.=) i.subject
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.subject::pg_catalog.text",
);
static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $4,
         payload = coalesce(i.payload, d.payload),
         lease = null, holder = null, last_error = null
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($5)) as i (subject, payload)
     where d.subject operator(pg_catalog.=) i.subject
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.subject::pg_catalog.text, d.version, d.priority, d.status, d.next_iteration, d.seq",
);
static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject operator(pg_catalog.=) any ($1)
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
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
    lease: Option<i64>,
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
    for (at, subject) in sorted.iter().enumerate() {
        let row = documents.find(subject);
        let Some(mut row) = row.filter(|row| is_held(row, lease)) else {
            done.rest.push(subject);
            continue;
        };
        if settle(&mut documents, &mut row) != Change::Done {
            // The statement has to take it now, and not behind those that follow.
            done.rest.extend(&sorted[at..]);
            break;
        }
        *done.versions.entry(row.int4(Column::Version)).or_default() += 1;
        done.settled.insert((*subject).to_owned());
    }
    done
}

/// The subjects that a settling statement returned in its first column.
fn settled(rows: &Rows) -> HashSet<String> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Settles active documents as done; gives the subjects that were active.
pub fn complete(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    payloads: Option<Arg>,
) -> HashSet<String> {
    match queue.policy.completed {
        Keep::AsItIs => {}
        Keep::Not => return remove(queue, subjects, lease),
        Keep::InHistory => {
            return into_history(queue, subjects, lease, payloads, Outcome::Completed);
        }
    }
    let at = Arg::timestamp(time::COMPLETED_AT);
    let Some(payloads) = payloads else {
        return complete_as_they_are(queue, subjects, lease, at);
    };
    spi::connect(|spi| {
        let args = [Arg::from(subjects.to_vec()), Arg::from(lease), at, payloads];
        let rows = queue.run_noting(spi, &COMPLETE_WITH, &args);
        counters::note(queue, 0, rows.affected(), Event::Complete);
        settled(&rows)
    })
}

fn complete_as_they_are(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    at: Arg,
) -> HashSet<String> {
    let no_payload = Jsonb::arg(None);
    let mut done = settle_rows(queue, subjects, lease, Access::Update, |documents, row| {
        end_iteration(row, Status::Completed, &no_payload);
        row.set(Column::NextIteration, &at);
        documents.replace(row, true)
    });
    if !done.rest.is_empty() {
        spi::connect(|spi| {
            let args = [Arg::from(done.rest), Arg::from(lease), at];
            let rows = queue.run_noting(spi, &COMPLETE, &args);
            done.settled.extend(settled(&rows));
        });
    }
    let n = i32::try_from(done.settled.len()).unwrap_or(i32::MAX);
    counters::note(queue, 0, n, Event::Complete);
    done.settled
}

/// Plans the next iteration of active documents; gives those that were active.
pub fn reschedule(
    queue: &Queue,
    subjects: Arg,
    lease: Option<i64>,
    next_iteration: i64,
    payloads: Arg,
) -> HashSet<String> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    spi::connect(|spi| {
        let args = [
            subjects,
            Arg::from(lease),
            Arg::from(to.code()),
            Arg::timestamp(next_iteration),
            payloads,
        ];
        let rows = queue.run_noting(spi, &RESCHEDULE, &args);
        planned(&rows, 2).note(queue);
        counters::note(queue, 0, rows.affected(), Event::reschedule(to));
        settled(&rows)
    })
}

/// Settles active documents by removing them; gives those that were active.
pub fn drop(queue: &Queue, subjects: &[String], lease: Option<i64>) -> HashSet<String> {
    match queue.policy.dropped {
        Keep::AsItIs | Keep::Not => remove(queue, subjects, lease),
        Keep::InHistory => into_history(queue, subjects, lease, None, Outcome::Dropped),
    }
}

fn into_history(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    payloads: Option<Arg>,
    outcome: Outcome,
) -> HashSet<String> {
    let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    history::settle(queue, &subjects, lease, payloads, outcome)
}

fn remove(queue: &Queue, subjects: &[String], lease: Option<i64>) -> HashSet<String> {
    let mut done = settle_rows(queue, subjects, lease, Access::Delete, |documents, row| {
        documents.remove(row, true)
    });
    if !done.rest.is_empty() {
        spi::connect(|spi| {
            let args = [Arg::from(done.rest), Arg::from(lease)];
            let rows = queue.run_noting(spi, &DROP, &args);
            for row in 0..rows.len() {
                let version = rows.get(row, 2).unwrap_or(0);
                *done.versions.entry(version).or_default() += 1;
            }
            done.settled.extend(settled(&rows));
        });
    }
    for (version, n) in done.versions {
        counters::note(queue, version, n, Event::Drop);
    }
    done.settled
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::domain::names::QueueName;
    use crate::store::docs;
    use crate::store::registry;
    use pgrx::pg_test;
    use std::cell::Cell;

    fn queue(name: &str) -> std::rc::Rc<Queue> {
        let name = QueueName::parse(name).expect("a valid name");
        registry::create(&name).expect("created");
        Queue::open(&name).expect("open")
    }

    fn stored(queue: &Queue) -> String {
        spi::connect(|spi| {
            let all = "select string_agg(subject || ' ' || payload, ', ' order by seq) from {docs}";
            queue.once(spi, all, &[]).get(0, 1).unwrap_or_default()
        })
    }

    fn counted(queue: &Queue) -> Option<i64> {
        spi::connect(|spi| {
            let sum = "select value from fetchq.metrics_live where metric = 'cnt' and queue = $1";
            let rows = queue.once(spi, sum, &[Arg::from(queue.name.as_str())]);
            if rows.is_empty() {
                None
            } else {
                rows.get(0, 1)
            }
        })
    }

    fn doc(subject: &str) -> NewDoc<'_> {
        NewDoc {
            subject,
            version: 0,
            priority: 0,
            next_iteration: 0,
            payload: Jsonb::parse("{}"),
            ordering_key: None,
            max_attempts: None,
        }
    }

    /// A clock that was set back makes up subjects that there are already.
    fn append_to_others(name: &str, direct: &str) -> ([String; 4], String) {
        spi::connect(|spi| {
            spi.once(&format!("set local fetchq.direct = {direct}"), &[]);
        });
        let queue = queue(name);
        for subject in ["s2", "s4"] {
            assert!(docs::append(&queue, &doc(subject)));
        }
        assert!(!docs::append(&queue, &doc("s4")));
        assert_eq!(counted(&queue), Some(2));

        let mut subjects = ["s1", "s2", "s3", "s4"].map(String::from);
        spi::connect(|spi| {
            let rows = spi.once("select array['1', '2', '3', '4']::jsonb[]", &[]);
            let mut batch = Batch {
                version: 0,
                priority: 0,
                next_iteration: 0,
                subjects: Arg::from(Vec::<&str>::new()),
                payloads: Arg::new(pgrx::pg_sys::JSONBARRAYOID, rows.datum(0, 1)),
            };
            // The first that it makes up exists as well.
            let next = Cell::new(3);
            append(&queue, &mut batch, &mut subjects, || {
                next.set(next.get() + 1);
                format!("s{}", next.get())
            });
        });
        assert_eq!(counted(&queue), Some(6));
        (subjects, stored(&queue))
    }

    #[pg_test]
    fn generated_subjects_that_exist_are_generated_anew() {
        let (subjects, stored) = append_to_others("bulk_direct", "on");
        assert_eq!(subjects, ["s1", "s5", "s3", "s6"]);
        assert_eq!(stored, "s2 {}, s4 {}, s1 1, s5 2, s3 3, s6 4");
    }

    #[pg_test]
    fn generated_subjects_that_exist_are_generated_anew_by_statement() {
        let (subjects, stored) = append_to_others("bulk_statement", "off");
        assert_eq!(subjects, ["s1", "s6", "s3", "s5"]);
        assert_eq!(stored, "s2 {}, s4 {}, s1 1, s3 3, s5 4, s6 2");
    }
}
