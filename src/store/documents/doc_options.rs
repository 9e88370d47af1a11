//! The options of a document that is added: what `doc_put`, `doc_put_many` and `doc_append` have in
//! common. None stands for the default of an option.

use crate::domain::names;
use crate::domain::put_mode::{MODES, Mode};
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::time::{self, Interval};

/// When a document is due, in microseconds since 2000: at `next_iteration`, or `delay` after the
/// start of the transaction; now with neither of them.
///
/// Fails with `Error::BothGiven` when both are given, with `Error::BadDuration` or
/// `Error::LongDuration` for a delay that is negative, infinite or too long.
pub fn due(next_iteration: Option<i64>, delay: Option<Interval>) -> Result<i64> {
    match (next_iteration, delay) {
        (Some(_), Some(_)) => Err(Error::BothGiven {
            one: "delay",
            other: "next_iteration",
        }),
        (Some(at), None) => Ok(at),
        (None, Some(delay)) => Ok(delay.as_duration("delay")?.after(time::now())),
        (None, None) => Ok(time::now()),
    }
}

/// The headers of a document. Fails with `Error::BadValue` when they are no JSON object.
pub fn headers(headers: Option<Jsonb>) -> Result<Option<Jsonb>> {
    match headers.filter(|headers| !headers.is_object()) {
        None => Ok(headers),
        Some(other) => Err(Error::BadValue {
            argument: "headers",
            value: format!("a JSON {}", other.type_name()),
            rule: "a JSON object",
        }),
    }
}

/// How long after its time a document expires that has not begun, in months, days and microseconds;
/// None: as set for the queue.
///
/// Fails with `Error::BadDuration` or `Error::LongDuration` when it is negative, infinite or too long,
/// and with `Error::BadValue` when it is 0.
pub fn expires_in(after: Option<Interval>) -> Result<Option<(i32, i32, i64)>> {
    let Some(after) = after else { return Ok(None) };
    let after = after.as_duration("expires_in")?;
    match after.length() {
        Some(0) => Err(Error::BadValue {
            argument: "expires_in",
            value: "0".to_owned(),
            rule: "an interval above 0, or NULL for what the queue is set to",
        }),
        _ => Ok(Some(after.parts())),
    }
}

/// After how many attempts a document is killed; None: as set for the queue. Fails with
/// `Error::BadValue` when it is less than 1.
pub fn max_attempts(n: Option<i32>) -> Result<Option<i32>> {
    match n.filter(|n| *n < 1) {
        None => Ok(n),
        Some(n) => Err(Error::BadValue {
            argument: "max_attempts",
            value: n.to_string(),
            rule: "1 or more, or NULL for what the queue is set to",
        }),
    }
}

/// The ordering key of a document. Fails with `Invalid::KeyLength` when it is too long.
pub fn ordering_key(key: Option<&str>) -> Result<Option<&str>> {
    Ok(key.map(names::check_ordering_key).transpose()?)
}

/// A mode. Fails with `Error::BadValue` for an unknown one.
pub fn mode(text: Option<&str>) -> Result<Mode> {
    let text = text.unwrap_or("ignore");
    Mode::parse(text).ok_or_else(|| Error::BadValue {
        argument: "mode",
        value: format!("{:?}", text),
        rule: MODES,
    })
}
