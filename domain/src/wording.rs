//! Words of messages: what errors say about documents, rights and values.

use crate::status::Status;

/// The longest part of a value that an error shows, in characters.
const SHOWN: usize = 80;

/// A value for an error: its beginning, where it is long. The log of the server keeps errors, and a
/// caller can pass megabytes.
pub fn shorten(text: &str) -> String {
    cut(text, SHOWN)
}

/// The longest part of a message of the server that an error shows, in characters. It has the value
/// at its end, after words that tell what is wrong.
const SHOWN_OF_MESSAGE: usize = 160;

/// A message of the server for an error: its beginning, where it is long, because it repeats a value
/// that the caller has passed.
pub fn shorten_message(message: &str) -> String {
    cut(message, SHOWN_OF_MESSAGE)
}

fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// A text as a literal of SQL.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Describes a document that is not active.
pub fn describe(found: Option<Option<Status>>) -> String {
    match found {
        None => "there is no such document".into(),
        Some(Some(status)) => format!("it is {}", status.word()),
        Some(None) => "it has an unknown status".into(),
    }
}

/// Describes what a role is not for a queue.
pub fn describe_right(kind: Option<&str>) -> &'static str {
    match kind {
        None => "does not own",
        Some("reader") => "is not a reader of",
        Some("producer") => "is not a producer of",
        Some("worker") => "is not a worker of",
        Some(_) => "is not a manager of",
    }
}

/// Describes a column of a queue's table that is not as it was made. `found`: its type, if it exists.
pub fn describe_column(found: Option<&str>, expected: &str) -> String {
    match found {
        Some(found) => format!("has type {found}, expected {expected}"),
        None => format!("of type {expected} is missing"),
    }
}

/// Describes a document whose lease was lost. An active document has another lease.
pub fn describe_lost(found: Option<Option<Status>>) -> String {
    match found {
        Some(Some(Status::Active)) => "it was picked again".into(),
        other => describe(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_long_value_is_shown() {
        assert_eq!(shorten(&"🙂".repeat(80)), "🙂".repeat(80));
        let shown = format!("{}…", "🙂".repeat(80));
        assert_eq!(shorten(&"🙂".repeat(81)), shown);
    }
}
