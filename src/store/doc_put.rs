//! Putting documents: what happens to one whose subject exists is for the caller to
//! choose. All statements here are hot.
//!
//! A new document is added as a push adds it. One that exists is locked, by its
//! subject, before it is decided what becomes of it, so that nothing that others do at
//! the same time is lost.

use std::collections::HashMap;

use crate::domain::counter_events::Event;
use crate::domain::put_mode::{Action, Decision, MODES, Mode, OnDuplicate};
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::Documents;
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::ready::key::Key;
use crate::store::bookkeeping::{self, PlannedEntries};
use crate::store::doc_push::{self, NewDoc, numbered_row};
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;
use crate::store::{counter_log, doc_list, plans};

/// A document, and what is to happen to the one that has its subject.
#[derive(Clone, Copy)]
pub struct Put<'a> {
    pub doc: NewDoc<'a>,
    pub mode: Mode,
}

impl Put<'_> {
    /// Whether a list, or a single value, could not be merged with anything.
    fn check(&self, queue: &Queue) -> Result<()> {
        if self.mode.on_duplicate == OnDuplicate::Merge && !self.doc.payload.is_object() {
            return Err(not_mergeable(queue, self.doc.subject));
        }
        Ok(())
    }
}

fn not_mergeable(queue: &Queue, subject: &str) -> Error {
    Error::NotMergeable {
        queue: queue.name.to_string(),
        subject: subject.to_owned(),
    }
}

/// Puts one document.
pub fn put(queue: &Queue, put: &Put) -> Result<Action> {
    put.check(queue)?;
    if put.mode.only_adds() {
        return Ok(match doc_push::push(queue, &put.doc) {
            0 => Action::Ignored,
            _ => Action::Created,
        });
    }
    let mut writer = Writer::new(queue);
    let action = writer.put(put, None)?;
    writer.finish();
    Ok(action)
}

/// Puts a list of documents; says of each what became of it. In the order of their
/// subjects, so that two lists never lock one another out, and of equal subjects one
/// after the other; what is new is picked in the order of the list all the same.
pub fn put_many(queue: &Queue, puts: &[Put]) -> Result<Vec<Action>> {
    for put in puts {
        put.check(queue)?;
    }
    let numbers: Vec<Option<i64>> = puts.iter().map(|_| queue.next_seq()).collect();
    let order = order_of(queue, puts);
    let mut actions = vec![Action::Ignored; puts.len()];
    let mut writer = Writer::new(queue);
    let mut last = None;
    for at in order {
        let put = &puts[at];
        if last == Some(put.doc.subject) {
            // To be found, what was added before needs a later snapshot.
            writer.documents = None;
        }
        actions[at] = writer.put(put, numbers[at])?;
        last = Some(put.doc.subject);
    }
    writer.finish();
    Ok(actions)
}

/// In what order documents are locked: in that of their subjects. In an ordered queue a
/// new one locks the row of its key as well, so there the keys come first.
fn order_of(queue: &Queue, puts: &[Put]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..puts.len()).collect();
    if queue.policy.is_ordered {
        let mut keys: HashMap<&str, Option<&str>> = HashMap::new();
        for put in puts {
            // (equal subjects stay together)
            keys.entry(put.doc.subject).or_insert(put.doc.ordering_key);
        }
        order.sort_by_key(|at| {
            let subject = puts[*at].doc.subject;
            (keys.get(subject).copied().flatten(), subject)
        });
    } else {
        order.sort_by_key(|at| puts[*at].doc.subject);
    }
    order
}

/// Events of the counters, added up: what, of which version, how often.
#[derive(Default)]
struct Events(Vec<(Event, i32, i32)>);

impl Events {
    fn add(&mut self, event: Event, version: i32) {
        let same = |(other, of, _): &&mut (Event, i32, i32)| *other == event && *of == version;
        match self.0.iter_mut().find(same) {
            Some((_, _, n)) => *n = n.saturating_add(1),
            None => self.0.push((event, version, 1)),
        }
    }
}

/// Writes documents, and tells the floors, those who wait, and the counters at the end.
struct Writer<'q> {
    queue: &'q Queue,
    /// The documents without statements, while there are only new ones.
    documents: Option<Documents>,
    planned: PlannedEntries,
    events: Events,
}

/// How often it starts again because the document was removed between its two
/// statements. More means that it is there and can not be seen.
const TURNS: usize = 100;

