//! The unusual values that a function accepts.

use fetchq_client_tests::{NullIs, null_is};

/// All values of an argument.
const ANY: &[&str] = &["*"];

/// Any text, also one of a megabyte.
const ANY_TEXT: &[&str] = ANY;

/// Any text of up to 255 letters.
const SHORT_TEXT: &[&str] = &["empty", "control", "255 letters", "odd letters"];

/// A text that is up to 8 kB long.
const MESSAGE: &[&str] = &[
    "empty",
    "control",
    "255 letters",
    "256 letters",
    "odd letters",
];

/// What is accepted: functions, an argument, and values. `optional.rs` says where NULL is.
pub const ACCEPTED: &[(&[&str], &str, &[&str])] = &[
    // Payloads and the like are any JSON.
    (
        &[
            "doc_put",
            "doc_append",
            "doc_complete",
            "doc_kill",
            "doc_reschedule",
            "schedule_create",
        ],
        "payload",
        ANY,
    ),
    (&["doc_complete"], "result", ANY),
    (&["doc_extend"], "progress", ANY),
    (&["doc_reject", "doc_kill", "log_error"], "details", ANY),
    (
        &["doc_append_many"],
        "payloads",
        &["empty", "with null", "one", "two", "1 MB", "100,000"],
    ),
    (
        &["doc_complete_many", "doc_reschedule_many"],
        "payloads",
        &["with null", "one", "1 MB"],
    ),
    (
        &["doc_complete_many"],
        "results",
        &["with null", "one", "1 MB"],
    ),
    (
        &["doc_put", "doc_append", "schedule_create"],
        "headers",
        &["object", "unknown key", "1 MB key"],
    ),
    // A document is due at any time, and belongs to any version.
    (
        &[
            "doc_put",
            "doc_reschedule",
            "doc_reschedule_many",
            "doc_revive",
            "doc_snooze",
        ],
        "next_iteration",
        ANY,
    ),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_append_many",
            "doc_lease",
            "doc_lease_any",
            "doc_pop",
            "docs_next",
            "schedule_create",
        ],
        "version",
        ANY,
    ),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_append_many",
            "doc_set_priority",
            "docs_set_priority",
            "schedule_create",
        ],
        "priority",
        ANY,
    ),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_reject",
            "doc_reschedule",
            "doc_snooze",
            "doc_set_due",
            "docs_set_due",
        ],
        "delay",
        &["zero"],
    ),
    // A subject is any text that is short enough; reading one that does not exist gives no row.
    (
        &[
            "doc_put",
            "doc_get",
            "doc_errors",
            "doc_cancel",
            "log_error",
            "trace",
        ],
        "subject",
        SHORT_TEXT,
    ),
    (&["doc_put", "doc_append"], "ordering_key", SHORT_TEXT),
    (&["doc_put", "doc_append"], "max_attempts", &["greatest"]),
    (
        &["doc_put_many"],
        "docs",
        &["list", "duplicates", "list of 100,000"],
    ),
    (
        &["docs_settle", "docs_next"],
        "settlements",
        &["list", "100,000"],
    ),
    (
        &[
            "doc_lease",
            "doc_lease_any",
            "doc_pop",
            "docs_next",
            "docs_list",
            "doc_errors",
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
            "docs_set_due",
            "lease_list",
            "queue_history",
            "mnt_run",
            "mnt_run_all",
            "queue_redrive",
            "queue_trim_history",
        ],
        "max_docs",
        &["0", "greatest"],
    ),
    (
        &["schedule_run", "schedule_run_at"],
        "max_schedules",
        &["0", "greatest"],
    ),
    (&["schedule_preview"], "n", &["0", "greatest"]),
    (
        &[
            "doc_lease",
            "doc_lease_any",
            "docs_next",
            "lease_extend",
            "doc_extend",
        ],
        "duration",
        &["zero"],
    ),
    (&["schedule_create"], "jitter", &["zero"]),
    (
        &["doc_lease", "doc_lease_any", "docs_next"],
        "worker",
        &["control", "odd letters"],
    ),
    (
        &["worker_release", "worker_stop", "worker_stop_requested"],
        "name",
        &["control", "odd letters"],
    ),
    (&["worker_stop_requested", "metric_history"], "since", ANY),
    (&["metric_history"], "until", ANY),
    (
        &["metric_history"],
        "metrics",
        &["empty", "duplicates", "100,000"],
    ),
    (
        &["doc_set_due", "docs_set_due"],
        "next_iteration",
        &["infinity", "-infinity"],
    ),
    // Leases of a list that is empty: nothing is to be done.
    (
        &["doc_complete_many", "doc_drop_many", "doc_reschedule_many"],
        "subjects",
        &["empty"],
    ),
    (&["lease_extend"], "subjects", &["duplicates"]),
    (
        &[
            "docs_list",
            "docs_retry",
            "docs_set_priority",
            "queue_history",
            "queue_redrive",
        ],
        "filter",
        &["object"],
    ),
    // Where a page begins is any text.
    (&["docs_list", "lease_list"], "after", ANY_TEXT),
    (&["doc_reject", "doc_kill", "log_error"], "message", MESSAGE),
    (&["doc_reject", "log_error"], "ref_id", ANY_TEXT),
    (
        &["queue_configure", "queue_create"],
        "settings",
        &["object"],
    ),
    (
        &["queue_default_is_valid"],
        "value",
        &["JSON null", "number"],
    ),
    (&["schedule_create"], "name", &["odd letters"]),
    (&["schedule_create"], "starts_at", &["-infinity"]),
    (&["schedule_create"], "ends_at", &["infinity"]),
    (&["queue_place_set"], "place", &["empty", "odd letters"]),
    // There is none to drop.
    (&["schedule_drop"], "name", ANY_TEXT),
    (&["schedule_preview"], "from_time", ANY),
    (&["schedule_run_at"], "as_of", ANY),
];

/// Whether a call with this value is accepted.
pub fn is_accepted(function: &str, argument: &str, value: &str) -> bool {
    if value == "null" {
        return null_is(function, argument) == NullIs::Default;
    }
    ACCEPTED.iter().any(|(functions, name, values)| {
        functions.contains(&function)
            && *name == argument
            && (*values == ANY || values.contains(&value))
    })
}
