//! Names of queues, documents and metrics.

use crate::domain::invalid::Invalid;

/// Longest queue name, in characters. Tables and indexes add a suffix to it
/// (`__docs_pick_idx`, 15 bytes) and must stay below PostgreSQL's 63 bytes.
pub const QUEUE_NAME_MAX: usize = 40;

/// Longest subject, in characters (fetchq 4 contract).
pub const SUBJECT_MAX: usize = 50;

/// Longest metric name, in characters (fetchq 4 contract).
pub const METRIC_NAME_MAX: usize = 40;

/// A valid queue name, folded to lower case. The only thing in fetchq that is
/// ever written into the text of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueName(String);

impl QueueName {
    /// Accepts `[A-Za-z_][A-Za-z0-9_]{0,39}` and folds it to lower case, as
    /// PostgreSQL folded the unquoted table names of fetchq 4.
    pub fn parse(name: &str) -> Result<Self, Invalid> {
        let bytes = name.as_bytes();
        let head_ok = bytes
            .first()
            .is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
        let rest_ok = bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || *c == b'_');
        if head_ok && rest_ok && bytes.len() <= QUEUE_NAME_MAX {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(Invalid::QueueName(name.to_owned()))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bare name of one of the queue's relations, such as `q1__docs`.
    pub fn relation(&self, suffix: &str) -> String {
        format!("{}__{suffix}", self.0)
    }

    /// One of the queue's relations, qualified and quoted for a statement.
    pub fn qualified(&self, suffix: &str) -> String {
        format!("fetchq_data.\"{}__{suffix}\"", self.0)
    }

    /// The notification channel of a state, such as `fetchq__q1__pnd`.
    pub fn channel(&self, state: &str) -> String {
        format!("fetchq__{}__{state}", self.0)
    }
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that a subject fits its column.
pub fn check_subject(subject: &str) -> Result<&str, Invalid> {
    // Most subjects are short: no need to count characters then.
    if subject.len() <= SUBJECT_MAX {
        return Ok(subject);
    }
    let got = subject.chars().count();
    if got <= SUBJECT_MAX {
        Ok(subject)
    } else {
        Err(Invalid::SubjectLength {
            got,
            max: SUBJECT_MAX,
        })
    }
}

/// Checks that a metric name fits its column.
pub fn check_metric(metric: &str) -> Result<&str, Invalid> {
    let count = metric.chars().count();
    if count == 0 || count > METRIC_NAME_MAX {
        Err(Invalid::MetricName(metric.to_owned()))
    } else {
        Ok(metric)
    }
}

/// Cuts a text to at most `max` characters; true when something was cut off.
pub fn cut(text: &str, max: usize) -> (&str, bool) {
    match text.char_indices().nth(max) {
        Some((end, _)) => (&text[..end], true),
        None => (text, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_names_fold_to_lower_case() {
        for (given, name) in [("q1", "q1"), ("Foo", "foo"), ("order", "order"), ("_", "_")] {
            assert_eq!(QueueName::parse(given).unwrap().as_str(), name);
        }
        let longest = "a".repeat(40);
        assert_eq!(QueueName::parse(&longest).unwrap().as_str(), longest);
    }

    #[test]
    fn everything_else_is_refused() {
        let too_long = "a".repeat(41);
        for name in [
            "",
            "1q",
            "a-b",
            "a b",
            "a.b",
            "é",
            "x\"; drop table users; --",
            "*",
            &too_long,
        ] {
            assert_eq!(
                QueueName::parse(name),
                Err(Invalid::QueueName(name.to_owned()))
            );
        }
    }

    #[test]
    fn relations_are_quoted() {
        let q = QueueName::parse("Order").unwrap();
        assert_eq!(q.qualified("docs"), "fetchq_data.\"order__docs\"");
        assert_eq!(q.relation("docs"), "order__docs");
        assert_eq!(q.channel("pnd"), "fetchq__order__pnd");
    }

    #[test]
    fn subjects_count_characters_not_bytes() {
        assert!(check_subject(&"é".repeat(50)).is_ok());
        assert_eq!(
            check_subject(&"x".repeat(51)),
            Err(Invalid::SubjectLength { got: 51, max: 50 })
        );
    }

    #[test]
    fn cutting_respects_characters() {
        assert_eq!(cut("été", 2), ("ét", true));
        assert_eq!(cut("été", 3), ("été", false));
        assert_eq!(cut("", 3), ("", false));
    }
}
