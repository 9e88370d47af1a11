//! What putting a document does to the one that has its subject.

use crate::domain::status::Status;

/// What happens to a planned or pending document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    Ignore,
    Replace,
    /// The payloads are merged.
    Merge,
    /// It runs at the earlier one of both times.
    Earliest,
    /// It runs at the new time, with the new payload.
    Debounce,
}

/// A mode of uniqueness: what happens to a document that is known, and whether one that
/// is completed or killed starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    pub known: Known,
    pub resets: bool,
}

/// The modes, for messages.
pub const MODES: &str = "ignore, replace, merge, earliest, debounce, reset, or reset with one of the others, such as 'merge,reset'";

impl Mode {
    /// None: there is no such mode.
    pub fn parse(text: &str) -> Option<Self> {
        let mut known = None;
        let mut resets = false;
        for word in text.split(',') {
            let word = match word.trim() {
                "ignore" => Known::Ignore,
                "replace" => Known::Replace,
                "merge" => Known::Merge,
                "earliest" => Known::Earliest,
                "debounce" => Known::Debounce,
                "reset" if !resets => {
                    resets = true;
                    continue;
                }
                _ => return None,
            };
            if known.replace(word).is_some() {
                return None;
            }
        }
        Some(Self {
            known: known.unwrap_or(Known::Ignore),
            resets,
        })
    }

    /// Nothing ever happens to a document that exists.
    pub fn only_adds(self) -> bool {
        self.known == Known::Ignore && !self.resets
    }

    /// What happens to a document in that state, planned for `old`, that is put for
    /// `new`. One that is active is its worker's.
    pub fn decide(self, status: Status, old: i64, new: i64, now: i64) -> Decision {
        let at = |time: i64| Status::planned_or_pending(time <= now);
        match (status, self.known) {
            (Status::Active, _) => Decision::Leave,
            (Status::Completed | Status::Killed, _) if self.resets => Decision::Revive(at(new)),
            (Status::Completed | Status::Killed, _) => Decision::Leave,
            (_, Known::Ignore) => Decision::Leave,
            (_, Known::Replace) => Decision::Replace(at(new)),
            (_, Known::Merge) => Decision::Merge,
            (_, Known::Earliest) if new < old => Decision::Plan(at(new)),
            (_, Known::Earliest) => Decision::Leave,
            (_, Known::Debounce) => Decision::PlanWithPayload(at(new)),
        }
    }
}

/// What is to be done with a document that exists; with the state that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Leave,
    Merge,
    Plan(Status),
    PlanWithPayload(Status),
    Replace(Status),
    Revive(Status),
}

/// What became of a document that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Created,
    Updated,
    Ignored,
    Revived,
}

impl Action {
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Ignored => "ignored",
            Self::Revived => "revived",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(mode: &str, status: Status, old: i64, new: i64) -> Decision {
        Mode::parse(mode).unwrap().decide(status, old, new, 100)
    }

    #[test]
    fn modes_are_told_apart() {
        let mode = |known, resets| Some(Mode { known, resets });
        assert_eq!(Mode::parse("ignore"), mode(Known::Ignore, false));
        assert_eq!(Mode::parse("reset"), mode(Known::Ignore, true));
        assert_eq!(Mode::parse(" merge , reset "), mode(Known::Merge, true));
        assert_eq!(Mode::parse("reset,replace"), mode(Known::Replace, true));
        for bad in [
            "",
            ",",
            "Ignore",
            "replace,merge",
            "reset,reset",
            "merge,",
            "latest",
        ] {
            assert_eq!(Mode::parse(bad), None, "{bad}");
        }
        assert!(Mode::parse("ignore").unwrap().only_adds());
        assert!(!Mode::parse("reset").unwrap().only_adds());
    }

    #[test]
    fn an_active_document_is_left_alone() {
        for mode in [
            "ignore", "replace", "merge", "earliest", "debounce", "reset",
        ] {
            assert_eq!(decide(mode, Status::Active, 50, 10), Decision::Leave);
        }
    }

    #[test]
    fn only_reset_brings_a_document_back() {
        for mode in ["ignore", "replace", "merge", "earliest", "debounce"] {
            assert_eq!(decide(mode, Status::Completed, 50, 10), Decision::Leave);
            assert_eq!(decide(mode, Status::Killed, 50, 10), Decision::Leave);
        }
        let pending = Decision::Revive(Status::Pending);
        assert_eq!(decide("reset", Status::Completed, 50, 100), pending);
        let planned = Decision::Revive(Status::Planned);
        assert_eq!(decide("merge,reset", Status::Killed, 50, 101), planned);
        assert_eq!(decide("reset", Status::Planned, 150, 10), Decision::Leave);
    }

    #[test]
    fn the_state_follows_the_time() {
        let planned = Status::Planned;
        let pending = Status::Pending;
        assert_eq!(
            decide("replace", planned, 150, 100),
            Decision::Replace(pending)
        );
        assert_eq!(
            decide("replace", pending, 50, 101),
            Decision::Replace(planned)
        );
        assert_eq!(
            decide("earliest", planned, 150, 120),
            Decision::Plan(planned)
        );
        assert_eq!(
            decide("earliest", planned, 150, 90),
            Decision::Plan(pending)
        );
        assert_eq!(decide("earliest", planned, 150, 150), Decision::Leave);
        assert_eq!(decide("earliest", pending, 50, 150), Decision::Leave);
        assert_eq!(
            decide("debounce", pending, 50, 150),
            Decision::PlanWithPayload(planned)
        );
        assert_eq!(decide("merge", planned, 150, 10), Decision::Merge);
    }
}
