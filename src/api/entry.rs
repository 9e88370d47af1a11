//! The entry points: what PostgreSQL calls. Their SQL declarations are in
//! `src/sql/functions.sql`. Each is three moves: read the arguments into types, one
//! call of the domain, shape the result.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, pg_sys};

use crate::domain::legacy_quotes::undouble;
use crate::domain::names::{self, QueueName};
use crate::domain::subjects;
use crate::error::{self, Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::value::Arg;
use crate::pg::{session, time};
use crate::settings;

/// Runs the body of an entry point and advances the error it ends with.
pub fn respond(
    fcinfo: pg_sys::FunctionCallInfo,
    body: impl FnOnce(&Call) -> Result<Reply>,
) -> Reply {
    match body(&Call::new(fcinfo)) {
        Ok(reply) => reply,
        Err(e) => {
            ErrorReport::from(e).report(PgLogLevel::ERROR);
            unreachable!("an ERROR does not return")
        }
    }
}

/// The same for functions that write: says why not where writing is impossible.
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

/// Where fetchq 4 returned a value for an error that callers rely on, so do we, with
/// a warning; `fetchq.strict` advances it.
pub fn lenient<T>(result: Result<T>, value: T) -> Result<T> {
    match result {
        Err(
            e @ (Error::UnknownQueue(_) | Error::NotActive { .. } | Error::SomeNotActive { .. }),
        ) if !settings::strict() => {
            e.warn();
            Ok(value)
        }
        other => other,
    }
}

pub fn queue_name(call: &Call, at: usize) -> Result<QueueName> {
    Ok(QueueName::parse(call.text(at, "queue")?)?)
}

pub fn subject(call: &Call, at: usize) -> Result<&str> {
    Ok(names::check_subject(call.text(at, "subject")?)?)
}

/// A new subject, in order of time.
pub fn generated_subject() -> String {
    subjects::generate(time::clock(), session::number())
}

pub fn metric_name(call: &Call, at: usize) -> Result<&str> {
    Ok(names::check_metric(call.text(at, "metric")?)?)
}

/// A payload as the caller meant it (`fetchq.legacy_quotes`).
pub fn meant(payload: Jsonb) -> Jsonb {
    if settings::legacy_quotes() {
        let text = payload.to_text();
        if text.contains("''") {
            return Jsonb::parse(&undouble(&text));
        }
    }
    payload
}

pub fn payload(call: &Call, at: usize) -> Result<Jsonb> {
    call.json(at, "payload").map(meant)
}

pub fn opt_payload(call: &Call, at: usize) -> Option<Jsonb> {
    call.opt_json(at).map(meant)
}

/// A message as the caller meant it.
pub fn message(call: &Call, at: usize) -> Result<String> {
    let text = call.text(at, "message")?;
    Ok(if settings::legacy_quotes() {
        undouble(text)
    } else {
        text.to_owned()
    })
}

/// A counter in a column that fetchq 4 made too narrow: the largest value that fits,
/// with a warning, because an error would take every other metric away with it.
pub fn narrow(metric: &str, value: i64) -> i32 {
    i32::try_from(value).unwrap_or_else(|_| {
        let limit = if value > 0 { i32::MAX } else { i32::MIN };
        error::warn(
            pgrx::PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
            format!("metric \"{metric}\" is {value}, which does not fit: {limit} is shown"),
            "Read it with fetchq.metric_get(queue) or from fetchq.metrics_live.",
        );
        limit
    })
}

/// A list of subjects, checked.
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

/// The payloads that belong to `n` subjects; nothing where there are none.
pub fn payloads(call: &Call, at: usize, n: usize) -> Result<Arg> {
    match call.json_array(at)? {
        None => Ok(Arg::no_json_array()),
        Some((_, got)) if got != n => Err(Error::ListLengths {
            subjects: n,
            payloads: got,
        }),
        Some((array, _)) => Ok(array),
    }
}
