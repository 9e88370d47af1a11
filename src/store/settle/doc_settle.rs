//! Settles leased documents: one, or a list of which all are settled alike. `docs_settle.rs` has lists
//! of which each is settled in its own way. What an action does to a document is in `effect.rs`.
//!
//! A caller that names its lease settles the document only while that lease holds.

use std::slice;

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::timing::Tally;
use crate::error::{Error, Result};
use crate::late::memory;
use crate::late::table::Lease as Late;
use crate::pg::documents::{Change, Column, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::pg::{process, random, session, time};
use crate::ready::key::PickKey;
use crate::store::bounds::keys::{holding_keys, holding_queued_key};
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{
    documents_ready, note_entry, note_waiting_again, subjects_settled,
};
use crate::store::documents::doc_put::put_all_queued;
use crate::store::documents::error_log::log_failure;
use crate::store::documents::history::Outcome;
use crate::store::documents::history_worker::session_name;
use crate::store::documents::late_leases::{self, Found};
use crate::store::documents::lease_check::{
    LeasedDoc, NamedLease, holds_lease, lease_needed, look_at,
};
use crate::store::documents::lease_durability;
use crate::store::documents::leases;
use crate::store::documents::queued::queued_of;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::statement::Statement;
use crate::store::settle::dead_letters::{self, Settler};
use crate::store::settle::effect::{Argument, Becomes, DROP, Effect, Form, OF_LEASE, REJECT_LAST};
use crate::store::settle::repeated::unsettled_error;
use crate::store::settle::settlement::Settlement;

/// A leased document before it is settled.
struct Seen {
    version: i32,
    attempts: i32,
    max_attempts: Option<i32>,
    next_iteration: i64,
    picked_at: Option<i64>,
    has_key: bool,
    /// What was put on it while it was leased, as JSON text.
    queued: Option<String>,
}

// Index: primary key. No other index can serve `{is_leased}`.
static LOCK: Statement = Statement::new(
    "select d.version, d.attempts, d.max_attempts, d.next_iteration, d.picked_at,
         d.ordering_key is not null, d.queued
     from only {docs} d
     where d.subject {=} $1
         and {is_leased}
     for update",
);

impl Seen {
    fn of_row(row: &Row) -> Self {
        let max_attempts = !row.is_null(Column::MaxAttempts);
        Self {
            version: row.int4(Column::Version),
            attempts: row.int4(Column::Attempts),
            max_attempts: max_attempts.then(|| row.int4(Column::MaxAttempts)),
            next_iteration: row.int8(Column::NextIteration),
            picked_at: row.timestamp(Column::PickedAt),
            // Where keys matter, the documents have triggers, and only statements write them.
            has_key: false,
            queued: row.json_text(Column::Queued),
        }
    }

    /// Locks a document. None: it is not leased.
    fn lock(spi: &Spi, queue: &Queue, doc: LeasedDoc) -> Option<Self> {
        let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
        let rows = queue.run(spi, &LOCK, &args);
        (!rows.is_empty()).then(|| Self {
            version: rows.get(0, 1).unwrap_or(0),
            attempts: rows.get(0, 2).unwrap_or(0),
            max_attempts: rows.get(0, 3),
            next_iteration: rows.timestamp(0, 4).unwrap_or(i64::MIN),
            picked_at: rows.timestamp(0, 5),
            has_key: rows.get(0, 6) == Some(true),
            queued: queued_of(&rows, 0, 7),
        })
    }

    /// The document has had all its attempts.
    fn is_last(&self, queue: &Queue) -> bool {
        is_last(queue, self.attempts, self.max_attempts)
    }

    /// When the document is retried, in microseconds since 2000: when the caller says, or after the
    /// backoff of the queue, or when its lease would have expired.
    fn retry_at(&self, queue: &Queue, not_before: Option<i64>) -> i64 {
        match (not_before, queue.policy.retry) {
            (Some(time), _) => time,
            (None, Some(retry)) => {
                let delay = retry.delay(self.attempts, random::fraction());
                time::now().saturating_add(delay)
            }
            (None, None) => self.next_iteration,
        }
    }
}

fn is_last(queue: &Queue, attempts: i32, max_attempts: Option<i32>) -> bool {
    attempts >= max_attempts.unwrap_or(queue.policy.max_attempts)
}

/// What is done with a document.
struct Decision {
    effect: &'static Effect,
    /// None: the document leaves the table.
    to: Option<Status>,
    /// When the document is due, in microseconds since 2000.
    at: i64,
}

impl Decision {
    /// `seen`: the document, which decides where it is rejected.
    fn new(queue: &Queue, doc: &Settlement, effect: &'static Effect, seen: Option<&Seen>) -> Self {
        let at = doc.at.unwrap_or(time::COMPLETED_AT_US);
        let due = |at| Status::planned_or_pending(at <= time::now());
        let (effect, to, at) = match (effect.becomes, seen) {
            (Becomes::Removed, _) => (effect, None, at),
            (Becomes::Settled(status), _) => (effect, Some(status), at),
            (Becomes::Retried, Some(seen)) if seen.is_last(queue) => {
                (&REJECT_LAST, Some(Status::Killed), at)
            }
            (Becomes::Retried, Some(seen)) => {
                let at = seen.retry_at(queue, doc.at);
                // It is pending also before its time. Where others of its key are waiting for a place,
                // it is planned until then.
                let waits = seen.has_key && !queue.policy.key_order.keeps_place_on_retry();
                let to = if waits { due(at) } else { Status::Pending };
                (effect, Some(to), at)
            }
            (Becomes::Due | Becomes::Retried, _) => (effect, Some(due(at)), at),
        };
        Self { effect, to, at }
    }

    fn says(&self, doc: &Settlement, argument: Argument) -> Arg {
        match argument {
            Argument::Status => Arg::from(self.to.map(Status::code)),
            Argument::At => Arg::timestamp(self.at),
            Argument::Payload => Jsonb::arg(doc.payload),
            Argument::Result => Jsonb::arg(doc.result),
            Argument::Error => Arg::from(doc.last_error()),
        }
    }

    fn event(&self, leaves: Event) -> Event {
        self.to.map_or(leaves, self.effect.stays)
    }

    fn stays(&self, priority: i32, attempts: i32, seq: i64) -> Option<Stays> {
        self.to.map(|status| Stays {
            status,
            priority,
            key: PickKey::new(self.at, attempts, seq),
        })
    }
}

/// A document that was settled.
#[derive(Clone)]
pub(in crate::store) struct Settled {
    event: Event,
    version: i32,
    /// In microseconds since 2000.
    picked_at: Option<i64>,
    /// The number of the attempt that has ended, for the log.
    attempt: Option<i32>,
    /// It may have had all its attempts.
    is_last: bool,
    /// The bucket of its wait, if its pick is counted only now.
    late_wait: Option<i16>,
    /// None: it has left the table.
    stays: Option<Stays>,
    /// What was put on it while it was leased, as JSON text.
    queued: Option<String>,
}

/// A document as it was written: its status, and what indexes have of it.
#[derive(Clone, Copy)]
struct Stays {
    status: Status,
    priority: i32,
    key: PickKey,
}

/// Documents that are settled alike: by one action, under one lease, until one time.
struct Run<'a> {
    queue: &'a Queue,
    effect: &'static Effect,
    docs: &'a [Settlement<'a>],
    /// Which of them, in the order of the subjects, so that two sessions with some of the same subjects
    /// do not deadlock. No subject is there twice.
    order: &'a [usize],
    /// What became of each of `docs`.
    settled: &'a mut [Option<Settled>],
}

