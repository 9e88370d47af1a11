//! The settings of a queue as a JSON object: their keys, what each of them accepts, and the
//! columns of `fetchq.queues` in which they are stored.
//!
//! `retry.base` is the key `base` of the object in `retry`. An object changes the keys that it
//! names; null switches a setting off, or all settings of an object. One that cannot be off gets the value
//! that a queue of fetchq 4 has.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::invalid::Invalid;
use crate::names::QueueName;
use crate::retention;

/// What a setting accepts, besides null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An `int` of PostgreSQL that is 1 or more.
    Count,
    /// A limit, for each unit of which a row is written.
    Limit,
    /// How many documents of one key run at a time.
    KeyLimit,
    /// An `int` of PostgreSQL.
    Integer,
    /// The growth of a delay.
    Factor,
    /// A part of a whole.
    Share,
    /// A boolean.
    Switch,
    /// A boolean that is stored as its opposite.
    Opposite,
    /// An interval of PostgreSQL.
    Duration,
    /// An interval of PostgreSQL that is longer than zero.
    Span,
    /// An interval of PostgreSQL that a lease may be late.
    Delay,
    /// The name of a queue.
    Queue,
    /// A retention policy of metrics.
    Policy,
}

impl Kind {
    /// What the value must be, for an error.
    fn rule(self) -> &'static str {
        match self {
            Self::Count => "a whole number from 1 to 2147483647, or null",
            Self::Limit => "a whole number from 1 to 100000, or null",
            Self::KeyLimit => "a whole number from 1 to 100, or null",
            Self::Integer => "a whole number from -2147483648 to 2147483647, or null",
            Self::Factor => "a number from 1 to 1000, or null",
            Self::Share => "a number from 0 to 1, or null",
            Self::Switch | Self::Opposite => "true, false or null",
            Self::Duration => {
                "the text of an interval from 0 to 1000 years, such as \"30 s\", or null"
            }
            Self::Span => {
                "the text of an interval above 0, up to 1000 years, such as \"30 s\", or null"
            }
            Self::Delay => "the text of an interval from 0 to 1 minute, such as \"2 s\", or null",
            Self::Queue => "the name of another queue, or null",
            Self::Policy => {
                "a list of rules such as {\"retain\": \"minute\", \"from\": \"1h\", \"to\": \"0s\"}, or null"
            }
        }
    }

    /// The value as it is stored. None: the setting does not accept it.
    fn read(self, value: Value) -> Option<Value> {
        let in_range = |low, high| value.as_f64().is_some_and(|n| (low..=high).contains(&n));
        let whole = |low, high| value.as_i64().is_some_and(|n| (low..=high).contains(&n));
        let is_accepted = match self {
            Self::Count => whole(1, i32::MAX.into()),
            Self::Limit => whole(1, MAX_LIMIT),
            Self::KeyLimit => whole(1, MAX_KEY_LIMIT),
            Self::Integer => whole(i32::MIN.into(), i32::MAX.into()),
            Self::Factor => in_range(1.0, 1000.0),
            Self::Share => in_range(0.0, 1.0),
            Self::Switch => value.is_boolean(),
            Self::Opposite => return value.as_bool().map(|on| Value::Bool(!on)),
            Self::Duration | Self::Span | Self::Delay => value.is_string(),
            Self::Queue => {
                let name = QueueName::parse(value.as_str()?).ok()?;
                return Some(Value::String(name.as_str().to_owned()));
            }
            Self::Policy => retention::parse(&value.to_string()).is_ok(),
        };
        is_accepted.then_some(value)
    }
}

/// The largest limit. One lease slot or rate permit is written for each, so a larger limit would
/// take longer to set than it saves.
const MAX_LIMIT: i64 = 100_000;

/// The largest number of documents of one key that run at a time. The row of a key lists them, and
/// is written whenever one of them begins to wait or is settled: with 100 subjects of 20 characters
/// it fills a quarter of a page.
const MAX_KEY_LIMIT: i64 = 100;

/// A setting.
#[derive(Debug)]
struct Setting {
    key: &'static str,
    /// Its column in `fetchq.queues`. The notifications have none: they are triggers.
    column: Option<&'static str>,
    kind: Kind,
    /// What null stands for, as it is stored.
    default: fn() -> Value,
}

const NONE: fn() -> Value = || Value::Null;

/// A table of settings: key, column, what it accepts, and its default.
macro_rules! settings {
    ($($key:literal, $column:expr, $kind:ident, $default:expr;)*) => {
        [$(Setting { key: $key, column: $column, kind: Kind::$kind, default: $default }),*]
    };
}

