//! Maintenance jobs and their settings (`fetchq.jobs`).

use serde::Deserialize;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// `mnt`: kills the dead, returns orphans, makes due documents pending.
    Maintain,
    /// `sts`: takes a snapshot of the queue's metrics.
    Snapshot,
    /// `cmp`: recounts the gauges and repairs drift.
    Recount,
    /// `drp`: applies the retention of metrics and logs.
    Retain,
    /// `lgp`: packs the counters of all queues.
    Pack,
}

impl Task {
    pub const ALL: [Self; 5] = [
        Self::Maintain,
        Self::Snapshot,
        Self::Recount,
        Self::Retain,
        Self::Pack,
    ];

    /// What operators see.
    pub fn word(self) -> &'static str {
        match self {
            Self::Maintain => "documents",
            Self::Snapshot => "snapshots",
            Self::Recount => "recounts",
            Self::Retain => "retention",
            Self::Pack => "counters",
        }
    }

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

/// The jobs that every queue gets, with the settings they start with.
pub const QUEUE_JOBS: [(&str, &str); 4] = [
    (
        "mnt",
        r#"{"delay": "100ms", "duration": "1m", "limit": 500}"#,
    ),
    ("sts", r#"{"delay": "5m", "duration": "5m"}"#),
    ("cmp", r#"{"delay": "10m", "duration": "5m"}"#),
    ("drp", r#"{"delay": "10m", "duration": "5m"}"#),
];

/// `settings` of a job. Times are PostgreSQL intervals.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Settings {
    /// How long after a run the next one starts.
    #[serde(default = "default_delay")]
    pub delay: String,
    /// How long a run may take before another session may claim the job.
    pub duration: Option<String>,
    /// How many documents one run may touch.
    #[serde(default = "default_limit")]
    pub limit: i32,
}

/// How long a job without a delay, or one that fails, waits (fetchq 4: 5 minutes).
pub const DEFAULT_DELAY: &str = "5m";

fn default_delay() -> String {
    DEFAULT_DELAY.to_owned()
}

fn default_limit() -> i32 {
    100
}

impl Settings {
    /// Reads the JSON text of the column; NULL stands for the defaults.
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
    fn wrong_settings_are_told() {
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