// Index: primary key, as arbiter. $9: the place in the list.
static ADD: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload, ordering_key, max_attempts, seq)
     overriding system value
     values ($1, $2, $3, $4, $5, pg_catalog.now(), $6, $7, $8, $9)
     on conflict (subject) do nothing
     returning seq",
);

static ADD_NEXT: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload, ordering_key, max_attempts)
     values ($1, $2, $3, $4, $5, pg_catalog.now(), $6, $7, $8)
     on conflict (subject) do nothing
     returning seq",
);

// Index of the others: primary key.
static LOCK: Statement = Statement::new(
    "select d.status, d.version, d.priority, d.next_iteration, d.attempts, d.seq,
         d.lock_upgrade is not null,
         d.lock_upgrade {=} 'infinity' and d.ordering_key is not null,
         coalesce(pg_catalog.jsonb_typeof(d.payload) {=} 'object', true)
     from only {docs} d
     where d.subject {=} $1
     for update",
);

static MERGE: Statement = Statement::new(
    "update only {docs} d set payload = coalesce(d.payload, '{}') {||} $2
     where d.subject {=} $1",
);

static PLAN: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2, status = $3, payload = coalesce($4, d.payload)
     where d.subject {=} $1",
);

// $9, $10: a document that starts anew, and the attempts it has.
static REPLACE: Statement = Statement::new(
    "update only {docs} d set
         version = $2, priority = $3, status = $4, next_iteration = $5, payload = $6,
         ordering_key = $7, max_attempts = $8, attempts = $10,
         last_error = case when $9 then null else d.last_error end,
         lease = case when $9 then null else d.lease end,
         worker_session = case when $9 then null else d.worker_session end
     where d.subject {=} $1",
);

/// A document that exists, locked.
struct Found {
    status: Status,
    version: i32,
    priority: i32,
    next_iteration: i64,
    attempts: i32,
    seq: i64,
    is_hidden: bool,
    is_mergeable: bool,
}

impl<'q> Writer<'q> {
    fn new(queue: &'q Queue) -> Self {
        Self {
            queue,
            documents: None,
            planned: PlannedEntries::default(),
            events: Events::default(),
        }
    }

    fn finish(self) {
        self.planned.signal(self.queue);
        for (event, version, n) in self.events.0 {
            counter_log::record_event(self.queue, version, n, event);
        }
    }

    /// `number`: what the document gets as its `seq`, so that it can be new; the next
    /// one where it is a document by itself.
    fn put(&mut self, put: &Put, number: Option<i64>) -> Result<Action> {
        if self.add_row(&put.doc, number) {
            return Ok(Action::Created);
        }
        // Its snapshot is older than what the statements do.
        self.documents = None;
        for _ in 0..TURNS {
            // Looking first would be in vain for a document that is new, or stays.
            if put.mode.only_adds() {
                let is_new = self.add(&put.doc, number);
                return Ok(if is_new {
                    Action::Created
                } else {
                    Action::Ignored
                });
            }
            if let Some(action) = spi::connect(|spi| self.change(spi, put))? {
                return Ok(action);
            }
            if self.add(&put.doc, number) {
                return Ok(Action::Created);
            }
            // It was added and not seen, or removed, between the two statements.
        }
        Err(Error::HiddenDocument {
            queue: self.queue.name.to_string(),
            subject: put.doc.subject.to_owned(),
        })
    }

    /// Adds a document without a statement; false: that is for a statement to decide.
    fn add_row(&mut self, doc: &NewDoc, number: Option<i64>) -> bool {
        if self.documents.is_none() {
            self.documents = self.queue.documents(Access::Insert);
        }
        let Some(documents) = &mut self.documents else {
            return false;
        };
        if documents.find(doc.subject).is_some() {
            return false;
        }
        let Some(seq) = number.or_else(|| self.queue.next_seq()) else {
            return false;
        };
        if !documents.add_if_new(&mut numbered_row(doc, seq)) {
            return false;
        }
        self.added(doc, seq);
        true
    }

    /// Adds a document that is new.
    fn add(&mut self, doc: &NewDoc, number: Option<i64>) -> bool {
        let queue = self.queue;
        let seq = spi::connect(|spi| {
            let mut args = doc.args().to_vec();
            args.extend(number.map(Arg::from));
            let statement = if number.is_some() { &ADD } else { &ADD_NEXT };
            let rows = queue.run_noting(spi, statement, &args);
            (!rows.is_empty()).then(|| rows.get(0, 1).unwrap_or(i64::MIN))
        });
        if let Some(seq) = seq {
            self.added(doc, seq);
        }
        seq.is_some()
    }