impl Run<'_> {
    /// The documents stay in the table or are removed from it.
    fn in_table(&mut self, effect: &'static Effect) {
        self.write_rows(effect);
        let is_left = |at: &&usize| self.settled[**at].is_none();
        let rest: Vec<usize> = self.order.iter().filter(is_left).copied().collect();
        if rest.is_empty() {
            return;
        }
        // The log tells which attempt it was, which the row no longer knows afterwards.
        let is_logged = |at: &usize| self.docs[*at].message.is_some();
        let looks = effect.becomes == Becomes::Retried
            || effect.becomes != Becomes::Removed && rest.iter().any(is_logged);
        spi::connect(|spi| {
            if !looks {
                self.run_statement(spi, effect, &rest, None);
                return;
            }
            for at in rest {
                if let Some(seen) = Seen::lock(spi, self.queue, self.docs[at].doc()) {
                    self.run_statement(spi, effect, &[at], Some(&seen));
                }
            }
        });
    }

    /// Settles documents without a statement, and leaves those that a statement has to decide.
    fn write_rows(&mut self, effect: &'static Effect) {
        let access = match effect.becomes {
            Becomes::Removed => Access::Delete,
            _ => Access::Update,
        };
        let Some(mut documents) = self.queue.documents(access) else {
            return;
        };
        for at in self.order {
            let doc = &self.docs[*at];
            let (row, late) =
                match late_leases::find(self.queue, &mut documents, &doc.subject, doc.lease) {
                    Found::Late(row, lease) => (Some(row), Some(lease)),
                    Found::Row => (documents.find(&doc.subject), None),
                };
            let Some(mut row) = row.filter(|row| holds_lease(row, doc.lease)) else {
                if late.is_some() {
                    late_leases::give_back(self.queue, &doc.subject);
                }
                continue;
            };
            let seen = Seen::of_row(&row);
            let decision = Decision::new(self.queue, doc, effect, Some(&seen));
            let change = if decision.to.is_some() {
                let says = |argument| decision.says(doc, argument);
                decision.effect.write(&mut row, says);
                documents.replace(&mut row, true)
            } else {
                documents.remove(&row, true)
            };
            if change != Change::Done {
                if late.is_some() {
                    late_leases::give_back(self.queue, &doc.subject);
                }
                // The statement goes on from here, because the order of the locks must be kept.
                return;
            }
            let (attempts, seq) = (row.int4(Column::Attempts), row.int8(Column::Seq));
            self.settled[*at] = Some(Settled {
                event: decision.event(self.effect.leaves),
                version: seen.version,
                picked_at: seen.picked_at,
                attempt: Some(seen.attempts),
                is_last: seen.is_last(self.queue),
                late_wait: late.as_ref().map(late_leases::wait),
                stays: decision.stays(row.int4(Column::Priority), attempts, seq),
                queued: seen.queued,
            });
        }
    }

    /// Settles documents by a statement. `seen`: the only one, which is locked.
    fn run_statement(
        &mut self,
        spi: &Spi,
        effect: &'static Effect,
        order: &[usize],
        seen: Option<&Seen>,
    ) {
        let Some(first) = order.first() else {
            return;
        };
        let form = match order.len() {
            1 => Form::One,
            _ => Form::Many,
        };
        let decision = Decision::new(self.queue, &self.docs[*first], effect, seen);
        self.run_form(spi, form, &decision, order, seen, &[]);
    }

    /// Moves the documents to the history.
    fn move_to_history(&mut self) {
        let decision = Decision {
            effect: self.effect,
            to: None,
            at: 0,
        };
        let (order, late) = self.hold_late();
        spi::connect(|spi| {
            self.run_form(spi, Form::LateHistory, &decision, &order, None, &late);
            for at in order {
                if self.settled[at].is_none() {
                    late_leases::give_back(self.queue, &self.docs[at].subject);
                }
            }
            let is_left = |at: &&usize| self.settled[**at].is_none();
            let left: Vec<usize> = self.order.iter().filter(is_left).copied().collect();
            self.run_form(spi, Form::History, &decision, &left, None, &[]);
        });
    }

    /// Holds the documents whose leases are late. Returns them, and their leases.
    fn hold_late(&self) -> (Vec<usize>, Vec<Late>) {
        let mut held = (Vec::new(), Vec::new());
        if !memory::exists() || !memory::has_leases(self.queue.table.to_u32()) {
            return held;
        }
        let Some(mut documents) = self.queue.documents(Access::Delete) else {
            return held;
        };
        for at in self.order {
            let doc = &self.docs[*at];
            let found = late_leases::find(self.queue, &mut documents, &doc.subject, doc.lease);
            match found {
                Found::Late(row, lease) if holds_lease(&row, doc.lease) => {
                    held.0.push(*at);
                    held.1.push(lease);
                }
                Found::Late(..) => late_leases::give_back(self.queue, &doc.subject),
                Found::Row => {}
            }
        }
        held
    }

    /// `seen`: the only document, which is locked. `late`: the leases that the rows do not have.
    fn run_form(
        &mut self,
        spi: &Spi,
        form: Form,
        decision: &Decision,
        order: &[usize],
        seen: Option<&Seen>,
        late: &[Late],
    ) {
        let docs: Vec<&Settlement> = order.iter().map(|at| &self.docs[*at]).collect();
        let Some(first) = docs.first() else {
            return;
        };
        let mut args = vec![
            match form {
                Form::One => Arg::from(&*first.subject),
                _ => subjects_of(docs.iter().copied()),
            },
            Arg::from(first.lease),
        ];
        if matches!(form, Form::History | Form::LateHistory) {
            let worker = session_name();
            let own = leases::own_sessions(self.queue.id, &worker);
            args.extend([Arg::from(worker.as_str()), Arg::from(own)]);
        }
        if form == Form::LateHistory {
            args.extend(OF_LEASE.map(|column| {
                late_leases::list(late, |lease| late_leases::column_of(lease, column))
            }));
        }
        args.extend(decision.effect.arguments(form).map(|argument| {
            if form == Form::One || argument.in_list().is_none() {
                return decision.says(first, argument);
            }
            let says = docs.iter().map(|doc| decision.says(doc, argument));
            Arg::array(&says.collect::<Vec<Arg>>())
        }));
        let statement = decision.effect.statement(form);
        let rows = self.queue.run_noting(spi, statement, &args);
        for row in 0..rows.len() {
            let subject: String = rows.get(row, 1).unwrap_or_default();
            let found = match form {
                Form::One => Ok(0),
                _ => docs.binary_search_by(|doc| (*doc.subject).cmp(&subject)),
            };
            let Ok(at) = found else {
                continue;
            };
            let (attempts, priority) = (rows.get(row, 4).unwrap_or(i32::MIN), rows.get(row, 5));
            let seq = rows.get(row, 6).unwrap_or(i64::MIN);
            self.settled[order[at]] = Some(Settled {
                event: decision.event(self.effect.leaves),
                version: rows.get(row, 2).unwrap_or(0),
                picked_at: rows.timestamp(row, 3),
                attempt: decision
                    .to
                    .map_or(Some(attempts), |_| seen.map(|seen| seen.attempts)),
                is_last: match (seen, decision.to) {
                    (Some(seen), _) => seen.is_last(self.queue),
                    (None, None) => is_last(self.queue, attempts, rows.get(row, 8)),
                    // The row has lost its attempts.
                    (None, Some(_)) => true,
                },
                late_wait: late.get(at).map(late_leases::wait),
                stays: decision.stays(priority.unwrap_or(0), attempts, seq),
                queued: queued_of(&rows, row, 7),
            });
        }
    }

    /// Moves the documents to a dead-letter queue. Fails as `dead_letters::kill` does.
    fn move_to_dead_letters(&mut self, target: &QueueName) -> Result<()> {
        for at in self.order {
            let doc = &self.docs[*at];
            let Some(seen) = spi::connect(|spi| Seen::lock(spi, self.queue, doc.doc())) else {
                continue;
            };
            dead_letters::kill(
                self.queue,
                target,
                &doc.subject,
                doc.payload,
                doc.last_error(),
            )?;
            self.settled[*at] = Some(Settled {
                event: self.effect.leaves,
                version: seen.version,
                picked_at: seen.picked_at,
                attempt: Some(seen.attempts),
                is_last: true,
                late_wait: None,
                stays: None,
                queued: seen.queued,
            });
        }
        Ok(())
    }

    /// Settles all of them that are leased. Fails as `move_to_dead_letters` and `finish` do.
    fn settle(mut self) -> Result<()> {
        let policy = &self.queue.policy;
        match (self.effect.outcome, &policy.dead_letter) {
            (None, _) => self.in_table(self.effect),
            (Some(Outcome::Killed), Some(target)) => self.move_to_dead_letters(target)?,
            (Some(outcome), _) => match outcome.keep(self.queue) {
                Keep::InTable => self.in_table(self.effect),
                Keep::Nowhere => self.in_table(&DROP),
                Keep::InHistory => self.move_to_history(),
            },
        }
        for at in self.order {
            process::check_for_interrupts();
            if let Some(settled) = &self.settled[*at] {
                finish(self.queue, &self.docs[*at], settled)?;
            }
        }
        let queued = self.order.iter().filter_map(|at| {
            let queued = self.settled[*at].as_ref()?.queued.as_deref()?;
            Some((&*self.docs[*at].subject, queued))
        });
        put_all_queued(self.queue, &queued.collect::<Vec<_>>());
        Ok(())
    }
}

