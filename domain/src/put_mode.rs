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
    /// An active document runs again, also where a planned one stays as it is.
    pub resets: bool,
    /// A document that is completed or killed is not made anew, also while only the history knows it.
    pub is_once: bool,
}

/// The modes, for messages.
pub const MODES: &str = "ignore, replace, merge, earliest, debounce, reset, once, or reset or once with one of the others, such as 'merge,once'";

impl Mode {
    /// A mode that does nothing beside this.
    pub const fn new(on_duplicate: OnDuplicate) -> Self {
        Self {
            on_duplicate,
            resets: false,
            is_once: false,
        }
    }

    /// Reads a mode, whose words are separated by commas. Returns None for an unknown mode.
    pub fn parse(text: &str) -> Option<Self> {
        let mut on_duplicate = None;
        let (mut resets, mut is_once) = (false, false);
        for word in text.split(',') {
            let word = match word.trim() {
                "ignore" => OnDuplicate::Ignore,
                "replace" => OnDuplicate::Replace,
                "merge" => OnDuplicate::Merge,
                "earliest" => OnDuplicate::Earliest,
                "debounce" => OnDuplicate::Debounce,
                "reset" if !resets && !is_once => {
                    resets = true;
                    continue;
                }
                "once" if !resets && !is_once => {
                    is_once = true;
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
            is_once,
        })
    }

    /// Returns whether a planned, a pending and an active document stay as they are.
    pub fn leaves_unfinished(self) -> bool {
        self.on_duplicate == OnDuplicate::Ignore && !self.resets
    }

    /// Returns whether a document with this status stays as it is, whatever its time is.
    pub fn leaves(self, status: Status) -> bool {
        match status {
            Status::Completed | Status::Killed => self.is_once,
            Status::Planned | Status::Pending | Status::Active => self.leaves_unfinished(),
        }
    }

    /// Decides what happens to an existing document with this status.
    ///
    /// `old` is its next iteration, `new` is that of the new document, and `now` is the current
    /// time, all in microseconds since 2000. An active document keeps what it is given until its
    /// worker has settled it.
    pub fn decide(self, status: Status, old: i64, new: i64, now: i64) -> Decision {
        let at = |time: i64| Status::planned_or_pending(time <= now);
        match (status, self.on_duplicate) {
            _ if self.leaves(status) => Decision::Leave,
            (Status::Completed | Status::Killed, _) => Decision::Anew,
            (Status::Active, OnDuplicate::Ignore) => Decision::Queue(OnDuplicate::Replace),
            (Status::Active, how) => Decision::Queue(how),
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
    /// The document is kept beside it, and put in this way when it is settled.
    Queue(OnDuplicate),
    /// The document makes room for the new one, as if it were not there.
    Anew,
}

/// Returns the words of the modes in which an active document keeps what it is given: those of what it
/// has already, and of one more put.
///
/// A put that sets something leaves nothing to a mode that would have kept it.
pub fn queued_modes(before: Option<&str>, more: OnDuplicate) -> &'static str {
    let has = |word| before.is_some_and(|before| before.split(',').any(|mode| mode == word));
    match more {
        OnDuplicate::Replace | OnDuplicate::Ignore => "replace",
        _ if has("replace") => "replace",
        OnDuplicate::Debounce => "debounce",
        _ if has("debounce") => "debounce",
        OnDuplicate::Merge if !has("earliest") => "merge",
        OnDuplicate::Earliest if !has("merge") => "earliest",
        OnDuplicate::Merge | OnDuplicate::Earliest => "merge,earliest",
    }
}

/// Reads the words of [`queued_modes`]. Anything else stands for `replace`, so that nothing is lost.
pub fn parse_queued_modes(words: &str) -> Vec<Mode> {
    let modes: Option<Vec<Mode>> = words.split(',').map(Mode::parse).collect();
    modes.unwrap_or_else(|| vec![Mode::new(OnDuplicate::Replace)])
}

/// The outcome for a document that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The document was added. If there was one that was completed or killed, it made room.
    Created,
    /// The existing document was changed.
    Updated,
    /// The existing document is active. It runs again with this when it is settled.
    Queued,
    /// The existing document was not changed.
    Ignored,
}

impl Action {
    /// Returns the name of the outcome in the result of `doc_put`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Queued => "queued",
            Self::Ignored => "ignored",
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
        let mode = |on_duplicate, resets, is_once| {
            Some(Mode {
                on_duplicate,
                resets,
                is_once,
            })
        };
        let ignore = OnDuplicate::Ignore;
        assert_eq!(Mode::parse("ignore"), mode(ignore, false, false));
        assert_eq!(Mode::parse("reset"), mode(ignore, true, false));
        assert_eq!(Mode::parse("once"), mode(ignore, false, true));
        assert_eq!(
            Mode::parse(" merge , reset "),
            mode(OnDuplicate::Merge, true, false)
        );
        assert_eq!(
            Mode::parse("once,replace"),
            mode(OnDuplicate::Replace, false, true)
        );
        for bad in [
            "",
            ",",
            "Ignore",
            "replace,merge",
            "reset,reset",
            "once,once",
            "once,reset",
            "merge,",
            "latest",
        ] {
            assert_eq!(Mode::parse(bad), None, "{bad}");
        }
        assert!(Mode::parse("ignore").unwrap().leaves_unfinished());
        assert!(Mode::parse("once").unwrap().leaves_unfinished());
        assert!(!Mode::parse("reset").unwrap().leaves_unfinished());
    }

