//! The other rows of `fetchq.status()`: the processes, the jobs, the memory, the counter log, the
//! version, each in the states that it can have, under the conditions that lead there.

use std::time::Duration;

use fetchq_client_tests::{
    Cluster, Database, LAUNCHER, Session, WORKER, process_id, wait_for_rows, wait_until,
    with_worker, worker_comes,
};

async fn prepared(cluster: &Cluster, name: &str) -> (Database, Session) {
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}

async fn without_worker(name: &str, settings: &str) -> (Cluster, Database, Session) {
    let cluster = Cluster::new(
        name,
        &format!("shared_preload_libraries = 'fetchq'\n{settings}"),
    );
    cluster.start();
    let (db, session) = prepared(&cluster, name).await;
    (cluster, db, session)
}

/// Whether a component has a hint, after its state.
fn state_of(component: &str) -> String {
    format!("select state, hint is not null from fetchq.status() where component = '{component}'")
}

async fn hint_of(session: &Session, component: &str) -> String {
    let sql = format!("select hint from fetchq.status() where component = '{component}'");
    session.text(&sql).await
}

async fn detail_of(session: &Session, component: &str) -> String {
    let sql = format!("select detail from fetchq.status() where component = '{component}'");
    session.text(&sql).await
}

#[tokio::test]
async fn a_background_worker_that_was_ended_does_not_serve_others() {
    let cluster = with_worker("ended_worker", "");
    let (db, session) = prepared(&cluster, "ended_worker").await;
    worker_comes(&session, &db.name).await;
    // The launcher, which looks every second, knows by then that the database has the extension.
    tokio::time::sleep(Duration::from_secs(2)).await;
    session
        .sql("select pg_terminate_backend(pid, 5000) from pg_stat_activity where backend_type = 'fetchq background worker'")
        .await;
    // The launcher waits for a second before it starts the next one.
    let mut seen = Vec::new();
    let state = "select state, coalesce(hint, '') from fetchq.status() where component = 'background worker'";
    wait_until("the next one runs", async || {
        let row = session.rows(state).await.pop().unwrap();
        let runs = row == "running|";
        seen.push(row);
        runs
    })
    .await;
    let absent: Vec<&String> = seen
        .iter()
        .filter(|row| !row.starts_with("running"))
        .collect();
    assert!(!absent.is_empty(), "nobody has seen it absent");
    for row in absent {
        assert!(row.starts_with("waiting|"), "{row}");
        assert!(!row.contains("other databases"), "{row}");
        assert!(row.contains("log of the server"), "{row}");
    }
}

#[tokio::test]
async fn the_processes_after_a_kill() {
    let cluster = with_worker("killed_worker", "restart_after_crash = on");
    let (db, session) = prepared(&cluster, "killed_worker").await;
    // The commits of test databases are asynchronous; this one is not, and takes them to the disk.
    session
        .sql("set synchronous_commit = on; create table flushed ()")
        .await;
    let processes = "select state from fetchq.status() where component in ('launcher', 'background worker') order by component desc";
    for backend_type in [WORKER, LAUNCHER] {
        let session = db.server.connect_when_up(&db.name).await;
        wait_for_rows("both run", &session, processes, &["running", "running"]).await;
        let victim = process_id(&session, backend_type).await.unwrap();
        cluster.kill(victim);
        wait_until("the server has noticed", async || {
            session.batch_execute("select").await.is_err()
        })
        .await;
        let session = db.server.connect_when_up(&db.name).await;
        wait_for_rows("both run", &session, processes, &["running", "running"]).await;
        // The launcher may look into another database meanwhile, with a process of the same kind.
        let names_it = format!(
            "select detail like format('process %s,%%', a.pid)
             from fetchq.status(), pg_stat_activity a
             where component = 'background worker' and a.backend_type = '{WORKER}'
                and a.datname = current_database()"
        );
        wait_for_rows("the status names the process", &session, &names_it, &["t"]).await;
    }
    drop(session);
}