    fn added(&mut self, doc: &NewDoc, seq: i64) {
        let (status, key) = (doc.status(), Key::new(doc.next_iteration, 0, seq));
        self.planned.add(doc.version, doc.priority, status, key);
        self.events.add(Event::push(status), doc.version);
    }

    /// Does with a document that exists what the mode says; None: it does not exist.
    fn change(&mut self, spi: &Spi, put: &Put) -> Result<Option<Action>> {
        let Some(found) = find_and_lock(spi, self.queue, put.doc.subject) else {
            return Ok(None);
        };
        let Some(found) = found else {
            return Ok(Some(Action::Ignored));
        };
        let doc = &put.doc;
        let new = doc.next_iteration;
        let decision = if found.is_hidden {
            Decision::Leave
        } else {
            put.mode
                .decide(found.status, found.next_iteration, new, time::now())
        };
        // Whatever happens, nobody could pick it for a moment.
        bookkeeping::document_locked(self.queue, found.version, found.status);
        let subject = Arg::from(doc.subject);
        let payload = Jsonb::arg(Some(doc.payload));
        let replace = |to: Status, attempts: i32, is_anew: bool| {
            let mut args = doc.args().to_vec();
            args[3] = Arg::from(to.code());
            args.extend([Arg::from(is_anew), Arg::from(attempts)]);
            args
        };
        let (statement, args): (&'static Statement, Vec<Arg>) = match decision {
            Decision::Leave => return Ok(Some(Action::Ignored)),
            Decision::Merge if !found.is_mergeable => {
                return Err(not_mergeable(self.queue, doc.subject));
            }
            Decision::Merge => (&MERGE, vec![subject, payload]),
            Decision::Plan(to) => (&PLAN, plan(subject, new, to, Jsonb::arg(None))),
            Decision::PlanWithPayload(to) => (&PLAN, plan(subject, new, to, payload)),
            Decision::Replace(to) => (&REPLACE, replace(to, found.attempts, false)),
            Decision::Revive(to) => (&REPLACE, replace(to, 0, true)),
        };
        if self.queue.run_noting(spi, statement, &args).affected() == 0 {
            // A trigger or a policy of the user's keeps it from being changed.
            return Ok(Some(Action::Ignored));
        }
        Ok(Some(self.changed(doc, &found, decision)))
    }

    /// Notes what has become of a document.
    fn changed(&mut self, doc: &NewDoc, found: &Found, decision: Decision) -> Action {
        let from = found.status;
        let (to, version, priority, time, attempts) = match decision {
            Decision::Leave => return Action::Ignored,
            Decision::Merge => (
                from,
                found.version,
                found.priority,
                found.next_iteration,
                found.attempts,
            ),
            Decision::Plan(to) | Decision::PlanWithPayload(to) => (
                to,
                found.version,
                found.priority,
                doc.next_iteration,
                found.attempts,
            ),
            Decision::Replace(to) => (
                to,
                doc.version,
                doc.priority,
                doc.next_iteration,
                found.attempts,
            ),
            Decision::Revive(to) => (to, doc.version, doc.priority, doc.next_iteration, 0),
        };
        // (each new version of a row may have entries of its own)
        let key = Key::new(time, attempts, found.seq);
        self.planned.add(version, priority, to, key);
        let is_revived = matches!(decision, Decision::Revive(_));
        if version != found.version {
            // The documents of a version are counted: one left, one came.
            self.events.add(Event::remove(from), found.version);
            self.events.add(Event::push(to), version);
        } else if is_revived {
            if let Some(event) = Event::revive(from, to) {
                self.events.add(event, 0);
            }
        } else if let Some(event) = Event::upsert(from, to) {
            self.events.add(event, 0);
        }
        if is_revived {
            Action::Revived
        } else {
            Action::Updated
        }
    }
}

fn plan(subject: Arg, time: i64, to: Status, payload: Arg) -> Vec<Arg> {
    vec![subject, Arg::timestamp(time), Arg::from(to.code()), payload]
}

