//! Puts documents: the mode of a put decides what happens to a document whose subject exists.
//! All statements here are hot.
//!
//! A new document is added as a push adds it. A document that exists is locked, by its
//! subject, before the mode decides, so that no concurrent change of it is lost. It stays as it is
//! without a lock where its status alone says so.
//!
//! A finished document, which is completed or killed, makes room for the new one. An active document
//! keeps what it is given (`queued.rs`), and the call that settles it puts that.

use std::collections::HashMap;
use std::slice;

use crate::domain::counter_events::Event;
use crate::domain::names;
use crate::domain::put_mode::{Action, Decision, Mode, OnDuplicate};
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::{Column, Documents};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{subtransaction, time};
use crate::ready::key::PickKey;
use crate::store::bounds::keys::lock_active;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{self, PlannedEntries};
use crate::store::documents::doc_push::{self, NewDoc, row_with_seq};
use crate::store::documents::error_log::log_failure;
use crate::store::documents::history::{self, Outcome};
use crate::store::documents::history_worker::By;
use crate::store::documents::queued::{KEEP, Queued, keep_args};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue_tables;
use crate::store::queues::statement::{Scope, Statement};

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
    if put.mode.leaves_unfinished()
        && !put.mode.is_once
        && let Some(seq) = doc_push::push_row(queue, &put.doc)
    {
        doc_push::record_push(queue, &put.doc, seq);
        return Ok(Action::Created);
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
    let locking = puts.iter().filter(|put| !put.mode.leaves_unfinished());
    lock_active(queue, locking.map(|put| put.doc.subject).collect());
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
/// of their key, a new document also locks the row of its ordering key, so there the keys come first; those
/// that are active have been locked before.
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
    /// What of the user's keeps the last document as it is.
    kept_by: Option<&'static str>,
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
            " as is_mergeable, d.queued,
                 coalesce(d.attempts {=} 0 and d.expires_at {<=} pg_catalog.clock_timestamp(), false) as has_expired
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

// One that has expired counts as killed.
static STATUS: Statement = Statement::new(
    "select case when d.status {=} any (array[{planned}, {pending}]) and d.attempts {=} 0
             and d.expires_at {<=} pg_catalog.clock_timestamp()
             {not_late d}
         then {killed} else d.status end
     from only {docs} d
     where d.subject {=} $1",
)
.in_scope(Scope::Nothing);

/// Removes a document that was added a moment ago.
static TAKE_BACK: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject {=} $1",
);

/// Why what was queued on a document cannot be put.
const KEPT: &str = "a trigger or a row-level security policy keeps the document as it is";
const HIDDEN: &str = "the lock_upgrade of the document is set, which keeps it as it is";

/// A document that was settled, and that cannot be given what was queued on it, forgets that.
static FORGET: Statement = Statement::new(
    "update only {docs} d set queued = null
     where d.subject {=} $1
         and d.queued is not null",
);

/// A document that was settled and stays in the table forgets what it is about to be given, and starts
/// anew.
static RENEW: Statement = Statement::new(
    "update only {docs} d set queued = null, attempts = 0, expires_at = null
     where d.subject {=} $1
         and d.status {+} 0 {=} any (array[{planned}, {pending}])",
);

// Index: (subject, id).
static FIND_IN_HISTORY: Statement = Statement::new(
    "select from {history} h
     where h.subject {=} $1
     limit 1",
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
    /// What was put on it while it was leased, in the memory of the SPI connection.
    queued: Option<Jsonb>,
    /// It waits, and did not begin in time. Maintenance has not killed it yet.
    has_expired: bool,
}

/// Returns whether the history has a document with this subject, as of this instant.
fn is_in_history(queue: &Queue, subject: &str) -> bool {
    queue_tables::has_history(&queue.name)
        && spi::connect(|spi| {
            !queue
                .run_latest(spi, &FIND_IN_HISTORY, &[Arg::from(subject)])
                .is_empty()
        })
}