static SETTINGS: [Setting; 23] = settings! {
    "max_attempts", Some("max_attempts"), Count, || json!(5);
    "retry.base", Some("retry_base"), Duration, NONE;
    "retry.factor", Some("retry_factor"), Factor, || json!(2);
    "retry.max_delay", Some("retry_max_delay"), Duration, NONE;
    "retry.jitter", Some("retry_jitter"), Share, || json!(0);
    "history.completed", Some("keep_completed"), Duration, NONE;
    "history.killed", Some("keep_killed"), Duration, NONE;
    "history.dropped", Some("keep_dropped"), Duration, NONE;
    "dead_letter", Some(DEAD_LETTER), Queue, NONE;
    "max_active", Some("max_active"), Limit, NONE;
    "max_active_per_key", Some("max_active_per_key"), KeyLimit, NONE;
    "rate.picks", Some("rate_limit"), Limit, NONE;
    "rate.per", Some("rate_interval"), Span, || json!("1 second");
    "ordered", Some("is_ordered"), Switch, || json!(false);
    "paused", Some("is_active"), Opposite, || json!(true);
    "notify", None, Switch, || json!(false);
    "logs_retention", Some("logs_retention"), Duration, || json!("24h");
    "metrics_retention", Some("metrics_retention"), Policy, || json!([]);
    "current_version", Some("current_version"), Integer, || json!(0);
    "lease", Some("lease_duration"), Span, || json!("5 minutes");
    "expire_after", Some("expire_after"), Span, NONE;
    "max_run", Some("max_run"), Span, NONE;
    "lease_write_delay", Some("lease_write_delay"), Delay, NONE;
};

const DEAD_LETTER: &str = "dead_letter";

/// What new queues start with, where the setting `fetchq.queue_defaults` is empty: those of a job queue.
/// `docs/reference/settings.md` has them beside those of others. A change of them changes no queue that
/// exists: a queue stores all of its settings when it is created.
///
/// 25 attempts take three days, so a job survives a weekend until somebody has seen why it fails. What is
/// settled leaves the table, so that this stays small, and its history ends by itself. The log has the
/// failures for as long as the history has the document.
pub const OF_NEW_QUEUES: &str = r#"{"max_attempts": 25,
    "retry": {"base": "5 s", "factor": 2, "max_delay": "6 hours", "jitter": 0.2},
    "history": {"completed": "7 days", "killed": "30 days"},
    "lease": "15 minutes", "logs_retention": "30 days"}"#;

/// All keys, for the hint of an error.
pub fn keys() -> String {
    let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    keys.join(", ")
}

/// A text that only the server can check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// An interval from 0 to 1000 years.
    Duration(String),
    /// Such an interval that is longer than zero.
    Span(String),
    /// An interval from 0 to 1 minute.
    Delay(String),
    /// A retention policy.
    Policy(Vec<retention::Rule>),
}

/// Changes of the settings of a queue.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// The new values of columns of `fetchq.queues`.
    columns: Map<String, Value>,
    /// Whether notifications are to be on.
    pub notify: Option<bool>,
}

impl Changes {
    /// Returns whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.notify.is_none()
    }

    /// Returns whether a column is changed.
    pub fn has_columns(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Returns whether one of these columns is changed.
    pub fn any(&self, columns: &[&str]) -> bool {
        columns
            .iter()
            .any(|column| self.columns.contains_key(*column))
    }

    /// Makes the changes of `later` too; where both name a setting, those of `later` hold.
    pub fn then(mut self, later: Self) -> Self {
        self.columns.extend(later.columns);
        self.notify = later.notify.or(self.notify);
        self
    }

    /// The dead-letter queue that is set.
    pub fn dead_letter(&self) -> Option<QueueName> {
        let name = self.columns.get(DEAD_LETTER)?.as_str()?;
        QueueName::parse(name).ok()
    }

    /// Returns whether a dead-letter queue is set or removed.
    pub fn has_dead_letter(&self) -> bool {
        self.columns.contains_key(DEAD_LETTER)
    }

    /// Leaves the dead-letter queue as it is.
    pub fn without_dead_letter(mut self) -> Self {
        self.columns.remove(DEAD_LETTER);
        self
    }

    /// The new values of the columns, as a JSON object.
    pub fn columns(&self) -> String {
        Value::Object(self.columns.clone()).to_string()
    }

    fn set(&mut self, setting: &Setting, value: Value) {
        match setting.column {
            Some(column) => {
                self.columns.insert(column.to_owned(), value);
            }
            None => self.notify = value.as_bool(),
        }
    }
}

