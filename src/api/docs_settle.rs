//! Settling a list of documents, each in its own way, and leasing the next ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use pgrx::prelude::*;

use crate::api::doc_lease::{Wanted, WantedOfAny};
use crate::api::entry::{lease_number, queue_name, respond_write};
use crate::domain::invalid::Invalid;
use crate::domain::names::{self, QueueName};
use crate::domain::settlement::{self, ACTIONS, Action};
use crate::domain::wording::{shorten, shorten_message};
use crate::error::{self, Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::{Jsonb, Value};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{passing_error, relation};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::docs_settle::Outcome;
use crate::store::settle::follow_ups::{self as store, OfQueue};
use crate::store::settle::settlement::Settlement;

/// `docs_settle(queue, settlements, on_lost) → (subject, outcome, status)`: settles the documents of
/// a JSON array, each as its `action` says. A row for each tells its outcome: settled, repeated, lost,
/// not_active or missing. `on_lost`: 'report', or 'error' to settle all of them or none; NULL:
/// 'report'. A document that is settled puts those of its `then`, in the queues that they name.
///
/// Fails with `UnknownQueue`, with `InThen` for a document of `then` that is not valid, or into whose queue
/// the caller may not push, with `Invalid` for an array that is not valid, with `BadValue` for
/// another `on_lost`; with `LeaseNeeded` where a lease is missing; with `on_lost` 'error' as
/// `doc_complete` does.
#[pg_extern(sql = false)]
fn docs_settle(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let settlements = read_list(call.json(1, "settlements")?)?;
        let fails_on_lost = match call.opt_text(2) {
            None | Some("report") => false,
            Some("error") => true,
            Some(other) => return Err(bad_on_lost(other, "'report' or 'error'")),
        };
        let mut out = call.rows();
        let outcomes = Queue::with(&name, Right::Work, |queue| {
            store::settle(queue, &settlements, fails_on_lost)
        })?;
        for (settlement, outcome) in settlements.iter().zip(outcomes) {
            out.push(&[
                Arg::from(&*settlement.subject),
                Arg::from(outcome.word()),
                Arg::from(outcome.status().map(|status| status.word())),
            ]);
        }
        Ok(out.done())
    })
}

/// What `docs_next` does about documents that were not settled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLost {
    Warn,
    Fail,
    Ignore,
}

/// `docs_next(queue, settlements, max_docs, duration, version, worker, binding, on_lost) →
/// documents`: settles as `docs_settle` does, then leases as `doc_lease` does. `settlements` NULL:
/// none. `on_lost`: 'error' to do all or nothing, 'warning' for a warning that names the documents that
/// were not settled, 'ignore' to say nothing; NULL: 'error', because most drivers show no warnings.
///
/// Fails as these two do.
#[pg_extern(sql = false)]
fn docs_next(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let settlements = call.opt_json(1).map(read_list).transpose()?;
        let settlements = settlements.unwrap_or_default();
        let wanted = Wanted::read(call, 2)?;
        let on_lost = OnLost::read(call, 7)?;
        let mut out = call.rows();
        // A transaction that has picked before may not have noticed yet that the queue was paused.
        relation::accept_invalidations();
        Queue::with(&name, Right::Work, |queue| {
            let docs = &settlements;
            on_lost.settle(&[OfQueue { queue, docs }])?;
            // By the clock: the transaction may have done the work on the documents that it settles,
            // which is no time of the leases that follow.
            wanted.lease(queue, time::clock(), &mut out);
            Ok(())
        })?;
        Ok(out.done())
    })
}

impl OnLost {
    /// Reads the argument. Fails with `BadValue`.
    fn read(call: &Call, at: usize) -> Result<Self> {
        match call.opt_text(at) {
            None | Some("error") => Ok(Self::Fail),
            Some("warning") => Ok(Self::Warn),
            Some("ignore") => Ok(Self::Ignore),
            Some(other) => Err(bad_on_lost(other, "'error', 'warning' or 'ignore'")),
        }
    }

    /// Settles the documents of queues, if there are any. Fails as `store::settle_all` does.
    fn settle(self, lists: &[OfQueue]) -> Result<()> {
        if lists.iter().all(|list| list.docs.is_empty()) {
            return Ok(());
        }
        let outcomes = store::settle_all(lists, self == Self::Fail)?;
        if self == Self::Warn {
            for (list, outcomes) in lists.iter().zip(outcomes) {
                warn_of_unsettled(list.queue, list.docs, &outcomes);
            }
        }
        Ok(())
    }
}