#[tokio::test]
async fn a_launcher_that_was_ended() {
    let cluster = with_worker("ended_launcher", "");
    let (db, session) = prepared(&cluster, "ended_launcher").await;
    worker_comes(&session, &db.name).await;
    wait_for_rows("it runs", &session, &state_of("launcher"), &["running|f"]).await;
    session
        .sql("select pg_terminate_backend(pid, 5000) from pg_stat_activity where backend_type = 'fetchq launcher'")
        .await;
    // The postmaster waits for a second before it starts the next one.
    wait_for_rows(
        "it is gone",
        &session,
        &state_of("launcher"),
        &["not running|t"],
    )
    .await;
    wait_for_rows(
        "the next one runs",
        &session,
        &state_of("launcher"),
        &["running|f"],
    )
    .await;
}

#[tokio::test]
async fn no_process_is_left_for_the_background_worker() {
    // With 0, the launcher has none either.
    for (processes, launcher) in [(0, "not running|t"), (1, "running|f")] {
        let name = format!("no_process_{processes}");
        let cluster = with_worker(
            &name,
            &format!("max_worker_processes = {processes}\nmax_logical_replication_workers = 0"),
        );
        let (_, session) = prepared(&cluster, &name).await;
        wait_for_rows("the launcher", &session, &state_of("launcher"), &[launcher]).await;
        wait_until("the launcher has tried", async || {
            processes == 0
                || cluster
                    .log_lines()
                    .iter()
                    .any(|line| line.contains("raise max_worker_processes"))
        })
        .await;
        let state = session.rows(&state_of("background worker")).await;
        assert_eq!(state, ["not running|t"]);
        let hint = hint_of(&session, "background worker").await;
        assert!(hint.contains("max_worker_processes"), "{hint}");
        session
            .sql("update fetchq.jobs set next_iteration = now() - interval '2 minutes'")
            .await;
        let late = "select distinct state, hint from fetchq.status() where component like 'maintenance: %'";
        assert_eq!(
            session.rows(late).await,
            ["late|No process runs them: see background worker."]
        );
    }
}

#[tokio::test]
async fn settings_that_leave_this_database_out() {
    let cluster = with_worker("left_out", "fetchq.databases = 'postgres'");
    let (_, session) = prepared(&cluster, "left_out").await;
    wait_for_rows(
        "the launcher",
        &session,
        &state_of("launcher"),
        &["running|f"],
    )
    .await;
    let state = session.rows(&state_of("background worker")).await;
    assert_eq!(state, ["not running|t"]);
    let hint = hint_of(&session, "background worker").await;
    assert!(hint.contains("fetchq.databases"), "{hint}");
    session
        .sql("alter system set fetchq.background_worker = off")
        .await;
    session.sql("select pg_reload_conf()").await;
    wait_for_rows(
        "it is off",
        &session,
        &state_of("background worker"),
        &["off|t"],
    )
    .await;
}

async fn caught_up(primary: &Session, standby: &Session) {
    let position = primary.text("select pg_current_wal_lsn()").await;
    let sql = format!("select pg_last_wal_replay_lsn() >= '{position}'::pg_lsn");
    wait_for_rows("the standby has replayed", standby, &sql, &["t"]).await;
}

