//! The maintenance jobs in `fetchq.jobs` and their settings.

use serde::Deserialize;

/// The task of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// `mnt`: makes planned documents pending when they are due. Returns documents whose lease has
    /// expired, or kills them after their last attempt.
    Maintain,
    /// `sts`: takes a snapshot of the metrics of a queue.
    Snapshot,
    /// `cmp`: recounts the gauges of a queue and repairs them.
    Recount,
    /// `drp`: applies the retention of a queue's snapshots, log and history, and removes settled
    /// documents that the queue does not keep.
    Retain,
    /// `lgp`: packs the counter log of all queues.
    Pack,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 5] = [
        Self::Maintain,
        Self::Snapshot,
        Self::Recount,
        Self::Retain,
        Self::Pack,
    ];

    /// Returns the name of the task that is shown to users.
    pub fn word(self) -> &'static str {
        match self {
            Self::Maintain => "documents",
            Self::Snapshot => "snapshots",
            Self::Recount => "recounts",
            Self::Retain => "retention",
            Self::Pack => "counters",
        }
    }

    /// Reads the code of a task in `fetchq.jobs`. Returns None for an unknown one.
    pub fn parse(task: &str) -> Option<Self> {
        Some(match task {
            "mnt" => Self::Maintain,
            "sts" => Self::Snapshot,
            "cmp" => Self::Recount,
            "drp" => Self::Retain,
            "lgp" => Self::Pack,
            _ => return None,
        })
    }
}

/// What became of work that leaves out what another session has locked. "Nothing was wrong" and
/// "nothing was done" are not the same, so every caller has to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "Busy means that the work was not done"]
pub enum Ran<T> {
    /// All of it was done.
    Done(T),
    /// Another session has locked something, so the work, or a part of it, was not done.
    Busy,
}

impl<T> Ran<T> {
    /// Done with the value, or busy without one.
    pub fn from_option(value: Option<T>) -> Self {
        value.map_or(Self::Busy, Self::Done)
    }

    /// The value of work that was done. None: busy.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Busy => None,
        }
    }

    /// Changes the value of work that was done.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Ran<U> {
        Ran::from_option(self.done().map(change))
    }

    /// The values of two pieces of work. Busy if one of them is.
    pub fn and<U>(self, other: Ran<U>) -> Ran<(T, U)> {
        Ran::from_option(self.done().zip(other.done()))
    }
}

/// The jobs that every new queue gets, with their first settings.
pub const QUEUE_JOBS: [(&str, &str); 4] = [
    (
        "mnt",
        r#"{"delay": "100ms", "duration": "1m", "limit": 500}"#,
    ),
    ("sts", r#"{"delay": "5m", "duration": "5m"}"#),
    ("cmp", r#"{"delay": "10m", "duration": "5m"}"#),
    ("drp", r#"{"delay": "10m", "duration": "5m"}"#),
];

/// The column `settings` of a job. Durations are intervals as text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// The time between a run and the next one.
    #[serde(default = "default_delay")]
    pub delay: String,
    /// The time after which another session may claim a job that still runs.
    pub duration: Option<String>,
    /// The most documents that one run changes.
    #[serde(default = "default_limit")]
    pub limit: i32,
}

/// The delay of a job that has none in its settings, or that failed. It is that of fetchq 4.
pub const DEFAULT_DELAY: &str = "5m";

/// The limit of a job that has none in its settings: documents.
const DEFAULT_LIMIT: i32 = 100;

fn default_delay() -> String {
    DEFAULT_DELAY.to_owned()
}

fn default_limit() -> i32 {
    DEFAULT_LIMIT
}

impl Settings {
    /// Reads the JSON text of the column. None, for NULL, returns the defaults.
    ///
    /// Returns a message when the text is not valid.
    pub fn parse(json: Option<&str>) -> Result<Self, String> {
        match json {
            None => serde_json::from_str("{}"),
            Some(text) => serde_json::from_str(text),
        }
        .map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults() {
        let s = Settings::parse(Some(r#"{"duration": "1m", "other": true}"#)).unwrap();
        assert_eq!(
            (s.delay.as_str(), s.duration.as_deref(), s.limit),
            ("5m", Some("1m"), 100)
        );
        assert_eq!(Settings::parse(None).unwrap().limit, 100);
    }

    #[test]
    fn wrong_settings_are_refused() {
        assert!(Settings::parse(Some("[1]")).is_err());
        assert!(Settings::parse(Some(r#"{"limit": "many"}"#)).is_err());
    }

    #[test]
    fn the_jobs_of_a_queue_parse() {
        for (task, settings) in QUEUE_JOBS {
            assert!(Task::parse(task).is_some());
            assert!(Settings::parse(Some(settings)).is_ok());
        }
        assert_eq!(Task::parse("zzz"), None);
    }
}