/// Puts what was queued on documents, which this transaction has just settled, in whatever way. `docs`:
/// their subjects, and what they had in that column, as JSON text.
///
/// Nothing that the table refuses, such as a constraint or a trigger of the user's, keeps a document from
/// being settled, and the others from being put: what was put on that document is dropped, with a WARNING
/// and a line in the error log. What may succeed at another attempt is an ERROR.
pub fn put_all_queued<S: AsRef<str>>(queue: &Queue, docs: &[(S, S)]) {
    let put = |docs: &[(S, S)]| {
        subtransaction::attempt_once(|| {
            let mut writer = Writer::new(queue);
            for (subject, column) in docs {
                writer.put_queued(subject.as_ref(), Jsonb::parse(column.as_ref()))?;
            }
            writer.finish();
            Ok(())
        })
    };
    // One subtransaction for all of them, unless one is refused.
    if docs.len() > 1 && put(docs).is_ok() {
        return;
    }
    for doc in docs {
        if let Err(reason) = put(slice::from_ref(doc)) {
            drop_queued(queue, doc.0.as_ref(), doc.1.as_ref(), &reason);
        }
    }
}

/// Says that what was queued on a document is dropped, and why.
fn drop_queued(queue: &Queue, subject: &str, column: &str, reason: &str) {
    let message = format!("what was put while it was leased is dropped: {reason}");
    let message = names::cut_message(&message);
    // The table may refuse this as well. Then the WARNING is all that there is.
    let _ = subtransaction::attempt_once(|| {
        let forgotten = [Arg::from(subject)];
        Ok(spi::connect(|spi| {
            queue.run(spi, &FORGET, &forgotten).affected()
        }))
    });
    let _ = subtransaction::attempt_once(|| {
        let details = Some(Jsonb::parse(column));
        log_failure(queue, subject, message, details, None, None);
        Ok(())
    });
    let (queue, subject) = (queue.name.to_string(), subject.to_owned());
    let reason = reason.to_owned();
    Error::QueuedDropped {
        queue,
        subject,
        reason,
    }
    .warn();
}

impl<'q> Writer<'q> {
    fn new(queue: &'q Queue) -> Self {
        Self {
            queue,
            documents: None,
            planned: PlannedEntries::default(),
            events: EventCounts::default(),
            kept_by: None,
        }
    }

    /// Puts what was queued on a document that was settled. An error says why it cannot be put.
    fn put_queued(&mut self, subject: &str, column: Jsonb) -> std::result::Result<(), String> {
        let queued = Queued::read(column);
        spi::connect(|spi| {
            let renewed = [Arg::from(subject)];
            self.queue.run(spi, &RENEW, &renewed).affected()
        });
        for mode in queued.modes() {
            let mut put = Put {
                doc: queued.doc(subject),
                mode,
            };
            self.documents = None;
            self.kept_by = None;
            let mut done = self.put(&put, None);
            if matches!(done, Err(Error::NotMergeable { .. })) {
                // Its worker has given it a payload with which nothing can be merged.
                put.mode = Mode::new(OnDuplicate::Debounce);
                done = self.put(&put, None);
            }
            done.map_err(|error| error.to_string())?;
            if let Some(kept_by) = self.kept_by {
                return Err(kept_by.to_owned());
            }
        }
        Ok(())
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
        if let Some(action) = self.put_row(put, number) {
            return Ok(action);
        }
        // The statements below write what the snapshot of `documents` does not see.
        self.documents = None;
        for _ in 0..MAX_RETRIES {
            if let Some(action) = self.put_by_statement(put, number)? {
                return Ok(action);
            }
            // Between two statements the document was added and not seen, or removed.
        }
        Err(Error::HiddenDocument {
            queue: self.queue.name.to_string(),
            subject: put.doc.subject.to_owned(),
        })
    }

