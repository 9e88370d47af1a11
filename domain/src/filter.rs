//! The filter of a bulk action: a JSON object whose keys restrict the documents.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::invalid::Invalid;
use crate::status::Status;
use crate::wording::shorten;

/// A filter. A document must satisfy every condition that is not None.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The document has one of these statuses.
    pub statuses: Option<Vec<Status>>,
    /// The document has one of these versions.
    pub versions: Option<Vec<i32>>,
    /// The document has one of these priorities.
    pub priorities: Option<Vec<i32>>,
    /// The document has this priority or a higher one.
    pub min_priority: Option<i32>,
    /// The document has this priority or a lower one.
    pub max_priority: Option<i32>,
    /// The document has had this number of attempts or more.
    pub min_attempts: Option<i32>,
    /// The document is older than this interval of PostgreSQL.
    pub older_than: Option<String>,
    /// The document is newer than this interval of PostgreSQL.
    pub newer_than: Option<String>,
    /// The document was created at this time or later, as text.
    pub created_since: Option<String>,
    /// The document was created before this time, as text.
    pub created_before: Option<String>,
    /// The document was settled at this time or later, as text.
    pub settled_since: Option<String>,
    /// The document was settled before this time, as text.
    pub settled_before: Option<String>,
    /// The run of the document took this interval of PostgreSQL or longer.
    pub min_ran: Option<String>,
    /// The run of the document took this interval of PostgreSQL or less.
    pub max_ran: Option<String>,
    /// The document has one of these subjects.
    pub subjects: Option<Vec<String>>,
    /// The subject matches this pattern of LIKE.
    pub subject_like: Option<String>,
    /// The last error matches this pattern of LIKE.
    pub error_like: Option<String>,
    /// The document has this ordering key.
    pub ordering_key: Option<String>,
    /// The filter has the key `payload`. Its value is read from the JSON by the server, because
    /// numbers could lose digits here.
    pub has_payload: bool,
    /// Every document is meant, if there is no condition.
    pub all: bool,
    /// There is no condition.
    pub is_empty: bool,
}

/// The keys of a filter.
pub const KEYS: [&str; 20] = [
    "status",
    "version",
    "priority",
    "min_priority",
    "max_priority",
    "min_attempts",
    "older_than",
    "newer_than",
    "created_since",
    "created_before",
    "settled_since",
    "settled_before",
    "min_ran",
    "max_ran",
    "payload",
    "subject",
    "subject_like",
    "error_like",
    "ordering_key",
    "all",
];

/// Reads a filter. `{}` has no conditions, so every document satisfies it.
///
/// Fails with `Invalid::Filter` when the text is no JSON object, when a key is unknown, or when a
/// value has the wrong type.
pub fn parse(json: &str) -> Result<Filter, Invalid> {
    let object: Object =
        serde_json::from_str(json).map_err(|_| Invalid::Filter("it is no JSON object".into()))?;
    if let Some(key) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let key = shorten(key);
        return Err(Invalid::Filter(format!("there is no key {key:?}")));
    }
    Ok(Filter {
        statuses: list(&object, "status", "a status or a list of them", status)?,
        versions: list(&object, "version", "an integer or a list of them", integer)?,
        priorities: list(&object, "priority", "an integer or a list of them", integer)?,
        min_priority: one(&object, "min_priority", "an integer", integer)?,
        max_priority: one(&object, "max_priority", "an integer", integer)?,
        min_attempts: one(&object, "min_attempts", "an integer", integer)?,
        older_than: one(&object, "older_than", AGE, text)?,
        newer_than: one(&object, "newer_than", AGE, text)?,
        created_since: one(&object, "created_since", TIME, text)?,
        created_before: one(&object, "created_before", TIME, text)?,
        settled_since: one(&object, "settled_since", TIME, text)?,
        settled_before: one(&object, "settled_before", TIME, text)?,
        min_ran: one(&object, "min_ran", AGE, text)?,
        max_ran: one(&object, "max_ran", AGE, text)?,
        subjects: list(&object, "subject", "a text or a list of them", text)?,
        subject_like: one(&object, "subject_like", PATTERN, pattern)?,
        error_like: one(&object, "error_like", PATTERN, pattern)?,
        ordering_key: one(&object, "ordering_key", "a text", text)?,
        has_payload: object.contains_key("payload"),
        all: one(&object, "all", "true", |value| {
            value.as_bool().filter(|all| *all)
        })?
        .unwrap_or(false),
        // Every payload that is an object contains the empty one.
        is_empty: object.iter().all(|(key, value)| match key.as_str() {
            "all" => true,
            "payload" => value.get() == "{}",
            _ => false,
        }),
    })
}

