//! The modes of `doc_put`, which say what happens to an existing document with the same subject.

use crate::status::Status;

/// What happens to an existing document that is planned or pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDuplicate {
    /// The document does not change.
    Ignore,
    /// The new document replaces it.
    Replace,
    /// The payloads are merged, and so are the headers.
    Merge,
    /// The document becomes due at the earlier one of both times.
    Earliest,
    /// The document becomes due at the new time, and gets the new payload and headers.
    Debounce,
}

/// A mode of `doc_put`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// What happens to an existing document that is planned or pending.
    pub on_duplicate: OnDuplicate,
    /// Whether a document that is completed or killed starts again.
    pub resets: bool,
}

/// The modes, for messages.
pub const MODES: &str = "ignore, replace, merge, earliest, debounce, reset, or reset with one of the others, such as 'merge,reset'";

impl Mode {
    /// Reads a mode, whose words are separated by commas. Returns None for an unknown mode.
    pub fn parse(text: &str) -> Option<Self> {
        let mut on_duplicate = None;
        let mut resets = false;
        for word in text.split(',') {
            let word = match word.trim() {
                "ignore" => OnDuplicate::Ignore,
                "replace" => OnDuplicate::Replace,
                "merge" => OnDuplicate::Merge,
                "earliest" => OnDuplicate::Earliest,
                "debounce" => OnDuplicate::Debounce,
                "reset" if !resets => {
                    resets = true;
                    continue;
                }
                _ => return None,
            };
            if on_duplicate.replace(word).is_some() {
                return None;
            }
        }
        Some(Self {
            on_duplicate: on_duplicate.unwrap_or(OnDuplicate::Ignore),
            resets,
        })
    }

    /// Returns whether an existing document never changes in this mode.
    pub fn only_adds(self) -> bool {
        self.on_duplicate == OnDuplicate::Ignore && !self.resets
    }

    /// Decides what happens to an existing document with this status.
    ///
    /// `old` is its next iteration, `new` is that of the new document, and `now` is the current
    /// time, all in microseconds since 2000. An active document never changes, because its
    /// worker is processing it.
    pub fn decide(self, status: Status, old: i64, new: i64, now: i64) -> Decision {
        let at = |time: i64| Status::planned_or_pending(time <= now);
        match (status, self.on_duplicate) {
            (Status::Active, _) => Decision::Leave,
            (Status::Completed | Status::Killed, _) if self.resets => Decision::Revive(at(new)),
            (Status::Completed | Status::Killed, _) => Decision::Leave,
            (_, OnDuplicate::Ignore) => Decision::Leave,
            (_, OnDuplicate::Replace) => Decision::Replace(at(new)),
            (_, OnDuplicate::Merge) => Decision::Merge,
            (_, OnDuplicate::Earliest) if new < old => Decision::Plan(at(new)),
            (_, OnDuplicate::Earliest) => Decision::Leave,
            (_, OnDuplicate::Debounce) => Decision::PlanWithPayload(at(new)),
        }
    }
}

/// What must be done with an existing document. The status is the one that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The document does not change.
    Leave,
    /// The payloads are merged, and so are the headers.
    Merge,
    /// The document gets the new time.
    Plan(Status),
    /// The document gets the new time, and the new payload and headers.
    PlanWithPayload(Status),
    /// The new document replaces it.
    Replace(Status),
    /// The document starts again.
    Revive(Status),
}

/// The outcome for a document that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The document was added.
    Created,
    /// The existing document was changed.
    Updated,
    /// The existing document was not changed.
    Ignored,
    /// The existing document was completed or killed, and starts again.
    Revived,
}

impl Action {
    /// Returns the name of the outcome in the result of `doc_put`.
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
    fn modes_are_distinguished() {
        let mode = |on_duplicate, resets| {
            Some(Mode {
                on_duplicate,
                resets,
            })
        };
        assert_eq!(Mode::parse("ignore"), mode(OnDuplicate::Ignore, false));
        assert_eq!(Mode::parse("reset"), mode(OnDuplicate::Ignore, true));
        assert_eq!(
            Mode::parse(" merge , reset "),
            mode(OnDuplicate::Merge, true)
        );
        assert_eq!(
            Mode::parse("reset,replace"),
            mode(OnDuplicate::Replace, true)
        );
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