#[tokio::test]
async fn on_a_standby_what_is_late_is_late_on_the_primary() {
    let (primary_cluster, db, primary) = without_worker("late_primary", "").await;
    let standby_cluster = primary_cluster.standby(
        "late_standby",
        "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = on",
    );
    let standby = standby_cluster.server().connect(&db.name).await;
    let states = "select component, state, coalesce(hint, '') from fetchq.status()
        where component in ('server', 'launcher', 'background worker', 'planned', 'leases', 'schedules') or component like 'maintenance%'
        order by component collate \"C\"";
    let well = [
        "background worker|not running|",
        "launcher|not running|",
        "leases|in time|",
        "maintenance: counters|fine|",
        "maintenance: documents|fine|",
        "maintenance: recounts|fine|",
        "maintenance: retention|fine|",
        "maintenance: snapshots|fine|",
        "planned|in time|",
        "schedules|none|",
    ];
    caught_up(&primary, &standby).await;
    let rows = standby.rows(states).await;
    let (server, others): (Vec<String>, Vec<String>) =
        rows.into_iter().partition(|row| row.starts_with("server|"));
    assert_eq!(others, well);
    assert!(
        server[0].starts_with("server|standby|Only reads"),
        "{server:?}"
    );

    primary
        .sql(
            "insert into fetchq_data.q__docs (subject, status, next_iteration) values ('late', 0, now() + interval '100 ms');
             select fetchq.doc_push('q', 'leased', 0, 9, now(), '{}');
             select fetchq.doc_pick('q', 0, 1, '100 ms');
             select fetchq.schedule_create('s', 'q', '1 hour');
             update fetchq.schedules set due_at = now() - interval '1 minute';
             update fetchq.jobs set next_iteration = now() - interval '2 minutes'",
        )
        .await;
    let late = [
        "leases",
        "maintenance: counters",
        "maintenance: recounts",
        "maintenance: retention",
        "maintenance: snapshots",
        "planned",
        "schedules",
    ];
    let told = "select component from fetchq.status() where state = 'late' and hint like 'The primary runs %: see fetchq.status() there.' order by component collate \"C\"";
    wait_for_rows("they are late", &standby, told, &late).await;
    let all = "select component from fetchq.status() where state = 'late' order by component collate \"C\"";
    assert_eq!(standby.column(all).await, late);

    // The locks of the primary hold on the standby, too.
    primary
        .sql("begin; lock table fetchq_data.q__docs in access exclusive mode")
        .await;
    let unknown = "select component from fetchq.status() where state = 'unknown'";
    primary
        .sql("select pg_current_xact_id(); select pg_logical_emit_message(true, 'a', 'b')")
        .await;
    wait_for_rows(
        "the lock is replayed",
        &standby,
        unknown,
        &["workers", "planned", "leases"],
    )
    .await;
    primary.sql("rollback").await;

    primary.sql("update fetchq.schedules set due_at = now() + interval '1 hour'; select * from fetchq.mnt_job_run(100)").await;
    wait_for_rows("all is in time", &standby, all, &[]).await;
}

#[tokio::test]
async fn a_role_with_usage_alone_sees_the_truth() {
    let (_cluster, db, session) = without_worker("plain_role", "").await;
    session
        .sql(
            "create role app; grant usage on schema fetchq to app;
             insert into fetchq_data.q__docs (subject, status, next_iteration) values ('late', 0, now() - interval '1 minute');
             select fetchq.doc_push('q', 'ready');
             update fetchq.jobs set attempts = 3 where task = 'drp';
             select fetchq.schedule_create('s', 'q', '1 hour');
             update fetchq.schedules set attempts = 1",
        )
        .await;
    let all =
        "select component, state, detail, hint from fetchq.status() where component <> 'backlog'";
    let backlog =
        "select state, detail like '1 pending%' from fetchq.status() where component = 'backlog'";
    let expected = session.rows(all).await;
    assert!(
        expected.iter().any(|row| row.starts_with("planned|late")),
        "{expected:?}"
    );
    let app = db.connect().await;
    app.sql("set role app").await;
    assert_eq!(app.rows(all).await, expected);
    assert_eq!(app.rows(backlog).await, ["waiting|t"]);
}

#[tokio::test]
async fn a_long_counter_log() {
    let (_cluster, db, session) = without_worker(
        "long_log",
        "autovacuum = off\nfsync = off\nsynchronous_commit = off",
    )
    .await;
    let state = state_of("counter log");
    session.sql("select fetchq.doc_push('q', 'a')").await;
    assert_eq!(session.rows(&state).await, ["short|f"]);
    // An old snapshot keeps the segments, which are packed already.
    let other = db.connect().await;
    other
        .sql("begin isolation level repeatable read; select")
        .await;
    for _ in 0..4 {
        // The events of a document that is picked and returned add up to nothing.
        session
            .sql("insert into fetchq.counter_log_1 (queue_id, event, version, n) select q.id, (select min(event) from fetchq.counter_events), 0, 0 from fetchq.queues q, generate_series(1, 450000)")
            .await;
        session.sql("select fetchq.metric_log_pack()").await;
    }
    assert_eq!(session.rows(&state).await, ["long|t"]);
    other.sql("rollback").await;
    wait_until("the segments are emptied", async || {
        session.sql("select fetchq.metric_log_pack()").await;
        session.rows(&state).await == ["short|f"]
    })
    .await;
}

