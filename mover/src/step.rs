//! The steps of a move, and the variable of the tests that stops it before one of them.
use std::time::Duration;

use crate::failure::{Failure, Result};
use crate::say::say;

/// The variable that names the step before which the command stops.
const VARIABLE: &str = "FETCHQ_MOVE_STOP_AT";

/// The steps, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Both servers are looked at; nothing is changed.
    Check,
    /// Both servers record that a move has begun.
    Record,
    /// The new server gets the tables.
    Stage,
    /// The old server gets publications and a replication slot.
    Publish,
    /// The new server subscribes.
    Subscribe,
    /// The tables are copied, and the new server catches up.
    Copy,
    /// The hook `--before`.
    Before,
    /// The queues are locked on the old server.
    Lock,
    /// The new server gets what was committed before the lock.
    CatchUp,
    /// The documents of both servers are compared.
    Verify,
    /// What is in no replicated table is copied, and the queues are dropped, not committed.
    Rest,
    /// The new server commits all that it needs to finish.
    Ready,
    /// The old server commits. From then on the queues live on the new server.
    Commit,
    /// The new server registers the queues.
    Finish,
    /// The hook `--after`.
    After,
    /// Publications, slot and records are removed.
    Clean,
}

impl Step {
    /// All of them, in their order.
    pub const ALL: [Self; 16] = [
        Self::Check,
        Self::Record,
        Self::Stage,
        Self::Publish,
        Self::Subscribe,
        Self::Copy,
        Self::Before,
        Self::Lock,
        Self::CatchUp,
        Self::Verify,
        Self::Rest,
        Self::Ready,
        Self::Commit,
        Self::Finish,
        Self::After,
        Self::Clean,
    ];

    /// The name, as the variable has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Record => "record",
            Self::Stage => "stage",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Copy => "copy",
            Self::Before => "before",
            Self::Lock => "lock",
            Self::CatchUp => "catch-up",
            Self::Verify => "verify",
            Self::Rest => "rest",
            Self::Ready => "ready",
            Self::Commit => "commit",
            Self::Finish => "finish",
            Self::After => "after",
            Self::Clean => "clean",
        }
    }

    /// The step of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }
}

/// Where the command stops, for tests.
#[derive(Debug, Clone, Copy)]
pub struct Stops(Option<Step>);

impl Stops {
    /// Reads the variable.
    pub fn from_environment() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Err(_) => Ok(Self(None)),
            Ok(name) if name.is_empty() => Ok(Self(None)),
            Ok(name) => match Step::parse(&name) {
                Some(step) => Ok(Self(Some(step))),
                None => Err(Failure::new(format!("{VARIABLE}: there is no step {name}"))
                    .with_hint(format!("The steps are: {}", names()))),
            },
        }
    }

    /// Sleeps for good if this is the step that the variable names.
    pub async fn before(self, step: Step) {
        if self.0 == Some(step) {
            say(&format!("stopped before step {}", step.name()));
            loop {
                tokio::time::sleep(Duration::from_secs(3600)).await;
            }
        }
    }
}

fn names() -> String {
    Step::ALL.map(Step::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_found_by_its_name() {
        for step in Step::ALL {
            assert_eq!(Step::parse(step.name()), Some(step));
        }
        assert_eq!(Step::parse("nonsense"), None);
    }
}
