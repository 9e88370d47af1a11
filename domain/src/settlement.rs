//! The actions of `docs_settle`, and which keys go with each of them.

/// What a worker does with a document that it has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The work is done.
    Complete,
    /// The work is done, and the document is removed.
    Drop,
    /// The work has failed, and is tried again.
    Reject,
    /// The work has failed, and is not tried again.
    Kill,
    /// The document is given back, and the attempt does not count.
    Snooze,
    /// The work is done, and is done again later.
    Reschedule,
}

/// The actions, for messages.
pub const ACTIONS: &str = "complete, drop, reject, kill, snooze or reschedule";

/// The keys of a settlement, for messages.
pub const KEYS: &str =
    "subject, lease, action, then, payload, result, message, details, ref_id, delay and due_at";

/// The keys that every action has.
const COMMON_KEYS: [&str; 4] = ["subject", "lease", "action", "then"];

/// How many of the lowest bits of the id of a worker session are 0. When the worker settles a document, the
/// column `worker_session` of that document gets [`Action::code`] there. So it tells whose lease it was, and
/// whether its worker has ended it, and how.
pub const ACTION_BITS: u32 = 3;

impl Action {
    const ALL: [Self; 6] = [
        Self::Complete,
        Self::Drop,
        Self::Reject,
        Self::Kill,
        Self::Snooze,
        Self::Reschedule,
    ];

    /// Reads an action. Returns None for an unknown one.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.word() == word)
    }

    /// The number of the action in the lowest bits of `worker_session`. 0 is none.
    pub fn code(self) -> i64 {
        match self {
            Self::Complete => 1,
            Self::Drop => 2,
            Self::Reject => 3,
            Self::Kill => 4,
            Self::Snooze => 5,
            Self::Reschedule => 6,
        }
    }

    /// The word of the action.
    pub fn word(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Kill => "kill",
            Self::Snooze => "snooze",
            Self::Reschedule => "reschedule",
        }
    }

    /// Returns whether a key other than those of all actions goes with this one.
    pub fn has_key(self, key: &str) -> bool {
        let own: &[&str] = match self {
            Self::Complete => &["payload", "result"],
            Self::Drop => &[],
            Self::Reject => &["message", "details", "ref_id", "delay", "due_at"],
            Self::Kill => &["payload", "message", "details", "ref_id"],
            Self::Snooze => &["delay", "due_at"],
            Self::Reschedule => &["delay", "due_at", "payload"],
        };
        COMMON_KEYS.contains(&key) || own.contains(&key)
    }
}

/// Returns whether a key goes with any action.
pub fn is_key(key: &str) -> bool {
    Action::ALL.iter().any(|action| action.has_key(key))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn words(text: &str) -> Vec<&str> {
        text.split([',', ' '])
            .filter(|word| !word.is_empty() && !["or", "and"].contains(word))
            .collect()
    }

    #[test]
    fn messages_name_all_actions_and_keys() {
        let actions: Vec<_> = Action::ALL.iter().map(|action| action.word()).collect();
        assert_eq!(words(ACTIONS), actions);
        assert!(words(KEYS).iter().all(|key| is_key(key)));
        assert!(!is_key("at") && !is_key(""));
        for action in Action::ALL {
            assert_eq!(Action::parse(action.word()), Some(action));
            assert!((1..1 << ACTION_BITS).contains(&action.code()));
            assert!(
                ["subject", "lease", "action"]
                    .iter()
                    .all(|key| action.has_key(key))
            );
        }
        assert_eq!(Action::parse("Complete"), None);
        let codes = Action::ALL.map(Action::code);
        assert_eq!(codes.iter().collect::<HashSet<_>>().len(), codes.len());
    }

    #[test]
    fn every_key_goes_with_some_action() {
        for key in words(KEYS) {
            assert!(
                Action::ALL.iter().any(|action| action.has_key(key)),
                "{key}"
            );
        }
        assert!(!Action::Drop.has_key("payload"));
        assert!(!Action::Complete.has_key("delay"));
    }
}
