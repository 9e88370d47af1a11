//! The names of queues, as they stand in statements, and of places.
use super::failure::{Failure, Result};

/// The tables that a queue can have, by their suffix.
pub const TABLES: [&str; 4] = ["docs", "logs", "metrics", "history"];

/// A valid name of a queue. Its characters need no quotation, so it can stand in a statement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueName(String);

impl QueueName {
    /// Reads a name by the rules of fetchq: letters, digits and underscores, at most 40, folded to
    /// lower case.
    pub fn parse(name: &str) -> Result<Self> {
        let bytes = name.as_bytes();
        let is_start_valid = bytes
            .first()
            .is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
        let is_valid = is_start_valid
            && bytes.len() <= 40
            && bytes
                .iter()
                .all(|c| c.is_ascii_alphanumeric() || *c == b'_');
        match is_valid {
            true => Ok(Self(name.to_ascii_lowercase())),
            false => Err(Failure::new(format!("\"{name}\" is no name of a queue"))),
        }
    }

    /// Reads the names of the command line: sorted, each once.
    pub fn parse_all(names: &[String]) -> Result<Vec<Self>> {
        let mut parsed: Vec<Self> = names
            .iter()
            .map(|name| Self::parse(name.trim()))
            .collect::<Result<_>>()?;
        parsed.sort();
        parsed.dedup();
        Ok(parsed)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a table of the queue for a statement.
    pub fn table(&self, suffix: &str) -> String {
        format!("fetchq_data.\"{}__{suffix}\"", self.0)
    }
}

/// The names as an array of texts, a parameter of statements.
pub fn texts(names: &[QueueName]) -> Vec<&str> {
    names.iter().map(QueueName::as_str).collect()
}

/// The longest place that fetchq takes, in characters.
const PLACE_MAX: usize = 200;

/// Checks the text of a place by the rules of `queue_place_set`.
pub fn check_place(place: &str) -> Result<()> {
    let length = place.chars().count();
    match (1..=PLACE_MAX).contains(&length) && !place.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(Failure::new(
            "--place must have 1 to 200 characters, none of them a control character",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_sorted_and_listed_once() {
        let names = ["b".to_owned(), "A".to_owned(), "a".to_owned()];
        let parsed = QueueName::parse_all(&names).unwrap();
        assert_eq!(texts(&parsed), ["a", "b"]);
        assert_eq!(parsed[0].table("docs"), "fetchq_data.\"a__docs\"");
    }

    #[test]
    fn a_name_that_would_need_quotation_is_refused() {
        let long = "a".repeat(41);
        for name in ["", "1a", "a b", "a'", "a\"", "é", long.as_str()] {
            assert!(QueueName::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_place_is_a_short_line() {
        assert!(check_place("db2:5432/shop").is_ok());
        let long = "é".repeat(PLACE_MAX + 1);
        for place in ["", "a\nb", long.as_str()] {
            assert!(check_place(place).is_err(), "{place}");
        }
    }
}
