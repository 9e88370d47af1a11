//! What NULL means for each argument of each function. All tests that pass NULL read this one table.

/// Arguments that may be NULL: functions, argument.
const OPTIONAL: &[(&[&str], &str)] = &[
    (&["doc_complete_many", "doc_reschedule_many"], "payloads"),
    (&["doc_complete", "doc_kill", "doc_reschedule"], "payload"),
    (
        &[
            "doc_complete",
            "doc_kill",
            "doc_reschedule",
            "doc_drop",
            "doc_reject",
            "doc_snooze",
            "doc_extend",
            "doc_complete_many",
            "doc_reschedule_many",
            "doc_drop_many",
        ],
        "lease",
    ),
    (
        &[
            "doc_reject",
            "doc_put",
            "doc_append",
            "doc_reschedule",
            "doc_snooze",
            "doc_set_due",
            "docs_set_due",
        ],
        "delay",
    ),
    (&["doc_put", "doc_append"], "payload"),
    (&["doc_put", "doc_snooze"], "next_iteration"),
    (
        &[
            "doc_put",
            "doc_append",
            "doc_lease",
            "doc_lease_any",
            "docs_next",
        ],
        "version",
    ),
    (&["doc_put", "doc_append"], "priority"),
    (&["doc_put", "doc_put_many"], "mode"),
    (&["doc_put", "doc_append"], "ordering_key"),
    (&["doc_put", "doc_append"], "max_attempts"),
    (&["doc_put", "doc_append", "schedule_create"], "headers"),
    (
        &[
            "doc_lease",
            "doc_lease_any",
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
        ],
        "max_docs",
    ),
    (
        &[
            "docs_list",
            "docs_retry",
            "docs_set_priority",
            "queue_history",
        ],
        "filter",
    ),
    (
        &[
            "docs_retry",
            "docs_kill",
            "docs_drop",
            "docs_move",
            "docs_set_priority",
            "docs_set_due",
            "queue_redrive",
        ],
        "dry_run",
    ),
    (&["doc_reject", "log_error", "doc_kill"], "details"),
    (&["doc_complete"], "result"),
    (&["doc_complete_many"], "results"),
    (&["doc_extend"], "progress"),
    (&["doc_reject", "log_error"], "ref_id"),
    (
        &[
            "queue_grants",
            "queue_stats",
            "schedule_drop",
            "schedule_pause",
            "schedule_resume",
            "schedule_tick",
            "schedule_list",
            "schedule_run",
        ],
        "queue",
    ),
    (&["queue_place_set"], "place"),
    (&["metric_export"], "family"),
    (&["docs_list", "lease_list", "queue_history"], "after"),
    (&["metric_history"], "since"),
    (&["metric_history"], "until"),
    (&["metric_history"], "step"),
    (&["metric_history"], "metrics"),
    (&["schedule_create"], "starts_at"),
    (&["schedule_create"], "ends_at"),
    (&["doc_lease_any"], "weights"),
    (
        &["doc_lease", "doc_lease_any", "docs_next", "lease_extend"],
        "duration",
    ),
    (&["docs_next"], "settlements"),
    (&["docs_settle", "docs_next"], "on_lost"),
    (&["lease_extend"], "subjects"),
    (&["doc_lease", "doc_lease_any", "docs_next"], "worker"),
    (&["doc_lease", "doc_lease_any", "docs_next"], "binding"),
    (&["queue_create"], "settings"),
];

/// Arguments whose default is refused, and so is NULL: the SQLSTATE says more than that it is NULL.
const REFUSED: &[(&[&str], &str, &str)] = &[
    (
        &["docs_kill", "docs_drop", "docs_move", "docs_set_due"],
        "filter",
        "21000",
    ),
    // Beside values of the other arguments.
    (&["lease_list", "queue_history"], "queue", "22023"),
];

/// What NULL is for an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullIs {
    /// As if the argument was left out.
    Default,
    /// Refused as the default is, with this SQLSTATE.
    Refused(&'static str),
    /// A missing value.
    Missing,
}

/// What NULL means for an argument of a function.
pub fn null_is(function: &str, argument: &str) -> NullIs {
    let is_listed =
        |(functions, name): &(&[&str], &str)| functions.contains(&function) && *name == argument;
    let refused = REFUSED
        .iter()
        .find(|(functions, name, _)| is_listed(&(*functions, *name)));
    if let Some((_, _, state)) = refused {
        NullIs::Refused(state)
    } else if OPTIONAL.iter().any(is_listed) {
        NullIs::Default
    } else {
        NullIs::Missing
    }
}
