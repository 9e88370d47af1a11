//! What all entry points share: running their bodies, and reading arguments that occur in many
//! functions. Positions of arguments count from 0.
//!
//! These errors are possible in every function, and its comment does not repeat them:
//! `OutOfMemory`, `LongList` for a list that is too long, `LongJson` for a filter or settings that are
//! too long, `NullArgument` for a NULL that has no meaning, `Invalid` for the name of a queue, a metric or a
//! schedule that is not valid and for a subject that is too long, `ReadOnly` for a function that
//! writes where that is impossible, `OtherVersion` where the library does not fit the catalog.

use std::borrow::Cow;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, notice, pg_sys};

use crate::domain::jobs::Ran;
use crate::domain::legacy_quotes::undouble;
use crate::domain::names::{self, QueueName};
use crate::domain::subjects;
use crate::domain::wording::shorten_message;
use crate::error::{self, Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::{Jsonb, Value};
use crate::pg::time::Interval;
use crate::pg::{memory, passing_error, relation, session, time, version};
use crate::settings;
use crate::store::documents::leases::NAME_MAX;

/// Runs the body of an entry point. Raises the error that the body returns as an ERROR.
/// Fails with `OtherVersion` when the library does not fit the catalog of this database.
pub fn respond(
    fcinfo: pg_sys::FunctionCallInfo,
    body: impl FnOnce(&Call) -> Result<Reply>,
) -> Reply {
    respond_always(fcinfo, |call| {
        // A transaction that has all its locks would not notice an upgrade of the extension.
        relation::accept_invalidations();
        version::require_fit()?;
        body(call)
    })
}

/// Runs the body of an entry point that works with a catalog of any version, because it reads none of
/// its tables. Raises the error that the body returns as an ERROR.
pub fn respond_always(
    fcinfo: pg_sys::FunctionCallInfo,
    body: impl FnOnce(&Call) -> Result<Reply>,
) -> Reply {
    let call = Call::new(fcinfo);
    let _work = memory::Work::begin();
    match passing_error::keep(|| {
        memory::require()?;
        body(&call)
    }) {
        Ok(reply) => reply,
        Err(e) => {
            ErrorReport::from(e).report(PgLogLevel::ERROR);
            unreachable!("an ERROR does not return")
        }
    }
}

/// Runs the body of an entry point that writes. Raises the error that the body returns as an ERROR.
/// Fails with `ReadOnly` on a hot standby and in a read-only transaction.
pub fn respond_write(
    fcinfo: pg_sys::FunctionCallInfo,
    body: impl FnOnce(&Call) -> Result<Reply>,
) -> Reply {
    respond(fcinfo, |call| {
        if session::is_read_only() {
            return Err(Error::ReadOnly {
                function: call.function_name(),
                standby: session::is_standby(),
            });
        }
        body(call)
    })
}

/// Turns an error into a warning and `value` where fetchq 4 returned that value and its callers
/// rely on it: `UnknownQueue`, `NotActive`, `InHistory` without a lease, `SomeNotActive` and `LeaseNeeded`:
/// the worker of fetchq 4 has lost the document to one of fetchq 5. With `fetchq.strict` these are errors
/// as well. A queue that lives on another server is always an error: its documents would be
/// lost otherwise.
pub fn lenient<T>(result: Result<T>, value: T) -> Result<T> {
    match result {
        Err(
            e @ (Error::UnknownQueue(_)
            | Error::NotActive { .. }
            | Error::InHistory { lease: None, .. }
            | Error::SomeNotActive { .. }
            | Error::LeaseNeeded { .. }),
        ) if !settings::strict() => {
            e.warn();
            Ok(value)
        }
        other => other,
    }
}

/// The result of a service of a queue. None, with a NOTICE, when it was busy.
pub fn or_notice<T>(ran: Ran<T>, name: &QueueName) -> Option<T> {
    if matches!(ran, Ran::Busy) {
        notice!("queue \"{name}\" is left out, because another session has locked it");
    }
    ran.done()
}

/// The name of a queue, checked and folded to lower case. Fails with `NullArgument` or `Invalid`.
pub fn queue_name(call: &Call, at: usize) -> Result<QueueName> {
    Ok(QueueName::parse(call.text(at, "queue")?)?)
}

/// As [`queue_name`], or `None` for NULL. Fails with `Invalid`.
pub fn opt_queue_name(call: &Call, at: usize) -> Result<Option<QueueName>> {
    Ok(call.opt_text(at).map(QueueName::parse).transpose()?)
}

/// The name of a worker. Fails with `NullArgument`, and with `BadValue` when no worker can have it.
pub fn worker_name<'a>(call: &'a Call, at: usize, argument: &'static str) -> Result<&'a str> {
    let name = call.text(at, argument)?;
    match name.chars().count() {
        1..=NAME_MAX => Ok(name),
        n => Err(Error::BadValue {
            argument,
            value: format!("a name of {n} characters"),
            rule: "the name of a worker, which has 1 to 200 characters",
        }),
    }
}

/// A lease number in JSON. Drivers give a bigint as text where their numbers are not as long. None: it
/// is something else.
pub fn lease_number(value: &Value) -> Option<i64> {
    let digits = value.number().or_else(|| value.text())?;
    digits.parse().ok()
}

/// The subject of a document, checked. Fails with `NullArgument` or `Invalid`.
pub fn subject(call: &Call, at: usize) -> Result<&str> {
    Ok(names::check_subject(call.text(at, "subject")?)?)
}

/// Generates a subject. Subjects sort in the order in which they were generated.
pub fn generated_subject() -> String {
    subjects::generate(time::clock(), session::number())
}

/// A limit of a number of rows; NULL: `default`. Fails with `NegativeLimit` when it is less than 0.
pub fn limit_or(call: &Call, at: usize, name: &'static str, default: i32) -> Result<i32> {
    match call.is_null(at) {
        true => Ok(default),
        false => call.limit(at, name),
    }
}

/// An interval that is passed as text. Fails with `NullArgument`, and with `BadInterval` when the
/// server cannot read it.
pub fn interval_text(call: &Call, at: usize, argument: &'static str) -> Result<Interval> {
    let text = call.text(at, argument)?;
    passing_error::refusal(|| Interval::parse(text))
        .map_err(|message| Error::BadInterval(argument, shorten_message(&message)))
}

/// The name of a metric, checked. Fails with `NullArgument` or `Invalid`.
pub fn metric_name(call: &Call, at: usize) -> Result<&str> {
    Ok(names::check_metric(call.text(at, "metric")?)?)
}

/// A payload as the caller meant it: with `fetchq.legacy_quotes`, doubled apostrophes become
/// single ones.
pub fn undouble_payload(payload: Jsonb) -> Jsonb {
    if settings::legacy_quotes() {
        let text = payload.to_text();
        if text.contains("''") {
            return Jsonb::parse(&undouble(&text));
        }
    }
    payload
}

/// A payload that must not be NULL. Fails with `NullArgument`.
pub fn payload(call: &Call, at: usize) -> Result<Jsonb> {
    call.json(at, "payload").map(undouble_payload)
}

/// A payload, or `None` for NULL.
pub fn opt_payload(call: &Call, at: usize) -> Option<Jsonb> {
    call.opt_json(at).map(undouble_payload)
}

/// The message of a failure, without the doubled apostrophes of `fetchq.legacy_quotes`, and cut to the
/// length that fits. None for NULL.
pub fn opt_message(call: &Call, at: usize) -> Result<Option<String>> {
    let Some(text) = call.opt_text(at) else {
        return Ok(None);
    };
    memory::provide(0, text.len())?;
    let text = match settings::legacy_quotes() {
        true => Cow::Owned(undouble(text)),
        false => Cow::Borrowed(text),
    };
    Ok(Some(names::cut_message(&text).to_owned()))
}

/// A message as [`opt_message`] reads it; for NULL, that there is none.
pub fn message(call: &Call, at: usize) -> Result<String> {
    let message = opt_message(call, at)?;
    Ok(message.unwrap_or_else(|| names::NO_MESSAGE.to_owned()))
}

/// A counter for a column that is an `int` since fetchq 4. A value that does not fit is replaced by
/// the nearest one that does, with a warning: an error would hide all other metrics too.
pub fn narrow(metric: &str, value: i64) -> i32 {
    i32::try_from(value).unwrap_or_else(|_| {
        let limit = if value > 0 { i32::MAX } else { i32::MIN };
        error::warn(
            pgrx::PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
            format!(
                "metric \"{metric}\" is {value}, which does not fit into an int: {limit} is shown"
            ),
            "Read it with fetchq.metric_get(queue) or from fetchq.metrics_live.",
        );
        limit
    })
}

/// A list of subjects, each of them checked. Fails with `NullElement` for a NULL in the list.
pub fn subjects(call: &Call, at: usize) -> Result<Vec<String>> {
    let list = call.texts(at, "subjects")?;
    list.into_iter()
        .map(|subject| match subject {
            Some(subject) => {
                names::check_subject(&subject)?;
                Ok(subject)
            }
            None => Err(Error::NullElement {
                function: call.function_name(),
                argument: "subjects",
            }),
        })
        .collect()
}