/// What follows from a document that was settled: it is noted and counted, sessions that wait are woken,
/// and a failure is logged. Fails as `dead_letters::settle_failed` does.
fn finish(queue: &Queue, doc: &Settlement, settled: &Settled) -> Result<()> {
    let (event, version) = (settled.event, settled.version);
    if settled.is_last {
        lease_durability::settled_for_good();
    }
    if let Some(stays) = &settled.stays
        && matches!(stays.status, Status::Pending | Status::Planned)
    {
        note_entry(queue, version, stays.priority, stays.status, stays.key);
        note_waiting_again(queue);
        documents_ready(queue, version, stays.status, 1);
    }
    let run = event
        .timing()
        .and_then(|_| counter_log::run_bucket(time::clock(), settled.picked_at));
    if event == Event::RejectKilled {
        let subjects = [doc.subject.clone().into_owned()];
        if let Some(wait) = settled.late_wait {
            let mut waits = Tally::new();
            waits.add(Some(wait));
            counter_log::record_late_picks(queue, &waits);
        }
        let by = Settler::Worker { run };
        dead_letters::settle_failed(queue, &subjects, event, REJECT_LAST.leaves, by)?;
    } else {
        // The version matters where a document leaves.
        let version = settled.stays.map_or(version, |_| 0);
        match settled.late_wait {
            Some(wait) => counter_log::record_late(queue, version, event, wait, run),
            None => counter_log::record_one(queue, version, event, run),
        }
        if event.settles() {
            subjects_settled(queue, [&doc.subject]);
        }
    }
    if let Some(message) = &doc.message {
        let ref_id = doc.ref_id.as_deref();
        let attempt = settled.attempt;
        log_failure(queue, &doc.subject, message, doc.details, ref_id, attempt);
    }
    Ok(())
}

