//! What an error for a wrong value says.

use fetchq_client_tests::error_of;

/// What a message says instead of the name of an argument.
const SAID: &[(&str, &[&str])] = &[
    ("queue", &["queue name"]),
    ("queues", &["queue name"]),
    ("target", &["queue name"]),
    ("subject", &["document \""]),
    (
        "subjects",
        &[
            "the subject exceeds",
            "none of the documents",
            "are not active",
        ],
    ),
    ("ordering_key", &["ordering key"]),
    ("metrics", &["metric name"]),
    ("docs", &["document 1 of the list"]),
    ("schedules", &["schedule 1 of the list"]),
    ("settings", &["setting \""]),
    ("settlements", &["settlement "]),
    ("extensions", &["extension "]),
    ("role", &["role \""]),
    ("schedule", &["neither a cron expression nor an interval"]),
    ("timezone", &["time zone"]),
    ("starts_at", &["never ticks"]),
    ("ends_at", &["never ticks"]),
    ("name", &["schedule \""]),
    ("filter", &["a filter"]),
];

/// SQLSTATEs of errors that say which argument is wrong.
const STATES: &[&str] = &[
    "21000", "22001", "22004", "22007", "22008", "22023", "2202E", "42602", "42704", "42P02",
    "55000",
];

/// The longest message, in bytes: a subject has up to 1,020. What a caller passes is not repeated at
/// full length.
const MESSAGE_MAX: usize = 1200;

/// What is wrong with an error for an argument.
pub fn complaints(error: &tokio_postgres::Error, argument: &str) -> Vec<String> {
    let error = error_of(error);
    let message = error.message();
    let said = SAID.iter().filter(|(name, _)| *name == argument);
    let mut names = said.flat_map(|(_, said)| said.iter().copied());
    let mut complaints = Vec::new();
    if !message.contains(argument) && !names.any(|name| message.contains(name)) {
        complaints.push("does not name the argument".to_owned());
    }
    if !STATES.contains(&error.code().code()) {
        complaints.push(format!("has SQLSTATE {}", error.code().code()));
    }
    if error.hint().is_none_or(str::is_empty) {
        complaints.push("has no hint".to_owned());
    }
    if message.len() > MESSAGE_MAX {
        complaints.push(format!("has {} bytes", message.len()));
    }
    complaints
}
