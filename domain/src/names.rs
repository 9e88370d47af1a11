//! The names of queues and of their relations and channels, and checks of subjects and metrics.

use crate::invalid::Invalid;

/// The length of the longest name of a queue, in characters.
///
/// The names of tables and indexes add a suffix such as `__docs_pick_idx` (15 bytes). A name of
/// PostgreSQL can have 63 bytes.
pub const QUEUE_NAME_MAX: usize = 40;

/// The length of the longest subject, in characters. An index entry has room for one of 255
/// characters of four bytes. In fetchq 4 it was 50.
pub const SUBJECT_MAX: usize = 255;

/// The length of the longest name of a metric, in characters, from the contract of fetchq 4.
pub const METRIC_NAME_MAX: usize = 40;

/// What the names of the tables of a queue end with. Not every queue has a history.
pub const TABLES: [&str; 4] = ["docs", "logs", "metrics", "history"];

/// A valid name of a queue, folded to lower case.
///
/// Because of its characters it can be written into the text of a statement. No other value of a
/// user ever is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(String);

impl QueueName {
    /// Checks a name against `[A-Za-z_][A-Za-z0-9_]{0,39}` and folds it to lower case, as
    /// PostgreSQL folded the unquoted table names of fetchq 4.
    ///
    /// Fails with `Invalid::QueueName` when the name is not valid.
    pub fn parse(name: &str) -> Result<Self, Invalid> {
        let bytes = name.as_bytes();
        let is_start_valid = bytes
            .first()
            .is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
        let are_all_valid = bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || *c == b'_');
        if is_start_valid && are_all_valid && bytes.len() <= QUEUE_NAME_MAX {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(Invalid::QueueName(name.to_owned()))
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of a relation of the queue without its schema, such as `q1__docs`.
    pub fn relation(&self, suffix: &str) -> String {
        format!("{}__{suffix}", self.0)
    }

    /// Returns the name of a relation of the queue for a statement: with its schema, and quoted.
    pub fn qualified(&self, suffix: &str) -> String {
        format!("fetchq_data.\"{}__{suffix}\"", self.0)
    }

    /// Returns the notification channel of a status, such as `fetchq__q1__pnd`.
    pub fn channel(&self, state: &str) -> String {
        format!("fetchq__{}__{state}", self.0)
    }
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that a subject fits its column. Returns `Invalid::SubjectLength` when it is too long.
pub fn check_subject(subject: &str) -> Result<&str, Invalid> {
    let max = SUBJECT_MAX;
    match excess(subject, max) {
        None => Ok(subject),
        Some(got) => Err(Invalid::SubjectLength { got, max }),
    }
}

/// Checks the subject of a document that is put. Fetchq 4 puts empty ones, too.
///
/// Fails as `check_subject` does, and with `Invalid::EmptySubject`.
pub fn check_put_subject(subject: &str) -> Result<&str, Invalid> {
    match subject {
        "" => Err(Invalid::EmptySubject),
        _ => check_subject(subject),
    }
}

/// Checks that an ordering key fits its index, where it can be as long as a subject. Returns
/// `Invalid::KeyLength` when it is too long.
pub fn check_ordering_key(key: &str) -> Result<&str, Invalid> {
    let max = SUBJECT_MAX;
    match excess(key, max) {
        None => Ok(key),
        Some(got) => Err(Invalid::KeyLength { got, max }),
    }
}

/// The number of characters of a text if there are more than `max`.
fn excess(text: &str, max: usize) -> Option<usize> {
    // The characters of most texts need not be counted, because they have few bytes.
    if text.len() <= max {
        return None;
    }
    Some(text.chars().count()).filter(|n| *n > max)
}

/// The length of the longest message of an error, in bytes.
pub const MESSAGE_MAX: usize = 8192;

/// The message of a failure of which its worker says nothing.
pub const NO_MESSAGE: &str = "no message";

/// Cuts a message to the length that fits, between two characters. It is not refused, because the failure
/// that it reports would be lost with it.
pub fn cut_message(message: &str) -> &str {
    if message.len() <= MESSAGE_MAX {
        return message;
    }
    let end = (0..=MESSAGE_MAX)
        .rev()
        .find(|end| message.is_char_boundary(*end));
    &message[..end.unwrap_or(0)]
}

/// Checks that the name of a metric fits its column, and is not empty.
///
/// Fails with `Invalid::MetricName` when it is not valid.
pub fn check_metric(metric: &str) -> Result<&str, Invalid> {
    let count = metric.chars().count();
    if count == 0 || count > METRIC_NAME_MAX {
        Err(Invalid::MetricName(metric.to_owned()))
    } else {
        Ok(metric)
    }
}

/// The length of the longest line, in characters.
const LINE_MAX: usize = 200;

/// What the place of a queue and the owner of schedules must be.
pub const LINE: &str = "a text of 1 to 200 characters, none of them a control character";

/// Whether a text is a line that can be shown in a list.
pub fn is_line(text: &str) -> bool {
    (1..=LINE_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// Cuts a text to at most `max` characters. Returns the text, and whether it was cut.
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
        assert!(check_subject(&"é".repeat(255)).is_ok());
        assert_eq!(
            check_subject(&"x".repeat(256)),
            Err(Invalid::SubjectLength { got: 256, max: 255 })
        );
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let longest = "é".repeat(4096);
        for message in ["", "short", &longest] {
            assert_eq!(cut_message(message), message);
        }
        assert_eq!(cut_message(&"é".repeat(4097)), longest);
        for odd in ["a", "ab", "abc"] {
            let cut = format!("{odd}{}", "🙂".repeat(2047));
            assert_eq!(cut_message(&format!("{cut}🙂")), cut);
        }
    }

    #[test]
    fn a_line_is_short() {
        assert!(is_line("db2:5432/shop") && is_line(&"é".repeat(LINE_MAX)));
        let long = "é".repeat(LINE_MAX + 1);
        for place in ["", "a\nb", long.as_str()] {
            assert!(!is_line(place), "{place}");
        }
    }

    #[test]
    fn cutting_respects_characters() {
        assert_eq!(cut("été", 2), ("ét", true));
        assert_eq!(cut("été", 3), ("été", false));
        assert_eq!(cut("", 3), ("", false));
    }
}