/// None: there is no such document. Some(None): it is in no state that fetchq knows.
fn find_and_lock(spi: &Spi, queue: &Queue, subject: &str) -> Option<Option<Found>> {
    let rows = queue.run(spi, &LOCK, &[Arg::from(subject)]);
    if rows.is_empty() {
        return None;
    }
    let int = |column| rows.get(0, column).unwrap_or(0);
    let status = rows.get(0, 1).and_then(Status::from_code);
    Some(status.map(|status| Found {
        status,
        version: int(2),
        priority: int(3),
        next_iteration: rows.timestamp(0, 4).unwrap_or(i64::MIN),
        attempts: int(5),
        seq: rows.get(0, 6).unwrap_or(i64::MIN),
        // One that waits for its turn in the order of its key is not hidden.
        is_hidden: rows.get(0, 7).unwrap_or(false)
            && !(queue.policy.is_ordered && rows.get(0, 8).unwrap_or(false)),
        is_mergeable: rows.get(0, 9).unwrap_or(true),
    }))
}

// The first element of a list that is no document.
static CHECK: Statement = Statement::new(
    "select e.n, pg_catalog.jsonb_typeof(e.doc), e.doc {->>} 'subject',
         (select k.key from pg_catalog.jsonb_object_keys(case when pg_catalog.jsonb_typeof(e.doc) {=} 'object' then e.doc else '{}' end) k (key)
          where k.key {<>} all ('{subject,payload,version,priority,next_iteration,ordering_key,max_attempts,mode}'::pg_catalog.text[]) limit 1)
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     where case when pg_catalog.jsonb_typeof(e.doc) {<>} 'object' then true
         else (e.doc {->>} 'subject') is null
             or pg_catalog.char_length(e.doc {->>} 'subject') {>} 50
             or (e.doc {-} '{subject,payload,version,priority,next_iteration,ordering_key,max_attempts,mode}'::pg_catalog.text[]) {<>} '{}'::pg_catalog.jsonb
         end
     limit 1",
);

static READ: Statement = Statement::new(
    "select i.subject, coalesce(i.payload, '{}'), i.version, i.priority, i.next_iteration, i.ordering_key, i.max_attempts, i.mode
     from rows from (pg_catalog.jsonb_to_recordset($1) as (
         subject pg_catalog.text, payload pg_catalog.jsonb, version pg_catalog.int4, priority pg_catalog.int4,
         next_iteration pg_catalog.timestamptz, ordering_key pg_catalog.text, max_attempts pg_catalog.int4,
         mode pg_catalog.text)) with ordinality
         as i (subject, payload, version, priority, next_iteration, ordering_key, max_attempts, mode, n)
     order by i.n",
);

/// Puts the documents of a JSON array, those that name no mode of their own with the
/// one given; says of each what became of it.
pub fn put_docs(queue: &Queue, docs: Jsonb, mode: Mode) -> Result<Vec<(String, Action)>> {
    spi::connect(|spi| {
        let docs = Jsonb::arg(Some(docs));
        doc_list::check_by(spi, docs, &CHECK)?;
        let rows = plans::run_latest(spi, &READ, &[docs]);
        let listed: Vec<(String, Option<String>)> = (0..rows.len())
            .map(|row| (rows.get(row, 1).unwrap_or_default(), rows.get(row, 6)))
            .collect();
        let mut puts = Vec::with_capacity(listed.len());
        for (row, (subject, ordering_key)) in listed.iter().enumerate() {
            let bad = |reason: String| Error::BadDocument {
                at: row as i64 + 1,
                reason,
            };
            let mode = match rows.get::<String>(row, 8) {
                None => mode,
                Some(text) => Mode::parse(&text)
                    .ok_or_else(|| bad(format!("its mode is {text:?}, not one of {MODES}")))?,
            };
            let max_attempts: Option<i32> = rows.get(row, 7);
            if max_attempts.is_some_and(|n| n < 1) {
                return Err(bad("its max_attempts is less than 1".into()));
            }
            let Some(payload) = rows.json(row, 2) else {
                continue;
            };
            puts.push(Put {
                doc: NewDoc {
                    subject,
                    version: rows.get(row, 3).unwrap_or(0),
                    priority: rows.get(row, 4).unwrap_or(0),
                    next_iteration: rows.timestamp(row, 5).unwrap_or_else(time::now),
                    payload,
                    ordering_key: ordering_key.as_deref(),
                    max_attempts,
                },
                mode,
            });
        }
        let actions = put_many(queue, &puts)?;
        let subjects = listed.into_iter().map(|(subject, _)| subject);
        Ok(subjects.zip(actions).collect())
    })
}