/// The keys of a filter, with the text of each value. The values are parsed one by one: the payload is
/// left to the server, which has no limits to numbers and depth.
type Object<'a> = BTreeMap<String, &'a RawValue>;

/// What a pattern must be.
const PATTERN: &str = "a pattern of LIKE as text, which does not end with an escape character";

/// Reads the value of a key. `rule` says in the error what the value must be.
fn one<T>(
    object: &Object,
    key: &str,
    rule: &str,
    read: fn(&Value) -> Option<T>,
) -> Result<Option<T>, Invalid> {
    let Some(given) = object.get(key) else {
        return Ok(None);
    };
    let value: Option<Value> = serde_json::from_str(given.get()).ok();
    match value.as_ref().and_then(read) {
        Some(value) => Ok(Some(value)),
        None => Err(wrong(key, rule, given.get())),
    }
}

/// Reads the value of a key that is one value or an array of values.
fn list<T>(
    object: &Object,
    key: &str,
    rule: &str,
    read: fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, Invalid> {
    let Some(given) = object.get(key) else {
        return Ok(None);
    };
    let value = serde_json::from_str(given.get());
    let wrong = |value: &str| wrong(key, rule, value);
    let read = |value: &Value| read(value).ok_or_else(|| wrong(&value.to_string()));
    match value.map_err(|_| wrong(given.get()))? {
        Value::Array(values) => values.iter().map(read).collect::<Result<_, _>>().map(Some),
        value => read(&value).map(|value| Some(vec![value])),
    }
}

fn wrong(key: &str, rule: &str, value: &str) -> Invalid {
    let value = shorten(value);
    Invalid::Filter(format!("{key:?} must be {rule}, not {value}"))
}

/// The error of an age, which only the server can read.
pub fn wrong_age(key: &str, text: &str) -> Invalid {
    wrong(key, AGE, &format!("{text:?}"))
}

/// The error of a time, which only the server can read.
pub fn wrong_time(key: &str, text: &str) -> Invalid {
    wrong(key, TIME, &format!("{text:?}"))
}

/// What a time must be.
const TIME: &str = "the text of a point in time";

/// What an age must be.
const AGE: &str = "the text of an interval from 0 to 1000 years";

/// Reads a pattern of LIKE. With an escape character at its end, it would be an error of the server
/// once it is compared with a text.
fn pattern(value: &Value) -> Option<String> {
    let is_complete = |text: &&str| {
        let escapes = text.bytes().rev().take_while(|byte| *byte == b'\\');
        escapes.count() % 2 == 0
    };
    value.as_str().filter(is_complete).map(str::to_owned)
}

fn integer(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|n| i32::try_from(n).ok())
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn status(value: &Value) -> Option<Status> {
    let word = value.as_str()?;
    Status::ALL.into_iter().find(|status| status.word() == word)
}

impl Filter {
    /// Returns whether the filter names a status.
    pub fn names(&self, status: Status) -> bool {
        let statuses = self.statuses.as_ref();
        statuses.is_some_and(|statuses| statuses.contains(&status))
    }

    /// Returns the numbers of the statuses that an action with this filter applies to.
    ///
    /// It applies to the `default` statuses unless the filter names others, and to the
    /// `if_named` statuses only when the filter names them.
    pub fn codes(&self, default: &[Status], if_named: &[Status]) -> Vec<i32> {
        let named = if_named.iter().filter(|status| self.names(**status));
        let default = default
            .iter()
            .filter(|status| self.statuses.is_none() || self.names(**status));
        default.chain(named).map(|status| status.code()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_without_keys_has_no_conditions() {
        let none = Filter {
            is_empty: true,
            ..Filter::default()
        };
        assert_eq!(parse("{}"), Ok(none));
        assert!(parse(r#"{"payload": {}}"#).unwrap().is_empty);
        assert!(parse(r#"{"all": true}"#).unwrap().is_empty);
        assert!(!parse(r#"{"all": true, "version": 1}"#).unwrap().is_empty);
        assert!(!parse(r#"{"payload": {"a": 1}}"#).unwrap().is_empty);
        assert!(!parse(r#"{"payload": {"a": 1e400}}"#).unwrap().is_empty);
        assert!(!parse(r#"{"subject_like": "a\\\\"}"#).unwrap().is_empty);
        let deep = format!(r#"{{"payload": {}{}}}"#, "[".repeat(5000), "]".repeat(5000));
        assert!(!parse(&deep).unwrap().is_empty);
        let all = Filter::default().codes(&[Status::Planned, Status::Killed], &[Status::Active]);
        assert_eq!(all, [0, -1]);
    }

    #[test]
    fn words_and_lists() {
        let filter = parse(
            r#"{"status": ["killed", "active"], "version": 3, "priority": [1, -2], "min_priority": 0,
                "older_than": "1h", "payload": {"a": null}, "subject": ["m_1", "m_2"],
                "subject_like": "mail-%", "created_since": "2026-01-01"}"#,
        )
        .unwrap();
        assert_eq!(filter.statuses, Some(vec![Status::Killed, Status::Active]));
        assert_eq!(filter.versions, Some(vec![3]));
        assert_eq!(filter.priorities, Some(vec![1, -2]));
        assert_eq!(filter.min_priority, Some(0));
        assert_eq!(filter.older_than.as_deref(), Some("1h"));
        assert_eq!(filter.created_since.as_deref(), Some("2026-01-01"));
        assert_eq!(filter.subject_like.as_deref(), Some("mail-%"));
        let subjects = filter.subjects.as_deref();
        assert_eq!(subjects, Some(&["m_1".to_owned(), "m_2".to_owned()][..]));
        assert!(filter.has_payload);
        assert_eq!(filter.codes(&[Status::Killed, Status::Pending], &[]), [-1]);
        assert_eq!(filter.codes(&[Status::Pending], &[Status::Active]), [2]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (bad, expected) in [
            ("[]", "no JSON object"),
            ("1", "no JSON object"),
            (r#"{"stauts": "killed"}"#, r#""stauts""#),
            (r#"{"status": "dead"}"#, r#""status" must be"#),
            (r#"{"status": null}"#, r#""status" must be"#),
            (r#"{"status": ["killed", 1]}"#, r#""status" must be"#),
            (r#"{"version": 1.5}"#, r#""version" must be"#),
            (r#"{"version": 3000000000}"#, r#""version" must be"#),
            (r#"{"min_priority": [1]}"#, r#""min_priority" must be"#),
            (r#"{"older_than": 5}"#, r#""older_than" must be"#),
            (r#"{"all": false}"#, r#""all" must be true"#),
            (r#"{"all": 1}"#, r#""all" must be true"#),
            (r#"{"subject": {}}"#, r#""subject" must be"#),
            (r#"{"subject": ["a", 1]}"#, r#""subject" must be"#),
            (r#"{"created_since": 5}"#, r#""created_since" must be"#),
            (r#"{"min_ran": 5}"#, r#""min_ran" must be"#),
            (r#"{"subject_like": "a\\"}"#, r#""subject_like" must be"#),
            (r#"{"error_like": "a\\\\\\"}"#, r#""error_like" must be"#),
            (r#"{"priority": 1e400}"#, r#""priority" must be"#),
            (r#"{"min_priority": 1e400}"#, r#""min_priority" must be"#),
        ] {
            match parse(bad) {
                Err(Invalid::Filter(reason)) => {
                    assert!(reason.contains(expected), "{bad}: {reason}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
    }
}
