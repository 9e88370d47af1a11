//! Errors of the client, and what an error of the database means for it.

use std::error::Error as StdError;
use std::fmt;

/// What a handler returns when it fails.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a handler has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The document was cancelled.
    Cancelled,
    /// The lease was lost: another worker may have the document.
    Lost,
    /// The handler has run for too long.
    Timeout,
    /// The worker stops.
    Shutdown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
            Self::Timeout => "timeout",
            Self::Shutdown => "shutdown",
        })
    }
}

/// A handler had to stop. A handler that stops returns it as its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped: {0}")]
pub struct Aborted(pub Reason);

/// The payload of a document is not what its task declares.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not fit: {0}")]
pub struct InvalidPayload(pub String);

/// What the runtime does after an error in a call of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Connect again, and repeat.
    Connection,
    /// Repeat.
    Conflict,
    /// A lease does not hold.
    Lost,
    /// Rights or declarations are wrong.
    Config,
    /// The server refuses what was sent.
    Data,
}

impl Kind {
    /// What an error of the server is taken for, by its SQLSTATE and the name of its routine.
    pub fn of(sqlstate: &str, routine: Option<&str>) -> Self {
        let starts = |list: &[&str]| list.iter().any(|s| sqlstate.starts_with(s));
        if starts(&["08", "57P", "53", "58", "XX"]) {
            Self::Connection
        } else if starts(&["40001", "40P01", "55P03", "57014", "25006"]) {
            Self::Conflict
        } else if sqlstate == "55000" && routine == Some("fetchq") {
            Self::Lost
        } else if starts(&[
            "42501", "42883", "42P01", "3F000", "3D000", "42704", "28", "0A000",
        ]) {
            Self::Config
        } else {
            Self::Data
        }
    }
}

/// An error of a call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Something is declared or set up in a way that does not work.
    #[error("{0}")]
    Config(String),
    /// Something that is to be sent is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The server has answered with an error.
    #[error("{message}")]
    Server {
        /// The SQLSTATE.
        code: String,
        /// The message.
        message: String,
        /// The routine that has raised it: `fetchq` for errors of the extension.
        routine: Option<String>,
    },
    /// The server does not answer.
    #[error("{0}")]
    Connection(String),
    /// A handler has to stop.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

impl Error {
    /// What the runtime does after it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Config(_) => Kind::Config,
            Self::Invalid(_) | Self::Aborted(_) => Kind::Data,
            Self::Server { code, routine, .. } => Kind::of(code, routine.as_deref()),
            Self::Connection(_) => Kind::Connection,
        }
    }

    /// The SQLSTATE, if the server has sent one.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Server { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// An error and its causes.
pub(crate) fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |one: &&'a (dyn StdError + 'static)| {
        let one: &'a (dyn StdError + 'static) = *one;
        one.source()
    })
}

/// The text of an error with those of its causes, where it does not have them itself. Drivers say only there what the
/// server has said.
pub(crate) fn told(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for cause in chain(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    if text.is_empty() {
        text = format!("{error:?}");
    }
    text
}

/// Whether an error comes of a request to stop, also where the handler has wrapped it.
pub(crate) fn was_aborted(error: &(dyn StdError + 'static)) -> bool {
    chain(error)
        .any(|one| one.is::<Aborted>() || matches!(one.downcast_ref(), Some(Error::Aborted(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_sqlstate() {
        assert_eq!(
            Kind::of("57P01", Some("ProcessInterrupts")),
            Kind::Connection
        );
        assert_eq!(Kind::of("40001", None), Kind::Conflict);
        assert_eq!(Kind::of("55000", Some("fetchq")), Kind::Lost);
        assert_eq!(Kind::of("55000", Some("currval_oid")), Kind::Data);
        assert_eq!(Kind::of("42501", None), Kind::Config);
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Outer {
            text: &'static str,
            #[source]
            cause: Aborted,
        }
        let outer = |text| {
            told(&Outer {
                text,
                cause: Aborted(Reason::Lost),
            })
        };
        assert_eq!(outer("db error"), "db error: stopped: lost");
        assert_eq!(outer("it was stopped: lost"), "it was stopped: lost");
        assert!(!told(&*BoxError::from("")).is_empty());
    }

    #[test]
    fn a_wrapped_abort_is_an_abort() {
        #[derive(Debug, thiserror::Error)]
        #[error("sending")]
        struct Wrapped(#[source] Aborted);
        assert!(was_aborted(&Wrapped(Aborted(Reason::Timeout))));
        assert!(!was_aborted(&Error::Invalid("no".into())));
    }
}
