//! Puts documents: the mode of a put decides what happens to a document whose subject exists.
//! All statements here are hot.
//!
//! A new document is added as a push adds it. A document that exists is locked, by its
//! subject, before the mode decides, so that no concurrent change of it is lost.

use std::collections::HashMap;

use crate::domain::counter_events::Event;
use crate::domain::put_mode::{Action, Decision, Mode, OnDuplicate};
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::Documents;
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::ready::key::PickKey;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{self, PlannedEntries};
use crate::store::documents::doc_push::{self, NewDoc, is_duplicate, row_with_seq};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

/// A document, and the mode that decides what happens to the one that has its subject.
#[derive(Clone, Copy)]
pub struct Put<'a> {
    pub doc: NewDoc<'a>,
    pub mode: Mode,
}

impl Put<'_> {
    /// Fails with `Error::NotMergeable` if the payload is to be merged and is no object.
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

/// Puts one document, and returns what was done.
///
/// Fails with `Error::NotMergeable` if a payload is to be merged and one of the two is no
/// object, and with `Error::HiddenDocument` if the document can neither be added nor found.
pub fn put(queue: &Queue, put: &Put) -> Result<Action> {
    put.check(queue)?;
    if put.mode.only_adds() {
        return Ok(match doc_push::push_or_find(queue, &put.doc)? {
            0 => Action::Ignored,
            _ => Action::Created,
        });
    }
    let mut writer = Writer::new(queue);
    let action = writer.put(put, None)?;
    writer.finish();
    Ok(action)
}

/// Puts a list of documents, and returns what was done with each. Fails as [`put`] does, within
/// `Error::InList` with the position of the document.
///
/// Documents are put in the order of their subjects, so that two lists never deadlock, and
/// documents with equal subjects one after the other. New documents are picked in the order
/// of the list all the same.
pub fn put_many(queue: &Queue, puts: &[Put]) -> Result<Vec<Action>> {
    for (at, put) in puts.iter().enumerate() {
        put.check(queue).map_err(|e| e.in_list(at))?;
    }
    let numbers: Vec<Option<i64>> = puts.iter().map(|_| queue.next_seq()).collect();
    let order = locking_order(queue, puts);
    let mut actions = vec![Action::Ignored; puts.len()];
    let mut writer = Writer::new(queue);
    let mut last = None;
    for at in order {
        let put = &puts[at];
        if last == Some(put.doc.subject) {
            // A later snapshot is needed to find the document that was just added.
            writer.documents = None;
        }
        actions[at] = writer.put(put, numbers[at]).map_err(|e| e.in_list(at))?;
        last = Some(put.doc.subject);
    }
    writer.finish();
    Ok(actions)
}

/// The order in which documents are locked: that of their subjects. Where documents wait for others
/// of their key, a new document also locks the row of its ordering key, so there the keys come first.
fn locking_order(queue: &Queue, puts: &[Put]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..puts.len()).collect();
    if queue.policy.key_order.blocks() {
        let mut keys: HashMap<&str, Option<&str>> = HashMap::new();
        for put in puts {
            // The first key of a subject counts, so that equal subjects stay together.
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

/// Counter events, added up: the event, the version, and the number of documents.
#[derive(Default)]
struct EventCounts(Vec<(Event, i32, i32)>);

impl EventCounts {
    fn add(&mut self, event: Event, version: i32) {
        let same = |(other, of, _): &&mut (Event, i32, i32)| *other == event && *of == version;
        match self.0.iter_mut().find(same) {
            Some((_, _, n)) => *n = n.saturating_add(1),
            None => self.0.push((event, version, 1)),
        }
    }
}

/// Writes documents. At the end it informs the ready floors, the waiters and the counters.
struct Writer<'q> {
    queue: &'q Queue,
    /// The docs table for writing without statements, while all documents are new.
    documents: Option<Documents>,
    planned: PlannedEntries,
    events: EventCounts,
}

/// How often a put starts again because the document was removed between its two statements.
/// After more retries, the document is assumed to exist and to be invisible.
const MAX_RETRIES: usize = 100;

/// The statement that locks a document. The argument: whether its payload can be merged.
macro_rules! lock {
    ($is_mergeable:literal) => {
        concat!(
            "select d.status, d.version, d.priority, d.next_iteration, d.attempts, d.seq,
                 d.lock_upgrade is not null as is_locked,
                 d.lock_upgrade {=} 'infinity' and d.ordering_key is not null as is_blocked, ",
            $is_mergeable,
            " as is_mergeable
             from only {docs} d
             where d.subject {=} $1
             for update"
        )
    };
}

// Index of this one and those below: primary key. A payload, which may be stored apart from its row,
// is read only where it is merged.
static LOCK: Statement = Statement::new(lock!("false"));

static LOCK_TO_MERGE: Statement = Statement::new(lock!(
    "coalesce(pg_catalog.jsonb_typeof(d.payload) {=} 'object', true)"
));

static MERGE: Statement = Statement::new(
    "update only {docs} d set payload = coalesce(d.payload, '{}') {||} $2,
         origin = null, last_error = {own_error}
     where d.subject {=} $1",
);

static MERGE_WITH_HEADERS: Statement = Statement::new(
    "update only {docs} d set payload = coalesce(d.payload, '{}') {||} $2,
         headers = case when pg_catalog.jsonb_typeof(d.headers) {=} 'object'
             then d.headers {||} $3 else $3 end,
         origin = null, last_error = {own_error}
     where d.subject {=} $1",
);

static PLAN: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2, status = $3,
         expires_at = coalesce($4, {moved_expiry})
     where d.subject {=} $1",
);