/// The keys of an object, with the text of each value, which is not parsed yet: a number may
/// exceed what a parser accepts.
type Object<'a> = BTreeMap<String, &'a RawValue>;

/// Reads settings. `check` asks the server whether a text is valid.
///
/// Fails with `Invalid::Settings` when the JSON is no object, with `Invalid::UnknownSetting` for
/// an unknown key, with `Invalid::Setting` for a value that its key does not accept.
pub fn parse(json: &str, check: impl Fn(Check) -> bool) -> Result<Changes, Invalid> {
    let object: Object =
        serde_json::from_str(json).map_err(|_| Invalid::Settings(json.to_owned()))?;
    let mut changes = Changes::default();
    for (key, value) in &object {
        // A key with a dot is written as an object.
        if let Some(setting) = find(key).filter(|_| !key.contains('.')) {
            changes.set(setting, read(setting, value, &check)?);
            continue;
        }
        let group: Vec<&Setting> = group(key).collect();
        if group.is_empty() {
            return Err(Invalid::UnknownSetting(key.clone()));
        }
        if value.get() == "null" {
            for setting in group {
                changes.set(setting, (setting.default)());
            }
            continue;
        }
        let inner: Object = serde_json::from_str(value.get()).map_err(|_| Invalid::Setting {
            key: key.clone(),
            value: value.get().to_owned(),
            rule: "an object, or null",
        })?;
        for (inner_key, value) in &inner {
            let key = format!("{key}.{inner_key}");
            let setting = find(&key).ok_or_else(|| Invalid::UnknownSetting(key.clone()))?;
            changes.set(setting, read(setting, value, &check)?);
        }
    }
    Ok(changes)
}

fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// The settings within the object of this key.
fn group(key: &str) -> impl Iterator<Item = &'static Setting> {
    let settings = SETTINGS.iter();
    settings.filter(move |setting| {
        let rest = setting.key.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with('.'))
    })
}

/// The value of a setting as it is stored. Fails with `Invalid::Setting`.
fn read(
    setting: &Setting,
    value: &RawValue,
    check: impl Fn(Check) -> bool,
) -> Result<Value, Invalid> {
    if value.get() == "null" {
        return Ok((setting.default)());
    }
    let parsed: Option<Value> = serde_json::from_str(value.get()).ok();
    let accepted = parsed.and_then(|value| setting.kind.read(value));
    let valid = accepted.filter(|value| {
        let text = || value.as_str().unwrap_or_default().to_owned();
        match setting.kind {
            Kind::Duration => check(Check::Duration(text())),
            Kind::Span => check(Check::Span(text())),
            Kind::Delay => check(Check::Delay(text())),
            Kind::Policy => {
                let rules = retention::parse(&value.to_string());
                rules.is_ok_and(|rules| check(Check::Policy(rules)))
            }
            _ => true,
        }
    });
    valid.ok_or_else(|| Invalid::Setting {
        key: setting.key.to_owned(),
        value: value.get().to_owned(),
        rule: setting.kind.rule(),
    })
}

