//! The filter of `queue_history`: a JSON object whose keys restrict the entries of a history.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::filter::{self, Filter};
use crate::invalid::Invalid;
use crate::wording::shorten;

/// A filter of entries. An entry must satisfy every condition that is not None.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryFilter {
    /// The conditions on the document.
    pub document: Filter,
    /// The document was settled in one of these ways.
    pub outcomes: Option<Vec<String>>,
    /// The worker that settled it.
    pub worker: Option<String>,
}

/// The keys that are not those of a filter of documents.
const OWN_KEYS: [&str; 2] = ["outcome", "worker"];

/// The keys of a filter of documents that mean nothing here.
const OTHER_KEYS: [&str; 2] = ["status", ALL];

/// The key that says that all entries are meant.
const ALL: &str = "all";

/// How a document can have been settled.
pub const OUTCOMES: [&str; 6] = [
    "completed",
    "killed",
    "dropped",
    "popped",
    "cancelled",
    "expired",
];

/// The keys of a filter of entries.
pub fn keys() -> String {
    let of_documents = filter::KEYS.iter().filter(|key| !OTHER_KEYS.contains(key));
    let all: Vec<&str> = OWN_KEYS.iter().chain(of_documents).copied().collect();
    all.join(", ")
}

impl HistoryFilter {
    /// Returns whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.document.is_empty && self.outcomes.is_none() && self.worker.is_none()
    }
}

/// Reads a filter. `{}` has no conditions, so every entry satisfies it. `takes_all`: the key `all` says so.
///
/// Fails with `Invalid::HistoryFilter` when the text is no JSON object, when a key is unknown, or when
/// a value has the wrong type.
pub fn parse(json: &str, takes_all: bool) -> Result<HistoryFilter, Invalid> {
    let invalid = |reason: String| Invalid::HistoryFilter(reason);
    let mut object: BTreeMap<String, &RawValue> =
        serde_json::from_str(json).map_err(|_| invalid("it is no JSON object".into()))?;
    let mut own = OWN_KEYS.map(|key| object.remove(key));
    let means_nothing = |key: &str| OTHER_KEYS.contains(&key) && !(takes_all && key == ALL);
    if let Some(key) = object.keys().find(|key| means_nothing(key)) {
        return Err(invalid(format!("there is no key {key:?}")));
    }
    let rest = serde_json::to_string(&object).map_err(|e| invalid(e.to_string()))?;
    let document = filter::parse(&rest).map_err(|e| match e {
        Invalid::Filter(reason) => Invalid::HistoryFilter(reason),
        other => other,
    })?;
    let worker = match own[1].take() {
        None => None,
        Some(given) => match serde_json::from_str(given.get()) {
            Ok(Value::String(text)) => Some(text),
            _ => return Err(wrong(OWN_KEYS[1], "a text", given.get())),
        },
    };
    Ok(HistoryFilter {
        document,
        outcomes: own[0].map(outcomes).transpose()?,
        worker,
    })
}

fn outcomes(given: &RawValue) -> Result<Vec<String>, Invalid> {
    let wrong = || {
        let rule = "an outcome or a list of them";
        wrong(OWN_KEYS[0], rule, given.get())
    };
    let values = match serde_json::from_str(given.get()) {
        Ok(Value::Array(values)) => values,
        Ok(value) => vec![value],
        Err(_) => return Err(wrong()),
    };
    let word = |value: &Value| {
        let word = value.as_str().filter(|word| OUTCOMES.contains(word));
        word.map(str::to_owned).ok_or_else(wrong)
    };
    values.iter().map(word).collect()
}

fn wrong(key: &str, rule: &str, value: &str) -> Invalid {
    let value = shorten(value);
    Invalid::HistoryFilter(format!("{key:?} must be {rule}, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_keys_and_those_of_documents() {
        let filter = parse(
            r#"{"outcome": ["killed", "cancelled"], "worker": "w", "settled_since": "2020-01-01",
                "version": 3, "subject_like": "mail-%", "payload": {"a": 1e400}}"#,
            false,
        )
        .unwrap();
        assert_eq!(
            filter.outcomes.as_deref(),
            Some(&["killed".to_owned(), "cancelled".to_owned()][..])
        );
        assert_eq!(filter.worker.as_deref(), Some("w"));
        let settled_since = filter.document.settled_since.as_deref();
        assert_eq!(settled_since, Some("2020-01-01"));
        assert_eq!(filter.document.versions, Some(vec![3]));
        assert!(filter.document.has_payload);
        assert_eq!(
            parse(r#"{"outcome": "popped"}"#, false).unwrap().outcomes,
            Some(vec!["popped".to_owned()])
        );
        assert_eq!(parse("{}", false).unwrap().outcomes, None);
        assert!(parse("{}", false).unwrap().is_empty() && !filter.is_empty());
        let all = parse(r#"{"all": true}"#, true).unwrap();
        assert!(all.is_empty() && all.document.all);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (bad, expected) in [
            ("[]", "no JSON object"),
            (r#"{"status": "killed"}"#, r#""status""#),
            (r#"{"all": true}"#, r#""all""#),
            (r#"{"outcome": "dead"}"#, r#""outcome" must be"#),
            (r#"{"outcome": null}"#, r#""outcome" must be"#),
            (r#"{"worker": 1}"#, r#""worker" must be"#),
            (r#"{"settled_since": 5}"#, r#""settled_since" must be"#),
            (r#"{"version": "1"}"#, r#""version" must be"#),
        ] {
            match parse(bad, false) {
                Err(Invalid::HistoryFilter(reason)) => {
                    assert!(reason.contains(expected), "{bad}: {reason}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
    }
}