    /// Adds a document without a statement, or finds one that stays as it is. None: a statement has to
    /// decide.
    fn put_row(&mut self, put: &Put, number: Option<i64>) -> Option<Action> {
        let (queue, doc) = (self.queue, &put.doc);
        if self.documents.is_none() {
            self.documents = queue.documents(Access::Insert);
        }
        let documents = self.documents.as_mut()?;
        if let Some(row) = documents.find(doc.subject) {
            let status = Status::from_code(row.int4(Column::Status))?;
            if row.has_expired() {
                return None;
            }
            return put.mode.leaves(status).then_some(Action::Ignored);
        }
        if put.mode.is_once && is_in_history(queue, doc.subject) {
            return Some(Action::Ignored);
        }
        let seq = number.or_else(|| queue.next_seq())?;
        documents
            .add_if_new(&mut row_with_seq(queue, doc, seq))
            .then(|| self.added(put, seq))
    }

    /// Puts a document by statements. None: it was neither found nor added.
    fn put_by_statement(&mut self, put: &Put, number: Option<i64>) -> Result<Option<Action>> {
        let subject = put.doc.subject;
        if put.mode.leaves_unfinished() {
            // Most documents are new, and need no look-up.
            if let Some(action) = self.add(put, number) {
                return Ok(Some(action));
            }
            let found = spi::connect(|spi| {
                let rows = self.queue.run(spi, &STATUS, &[Arg::from(subject)]);
                (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code))
            });
            match found {
                None => return Ok(None),
                Some(status) if status.is_none_or(|status| put.mode.leaves(status)) => {
                    return Ok(Some(Action::Ignored));
                }
                Some(_) => {}
            }
        }
        let changed = spi::connect(|spi| self.change(spi, put))?;
        Ok(changed.or_else(|| self.add(put, number)))
    }

    /// Adds a document by statement. None: its subject exists.
    fn add(&mut self, put: &Put, number: Option<i64>) -> Option<Action> {
        let (queue, doc) = (self.queue, &put.doc);
        if put.mode.is_once && is_in_history(queue, doc.subject) {
            return Some(Action::Ignored);
        }
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
        seq.map(|seq| self.added(put, seq))
    }

    /// What follows from a document that was added with this `seq`.
    fn added(&mut self, put: &Put, seq: i64) -> Action {
        let subject = put.doc.subject;
        if put.mode.is_once && is_in_history(self.queue, subject) {
            // It was settled after the look into the history, and its subject was free then. Now
            // nobody else can add it.
            self.documents = None;
            spi::connect(|spi| {
                let args = [Arg::from(subject)];
                self.queue.run(spi, &TAKE_BACK, &args).affected()
            });
            return Action::Ignored;
        }
        self.record_added(&put.doc, seq);
        Action::Created
    }

    fn record_added(&mut self, doc: &NewDoc, seq: i64) {
        let (status, key) = (doc.status(), PickKey::new(doc.next_iteration, 0, seq));
        self.planned.add(doc.version, doc.priority, status, key);
        bookkeeping::note_expiry(self.queue, doc.expires_at(self.queue));
        self.events.add(Event::push(status), doc.version);
    }

    /// Does what the mode decides for a document that exists. None: there is none, or none any more.
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
            self.kept_by = Some(HIDDEN);
            Decision::Leave
        } else {
            let status = match found.has_expired {
                true => Status::Killed,
                false => found.status,
            };
            put.mode
                .decide(status, found.next_iteration, new, time::now())
        };
        // Whatever the decision is, no session can pick the document until it is unlocked.
        bookkeeping::document_locked(self.queue, found.version, found.status);
        if decision == Decision::Anew {
            return Ok(self.make_room(spi, doc.subject, &found));
        }
        let Some((statement, args)) = statement_of(self.queue, doc, &found, decision)? else {
            return Ok(Some(Action::Ignored));
        };
        if self.queue.run_noting(spi, statement, &args).affected() == 0 {
            // A trigger or a policy of the user's keeps the document from being changed.
            self.kept_by = Some(KEPT);
            return Ok(Some(Action::Ignored));
        }
        bookkeeping::note_expiry(self.queue, doc.expires_at(self.queue));
        Ok(Some(self.record_changed(doc, &found, decision)))
    }

    /// Removes a finished document, which goes to the history where the queue keeps its outcome there.
    /// Some: a trigger or a policy of the user's keeps it from being removed.
    fn make_room(&mut self, spi: &Spi, subject: &str, found: &Found) -> Option<Action> {
        let outcome = match found.status {
            _ if found.has_expired => Outcome::Expired,
            Status::Completed => Outcome::Completed,
            _ => Outcome::Killed,
        };
        let subjects = [subject.to_owned()];
        let removed = history::archive(spi, self.queue, &subjects, outcome, By::Maintenance);
        if removed.affected() == 0 {
            self.kept_by = Some(KEPT);
            return Some(Action::Ignored);
        }
        match Event::expire(found.status).filter(|_| found.has_expired) {
            Some(event) => {
                self.events.add(event, found.version);
                self.events.add(Event::RemoveKilled, found.version);
                bookkeeping::subjects_settled(self.queue, subjects);
            }
            None => self.events.add(Event::remove(found.status), found.version),
        }
        None
    }

    /// Notes and counts a document that was changed.
    fn record_changed(&mut self, doc: &NewDoc, found: &Found, decision: Decision) -> Action {
        let from = found.status;
        let (to, version, priority, time, attempts) = match decision {
            Decision::Leave | Decision::Anew => return Action::Ignored,
            Decision::Merge | Decision::Queue(_) => (
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
        };
        // Each new version of the row may have an index entry of its own.
        let key = PickKey::new(time, attempts, found.seq);
        self.planned.add(version, priority, to, key);
        if version != found.version {
            // Documents are counted by version: one fewer of the old, one more of the new.
            self.events.add(Event::remove(from), found.version);
            self.events.add(Event::push(to), version);
        } else if let Some(event) = Event::upsert(from, to) {
            self.events.add(event, 0);
        }
        match decision {
            Decision::Queue(_) => Action::Queued,
            _ => Action::Updated,
        }
    }
}