/// Settles those of the documents that `order` names, which are alike and in the order of their
/// subjects. `settled` gets what became of them, None for a document that is not leased.
///
/// Fails with the errors of `dead_letters::kill` and of `dead_letters::settle_failed`.
pub(in crate::store) fn settle_run(
    queue: &Queue,
    docs: &[Settlement],
    order: &[usize],
    settled: &mut [Option<Settled>],
) -> Result<()> {
    let Some(first) = order.first() else {
        return Ok(());
    };
    let run = Run {
        queue,
        effect: Effect::of(docs[*first].action),
        docs,
        order,
        settled,
    };
    run.settle()
}

/// Settles a document as its action says. It stays, is removed, or moves to the history or to the
/// dead-letter queue, by the policy of the queue.
///
/// Fails with `Error::LeaseLost` if the caller names a lease that does not hold, with
/// `Error::NotActive` if it names none and the document is not leased, with `Error::LeaseNeeded` if only
/// the number settles it, and as [`settle_run`] does.
pub fn settle_one(queue: &Queue, doc: &Settlement) -> Result<()> {
    let mut settled = [None];
    lease_durability::settle(queue, || {
        holding_queued_key(queue, &doc.subject, || {
            settle_run(queue, slice::from_ref(doc), &[0], &mut settled)
        })
    })?;
    match settled {
        [Some(_)] => Ok(()),
        [None] => Err(spi::connect(|spi| unsettled_error(spi, queue, doc))),
    }
}

