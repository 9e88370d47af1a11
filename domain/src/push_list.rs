//! The list of documents in the last argument of `doc_push(queue, version, next_iteration, text)`.
//!
//! An example is `('m1', 0, '{"a":1}', {DATA}), ('m2', 5, '{}', {DATA})`. fetchq 4 executed this
//! text as part of a statement. Here it is parsed, and everything except literals is refused.

use crate::invalid::Invalid;
use crate::list_length;

/// What ends each document of a list.
const DATA: &str = "{DATA}";

/// A document of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The subject, whose length was not checked.
    pub subject: String,
    /// The priority.
    pub priority: i32,
    /// The payload as JSON text, which the server parses later.
    pub payload: String,
}

/// Parses the whole list.
///
/// Fails with `Invalid::DocumentList` with the position of the mistake, in characters from 1.
pub fn parse(text: &str) -> Result<Vec<Item>, Invalid> {
    list_length::check("documents", max_items(text))?;
    let mut p = Parser { text, at: 0 };
    let mut items = Vec::new();
    loop {
        p.token("(")?;
        let subject = p.string("the subject")?;
        p.token(",")?;
        let priority = p.integer()?;
        p.token(",")?;
        let payload = p.string("the payload")?;
        p.token(",")?;
        p.token(DATA)?;
        p.token(")")?;
        items.push(Item {
            subject,
            priority,
            payload,
        });
        p.skip_space();
        if p.rest().is_empty() {
            return Ok(items);
        }
        p.token(",")?;
    }
}

/// How many documents a text can have at most.
pub fn max_items(text: &str) -> usize {
    text.matches(DATA).count()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Returns the error for the current position.
    fn fail<T>(&self, reason: &str) -> Result<T, Invalid> {
        Err(Invalid::DocumentList {
            at: self.text[..self.at].chars().count() + 1,
            reason: reason.to_owned(),
        })
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn token(&mut self, token: &str) -> Result<(), Invalid> {
        self.skip_space();
        if self.rest().starts_with(token) {
            self.at += token.len();
            Ok(())
        } else {
            self.fail(&format!("expected {token}"))
        }
    }

    /// Reads a literal in apostrophes, in which a pair of apostrophes stands for one.
    fn string(&mut self, what: &str) -> Result<String, Invalid> {
        self.skip_space();
        if !self.rest().starts_with('\'') {
            return self.fail(&format!("expected {what} as a literal in apostrophes"));
        }
        let start = self.at;
        let mut out = String::new();
        let body = &self.text[self.at + 1..];
        let mut chars = body.char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            if c != '\'' {
                out.push(c);
            } else if chars.next_if(|(_, next)| *next == '\'').is_some() {
                out.push('\'');
            } else {
                self.at += 1 + i + 1;
                return Ok(out);
            }
        }
        self.at = start;
        self.fail("this literal has no closing apostrophe")
    }

    fn integer(&mut self) -> Result<i32, Invalid> {
        self.skip_space();
        let rest = self.rest();
        let len = rest
            .char_indices()
            .take_while(|(i, c)| c.is_ascii_digit() || (*i == 0 && matches!(c, '-' | '+')))
            .count();
        match rest[..len].parse() {
            Ok(n) => {
                self.at += len;
                Ok(n)
            }
            Err(_) => self.fail("expected the priority as an integer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(subject: &str, priority: i32, payload: &str) -> Item {
        Item {
            subject: subject.into(),
            priority,
            payload: payload.into(),
        }
    }

    #[test]
    fn a_list_of_literals() {
        let text = r#"('m1', 0, '{"a":1}', {DATA}) ,
            ( 'it''s' , -5 , '{"b": "o''clock"}' , {DATA} )"#;
        assert_eq!(
            parse(text).unwrap(),
            vec![
                item("m1", 0, r#"{"a":1}"#),
                item("it's", -5, r#"{"b": "o'clock"}"#)
            ]
        );
    }

    #[test]
    fn backslashes_and_emoji_are_plain_text() {
        let got = parse(r#"('é🙂', +1, '{"a":"\\n"}', {DATA})"#).unwrap();
        assert_eq!(got, vec![item("é🙂", 1, r#"{"a":"\\n"}"#)]);
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "",
            "()",
            "('a')",
            "('a', 0, '{}', {DATA}),",
            "('a', 0, '{}', {DATA}) garbage",
            "('a', 0, '{}', {DATA}); drop table x",
            "('a', 1+1, '{}', {DATA})",
            "('a', 0, '{}'::jsonb, {DATA})",
            "('a' || 'b', 0, '{}', {DATA})",
            "(now()::text, 0, '{}', {DATA})",
            "(pg_sleep(1), 0, '{}', {DATA})",
            "('a', 0, '{}', {DATA} /* x */)",
            "('a', 0, '{}', {DATA}) -- x",
            "(E'a', 0, '{}', {DATA})",
            "('a', 0, '{}', 1)",
            "('a', 99999999999, '{}', {DATA})",
            "('a, 0, {}, {DATA})",
            "(null, 0, '{}', {DATA})",
            "('a', -, '{}', {DATA})",
        ] {
            assert!(
                matches!(parse(bad), Err(Invalid::DocumentList { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn an_error_has_its_position() {
        let err = parse("('é', x, '{}', {DATA})").unwrap_err();
        assert_eq!(
            err,
            Invalid::DocumentList {
                at: 7,
                reason: "expected the priority as an integer".into()
            }
        );
    }
}
