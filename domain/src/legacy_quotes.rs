//! The rule behind the setting `fetchq.legacy_quotes`.
//!
//! The npm client doubles every apostrophe in payloads and messages, because fetchq 4 inserted
//! them into the text of a second statement.

/// Replaces each pair of apostrophes by one. A single apostrophe stays.
pub fn undouble(text: &str) -> String {
    text.replace("''", "'")
}

#[cfg(test)]
mod tests {
    use super::undouble;

    #[test]
    fn pairs_become_one() {
        assert_eq!(undouble(r#"{"a": "it''s"}"#), r#"{"a": "it's"}"#);
        assert_eq!(undouble("''''"), "''");
        assert_eq!(undouble("it's"), "it's");
    }
}