static PLAN_WITH_PAYLOAD: Statement = Statement::new(
    "update only {docs} d set next_iteration = $2, status = $3,
         expires_at = coalesce($4, {moved_expiry}), payload = $5, headers = $6,
         origin = null, last_error = {own_error}
     where d.subject {=} $1",
);

static REPLACE: Statement = Statement::new(
    "update only {docs} d set
         version = $2, priority = $3, status = $4, next_iteration = $5, payload = $6,
         ordering_key = $7, max_attempts = $8, headers = $9, expires_at = $10, result = null, progress = null,
         origin = null, last_error = {own_error}
     where d.subject {=} $1",
);

static REVIVE: Statement = Statement::new(
    "update only {docs} d set
         version = $2, priority = $3, status = $4, next_iteration = $5, payload = $6,
         ordering_key = $7, max_attempts = $8, headers = $9, expires_at = $10, attempts = 0,
         result = null, progress = null,
         last_error = null, origin = null
     where d.subject {=} $1",
);

/// A document that exists, and is locked.
struct Found {
    status: Status,
    version: i32,
    priority: i32,
    next_iteration: i64,
    attempts: i32,
    seq: i64,
    /// Its `lock_upgrade` was set by a user, so that it must stay as it is.
    is_hidden: bool,
    /// Its payload is an object, or NULL. Known only where it may be merged.
    is_mergeable: bool,
}

impl<'q> Writer<'q> {
    fn new(queue: &'q Queue) -> Self {
        Self {
            queue,
            documents: None,
            planned: PlannedEntries::default(),
            events: EventCounts::default(),
        }
    }

    fn finish(self) {
        self.planned.signal(self.queue);
        for (event, version, n) in self.events.0 {
            counter_log::record_event(self.queue, version, n, event);
        }
    }

    /// Puts a document. `number` is the `seq` that it gets if it is new; None for the next
    /// `seq`, where the order of a list does not matter.
    fn put(&mut self, put: &Put, number: Option<i64>) -> Result<Action> {
        if self.add_row(&put.doc, number) {
            return Ok(Action::Created);
        }
        // The statements below write what the snapshot of `documents` does not see.
        self.documents = None;
        for _ in 0..MAX_RETRIES {
            // A mode that only adds needs no look-up, because the document is new or stays
            // as it is.
            if put.mode.only_adds() {
                if self.add(&put.doc, number) {
                    return Ok(Action::Created);
                }
                if is_duplicate(self.queue, put.doc.subject) {
                    return Ok(Action::Ignored);
                }
                continue;
            }
            if let Some(action) = spi::connect(|spi| self.change(spi, put))? {
                return Ok(action);
            }
            if self.add(&put.doc, number) {
                return Ok(Action::Created);
            }
            // Between the two statements the document was added and not seen, or removed.
        }
        Err(Error::HiddenDocument {
            queue: self.queue.name.to_string(),
            subject: put.doc.subject.to_owned(),
        })
    }

