//! Settling a list of documents, each in its own way, and leasing the next ones.

use std::borrow::Cow;

use pgrx::prelude::*;

use crate::api::doc_lease::Wanted;
use crate::api::entry::{lease_number, queue_name, respond_write};
use crate::domain::invalid::Invalid;
use crate::domain::names;
use crate::domain::settlement::{self, ACTIONS, Action};
use crate::domain::wording::{shorten, shorten_message};
use crate::error::{self, Error, Result};
use crate::pg::call::Reply;
use crate::pg::json::{Jsonb, Value};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{passing_error, relation};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::doc_settle::Settlement;
use crate::store::settle::docs_settle::Outcome;
use crate::store::settle::follow_ups as store;

/// `docs_settle(queue, settlements, on_lost) → (subject, outcome, status)`: settles the documents of
/// a JSON array, each as its `action` says. A row for each tells its outcome: settled, lost,
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
        let on_lost = match call.opt_text(7) {
            None | Some("error") => OnLost::Fail,
            Some("warning") => OnLost::Warn,
            Some("ignore") => OnLost::Ignore,
            Some(other) => return Err(bad_on_lost(other, "'error', 'warning' or 'ignore'")),
        };
        let mut out = call.rows();
        // A transaction that has picked before may not have noticed yet that the queue was paused.
        relation::accept_invalidations();
        Queue::with(&name, Right::Work, |queue| {
            if !settlements.is_empty() {
                let outcomes = store::settle(queue, &settlements, on_lost == OnLost::Fail)?;
                if on_lost == OnLost::Warn {
                    warn_of_unsettled(queue, &settlements, &outcomes);
                }
            }
            // By the clock: the transaction may have done the work on the documents that it settles,
            // which is no time of the leases that follow.
            wanted.lease(queue, time::clock(), &mut out);
            Ok(())
        })?;
        Ok(out.done())
    })
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
        .filter(|(_, outcome)| **outcome != Outcome::Settled)
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
    let list = list.value();
    let elements = list
        .elements("settlements")?
        .ok_or_else(|| Invalid::Settlements(list.kind()))?;
    let read = |(at, element): (usize, &Value)| Reader { at: at + 1 }.read(element);
    elements.iter().enumerate().map(read).collect()
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

    /// A null is as if the key was left out.
    fn read(&self, settlement: &Value) -> Result<Settlement<'static>> {
        let mut members = settlement.members().ok_or_else(|| {
            let kind = settlement.kind();
            self.bad(format!("it is a JSON {kind}, not an object"))
        })?;
        let mut action = None;
        let mut doc = Settlement::new(Action::Drop);
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
        } else if has("delay") && has("next_iteration") {
            "it has a delay and a next_iteration"
        } else if doc.action == Action::Reschedule && doc.at.is_none() {
            "it has no delay and no next_iteration, which reschedule needs"
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
