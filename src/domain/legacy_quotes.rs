//! `fetchq.legacy_quotes`: the npm client doubles every apostrophe in payloads and
//! messages, because fetchq 4 pasted them into a statement a second time.

/// Turns each pair of apostrophes into one; a single one stays.
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
