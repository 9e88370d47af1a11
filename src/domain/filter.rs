//! Which documents a bulk action is about: a JSON object whose keys narrow the choice.

use serde_json::{Map, Value};

use crate::domain::invalid::Invalid;
use crate::domain::status::Status;

/// The documents that have all of what is asked for; what is None is not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub statuses: Option<Vec<Status>>,
    pub versions: Option<Vec<i32>>,
    pub priorities: Option<Vec<i32>>,
    pub min_priority: Option<i32>,
    pub max_priority: Option<i32>,
    pub min_attempts: Option<i32>,
    /// Intervals, as PostgreSQL writes them.
    pub older_than: Option<String>,
    pub newer_than: Option<String>,
    /// Patterns of LIKE.
    pub subject: Option<String>,
    pub error: Option<String>,
    pub ordering_key: Option<String>,
    /// What the payload has to contain stays in the JSON, where no number of it can
    /// lose digits.
    pub has_payload: bool,
}

/// The keys there are.
pub const KEYS: [&str; 12] = [
    "status",
    "version",
    "priority",
    "min_priority",
    "max_priority",
    "min_attempts",
    "older_than",
    "newer_than",
    "payload",
    "subject",
    "error",
    "ordering_key",
];

/// Reads a filter; `{}` asks for nothing, so that all documents fit.
pub fn parse(json: &str) -> Result<Filter, Invalid> {
    let value: Value = serde_json::from_str(json).map_err(|e| Invalid::Filter(e.to_string()))?;
    let Value::Object(object) = value else {
        return Err(Invalid::Filter("it is no JSON object".into()));
    };
    if let Some(key) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(Invalid::Filter(format!("there is no key {key:?}")));
    }
    Ok(Filter {
        statuses: list(&object, "status", "a status or a list of them", status)?,
        versions: list(&object, "version", "an integer or a list of them", integer)?,
        priorities: list(&object, "priority", "an integer or a list of them", integer)?,
        min_priority: one(&object, "min_priority", "an integer", integer)?,
        max_priority: one(&object, "max_priority", "an integer", integer)?,
        min_attempts: one(&object, "min_attempts", "an integer", integer)?,
        older_than: one(&object, "older_than", "an interval as text", text)?,
        newer_than: one(&object, "newer_than", "an interval as text", text)?,
        subject: one(&object, "subject", "a pattern as text", text)?,
        error: one(&object, "error", "a pattern as text", text)?,
        ordering_key: one(&object, "ordering_key", "a text", text)?,
        has_payload: object.contains_key("payload"),
    })
}

fn one<T>(
    object: &Map<String, Value>,
    key: &str,
    rule: &str,
    read: fn(&Value) -> Option<T>,
) -> Result<Option<T>, Invalid> {
    object
        .get(key)
        .map(|value| read(value).ok_or_else(|| wrong(key, rule, value)))
        .transpose()
}

fn list<T>(
    object: &Map<String, Value>,
    key: &str,
    rule: &str,
    read: fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, Invalid> {
    let Some(value) = object.get(key) else {
        return Ok(None);
    };
    let read = |value| read(value).ok_or_else(|| wrong(key, rule, value));
    match value {
        Value::Array(values) => values.iter().map(read).collect::<Result<_, _>>().map(Some),
        value => read(value).map(|value| Some(vec![value])),
    }
}

fn wrong(key: &str, rule: &str, value: &Value) -> Invalid {
    Invalid::Filter(format!("{key:?} must be {rule}, not {value}"))
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
    /// Whether a status was asked for by name.
    pub fn names(&self, status: Status) -> bool {
        let statuses = self.statuses.as_ref();
        statuses.is_some_and(|statuses| statuses.contains(&status))
    }

    /// The codes of the states that are left of those that an action takes: `usual`, and
    /// `named` ones only where the filter names them.
    pub fn codes(&self, usual: &[Status], named: &[Status]) -> Vec<i32> {
        let named = named.iter().filter(|status| self.names(**status));
        let usual = usual
            .iter()
            .filter(|status| self.statuses.is_none() || self.names(**status));
        usual.chain(named).map(|status| status.code()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_asked_for() {
        assert_eq!(parse("{}"), Ok(Filter::default()));
        let all = Filter::default().codes(&[Status::Planned, Status::Killed], &[Status::Active]);
        assert_eq!(all, [0, -1]);
    }

    #[test]
    fn words_and_lists() {
        let filter = parse(
            r#"{"status": ["killed", "active"], "version": 3, "priority": [1, -2], "min_priority": 0,
                "older_than": "1h", "payload": {"a": null}, "subject": "mail-%"}"#,
        )
        .unwrap();
        assert_eq!(filter.statuses, Some(vec![Status::Killed, Status::Active]));
        assert_eq!(filter.versions, Some(vec![3]));
        assert_eq!(filter.priorities, Some(vec![1, -2]));
        assert_eq!(filter.min_priority, Some(0));
        assert_eq!(filter.older_than.as_deref(), Some("1h"));
        assert!(filter.has_payload);
        assert_eq!(filter.codes(&[Status::Killed, Status::Pending], &[]), [-1]);
        assert_eq!(filter.codes(&[Status::Pending], &[Status::Active]), [2]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (bad, told) in [
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
            (r#"{"subject": {}}"#, r#""subject" must be"#),
        ] {
            match parse(bad) {
                Err(Invalid::Filter(reason)) => assert!(reason.contains(told), "{bad}: {reason}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
    }
}
