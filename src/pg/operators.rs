//! Operators in SQL statements.
//!
//! A plain operator is looked up through the search_path of the session, in which a user may
//! have created an operator of the same name. Statements therefore write operators as markers,
//! such as `{=}` and `{->>}`. Every statement passes through [`expand`] on its way to the
//! server, which then uses the operators of `pg_catalog`. The exception is a statement with
//! identifiers of users (`Spi::once_verbatim`), which could contain the text of a marker.
//!
//! All operators that are written in this way bind equally strongly, from left to right. So a
//! statement needs parentheses where SQL usually needs none: `a {=} (b {+} 1)`.

use std::borrow::Cow;

/// The characters of which the name of an operator of PostgreSQL can consist.
const OPERATOR_CHARACTERS: &str = "+-*/<>=~!@#%^&|`?";

fn is_operator(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| OPERATOR_CHARACTERS.contains(c))
}

/// Expands the markers of a statement: `{=}` becomes `operator(pg_catalog.=)`.
///
/// Other braces stay as they are. A statement without markers is not copied.
pub fn expand(sql: &str) -> Cow<'_, str> {
    let mut expanded = String::new();
    let mut rest = sql;
    while let Some(start) = rest.find('{') {
        let Some(length) = rest[start..].find('}') else {
            break;
        };
        let end = start + length;
        let name = &rest[start + 1..end];
        if !is_operator(name) {
            expanded.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        }
        expanded.push_str(&rest[..start]);
        expanded.push_str("operator(pg_catalog.");
        expanded.push_str(name);
        expanded.push(')');
        rest = &rest[end + 1..];
    }
    if expanded.is_empty() {
        return Cow::Borrowed(sql);
    }
    expanded.push_str(rest);
    Cow::Owned(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_become_operators_of_the_catalog() {
        assert_eq!(
            expand("select {docs} where a {=} b {->>} 'x'"),
            "select {docs} where a operator(pg_catalog.=) b operator(pg_catalog.->>) 'x'"
        );
        assert_eq!(
            expand("'{}'::jsonb, '{1,2}', {docs}"),
            "'{}'::jsonb, '{1,2}', {docs}"
        );
        assert_eq!(expand("a {<=} '{}'"), "a operator(pg_catalog.<=) '{}'");
        assert_eq!(expand("no end {="), "no end {=");
    }
}
