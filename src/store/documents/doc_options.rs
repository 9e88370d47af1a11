//! The options of a document that is added: what `doc_put`, `doc_put_many` and `doc_append` have in
//! common. None stands for the default of an option.

use crate::domain::names;
use crate::domain::put_mode::{MODES, Mode, OnDuplicate};
use crate::domain::unique::{self, Period};
use crate::error::{Error, Result};
use crate::pg::hash;
use crate::pg::json::Jsonb;
use crate::pg::time::{self, Interval};

/// When a document is due, in microseconds since 2000: at `due_at`, or `delay` after the
/// start of the transaction; now with neither of them.
///
/// Fails with `Error::BothGiven` when both are given, with `Error::BadDuration` or
/// `Error::LongDuration` for a delay that is negative, infinite or too long.
pub fn due(due_at: Option<i64>, delay: Option<Interval>) -> Result<i64> {
    match (due_at, delay) {
        (Some(_), Some(_)) => Err(Error::BothGiven {
            one: "delay",
            other: "due_at",
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
pub fn mode(text: Option<&str>) -> Result<Option<Mode>> {
    let Some(text) = text else { return Ok(None) };
    let mode = Mode::parse(text).ok_or_else(|| Error::BadValue {
        argument: "mode",
        value: format!("{:?}", text),
        rule: MODES,
    });
    mode.map(Some)
}

/// The mode where none is named: `once` for a document that is unique by its content, else `ignore`.
pub fn default_mode(is_unique: bool) -> Mode {
    Mode {
        is_once: is_unique,
        ..Mode::new(OnDuplicate::Ignore)
    }
}

/// The subject of a document that is unique by its content: by the fields `by` of its payload, or by all
/// of it if that is empty, for ever or within each period `per`. None: it is not unique in this way.
///
/// The same content makes the same subject, whatever the order of the keys, and however its numbers are
/// written. A field that is missing counts as null.
///
/// Fails with `Error::BothGiven` if there is a `subject` beside it, with `Error::AlsoNeeded` for a period
/// alone, and with `Error::BadValue` for a payload without fields, and for a period that is not valid.
pub fn unique_subject(
    subject: Option<&str>,
    by: Option<&[String]>,
    per: Option<Interval>,
    payload: Jsonb,
) -> Result<Option<String>> {
    let Some(by) = by else {
        return match per {
            None => Ok(None),
            Some(_) => Err(Error::AlsoNeeded {
                given: "unique_per",
                needed: "unique_by",
            }),
        };
    };
    if subject.is_some() {
        return Err(Error::BothGiven {
            one: "subject",
            other: "unique_by",
        });
    }
    let period = per.map(period).transpose()?;
    let content = payload.content(by).ok_or_else(|| Error::BadValue {
        argument: "payload",
        value: format!("a JSON {}", payload.type_name()),
        rule: "a JSON object with the fields of unique_by",
    })?;
    let period = period.map(|period| period.name_at(time::now()));
    let hash = hash::sha256(&[&content, period.as_deref().unwrap_or_default()]);
    Ok(Some(unique::subject(&hash)))
}

fn period(per: Interval) -> Result<Period> {
    Period::new(per.parts()).ok_or_else(|| Error::BadValue {
        argument: "unique_per",
        value: per.to_text(),
        rule: "an interval above 0, either of months and years, such as '1 month', or of weeks and shorter units, such as '7 days'",
    })
}
