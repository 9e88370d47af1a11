//! What went wrong with a call: the server is down, the extension is absent, rights lack, …
use tokio_postgres::error::SqlState;

use super::tls;

/// The kinds of errors that pages tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DbErrorKind {
    /// There is no connection: the server is down, the address or the password is wrong.
    Unreachable,
    /// The database has no extension fetchq.
    NoExtension,
    /// The extension lacks a function or a column that the console calls: it is older.
    OldExtension,
    /// The role lacks a right.
    Forbidden,
    /// There is no such queue, schedule or document.
    Missing,
    /// Any other error that the server reports: a refused value, a timeout.
    Refused,
}

/// An error of a call, as pages and the log show it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct DbError {
    pub kind: DbErrorKind,
    /// The SQLSTATE, if the server has reported the error.
    pub code: Option<String>,
    pub message: String,
    pub hint: Option<String>,
}

impl DbError {
    /// Whether the call was refused because of a value that somebody typed, or because it would read
    /// too much. A page shows that beside the form.
    pub fn is_about_values(&self) -> bool {
        let code = self.code.as_deref().unwrap_or_default();
        code == "54000" || code.starts_with("22")
    }

    /// What a call says that has read as much as it may: how many rows it has found until then, and the
    /// last key that it has read. It is part of the hint, for people who use psql.
    pub fn read_so_far(&self) -> Option<(i32, String)> {
        let hint = self
            .hint
            .as_deref()
            .filter(|_| self.code.as_deref() == Some("54000"))?;
        let (_, rest) = hint.rsplit_once("max_docs => ")?;
        let (found, rest) = rest.split_once(' ')?;
        let (_, last) = rest.split_once("after => '")?;
        let last = last.strip_suffix('\'')?.replace("''", "'");
        Some((found.parse().ok()?, last))
    }

    /// A connection string, or a certificate, cannot be used.
    pub fn unusable(message: String) -> Self {
        Self {
            kind: DbErrorKind::Refused,
            code: None,
            message,
            hint: None,
        }
    }

    /// There is no answer of the server.
    pub fn unreachable(message: String) -> Self {
        Self {
            kind: DbErrorKind::Unreachable,
            code: None,
            message,
            hint: None,
        }
    }
}

impl From<tokio_postgres::Error> for DbError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(report) = error.as_db_error() else {
            let mut message = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                message = format!("{message}: {cause}");
            }
            // A column that is absent or has another type, and not a connection that broke.
            let is_row = message.contains("column") || message.contains("deserializing");
            if is_row {
                return Self {
                    kind: DbErrorKind::OldExtension,
                    code: None,
                    message,
                    hint: None,
                };
            }
            return Self {
                hint: tls::hint(&error).map(str::to_owned),
                ..Self::unreachable(message)
            };
        };
        let code = report.code();
        let kind = if *code == SqlState::INVALID_SCHEMA_NAME {
            DbErrorKind::NoExtension
        } else if [
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_COLUMN,
            SqlState::UNDEFINED_TABLE,
        ]
        .contains(code)
        {
            DbErrorKind::OldExtension
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            DbErrorKind::Forbidden
        } else if [SqlState::UNDEFINED_OBJECT, SqlState::NO_DATA_FOUND].contains(code) {
            DbErrorKind::Missing
        } else if ["57P01", "57P02", "57P03"].contains(&code.code())
            || code.code().starts_with("08")
        {
            DbErrorKind::Unreachable
        } else {
            DbErrorKind::Refused
        };
        Self {
            kind,
            code: Some(code.code().to_owned()),
            message: report.message().to_owned(),
            hint: report.hint().map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_has_read_enough_says_where_to_go_on() {
        let error = DbError {
            code: Some("54000".to_owned()),
            hint: Some(
                "Filter. Or read in parts: max_docs => 20 for what was found, then go on with after => 'it''s'".to_owned(),
            ),
            ..DbError::unreachable(String::new())
        };
        assert_eq!(error.read_so_far(), Some((20, "it's".to_owned())));
        assert_eq!(
            DbError {
                code: None,
                ..error
            }
            .read_so_far(),
            None
        );
    }
}
