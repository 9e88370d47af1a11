//! The result columns of all functions.

/// The result columns of each function, by name and argument types. The types reach users: a
/// JavaScript driver returns an int8 as a string.
pub const RESULTS: &[(&str, &str)] = &[
    ("init()", "was_initialized bool"),
    (
        "queue_create(text, jsonb)",
        "was_created bool, queue_id int4",
    ),
    ("queue_configure(text, jsonb)", "all_settings jsonb"),
    (
        "metric_history(text, timestamptz, timestamptz, interval, _text)",
        "at timestamptz, metric varchar, value int8",
    ),
    (
        "doc_set_due(text, text, timestamptz, interval)",
        "affected int8",
    ),
    ("doc_set_priority(text, text, int4)", "affected int8"),
    (
        "docs_set_due(text, timestamptz, interval, jsonb, int4, bool)",
        "affected int8",
    ),
    (
        "schedule_tick(text, text)",
        "subject text, was_created bool",
    ),
    ("queue_place_set(text, text)", "was_set bool"),
    ("queue_settings(text)", "all_settings jsonb"),
    ("queue_default_is_valid(text, jsonb)", "is_valid bool"),
    ("queue_drop(text)", "was_dropped bool, queue_id int4"),
    ("queue_get_id(text)", "queue_id int8"),
    ("queue_grant(text, text, text)", "was_granted bool"),
    (
        "queue_grants(text)",
        "queue varchar, role name, kind text, is_direct bool",
    ),
    ("queue_has_right(text, text)", "has_right bool"),
    ("queue_revoke(text, text, text)", "was_revoked bool"),
    ("data_owner_set(text)", "was_changed bool"),
    (
        "worker_stop_requested(text, text, timestamptz)",
        "is_requested bool",
    ),
    ("queue_create_indexes(text)", "was_created bool"),
    ("queue_create_indexes(text, int4, int4)", "was_created bool"),
    ("queue_drop_indexes(text)", "was_dropped bool"),
    ("queue_drop_version(text, int4)", "was_dropped bool"),
    (
        "queue_set_max_attempts(text, int4)",
        "affected_rows int4, was_reindexed bool",
    ),
    (
        "queue_set_current_version(text, int4)",
        "affected_rows int4, was_reindexed bool",
    ),
    ("queue_set_logs_retention(text, text)", "affected_rows int4"),
    (
        "queue_set_metrics_retention(text, text)",
        "affected_rows int4",
    ),
    ("queue_drop_logs(text)", "affected_rows int4"),
    ("queue_drop_logs(text, text)", "affected_rows int4"),
    ("queue_drop_logs(text, timestamptz)", "affected_rows int4"),
    ("queue_drop_metrics(text)", "removed_rows int4"),
    ("queue_drop_metrics(text, jsonb)", "removed_rows int4"),
    ("queue_enable_notify(text)", "success bool"),
    ("queue_disable_notify(text)", "success bool"),
    ("queue_status()", "id int4, name varchar, is_active bool"),
    (
        "queue_status(text)",
        "id int4, name varchar, is_active bool",
    ),
    ("queue_top(text, int4, int4, int4)", PICKED),
    ("queue_truncate(text, bool)", "success bool"),
    ("queue_truncate_all(bool)", "success bool"),
    (
        "doc_append(text, jsonb, int4, int4, text, int4, interval, jsonb)",
        "subject varchar",
    ),
    (
        "doc_push(text, text, jsonb, timestamptz)",
        "queued_docs int4",
    ),
    (
        "doc_push(text, text, int4, int4, timestamptz, jsonb)",
        "queued_docs int4",
    ),
    (
        "doc_push(text, int4, timestamptz, text)",
        "queued_docs int4",
    ),
    (
        "doc_upsert(text, text, int4, int4, timestamptz, jsonb)",
        "queued_docs int4, updated_docs int4",
    ),
    ("doc_pick(text, int4, text)", LEASED),
    ("doc_pick(text, text)", LEASED),
    ("doc_pick(text, interval)", LEASED),
    ("doc_pick(text, int4, int4, text)", LEASED),
    ("doc_pick(text, int4, int4, interval)", LEASED),
    (
        "doc_lease(text, int4, interval, int4, text, text)",
        "subject text, payload jsonb, headers jsonb, version int4, priority int4, attempts int4, max_attempts int4, \
    iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, lease_ends timestamptz, lease int8, last_error text",
    ),
    (
        "docs_settle(text, jsonb, text)",
        "subject text, outcome text, status text",
    ),
    (
        "docs_next(text, jsonb, int4, interval, int4, text, text, text)",
        "subject text, payload jsonb, headers jsonb, version int4, priority int4, attempts int4, max_attempts int4, \
    iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, lease_ends timestamptz, lease int8, last_error text",
    ),
    (
        "doc_lease_any(_text, int4, interval, int4, _int4, text, text)",
        "queue text, subject text, payload jsonb, headers jsonb, version int4, priority int4, attempts int4, max_attempts int4, \
    iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, lease_ends timestamptz, lease int8, last_error text",
    ),
    ("doc_append_many(text, _jsonb, int4, int4)", "subject text"),
    (
        "doc_complete_many(text, _text, _jsonb, int8, _jsonb)",
        "subject text, settled bool",
    ),
    (
        "doc_drop_many(text, _text, int8)",
        "subject text, settled bool",
    ),
    (
        "doc_reschedule_many(text, _text, timestamptz, _jsonb, int8)",
        "subject text, settled bool",
    ),
    (
        "ready_stats()",
        "slots int4, slots_used int4, advances int8, advances_discarded int8, polls_answered int8, full_scans int8, floor_misses int8",
    ),
    (
        "ready_floors(text)",
        "index text, version int4, level int4, next_iteration timestamptz, attempts int4, seq int8, is_empty bool",
    ),
    (
        "doc_complete(text, text, jsonb, int8, jsonb)",
        "affected_rows int4",
    ),
    (
        "doc_kill(text, text, jsonb, int8, text, jsonb)",
        "affected_rows int4",
    ),
    (
        "lease_extend(text, int8, interval, _text)",
        "affected int8, lease_ends timestamptz, stop bool",
    ),
    ("doc_drop(text, text, int8)", "affected_rows int4"),
    (
        "doc_reschedule(text, text, timestamptz, jsonb, int8, interval)",
        "affected_rows int4",
    ),
    (
        "doc_reject(text, text, text, jsonb, text, int8, interval)",
        "affected_rows int4",
    ),
    (
        "log_error(text, text, text, jsonb, text)",
        "queued_logs bool",
    ),
    (
        "metric_get(text)",
        "metric varchar, current_value int8, last_update timestamptz",
    ),
    (
        "metric_get(text, text)",
        "current_value int4, last_update timestamptz, does_exists bool",
    ),
    ("metric_get_common(text)", COMMON),
    (
        "metric_get_total(text)",
        "current_value int4, does_exists bool",
    ),
    (
        "metric_compute(text)",
        "cnt int4, pln int4, pnd int4, act int4, kll int4, cpl int4",
    ),
    (
        "metric_compute_all()",
        "queue varchar, cnt int4, pln int4, pnd int4, act int4, cpl int4, kll int4",
    ),
    (
        "metric_reset(text)",
        "cnt int4, pln int4, pnd int4, act int4, cpl int4, kll int4",
    ),
    (
        "metric_reset_all()",
        "queue varchar, cnt int4, pln int4, pnd int4, act int4, cpl int4, kll int4",
    ),
    (
        "metric_set(text, text, int4)",
        "current_value int4, was_created bool",
    ),
    (
        "metric_increment(text, text, int4)",
        "current_value int4, was_created bool",
    ),
    (
        "metric_log_increment(text, text, int4)",
        "affected_rows int4",
    ),
    (
        "metric_log_decrement(text, text, int4)",
        "affected_rows int4",
    ),
    ("metric_log_set(text, text, int4)", "affected_rows int4"),
    ("metric_log_pack()", "affected_rows int4"),
    ("metric_snap(text)", "success bool, inserts int4"),
    ("metric_snap(text, text)", "success bool, inserts int4"),
    ("metric_snap(text, jsonb)", "success bool, inserts int4"),
    ("mnt()", "processed int4, packed int4"),
    ("mnt(text)", "processed int4, packed int4"),
    (
        "mnt_run(text, int4)",
        "activated_count int4, rescheduled_count int4, killed_count int4",
    ),
    (
        "mnt_run_all(int4)",
        "queue varchar, activated_count int4, rescheduled_count int4, killed_count int4",
    ),
    ("mnt_make_pending(text, int4)", "affected_rows int4"),
    ("mnt_reschedule_orphans(text, int4)", "affected_rows int4"),
    ("mnt_mark_dead(text, int4)", "affected_rows int4"),
    ("mnt_job_reschedule(int4, text)", "success bool"),
    ("mnt_job_run(int4)", "success bool, processed int4"),
    ("mnt_job_run(text, int4)", "success bool, processed int4"),
    (
        "trace(text, text)",
        "step int4, created_at timestamptz, queue varchar, type varchar, info varchar, details jsonb",
    ),
    (
        "queue_stats(text)",
        "queue text, ready int8, retrying int8, blocked int8, planned int8, active int8, completed int8, killed int8, \
         oldest_ready interval, next_due timestamptz, pushed int8, picked int8, succeeded int8, failed int8, lost int8, \
         wait_p50 interval, wait_p95 interval, wait_p99 interval, run_p50 interval, run_p95 interval, run_p99 interval, \
         is_paused bool",
    ),
    (
        "metric_export(text)",
        "family text, name text, labels jsonb, value float8",
    ),
    ("metric_families()", "family text, type text, help text"),
    ("doc_get(text, text)", DOCUMENT),
    ("docs_list(text, jsonb, int4, text)", DOCUMENT),
    (
        "doc_errors(text, text, int4)",
        "at timestamptz, attempt int4, message text, details jsonb, ref_id text",
    ),
    (
        "utils_ts_retain(text, text, text, timestamptz, timestamptz)",
        "removed_rows int8",
    ),
    ("upgrade__310__320()", "success bool"),
    ("upgrade__320__330()", "success bool"),
    ("upgrade__330__400()", "success bool"),
    ("destroy_with_terrible_consequences()", "was_destroyed bool"),
];
pub const PICKED: &str = "subject varchar, payload jsonb, version int4, priority int4, attempts int4, iterations int8, \
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz";
/// The columns of a pick, with the lease number.
pub const LEASED: &str = "subject varchar, payload jsonb, version int4, priority int4, attempts int4, iterations int8, \
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease int8";
/// The type `fetchq.document`.
pub const DOCUMENT: &str = "subject text, status text, payload jsonb, headers jsonb, version int4, priority int4, \
    attempts int4, max_attempts int4, iterations int8, created_at timestamptz, due_at timestamptz, picked_at timestamptz, \
    settled_at timestamptz, lease_ends timestamptz, worker text, result jsonb, progress jsonb, last_error text, \
    ordering_key text, origin jsonb, is_from_history bool";
pub const COMMON: &str = "cnt int4, pnd int4, pln int4, act int4, cpl int4, kll int4, ent int4, drp int4, pkd int4, \
    prc int4, res int4, rej int4, orp int4, err int4";