    /// Adds a document without a statement. Returns false if a statement has to decide.
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
        if !documents.add_if_new(&mut row_with_seq(self.queue, doc, seq)) {
            return false;
        }
        self.record_added(doc, seq);
        true
    }

    /// Adds a document by statement. Returns false if its subject exists.
    fn add(&mut self, doc: &NewDoc, number: Option<i64>) -> bool {
        let queue = self.queue;
        let seq = spi::connect(|spi| {
            let mut args = doc.args(queue).to_vec();
            args.extend(number.map(Arg::from));
            let statement = match number {
                Some(_) => &doc_push::PUSH_WITH_SEQ,
                None => &doc_push::PUSH,
            };
            let rows = queue.run_noting(spi, statement, &args);
            (!rows.is_empty()).then(|| rows.get(0, 1).unwrap_or(i64::MIN))
        });
        if let Some(seq) = seq {
            self.record_added(doc, seq);
        }
        seq.is_some()
    }

    fn record_added(&mut self, doc: &NewDoc, seq: i64) {
        let (status, key) = (doc.status(), PickKey::new(doc.next_iteration, 0, seq));
        self.planned.add(doc.version, doc.priority, status, key);
        bookkeeping::note_expiry(self.queue, doc.expires_at(self.queue));
        self.events.add(Event::push(status), doc.version);
    }

    /// Does what the mode decides for a document that exists. None: it does not exist.
    fn change(&mut self, spi: &Spi, put: &Put) -> Result<Option<Action>> {
        let is_merge = put.mode.on_duplicate == OnDuplicate::Merge;
        let Some(found) = lock_document(spi, self.queue, put.doc.subject, is_merge) else {
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
        // Whatever the decision is, no session can pick the document until it is unlocked.
        bookkeeping::document_locked(self.queue, found.version, found.status);
        let subject = Arg::from(doc.subject);
        let payload = Jsonb::arg(Some(doc.payload));
        let headers = Jsonb::arg(doc.headers);
        let expires_at = doc.expires_at(self.queue);
        let replace = |to: Status| {
            let mut args = doc.args(self.queue).to_vec();
            args[3] = Arg::from(to.code());
            args
        };
        let plan = |to: Status| {
            let expires_at = Arg::opt_timestamp(expires_at);
            vec![
                subject,
                Arg::timestamp(new),
                Arg::from(to.code()),
                expires_at,
            ]
        };
        let (statement, args): (&'static Statement, Vec<Arg>) = match decision {
            Decision::Leave => return Ok(Some(Action::Ignored)),
            Decision::Merge if !found.is_mergeable => {
                return Err(not_mergeable(self.queue, doc.subject));
            }
            Decision::Merge => match doc.headers {
                None => (&MERGE, vec![subject, payload]),
                Some(_) => (&MERGE_WITH_HEADERS, vec![subject, payload, headers]),
            },
            Decision::Plan(to) => (&PLAN, plan(to)),
            Decision::PlanWithPayload(to) => (
                &PLAN_WITH_PAYLOAD,
                [plan(to), vec![payload, headers]].concat(),
            ),
            Decision::Replace(to) => (&REPLACE, replace(to)),
            Decision::Revive(to) => (&REVIVE, replace(to)),
        };
        if self.queue.run_noting(spi, statement, &args).affected() == 0 {
            // A trigger or a policy of the user's keeps the document from being changed.
            return Ok(Some(Action::Ignored));
        }
        bookkeeping::note_expiry(self.queue, expires_at);
        Ok(Some(self.record_changed(doc, &found, decision)))
    }

    /// Notes and counts a document that was changed.
    fn record_changed(&mut self, doc: &NewDoc, found: &Found, decision: Decision) -> Action {
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
        // Each new version of the row may have an index entry of its own.
        let key = PickKey::new(time, attempts, found.seq);
        self.planned.add(version, priority, to, key);
        let is_revived = matches!(decision, Decision::Revive(_));
        if version != found.version {
            // Documents are counted by version: one fewer of the old, one more of the new.
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

/// Locks a document. None: it does not exist. Some(None): its status is unknown to fetchq.
/// `is_merge`: its payload may be merged.
fn lock_document(spi: &Spi, queue: &Queue, subject: &str, is_merge: bool) -> Option<Option<Found>> {
    let statement = if is_merge { &LOCK_TO_MERGE } else { &LOCK };
    let rows = queue.run(spi, statement, &[Arg::from(subject)]);
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
        // A document that is blocked by the order of its key is not hidden.
        is_hidden: rows.get(0, 7).unwrap_or(false)
            && !(queue.policy.key_order.blocks() && rows.get(0, 8).unwrap_or(false)),
        is_mergeable: rows.get(0, 9).unwrap_or(true),
    }))
}