/// `docs_next_any(queues, settlements, max_docs, duration, version, weights, worker, binding, on_lost) →
/// (queue, document)`: settles documents of several queues, then leases as `doc_lease_any` does.
/// Each settlement names its `queue`, which need not be one of `queues`; where these are one, it may
/// be left out. The other arguments are those of `docs_next`.
///
/// Fails as `docs_next` and `doc_lease_any` do.
#[pg_extern(sql = false)]
fn docs_next_any(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let wanted = WantedOfAny::read(call, 2)?;
        let only = match &*wanted.names {
            [only] => Some(only),
            _ => None,
        };
        let settlements = call.opt_json(1).map(|list| read_of_queues(list, only));
        let settlements = settlements.transpose()?.unwrap_or_default();
        let on_lost = OnLost::read(call, 8)?;
        let mut out = call.rows();
        let queues = wanted.open()?;
        // In the order of the queues, so that two sessions do not deadlock.
        let open = |name| Queue::open_for(name, Right::Work);
        let opened = settlements.keys().map(open);
        let opened = opened.collect::<Result<Vec<Rc<Queue>>>>()?;
        let lists = opened.iter().zip(settlements.values());
        let lists = lists.map(|(queue, docs)| OfQueue { queue, docs });
        on_lost.settle(&lists.collect::<Vec<_>>())?;
        wanted.lease(&queues, time::clock(), &mut out);
        Ok(out.done())
    })
}

/// Settlements, by queue.
type OfQueues = BTreeMap<QueueName, Vec<Settlement<'static>>>;

/// Reads the settlements of a JSON array, each with its queue. `only`: the queue of those that name none.
/// Fails with `Invalid` for the first one that is not valid.
fn read_of_queues(list: Jsonb, only: Option<&QueueName>) -> Result<OfQueues> {
    let mut read = OfQueues::new();
    let mut seen: HashMap<(QueueName, String), usize> = HashMap::new();
    for (at, element) in elements(list)?.iter().enumerate() {
        let reader = Reader { at: at + 1 };
        let mut members = reader.members(element)?;
        let mut queue = only.cloned();
        if let Some(named) = members.iter().position(|(key, _)| key == "queue") {
            let (key, value) = members.swap_remove(named);
            if !value.is_null() {
                let name = QueueName::parse(&reader.text(&key, &value)?);
                queue = Some(name.map_err(|invalid| reader.bad(invalid.to_string()))?);
            }
        }
        let Some(queue) = queue else {
            return Err(reader.bad("it has no queue".to_owned()));
        };
        let doc = reader.read(members)?;
        let key = (queue.clone(), doc.subject.to_string());
        if let Some(first) = seen.insert(key, reader.at) {
            let subject = &doc.subject;
            let reason = format!("its subject {subject:?} is that of settlement {first} too");
            return Err(reader.bad(reason));
        }
        read.entry(queue).or_default().push(doc);
    }
    Ok(read)
}

fn bad_on_lost(given: &str, rule: &'static str) -> Error {
    Error::BadValue {
        argument: "on_lost",
        value: format!("{given:?}"),
        rule,
    }
}

/// How many documents that were not settled the warning names.
const MAX_NAMED: usize = 10;

/// Warns of documents that were not settled, if there are any.
fn warn_of_unsettled(queue: &Queue, settlements: &[Settlement], outcomes: &[Outcome]) {
    let unsettled: Vec<_> = settlements
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| !outcome.is_settled())
        .collect();
    if unsettled.is_empty() {
        return;
    }
    let named = unsettled.iter().take(MAX_NAMED);
    let named: Vec<String> = named
        .map(|(settlement, outcome)| format!("\"{}\" ({})", settlement.subject, outcome.reason()))
        .collect();
    let mut which = named.join(", ");
    if unsettled.len() > MAX_NAMED {
        which += &format!(", and {} more", unsettled.len() - MAX_NAMED);
    }
    error::warn(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "{} of {} documents of queue \"{}\" were not settled: {which}",
            unsettled.len(),
            settlements.len(),
            queue.name
        ),
        "The other documents were settled. Undo the work that was done for these. With on_lost => 'error' the call fails instead, and settles nothing.",
    );
}

/// Reads the settlements of a JSON array. Fails with `Invalid` for the first one that is not valid.
fn read_list(list: Jsonb) -> Result<Vec<Settlement<'static>>> {
    let read = |(at, element): (usize, &Value)| {
        let reader = Reader { at: at + 1 };
        reader.read(reader.members(element)?)
    };
    elements(list)?.iter().enumerate().map(read).collect()
}

fn elements(list: Jsonb) -> Result<Vec<Value>> {
    let list = list.value();
    let elements = list.elements("settlements")?;
    Ok(elements.ok_or_else(|| Invalid::Settlements(list.kind()))?)
}

/// What a worker says of a failure, as text: a worker may report what is no text, such as an exception.
fn as_text(value: &Value) -> String {
    value.text().unwrap_or_else(|| value.to_jsonb().to_text())
}

/// Reads one settlement.
struct Reader {
    /// Its position in the list, from 1.
    at: usize,
}

impl Reader {
    fn bad(&self, reason: String) -> Error {
        let at = self.at;
        Invalid::Settlement { at, reason }.into()
    }

