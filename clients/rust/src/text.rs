//! Texts as PostgreSQL takes them: intervals, messages, JSON without NUL.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// The text of an interval: a [`Duration`], or a text such as `"10 minutes"`. Days stay days only in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval(pub(crate) String);

impl Interval {
    /// The text that is sent to the server.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Duration> for Interval {
    fn from(value: Duration) -> Self {
        Self(format!(
            "{}.{:06} seconds",
            value.as_secs(),
            value.subsec_micros()
        ))
    }
}

impl From<&str> for Interval {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl From<String> for Interval {
    fn from(value: String) -> Self {
        Self(value)
    }
}

pub(crate) fn seconds(value: f64) -> String {
    format!("{value:.6} seconds")
}

/// The message that a document keeps of an error: no NUL, and at most 2,000 characters.
pub fn describe(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(2000).collect()
}

/// A copy of a JSON value without NUL in its texts.
pub(crate) fn clean(value: Value) -> Value {
    map(value, &|text| text.replace('\0', ""))
}

pub(crate) fn map(value: Value, change: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(&text)),
        Value::Array(list) => Value::Array(list.into_iter().map(|v| map(v, change)).collect()),
        Value::Object(object) => {
            let entries = object
                .into_iter()
                .map(|(k, v)| (k.replace('\0', ""), map(v, change)));
            Value::Object(entries.collect())
        }
        other => other,
    }
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(list) => list.iter().any(has_nul),
        Value::Object(object) => object.iter().any(|(k, v)| k.contains('\0') || has_nul(v)),
        _ => false,
    }
}

/// The JSON value of something; an error where PostgreSQL would refuse it.
pub(crate) fn encode(value: &impl Serialize) -> Result<Value, Error> {
    let value = serde_json::to_value(value)
        .map_err(|e| Error::Invalid(format!("it has no form in JSON: {e}")))?;
    if has_nul(&value) {
        return Err(Error::Invalid(
            "PostgreSQL cannot store a text with a NUL character".into(),
        ));
    }
    Ok(value)
}

/// The literal of an array.
pub(crate) fn array(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    let quoted: Vec<String> = items
        .map(|item| {
            format!(
                "\"{}\"",
                item.as_ref().replace('\\', "\\\\").replace('"', "\\\"")
            )
        })
        .collect();
    format!("{{{}}}", quoted.join(","))
}

/// A number from 0 to 1, for jitter and names.
pub(crate) fn random() -> f64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    (RandomState::new().build_hasher().finish() >> 11) as f64 / (1u64 << 53) as f64
}

pub(crate) fn between(low: f64, high: f64) -> f64 {
    low + (high - low) * random()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_keep_microseconds() {
        assert_eq!(
            Interval::from(Duration::from_micros(1_500_001)).as_str(),
            "1.500001 seconds"
        );
        assert_eq!(Interval::from("3 days").as_str(), "3 days");
    }

    #[test]
    fn messages_are_cut_and_have_no_nul() {
        assert_eq!(describe("a\0b"), "ab");
        assert_eq!(describe(&"é".repeat(3000)).chars().count(), 2000);
    }

    #[test]
    fn nul_is_refused_in_payloads_and_removed_from_details() {
        assert!(encode(&serde_json::json!({"a": ["\0"]})).is_err());
        assert!(encode(&serde_json::json!({"a": "\\u0000"})).is_ok());
        assert_eq!(
            clean(serde_json::json!({"a\0": "b\0"})),
            serde_json::json!({"a": "b"})
        );
    }

    #[test]
    fn arrays_are_quoted() {
        assert_eq!(array(["a", "b\"\\c"].into_iter()), r#"{"a","b\"\\c"}"#);
    }
}