    #[test]
    fn an_active_document_keeps_what_it_is_given() {
        for mode in ["ignore", "once"] {
            assert_eq!(decide(mode, Status::Active, 50, 10), Decision::Leave);
        }
        for (mode, how) in [
            ("replace", OnDuplicate::Replace),
            ("reset", OnDuplicate::Replace),
            ("merge", OnDuplicate::Merge),
            ("merge,reset", OnDuplicate::Merge),
            ("earliest,once", OnDuplicate::Earliest),
            ("debounce", OnDuplicate::Debounce),
        ] {
            assert_eq!(
                decide(mode, Status::Active, 50, 10),
                Decision::Queue(how),
                "{mode}"
            );
        }
    }

    #[test]
    fn only_once_counts_a_document_that_is_finished() {
        for status in [Status::Completed, Status::Killed] {
            for mode in ["ignore", "replace", "merge,reset", "earliest", "reset"] {
                assert_eq!(decide(mode, status, 50, 10), Decision::Anew, "{mode}");
            }
            for mode in ["once", "once,merge", "replace,once"] {
                assert_eq!(decide(mode, status, 50, 10), Decision::Leave, "{mode}");
            }
        }
        assert_eq!(decide("reset", Status::Planned, 150, 10), Decision::Leave);
        assert_eq!(
            decide("once,merge", Status::Planned, 150, 10),
            Decision::Merge
        );
    }

    /// Whatever order several puts come in, nothing of them is lost: what one of them sets is set.
    #[test]
    fn the_modes_of_what_is_queued_add_up() {
        use OnDuplicate::{Debounce, Earliest, Merge, Replace};
        for (puts, modes) in [
            (vec![Merge], "merge"),
            (vec![Merge, Merge], "merge"),
            (vec![Merge, Earliest, Merge], "merge,earliest"),
            (vec![Earliest, Merge, Earliest], "merge,earliest"),
            (vec![Merge, Debounce, Earliest], "debounce"),
            (vec![Debounce, Replace, Merge], "replace"),
        ] {
            let mut words = None;
            for put in &puts {
                words = Some(queued_modes(words, *put));
            }
            assert_eq!(words, Some(modes), "{puts:?}");
            assert_eq!(
                parse_queued_modes(modes).len(),
                modes.split(',').count(),
                "{modes}"
            );
        }
        let replace = vec![Mode::new(Replace)];
        assert_eq!(parse_queued_modes("anything,merge"), replace);
        assert_eq!(parse_queued_modes(""), replace);
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