    fn members(&self, settlement: &Value) -> Result<Vec<(String, Value)>> {
        settlement.members().ok_or_else(|| {
            let kind = settlement.kind();
            self.bad(format!("it is a JSON {kind}, not an object"))
        })
    }

    /// A null is as if the key was left out.
    fn read(&self, mut members: Vec<(String, Value)>) -> Result<Settlement<'static>> {
        let mut action = None;
        let mut doc = Settlement::new(Action::Drop);
        doc.position = self.at - 1;
        for (key, value) in &members {
            if !settlement::is_key(key) {
                let key = shorten(key);
                return Err(self.bad(format!("it has an unknown key {key:?}")));
            }
            if !value.is_null() {
                self.read_member(&mut doc, &mut action, key, value)?;
            }
        }
        members.retain(|(_, value)| !value.is_null());
        let Some(action) = action else {
            return Err(self.bad(format!("it has no action, expected {ACTIONS}")));
        };
        if let Some((key, _)) = members.iter().find(|(key, _)| !action.has_key(key)) {
            let action = action.word();
            return Err(self.bad(format!("the key {key:?} does not go with {action}")));
        }
        doc.action = action;
        self.check(&doc, |wanted| members.iter().any(|(key, _)| key == wanted))?;
        if action == Action::Snooze {
            doc.at.get_or_insert_with(time::now);
        }
        if action == Action::Reject || doc.details.is_some() || doc.ref_id.is_some() {
            doc.message.get_or_insert(Cow::Borrowed(names::NO_MESSAGE));
        }
        Ok(doc)
    }

    /// Checks that a settlement has what it needs. `has`: whether it has a key.
    fn check(&self, doc: &Settlement, has: impl Fn(&str) -> bool) -> Result<()> {
        let lacks = if !has("subject") {
            "it has no subject"
        } else if has("delay") && has("due_at") {
            "it has a delay and a due_at"
        } else if doc.action == Action::Reschedule && doc.at.is_none() {
            "it has no delay and no due_at, which reschedule needs"
        } else {
            return Ok(());
        };
        Err(self.bad(lacks.to_owned()))
    }

    fn read_member(
        &self,
        doc: &mut Settlement,
        action: &mut Option<Action>,
        key: &str,
        value: &Value,
    ) -> Result<()> {
        match key {
            "subject" => {
                let subject = self.text(key, value)?;
                names::check_subject(&subject).map_err(|invalid| self.too_long(invalid))?;
                doc.subject = Cow::Owned(subject);
            }
            "lease" => {
                doc.lease = Some(lease_number(value).ok_or_else(|| {
                    let given = shorten(&value.to_jsonb().to_text());
                    self.bad(format!("its lease is {given}, expected a lease number"))
                })?);
            }
            "action" => {
                let word = self.text(key, value)?;
                *action = Some(Action::parse(&word).ok_or_else(|| {
                    let word = shorten(&word);
                    self.bad(format!("its action is {word:?}, expected {ACTIONS}"))
                })?);
            }
            "payload" => doc.payload = Some(value.to_jsonb()),
            "result" => doc.result = Some(value.to_jsonb()),
            "message" => {
                let message = as_text(value);
                doc.message = Some(Cow::Owned(names::cut_message(&message).to_owned()));
            }
            "details" => doc.details = Some(value.to_jsonb()),
            "then" => {
                if value.checked_len("then")?.is_none() {
                    let kind = value.kind();
                    let reason =
                        format!("its then is a JSON {kind}, expected an array of documents");
                    return Err(self.bad(reason));
                }
                doc.then = Some(value.to_jsonb());
            }
            "ref_id" => doc.ref_id = Some(Cow::Owned(as_text(value))),
            "delay" => {
                let text = self.text(key, value)?;
                doc.at = Some(self.convert(key, || {
                    let delay = Interval::parse(&text).as_duration("delay")?;
                    Ok(delay.after(time::now()))
                })?);
            }
            _ => {
                let text = self.text(key, value)?;
                doc.at = Some(self.convert(key, || Ok(time::parse_timestamp(&text)))?);
            }
        }
        Ok(())
    }

    fn too_long(&self, invalid: Invalid) -> Error {
        let (at, too_long) = (self.at, Box::new(invalid));
        Invalid::SettlementLength { at, too_long }.into()
    }

    fn text(&self, key: &str, value: &Value) -> Result<String> {
        value.text().ok_or_else(|| {
            let kind = value.kind();
            self.bad(format!("its {key} is a JSON {kind}, expected a string"))
        })
    }

    /// Has the server read a text. Fails with its message, or with that of the error of `read`.
    fn convert(&self, key: &str, read: impl FnOnce() -> Result<i64>) -> Result<i64> {
        let explain = |message: &str| {
            let reason = format!("its {key} cannot be read: {}", shorten_message(message));
            error::raise::<()>(Err(self.bad(reason)));
        };
        let read = passing_error::replace_bad_value(read, explain);
        read.map_err(|error| self.bad(error.to_string()))
    }
}