#[tokio::test]
async fn floors_without_room() {
    let (_cluster, _, session) = without_worker("no_room", "fetchq.ready_slots = 32").await;
    let memory = state_of("memory");
    assert_eq!(session.rows(&memory).await, ["there|f"]);
    for n in 0..80 {
        // Each is a transaction of its own: the one that creates a queue does without floors.
        for call in [
            format!("fetchq.queue_create('queue_{n}')"),
            format!("fetchq.doc_append('queue_{n}', '{{}}')"),
            format!("fetchq.doc_pick('queue_{n}', 0, 1, '1 hour')"),
            format!("fetchq.mnt_run('queue_{n}', 10)"),
        ] {
            session.sql(&format!("select {call}")).await;
        }
    }
    wait_for_rows("it is full", &session, &memory, &["there|t"]).await;
    assert!(
        hint_of(&session, "memory")
            .await
            .contains("fetchq.ready_slots")
    );
    let states =
        "select component, state from fetchq.status() where component in ('planned', 'leases')";
    assert_eq!(
        session.rows(states).await,
        ["planned|in time", "leases|in time"]
    );
    // Queues without floors are looked at.
    session
        .sql("insert into fetchq_data.queue_79__docs (subject, status, next_iteration) values ('late', 0, now() - interval '1 minute');
             insert into fetchq_data.queue_0__docs (subject, status, next_iteration) values ('late', 0, now() - interval '1 minute')")
        .await;
    let said = detail_of(&session, "planned").await;
    assert!(
        said.contains("\"queue_0\"") && said.contains("\"queue_79\""),
        "{said}"
    );
}

#[tokio::test]
async fn a_slow_queue_and_a_schedule_that_fails() {
    let cluster = with_worker("slow_queue", "fetchq.maintenance_timeout = '100 ms'");
    let (db, session) = prepared(&cluster, "slow_queue").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "select fetchq.queue_create('r');
             create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(3600); return new; end $$;
             create trigger slow before update on fetchq_data.q__docs for each row execute function public.slow();
             create function public.fail() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
             create trigger fail before insert on fetchq_data.r__docs for each row execute function public.fail();
             select fetchq.doc_push('q', 'late', 0, 0, clock_timestamp() + interval '500 ms', '{}');
             select fetchq.schedule_create('s', 'r', '1 second')",
        )
        .await;
    let said = "select component, state, hint is not null from fetchq.status() where component in ('maintenance: documents', 'schedules', 'planned')";
    let wrong = [
        "maintenance: documents|failing|t",
        "schedules|failing|t",
        "planned|late|t",
    ];
    wait_for_rows("it is said", &session, said, &wrong).await;
    let detail = detail_of(&session, "maintenance: documents").await;
    assert!(detail.ends_with("failing for \"q\""), "{detail}");
    let detail = detail_of(&session, "planned").await;
    assert!(detail.ends_with("in \"q\""), "{detail}");

    session
        .sql("drop trigger slow on fetchq_data.q__docs; drop trigger fail on fetchq_data.r__docs;
             update fetchq.jobs set next_iteration = now() where task = 'mnt'; select fetchq.schedule_pause('s'); select fetchq.schedule_resume('s')")
        .await;
    let well = [
        "maintenance: documents|fine|f",
        "schedules|fine|f",
        "planned|in time|f",
    ];
    wait_for_rows("all is well", &session, said, &well).await;
}

#[tokio::test]
async fn a_paused_queue_is_not_a_backlog_without_a_cause() {
    let (_cluster, _, session) = without_worker("paused", "").await;
    let backlog = "select state, replace(detail, coalesce(', ready since ' || (select min(next_iteration) from fetchq_data.q__docs), '-'), ', since then'), hint is not null
        from fetchq.status() where component = 'backlog'";
    let row = async |row: &str| {
        // A document that was due in this microsecond is not ready yet.
        wait_for_rows("the backlog", &session, backlog, &[row]).await;
    };
    row("none|0 pending|f").await;
    session
        .sql("select fetchq.queue_create('r'); select fetchq.queue_create('empty'); select fetchq.queue_pause('empty');
             select fetchq.doc_push('q', 'a'); select fetchq.doc_push('r', 'b'); select fetchq.doc_push('r', 'c')")
        .await;
    row("waiting|3 pending, since then|f").await;
    session.sql("select fetchq.queue_pause('r')").await;
    row("waiting|3 pending, 2 of them in paused queues, since then|t").await;
    session.sql("select fetchq.queue_resume('r')").await;
    row("waiting|3 pending, since then|f").await;
}

#[tokio::test]
async fn what_of_a_queue_is_missing_or_invalid() {
    let (_cluster, _, session) = without_worker("missing", "").await;
    let late = "insert into fetchq_data.q__docs (subject, status, next_iteration) values (gen_random_uuid(), 0, now() - interval '1 minute')";
    session.sql(late).await;
    let planned = "select state, hint is not null from fetchq.status() where component = 'planned'";
    assert_eq!(session.rows(planned).await, ["late|t"]);
    // As CREATE INDEX CONCURRENTLY leaves an index that it could not complete.
    session
        .sql("update pg_index set indisvalid = false where indexrelid = 'fetchq_data.q__docs_due_idx'::regclass")
        .await;
    assert_eq!(session.rows(planned).await, ["unknown|t"]);
    session
        .sql("update pg_index set indisvalid = true where indexrelid = 'fetchq_data.q__docs_due_idx'::regclass")
        .await;
    assert_eq!(session.rows(planned).await, ["late|t"]);
    session.sql("drop index fetchq_data.q__docs_due_idx").await;
    assert_eq!(session.rows(planned).await, ["unknown|t"]);
    session
        .sql("select * from fetchq.queue_create_indexes('q')")
        .await;
    assert_eq!(session.rows(planned).await, ["late|t"]);
    session
        .sql("alter table fetchq_data.q__docs rename to lost")
        .await;
    assert_eq!(session.rows(planned).await, ["unknown|t"]);
}

#[tokio::test]
async fn a_transaction_that_keeps_its_snapshot_sees_the_state_as_of_now() {
    let (_cluster, db, session) = without_worker("old_snapshot", "").await;
    let old = db.connect().await;
    old.sql("begin isolation level repeatable read; select")
        .await;
    session
        .sql("select fetchq.doc_push('q', 'new'); update fetchq.jobs set next_iteration = now() - interval '2 minutes';
             insert into fetchq_data.q__docs (subject, status, next_iteration) values ('late', 0, now() - interval '1 minute')")
        .await;
    let said = "select component, state from fetchq.status() where component in ('maintenance: counters', 'backlog', 'planned')";
    let expected = [
        "maintenance: counters|late",
        "backlog|waiting",
        "planned|late",
    ];
    assert_eq!(session.rows(said).await, expected);
    assert_eq!(old.rows(said).await, expected);
}

#[tokio::test]
async fn the_library_and_the_extension_differ() {
    let (_cluster, _, session) = without_worker("versions", "").await;
    assert_eq!(session.rows(&state_of("library")).await, ["preloaded|f"]);
    session
        .sql("update pg_extension set extversion = '4.9.9' where extname = 'fetchq'")
        .await;
    assert_eq!(session.rows(&state_of("library")).await, ["preloaded|t"]);
    let hint = hint_of(&session, "library").await;
    assert!(
        hint.contains("4.9.9") && hint.contains("alter extension fetchq update"),
        "{hint}"
    );
}
