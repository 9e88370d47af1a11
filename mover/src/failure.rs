//! What went wrong in a move.
use fetchq_connect::{DbError, DbErrorKind};
use fetchq_domain::invalid::Invalid;

/// The result of a part of a move.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a part of a move could not be done, and what to do.
#[derive(Debug, Clone)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    /// The SQLSTATE, if a server has reported it.
    code: Option<String>,
    /// The connection is gone, or there never was one.
    is_lost: bool,
}

/// The SQLSTATEs after which the switch is tried again: a lock was not available in time, or this
/// session was chosen to end a deadlock.
const BUSY: [&str; 2] = ["55P03", "40P01"];

impl Failure {
    /// A failure that no server has reported.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            code: None,
            is_lost: false,
        }
    }

    /// Adds what to do.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A failure that ends like a lock that was not available: the switch is tried again.
    pub fn busy(message: impl Into<String>) -> Self {
        Self {
            code: Some(BUSY[0].to_owned()),
            ..Self::new(message)
        }
    }

    /// What a server has reported, or that it is not there. `server` names it.
    pub fn of(server: &str, error: DbError) -> Self {
        Self {
            is_lost: error.kind == DbErrorKind::Unreachable,
            message: format!("{server}: {}", error.message),
            hint: error.hint,
            code: error.code,
        }
    }

    /// Whether the switch can be tried again.
    pub fn is_busy(&self) -> bool {
        self.code
            .as_deref()
            .is_some_and(|code| BUSY.contains(&code))
    }

    /// Whether the connection is gone.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::new(invalid.to_string())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lock_that_is_not_available_is_tried_again() {
        assert!(Failure::busy("later").is_busy());
        assert!(!Failure::new("never").is_busy());
        let shown = Failure::new("it is full")
            .with_hint("Make room.")
            .to_string();
        assert_eq!(shown, "it is full\nhint: Make room.");
    }
}
