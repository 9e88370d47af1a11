//! Settling a list of documents, each in its own way, and leasing the next ones.

use pgrx::prelude::*;

use crate::api::doc_lease::Wanted;
use crate::api::entry::{queue_name, respond_write};
use crate::domain::invalid::Invalid;
use crate::domain::names;
use crate::domain::settlement::{self, ACTIONS};
use crate::domain::wording::{shorten, shorten_message};
use crate::error::{self, Error, Result};
use crate::pg::call::Reply;
use crate::pg::json::{Jsonb, Value};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{passing_error, relation};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::docs_settle::{self as store, Action, Outcome, OwnedFailure, Settlement};

/// `docs_settle(queue, settlements, on_lost) → (subject, outcome, status)`: settles the documents of
/// a JSON array, each as its `action` says. A row for each tells its outcome: settled, lost,
/// not_active or missing. `on_lost`: 'report', or 'error' to settle all of them or none; NULL:
/// 'report'.
///
/// Fails with `UnknownQueue`, with `Invalid` for an array that is not valid, with `BadValue` for
/// another `on_lost`; with `on_lost` 'error' as `doc_complete` does.
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
                Arg::from(settlement.subject.as_str()),
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
/// none. `on_lost`: 'warning' for a warning that names the documents that were not settled, 'error'
/// to do all or nothing, 'ignore' to say nothing; NULL: 'warning'.
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
            None | Some("warning") => OnLost::Warn,
            Some("error") => OnLost::Fail,
            Some("ignore") => OnLost::Ignore,
            Some(other) => return Err(bad_on_lost(other, "'warning', 'error' or 'ignore'")),
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
fn read_list(list: Jsonb) -> Result<Vec<Settlement>> {
    let list = list.value();
    let elements = list
        .elements("settlements")?
        .ok_or_else(|| Invalid::Settlements(list.kind()))?;
    let read = |(at, element): (usize, &Value)| Reader { at: at + 1 }.read(element);
    elements.iter().enumerate().map(read).collect()
}

/// What a settlement names. A null is as if the key was left out.
#[derive(Default)]
struct Fields {
    subject: Option<String>,
    lease: Option<i64>,
    action: Option<settlement::Action>,
    payload: Option<Jsonb>,
    result: Option<Jsonb>,
    message: Option<String>,
    details: Option<Jsonb>,
    ref_id: Option<String>,
    delay: Option<i64>,
    next_iteration: Option<i64>,
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

    fn read(&self, settlement: &Value) -> Result<Settlement> {
        let members = settlement.members().ok_or_else(|| {
            let kind = settlement.kind();
            self.bad(format!("it is a JSON {kind}, not an object"))
        })?;
        let mut fields = Fields::default();
        for (key, value) in &members {
            if !settlement::is_key(key) {
                let key = shorten(key);
                return Err(self.bad(format!("it has an unknown key {key:?}")));
            }
            if !value.is_null() {
                self.read_member(&mut fields, key, value)?;
            }
        }
        let Some(action) = fields.action else {
            return Err(self.bad(format!("it has no action, expected {ACTIONS}")));
        };
        let odd = members
            .iter()
            .find(|(key, value)| !value.is_null() && !action.has_key(key));
        if let Some((key, _)) = odd {
            let action = action.word();
            return Err(self.bad(format!("the key {key:?} does not go with {action}")));
        }
        self.build(action, fields)
    }

    fn read_member(&self, fields: &mut Fields, key: &str, value: &Value) -> Result<()> {
        match key {
            "subject" => {
                let subject = self.text(key, value)?;
                names::check_subject(&subject).map_err(|invalid| self.too_long(invalid))?;
                fields.subject = Some(subject);
            }
            "lease" => {
                // Drivers give a bigint as text where their numbers are not as long.
                let digits = value.number().or_else(|| value.text());
                let lease = digits.and_then(|digits| digits.parse().ok());
                fields.lease = Some(lease.ok_or_else(|| {
                    let given = shorten(&value.to_jsonb().to_text());
                    self.bad(format!("its lease is {given}, expected a lease number"))
                })?);
            }
            "action" => {
                let word = self.text(key, value)?;
                let action = settlement::Action::parse(&word);
                fields.action = Some(action.ok_or_else(|| {
                    let word = shorten(&word);
                    self.bad(format!("its action is {word:?}, expected {ACTIONS}"))
                })?);
            }
            "payload" => fields.payload = Some(value.to_jsonb()),
            "result" => fields.result = Some(value.to_jsonb()),
            "message" => {
                let message = self.text(key, value)?;
                names::check_message(&message).map_err(|invalid| self.too_long(invalid))?;
                fields.message = Some(message);
            }
            "details" => fields.details = Some(value.to_jsonb()),
            "ref_id" => fields.ref_id = Some(self.text(key, value)?),
            "delay" => {
                let text = self.text(key, value)?;
                fields.delay = Some(self.convert(key, || {
                    let delay = Interval::parse(&text).as_duration("delay")?;
                    Ok(delay.after(time::now()))
                })?);
            }
            _ => {
                let text = self.text(key, value)?;
                let at = self.convert(key, || Ok(time::parse_timestamp(&text)))?;
                fields.next_iteration = Some(at);
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

    fn build(&self, action: settlement::Action, fields: Fields) -> Result<Settlement> {
        let Some(subject) = fields.subject else {
            return Err(self.bad("it has no subject".into()));
        };
        if fields.delay.is_some() && fields.next_iteration.is_some() {
            return Err(self.bad("it has a delay and a next_iteration".into()));
        }
        let at = fields.delay.or(fields.next_iteration);
        if fields.message.is_none() && (fields.details.is_some() || fields.ref_id.is_some()) {
            return Err(self.bad("it has details or a ref_id, and no message".into()));
        }
        let (details, ref_id) = (fields.details, fields.ref_id);
        let failure = fields.message.map(|message| OwnedFailure {
            message,
            details,
            ref_id,
        });
        let payload = fields.payload;
        let action = match action {
            settlement::Action::Complete => Action::Complete {
                payload,
                result: fields.result,
            },
            settlement::Action::Drop => Action::Drop,
            settlement::Action::Reject => Action::Reject {
                failure: failure
                    .ok_or_else(|| self.bad("it has no message, which reject needs".into()))?,
                not_before: at,
            },
            settlement::Action::Kill => Action::Kill { payload, failure },
            settlement::Action::Snooze => Action::Snooze {
                next_iteration: at.unwrap_or_else(time::now),
            },
            settlement::Action::Reschedule => Action::Reschedule {
                next_iteration: at.ok_or_else(|| {
                    self.bad("it has no delay and no next_iteration, which reschedule needs".into())
                })?,
                payload,
            },
        };
        Ok(Settlement {
            subject,
            lease: fields.lease,
            action,
        })
    }
}