/// The keys whose values differ between two objects with settings, such as `retry.base`.
pub fn differences(one: &str, other: &str) -> Vec<&'static str> {
    let parse = |json| serde_json::from_str::<Value>(json).unwrap_or_default();
    let (one, other) = (parse(one), parse(other));
    let at = |object: &Value, key: &str| {
        object
            .pointer(&format!("/{}", key.replace('.', "/")))
            .cloned()
    };
    let keys = SETTINGS.iter().map(|setting| setting.key);
    keys.filter(|key| at(&one, key) != at(&other, key))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(json: &str) -> Result<Changes, Invalid> {
        parse(json, |_| true)
    }

    fn columns(json: &str) -> String {
        changes(json).unwrap().columns()
    }

    #[test]
    fn only_the_keys_that_are_named_change() {
        assert!(changes("{}").unwrap().is_empty());
        assert!(changes(r#"{"retry": {}, "rate": {}}"#).unwrap().is_empty());
        assert_eq!(columns(r#"{"max_attempts": 3}"#), r#"{"max_attempts":3}"#);
        assert_eq!(
            columns(r#"{"retry": {"base": "1 s"}}"#),
            r#"{"retry_base":"1 s"}"#
        );
        let changes = changes(r#"{"notify": true}"#).unwrap();
        assert_eq!(
            (changes.columns().as_str(), changes.notify),
            ("{}", Some(true))
        );
    }

    #[test]
    fn what_new_queues_start_with_is_valid() {
        let defaults = changes(OF_NEW_QUEUES).unwrap();
        assert_eq!(defaults.notify, None);
        let columns = defaults.columns();
        for expected in [
            r#""max_attempts":25"#,
            r#""keep_completed":"7 days""#,
            r#""retry_base":"5 s""#,
        ] {
            assert!(columns.contains(expected), "{columns}");
        }
        // Key by key, what the caller names goes before.
        let asked = changes(r#"{"retry": null, "history": {"completed": null}}"#).unwrap();
        let columns = defaults.then(asked).columns();
        for expected in [
            r#""retry_base":null"#,
            r#""keep_completed":null"#,
            r#""keep_killed":"30 days""#,
        ] {
            assert!(columns.contains(expected), "{columns}");
        }
    }

    #[test]
    fn null_resets() {
        assert_eq!(
            columns(r#"{"max_attempts": null}"#),
            r#"{"max_attempts":5}"#
        );
        assert_eq!(
            columns(r#"{"retry": null}"#),
            r#"{"retry_base":null,"retry_factor":2,"retry_jitter":0,"retry_max_delay":null}"#
        );
        assert_eq!(
            columns(r#"{"rate": {"per": null}}"#),
            r#"{"rate_interval":"1 second"}"#
        );
        assert_eq!(changes(r#"{"notify": null}"#).unwrap().notify, Some(false));
    }

    #[test]
    fn values_are_stored_as_the_table_has_them() {
        assert_eq!(columns(r#"{"paused": true}"#), r#"{"is_active":false}"#);
        assert_eq!(columns(r#"{"paused": null}"#), r#"{"is_active":true}"#);
        assert_eq!(
            columns(r#"{"dead_letter": "Dead"}"#),
            r#"{"dead_letter":"dead"}"#
        );
        assert_eq!(
            changes(r#"{"dead_letter": "Dead"}"#).unwrap().dead_letter(),
            QueueName::parse("dead").ok()
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (bad, expected) in [
            ("[]", "settings"),
            ("1", "settings"),
            (r#"{"max_atempts": 3}"#, "\"max_atempts\""),
            (r#"{"retry.base": "1 s"}"#, "\"retry.base\""),
            (r#"{"retry": {"bse": 3}}"#, "\"retry.bse\""),
            (r#"{"retry": {"": 3}}"#, "\"retry.\""),
            (r#"{"": 3}"#, "\"\""),
            (r#"{"retry": 3}"#, "\"retry\": 3, expected an object"),
            (r#"{"retry": []}"#, "\"retry\": []"),
            (r#"{"max_attempts": 0}"#, "1 to 2147483647"),
            (r#"{"max_attempts": "3"}"#, "\"max_attempts\": \"3\""),
            (r#"{"max_attempts": 1e400}"#, "\"max_attempts\": 1e400"),
            (r#"{"max_active": 100001}"#, "1 to 100000"),
            (r#"{"max_active_per_key": 0}"#, "1 to 100, or null"),
            (r#"{"max_active_per_key": -1}"#, "1 to 100, or null"),
            (r#"{"max_active_per_key": 101}"#, "1 to 100, or null"),
            (r#"{"max_active_per_key": "x"}"#, "1 to 100, or null"),
            (r#"{"max_active_per_key": 1.5}"#, "1 to 100, or null"),
            (r#"{"retry": {"factor": 0.5}}"#, "1 to 1000"),
            (r#"{"retry": {"jitter": 1.01}}"#, "0 to 1"),
            (r#"{"ordered": 1}"#, "true, false or null"),
            (
                r#"{"dead_letter": "no-queue"}"#,
                "the name of another queue",
            ),
            (r#"{"metrics_retention": {}}"#, "a list of rules"),
            (r#"{"lease": 30}"#, "the text of an interval"),
        ] {
            let error = changes(bad).unwrap_err().to_string();
            assert!(error.contains(expected), "{bad}: {error}");
        }
        let error = parse(r#"{"lease": "soon"}"#, |_| false).unwrap_err();
        assert!(error.to_string().contains("\"lease\": \"soon\""));
    }

    #[test]
    fn long_values_are_shortened() {
        let error = changes(&format!(r#"{{"lease": {}}}"#, "1".repeat(1000))).unwrap_err();
        assert!(error.to_string().len() < 300);
    }

    #[test]
    fn differences_are_named() {
        let (one, other) = (
            r#"{"lease": "1", "retry": {"base": null}}"#,
            r#"{"lease": "1", "retry": {"base": "1"}}"#,
        );
        assert_eq!(differences(one, other), ["retry.base"]);
        assert!(differences(one, one).is_empty());
    }
}