/// The statement that does what was decided, and its parameters. None: the document stays as it is.
///
/// Fails with `Error::NotMergeable`.
fn statement_of(
    queue: &Queue,
    doc: &NewDoc,
    found: &Found,
    decision: Decision,
) -> Result<Option<(&'static Statement, Vec<Arg>)>> {
    let subject = Arg::from(doc.subject);
    let payload = Jsonb::arg(Some(doc.payload));
    let headers = Jsonb::arg(doc.headers);
    let plan = |to: Status| {
        vec![
            subject,
            Arg::timestamp(doc.next_iteration),
            Arg::from(to.code()),
            Arg::opt_timestamp(doc.expires_at(queue)),
        ]
    };
    Ok(Some(match decision {
        Decision::Leave | Decision::Anew => return Ok(None),
        Decision::Queue(how) => {
            let before = found.queued.map(Queued::read);
            let args = keep_args(queue, before.as_ref(), how, doc);
            (
                &KEEP,
                args.ok_or_else(|| not_mergeable(queue, doc.subject))?,
            )
        }
        Decision::Merge if !found.is_mergeable => return Err(not_mergeable(queue, doc.subject)),
        Decision::Merge => match doc.headers {
            None => (&MERGE, vec![subject, payload]),
            Some(_) => (&MERGE_WITH_HEADERS, vec![subject, payload, headers]),
        },
        Decision::Plan(to) => (&PLAN, plan(to)),
        Decision::PlanWithPayload(to) => (
            &PLAN_WITH_PAYLOAD,
            [plan(to), vec![payload, headers]].concat(),
        ),
        Decision::Replace(to) => {
            let mut args = doc.args(queue).to_vec();
            args[3] = Arg::from(to.code());
            (&REPLACE, args)
        }
    }))
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
        queued: rows.json(0, 10),
        has_expired: matches!(status, Status::Planned | Status::Pending)
            && rows.get(0, 11).unwrap_or(false),
    }))
}
