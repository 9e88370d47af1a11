//! What a command prints: a table for people, or JSON.
use std::io::{Result, Write, stdout};
use std::process::ExitCode;

use serde_json::Value;

/// How wide a column of a table gets. The whole value is in the JSON.
const WIDEST: usize = 60;

/// Where a command prints, and in which form.
pub struct Output {
    /// Whether it prints JSON.
    pub json: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// A value, as JSON.
    pub fn value(&self, value: &Value) -> Result<()> {
        writeln!(stdout(), "{value:#}")
    }

    /// Some columns of rows for people, or all of them as JSON. `none` says that there are no rows.
    pub fn table(&self, rows: &[Value], columns: &[&str], none: &str) -> Result<()> {
        if self.json {
            return self.value(&Value::from(rows));
        }
        if rows.is_empty() {
            if !none.is_empty() {
                writeln!(std::io::stderr(), "{none}")?;
            }
            return Ok(());
        }
        let head: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
        let body = rows.iter().map(|row| {
            let cell = |column: &&str| cut(&one_line(&row[*column]));
            columns.iter().map(cell).collect::<Vec<_>>()
        });
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(body).collect();
        let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max();
        let widths: Vec<usize> = (0..columns.len()).map(|n| width(n).unwrap_or(0)).collect();
        let mut out = stdout().lock();
        for line in &lines {
            let cells = line.iter().zip(&widths);
            let text: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            writeln!(out, "{}", text.join("  ").trim_end())?;
        }
        Ok(())
    }

    /// The fields of one row, each on its line, without those that are NULL; or the row as JSON.
    pub fn fields(&self, row: &Value) -> Result<()> {
        if self.json {
            return self.value(row);
        }
        let mut out = stdout().lock();
        for (name, value) in row.as_object().into_iter().flatten() {
            let text = match value {
                Value::Null => continue,
                Value::String(text) => printable(text),
                Value::Object(_) | Value::Array(_) => printable(&format!("{value:#}")),
                _ => value.to_string(),
            };
            writeln!(
                out,
                "{name:14} {}",
                text.replace('\n', &format!("\n{:15}", ""))
            )?;
        }
        Ok(())
    }

    /// A sentence about the first row, or the row as JSON.
    pub fn line(&self, rows: &[Value], say: impl Fn(&Value) -> String) -> Result<()> {
        match rows.first() {
            Some(row) if self.json => self.value(row),
            Some(row) => writeln!(stdout(), "{}", printable(&say(row))),
            None => Ok(()),
        }
    }

    /// A row that has a code, a sentence, and what to do.
    pub fn reason(&self, row: &Value) -> Result<()> {
        let mut out = stdout().lock();
        let text = |key: &str| row[key].as_str().map(printable);
        writeln!(
            out,
            "{}: {}",
            text("reason").unwrap_or_default(),
            text("detail").unwrap_or_default()
        )?;
        for (key, label) in [("since", "since"), ("until", "until"), ("hint", "do")] {
            if let Some(text) = text(key) {
                writeln!(out, "  {label}: {text}")?;
            }
        }
        Ok(())
    }
}

/// The status of a command whose answer is yes or no.
pub fn status(is_so: bool) -> ExitCode {
    if is_so {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The text of a value, on one line.
fn one_line(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(&text.replace(['\n', '\r', '\t'], " ")),
        other => printable(&other.to_string()),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The text with its control characters escaped, but for ends of lines: what is in a document must not steer the
/// terminal of whoever looks at it.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control() && c != '\n';
            let plain = (!escaped).then_some(c);
            plain
                .into_iter()
                .chain(escaped.then(|| c.escape_default()).into_iter().flatten())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_document_does_not_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{9b}"), "a\\u{1b}[2Jb\nc\\u{9b}");
        assert_eq!(one_line(&Value::from("a\nb\u{7}")), "a b\\u{7}");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let text = "é".repeat(WIDEST + 1);
        assert_eq!(cut(&text).chars().count(), WIDEST + 1);
        assert!(cut(&text).ends_with('…'));
    }
}