/// Settles documents that are alike. Returns for each whether it was leased; one that is listed twice is
/// not the second time. Fails with `Error::LeaseNeeded` if the caller names no lease and only the number
/// settles one of them, and as [`settle_run`] does. After an error the caller must fail, because some
/// documents may have been settled. Fails with `Error::OlderSnapshot` if the snapshot of the transaction is older
/// than a lease.
pub fn settle_alike(queue: &Queue, docs: &[Settlement]) -> Result<Vec<bool>> {
    let mut order = in_order(docs);
    order.dedup_by(|at, first| docs[*at].subject == docs[*first].subject);
    let mut settled = vec![None; docs.len()];
    let settle = || settle_run(queue, docs, &order, &mut settled);
    lease_durability::settle(queue, || {
        holding_keys(
            queue,
            || subjects_of(docs),
            || counter_log::together(settle),
        )
    })?;
    let left = order.iter().filter(|at| settled[**at].is_none());
    let mut left: Vec<&Settlement> = left.map(|at| &docs[*at]).collect();
    if memory::exists() && session::keeps_snapshot() {
        let named = |doc: &&Settlement| {
            let subject = doc.subject.clone().into_owned();
            doc.lease.map(|lease| NamedLease { subject, lease })
        };
        let named: Vec<NamedLease> = left.iter().filter_map(named).collect();
        if !look_at(queue, &named).sessions.is_empty() {
            return Err(Error::OlderSnapshot(queue.name.to_string()));
        }
    }
    left.retain(|doc| doc.lease.is_none());
    if let Some(first) = left.first()
        && let Some(error) = lease_needed(
            queue,
            subjects_of(left.iter().copied()),
            first.action.word(),
        )
    {
        return Err(error);
    }
    Ok(settled.iter().map(Option::is_some).collect())
}

/// The documents in the order of their subjects.
pub(in crate::store) fn in_order(docs: &[Settlement]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..docs.len()).collect();
    order.sort_by_key(|at| &*docs[*at].subject);
    order
}

/// The subjects of documents, a `text[]`.
pub(in crate::store) fn subjects_of<'a>(docs: impl IntoIterator<Item = &'a Settlement<'a>>) -> Arg {
    let subjects = docs.into_iter().map(|doc| &*doc.subject);
    Arg::from(subjects.collect::<Vec<&str>>())
}
