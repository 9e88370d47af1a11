//! Why a command failed.
use fetchq_connect::{ConfigError, DbError, DbErrorKind};

use super::output;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}", with_hint(.0))]
    Call(#[from] DbError),
    #[error("{0}")]
    Usage(String),
    #[error("{0} cannot be read: {1}")]
    File(String, std::io::Error),
    #[error("{0} is not JSON: {1}")]
    Json(String, serde_json::Error),
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

fn with_hint(error: &DbError) -> String {
    let mut text = error.message.clone();
    if let Some(code) = &error.code {
        text.push_str(&format!(" (SQLSTATE {code})"));
    }
    // PostgreSQL itself refuses who may not even use the schema, and gives no hint.
    let hint = match error.kind {
        DbErrorKind::Forbidden => Some(
            "grant usage on schema fetchq to the role, and fetchq.queue_grant() gives rights on a queue",
        ),
        _ => None,
    };
    if let Some(hint) = error.hint.as_deref().or(hint) {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    output::printable(&text)
}
