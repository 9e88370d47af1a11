//! Settings of a database or a role do not reach the background processes.

use fetchq_client_tests::{Session, wait_for_rows, wait_until, with_worker, worker_comes};

/// Settings that ALTER DATABASE and ALTER ROLE can give to sessions, and that could keep
/// maintenance from running, or have it do something else. A setting that the server does not have
/// is left out.
const HOSTILE: &[(&str, &str)] = &[
    // Who it is.
    ("role", "pg_monitor"),
    ("session_authorization", "stranger"),
    ("row_security", "off"),
    ("session_replication_role", "replica"),
    // Its transactions.
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
    ("synchronous_commit", "on"),
    ("commit_delay", "100000"),
    ("commit_siblings", "0"),
    // Its limits of time.
    ("statement_timeout", "1"),
    ("lock_timeout", "1"),
    ("idle_in_transaction_session_timeout", "1"),
    ("idle_session_timeout", "1"),
    ("transaction_timeout", "1"),
    ("client_connection_check_interval", "1"),
    ("deadlock_timeout", "1"),
    // Its plans.
    ("enable_seqscan", "off"),
    ("enable_indexscan", "off"),
    ("enable_indexonlyscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_tidscan", "off"),
    ("enable_sort", "off"),
    ("enable_nestloop", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("random_page_cost", "100000"),
    ("jit", "on"),
    ("jit_above_cost", "0"),
    ("jit_optimize_above_cost", "0"),
    ("jit_inline_above_cost", "0"),
    ("from_collapse_limit", "1"),
    ("join_collapse_limit", "1"),
    ("geqo_threshold", "2"),
    ("work_mem", "64"),
    ("maintenance_work_mem", "1024"),
    ("temp_file_limit", "0"),
    // Names and texts.
    ("search_path", "hostile"),
    ("datestyle", "german, dmy"),
    ("intervalstyle", "sql_standard"),
    ("timezone", "Asia/Kathmandu"),
    ("bytea_output", "escape"),
    ("standard_conforming_strings", "off"),
    ("backslash_quote", "off"),
    ("escape_string_warning", "on"),
    ("quote_all_identifiers", "on"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("extra_float_digits", "-15"),
    ("lc_messages", "C"),
    ("lc_numeric", "C"),
    ("client_encoding", "sql_ascii"),
    ("application_name", "nobody"),
    ("default_text_search_config", "simple"),
    // Where it puts things.
    ("default_table_access_method", "heap"),
    ("default_tablespace", "elsewhere"),
    ("temp_tablespaces", "elsewhere"),
    ("default_with_oids", "off"),
    // What it writes to the log.
    ("client_min_messages", "debug5"),
    ("log_min_messages", "panic"),
    ("log_min_error_statement", "panic"),
    ("log_min_duration_statement", "0"),
    ("log_statement", "all"),
    ("log_duration", "on"),
    ("log_error_verbosity", "verbose"),
    ("log_lock_waits", "on"),
    ("log_parser_stats", "on"),
    ("debug_print_plan", "on"),
    ("track_activities", "off"),
    ("track_counts", "off"),
    ("exit_on_error", "on"),
    ("zero_damaged_pages", "off"),
    ("max_parallel_workers_per_gather", "8"),
    ("check_function_bodies", "off"),
    ("restrict_nonsystem_relation_kind", "view, foreign-table"),
    ("event_triggers", "off"),
    // Those of fetchq.
    ("fetchq.direct", "off"),
    ("fetchq.compat", "4.1.1"),
    ("fetchq.strict", "off"),
    ("fetchq.legacy_quotes", "on"),
    ("fetchq.worker", "nobody"),
    ("fetchq.session_leases", "return"),
    ("fetchq.notify", "commit"),
    ("fetchq.plan_cache_queues", "1"),
];

/// Ends the background worker, and waits for the next one, which reads the settings.
async fn restarted(admin: &Session, database: &str) {
    let pid = format!(
        "select pid from pg_stat_activity where backend_type = 'fetchq background worker' and datname = '{database}'"
    );
    let old = admin.text(&pid).await;
    admin
        .sql(&format!("select pg_terminate_backend({old})"))
        .await;
    wait_until("another background worker runs", async || {
        let pids = admin.column(&pid).await;
        pids.len() == 1 && pids[0] != old
    })
    .await;
}

/// Has the background worker do all of its services, and waits until they are done.
async fn maintained(admin: &Session, round: &str) {
    let session = &admin;
    session
        .sql(&format!(
            "select fetchq.doc_push('q', 'planned {round}', 0, 0, clock_timestamp() + interval '500 ms', '{{}}');
             select fetchq.doc_push('q', 'leased {round}', 0, 9, now(), '{{}}');
             select fetchq.doc_pick('q', 0, 1, '300 ms');
             select fetchq.schedule_create('s {round}', 'q', '1 hour', starts_at => now() - interval '1 minute', catch_up => 'once');
             update fetchq.jobs set next_iteration = now(), iterations = 0"
        ))
        .await;
    let states = format!(
        "select subject, status from fetchq_data.q__docs where subject like '% {round}' order by subject"
    );
    let wanted = [format!("leased {round}|1"), format!("planned {round}|1")];
    let wanted = wanted.each_ref().map(String::as_str);
    wait_for_rows("documents are pending", session, &states, &wanted).await;
    wait_for_rows(
        "all jobs have run",
        session,
        "select count(*) from fetchq.jobs where iterations = 0 and task <> 'mnt'",
        &["0"],
    )
    .await;
    let late = "select component || ': ' || state from fetchq.status() where state in ('late', 'failing', 'unknown')";
    wait_for_rows("nothing is late", session, late, &[]).await;
}

#[tokio::test]
async fn settings_of_the_database_do_not_reach_the_background_worker() {
    let cluster = with_worker("settings", "");
    let db = cluster.server().database("settings").await;
    let admin = cluster.server().connect("postgres").await;
    // A session from before the settings, because they would reach the sessions of clients.
    let session = db.connect().await;
    session
        .sql(
            "create role stranger;
             select fetchq.queue_create('q'); select fetchq.queue_set_metrics_retention('q', '[]')",
        )
        .await;
    worker_comes(&session, &db.name).await;
    maintained(&session, "0").await;

    let known = admin.column("select lower(name) from pg_settings").await;
    let known = |name: &str| {
        known.iter().any(|k| k == name) || matches!(name, "role" | "session_authorization")
    };
    let (mut applied, mut together) = (0, String::new());
    for (name, value) in HOSTILE.iter().filter(|(name, _)| known(name)) {
        let value = match *name {
            "search_path" | "temp_tablespaces" => value.to_string(),
            _ => format!("'{value}'"),
        };
        together += &format!("alter database {} set {name} = {value};", db.name);
        applied += 1;
    }
    assert!(applied > 70, "{applied} settings");
    admin.sql(&together).await;
    restarted(&admin, &db.name).await;
    maintained(&session, "1").await;

    // The settings of the role of the background worker, for all databases and for this one.
    for (name, scope) in [("2", "role postgres"), ("3", "role all")] {
        admin
            .sql(&format!("alter database {} reset all", db.name))
            .await;
        let of_role = together.replace(
            &format!("alter database {} ", db.name),
            &format!("alter {scope} in database {} ", db.name),
        );
        admin.sql(&of_role).await;
        restarted(&admin, &db.name).await;
        maintained(&session, name).await;
        admin
            .sql(&format!("alter {scope} in database {} reset all", db.name))
            .await;
    }

    // They do not end the process, and it has nothing to complain about.
    let complaints: Vec<String> = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("fetchq background worker:") || line.contains("PANIC"))
        .collect();
    assert_eq!(complaints, [""; 0]);
}

/// The case: a role that may do nothing.
#[tokio::test]
async fn a_role_of_the_database_does_not_stop_maintenance() {
    let cluster = with_worker("role", "");
    let db = cluster.server().database("role").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    worker_comes(&session, &db.name).await;
    let admin = cluster.server().connect("postgres").await;
    admin
        .sql(&format!("alter database {} set role = pg_monitor", db.name))
        .await;
    restarted(&admin, &db.name).await;
    maintained(&session, "0").await;
}
