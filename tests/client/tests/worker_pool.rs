//! A bounded number of background workers serves any number of databases.

use std::collections::BTreeSet;
use std::time::Duration;

use fetchq_client_tests::{
    Cluster, Database, LAUNCHER, Server, Session, WORKER, process_id, processes, wait_for_rows,
    wait_until, with_worker, worker_goes,
};

/// The database from which the others are copied.
const ORIGIN: &str = "origin";

fn database(server: &Server, name: &str) -> Database {
    Database {
        server: server.clone(),
        name: name.to_owned(),
    }
}

/// A database with the extension and a queue, which is to be copied.
async fn origin(server: &Server, sql: &str) {
    let admin = server.connect("postgres").await;
    admin.sql(&format!("create database {ORIGIN}")).await;
    let session = server.connect(ORIGIN).await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    session.sql(sql).await;
}

/// Copies the database with the extension. A command that copies a database waits for the
/// background worker there to exit.
async fn copies(server: &Server, prefix: &str, number: usize) -> Vec<Database> {
    let admin = server.connect("postgres").await;
    let mut made = Vec::new();
    for n in 0..number {
        let db = database(server, &format!("{prefix}{n}"));
        admin
            .sql(&format!("create database {} template {ORIGIN}", db.name))
            .await;
        made.push(db);
    }
    made
}

async fn connect_all(databases: &[Database]) -> Vec<Session> {
    let mut sessions = Vec::new();
    for db in databases {
        sessions.push(db.connect().await);
    }
    sessions
}

async fn switch(admin: &Session, setting: &str) {
    admin
        .sql(&format!(
            "alter system set fetchq.background_worker = {setting}"
        ))
        .await;
    admin.sql("select pg_reload_conf()").await;
}

async fn plan(session: &Session, subject: &str, delay: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_push('q', '{subject}', 0, 0, clock_timestamp() + interval '{delay}', '{{}}')"
        ))
        .await;
}

async fn has_status(session: &Session, subject: &str, status: &str) {
    let sql = format!("select status from fetchq_data.q__docs where subject = '{subject}'");
    wait_for_rows(
        &format!("{subject} has its status"),
        session,
        &sql,
        &[status],
    )
    .await;
}

/// The number of background worker processes that the server has started.
fn starts(cluster: &Cluster) -> usize {
    let lines = cluster.log_lines();
    let starts = lines
        .iter()
        .filter(|line| line.contains(&format!("starting background worker process \"{WORKER}")));
    starts.count()
}

#[tokio::test]
async fn more_databases_than_processes_of_the_server() {
    const WITH: usize = 12;
    const WITHOUT: usize = 10;
    // max_worker_processes has its default, 8.
    let cluster = with_worker("pool", "");
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    switch(&admin, "off").await;
    origin(
        &server,
        "select fetchq.doc_push('q', 'leased');
         select fetchq.doc_pick('q', 0, 1, '1 s');
         select fetchq.doc_push('q', 'planned', 0, 0, clock_timestamp() + interval '1 s', '{}');
         select fetchq.queue_create('ticks');
         select fetchq.schedule_create('second', 'ticks', '* * * * * *')",
    )
    .await;
    let databases = copies(&server, "with", WITH).await;
    for n in 0..WITHOUT {
        admin.sql(&format!("create database without{n}")).await;
    }
    switch(&admin, "on").await;

    let sessions = connect_all(&databases).await;
    for session in &sessions {
        has_status(session, "planned", "1").await;
        has_status(session, "leased", "1").await;
        let ticked = "select count(*) > 0 from fetchq_data.ticks__docs";
        wait_for_rows("the schedule has ticked", session, ticked, &["t"]).await;
    }
    // What happens after the first visit, when no background worker may be there.
    for (n, session) in sessions.iter().enumerate() {
        plan(session, "later", &format!("{} ms", 100 * n)).await;
        session
            .sql(
                "select fetchq.doc_pick('q', 0, 1, '300 ms');
                 select fetchq.queue_create('new');
                 select fetchq.doc_push('new', 'a', 0, 0, clock_timestamp() + interval '500 ms', '{}')",
            )
            .await;
    }
    let mut most = 0;
    for session in &sessions {
        has_status(session, "later", "1").await;
        let none = "select count(*) from fetchq_data.q__docs where status = 2";
        wait_for_rows("the leases have expired", session, none, &["0"]).await;
        let new = "select status from fetchq_data.new__docs";
        wait_for_rows(
            "the document of the new queue is pending",
            session,
            new,
            &["1"],
        )
        .await;
        let before = session
            .text("select count(*) from fetchq_data.ticks__docs")
            .await;
        let ticked = format!("select count(*) > {before} from fetchq_data.ticks__docs");
        wait_for_rows("the schedule ticks again", session, &ticked, &["t"]).await;
        let count =
            format!("select count(*) from pg_stat_activity where backend_type = '{WORKER}'");
        most = most.max(admin.text(&count).await.parse::<usize>().unwrap());
    }
    assert!(most > 0 && most <= 4, "{most} background workers");
    // The counters are packed, and the slow jobs have run.
    for session in &sessions {
        session.sql("select fetchq.schedule_pause('second')").await;
    }
    for session in &sessions {
        wait_for_rows(
            "the counters are packed",
            session,
            "select count(*) from fetchq.counter_tail",
            &["0"],
        )
        .await;
        wait_for_rows(
            "each job has run",
            session,
            "select count(*) from fetchq.jobs where last_iteration is null and task <> 'mnt'",
            &["0"],
        )
        .await;
        assert_eq!(
            session
                .text("select has_background_worker from fetchq.info()")
                .await,
            "t"
        );
    }
    let full = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("no slot is free"));
    assert_eq!(full.count(), 0);
}

#[tokio::test]
async fn new_databases_are_served_beside_others() {
    let cluster = with_worker("pool_new", "");
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    for n in 0..10 {
        admin.sql(&format!("create database without{n}")).await;
    }
    origin(
        &server,
        "select fetchq.schedule_create('second', 'q', '* * * * * *')",
    )
    .await;
    let databases = copies(&server, "busy", 6).await;
    for session in connect_all(&databases).await {
        let ticked = "select count(*) > 0 from fetchq_data.q__docs";
        wait_for_rows("the schedule has ticked", &session, ticked, &["t"]).await;
    }
    // A copy of a database with the extension.
    let copied = copies(&server, "copied", 1).await;
    let session = copied[0].connect().await;
    plan(&session, "a", "100 ms").await;
    has_status(&session, "a", "1").await;
    // A database that was looked at before it had the extension.
    admin.sql("create database fresh").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let session = server.connect("fresh").await;
    for _ in 0..2 {
        session
            .sql("create extension fetchq; select fetchq.queue_create('q')")
            .await;
        plan(&session, "a", "100 ms").await;
        has_status(&session, "a", "1").await;
        session.sql("drop extension fetchq cascade").await;
        let gone = "select count(*) from pg_namespace where nspname = 'fetchq_data'";
        if session.text(gone).await != "0" {
            session.sql("drop schema fetchq_data cascade").await;
        }
    }
}

#[tokio::test]
async fn busy_databases_take_turns() {
    const DOCUMENTS: usize = 20_000;
    let cluster = with_worker("pool_busy", "fetchq.max_workers = 1");
    let server = cluster.server();
    origin(
        &server,
        "update fetchq.jobs set settings = '{\"delay\": \"100ms\", \"limit\": 1}' where task = 'mnt'",
    )
    .await;
    let databases = copies(&server, "busy", 3).await;
    let sessions = connect_all(&databases).await;
    for session in &sessions[..2] {
        session
            .sql(&format!(
                "select count(*) from fetchq.doc_put_many('q', (
                     select jsonb_agg(jsonb_build_object('subject', 'd' || n, 'next_iteration', now() + interval '1 ms'))
                     from generate_series(1, {DOCUMENTS}) n))"
            ))
            .await;
    }
    plan(&sessions[2], "single", "10 ms").await;
    has_status(&sessions[2], "single", "1").await;
    for session in &sessions[..2] {
        let busy = "select count(*) filter (where status = 0) > 0 and count(*) filter (where status = 1) > 0
            from fetchq_data.q__docs";
        wait_for_rows("it has its turn, and is still busy", session, busy, &["t"]).await;
    }
    plan(&sessions[2], "again", "10 ms").await;
    has_status(&sessions[2], "again", "1").await;
    let left = "select count(*) > 0 from fetchq_data.q__docs where status = 0";
    assert_eq!(sessions[0].text(left).await, "t");
}

#[tokio::test]
async fn idle_databases_cost_no_processes() {
    let cluster = with_worker(
        "pool_idle",
        "fetchq.max_workers = 2\nlog_min_messages = debug1",
    );
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    for n in 0..5 {
        admin.sql(&format!("create database without{n}")).await;
    }
    origin(
        &server,
        "select fetchq.doc_push('q', 'far', 0, 0, now() + interval '1 day', '{}')",
    )
    .await;
    let databases = copies(&server, "idle", 5).await;
    let sessions = connect_all(&databases).await;
    // A burst of work first, which ends.
    for session in &sessions {
        plan(session, "a", "50 ms").await;
        has_status(session, "a", "1").await;
    }
    let mut before = 0;
    wait_until("no process is started for six seconds", async || {
        before = starts(&cluster);
        tokio::time::sleep(Duration::from_secs(6)).await;
        starts(&cluster) == before
    })
    .await;
    assert!(before >= databases.len(), "{before}");
    // Each is still served.
    for session in &sessions {
        plan(session, "b", "50 ms").await;
        has_status(session, "b", "1").await;
    }
    assert!(starts(&cluster) > before);
}

#[tokio::test]
async fn as_many_background_workers_as_databases_stay() {
    let cluster = with_worker(
        "pool_stay",
        "fetchq.max_workers = 3\nlog_min_messages = debug1",
    );
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    origin(&server, "select").await;
    copies(&server, "stay", 2).await;
    let wanted: Vec<String> = std::iter::once(LAUNCHER.to_owned())
        .chain([ORIGIN, "stay0", "stay1"].map(|name| format!("{WORKER} of {name}")))
        .collect();
    let all_run = async || {
        wait_until("each database has a background worker", async || {
            processes(&admin).await == wanted
        })
        .await;
    };
    all_run().await;
    // A database without the extension takes a place only until that is known.
    admin.sql("create database without").await;
    wait_until("it was looked at", async || {
        let lines = cluster.log_lines();
        lines.iter().any(|line| {
            line.contains("starting background worker process") && line.contains("without")
        })
    })
    .await;
    all_run().await;
    let pids =
        format!("select pid from pg_stat_activity where backend_type = '{WORKER}' order by pid");
    let before = admin.column(&pids).await;
    for n in 0..20 {
        let session = server.connect(["stay0", "stay1"][n % 2]).await;
        plan(&session, &format!("a{n}"), "50 ms").await;
        has_status(&session, &format!("a{n}"), "1").await;
    }
    assert_eq!(admin.column(&pids).await, before);
    // Fewer places: the others leave, and everything is served.
    admin.sql("alter system set fetchq.max_workers = 1").await;
    admin.sql("select pg_reload_conf()").await;
    wait_until("one is left", async || admin.column(&pids).await.len() == 1).await;
    for name in ["stay0", "stay1", ORIGIN] {
        let session = server.connect(name).await;
        plan(&session, "b", "50 ms").await;
        has_status(&session, "b", "1").await;
    }
}

#[tokio::test]
async fn crashes_while_databases_wait() {
    let cluster = with_worker(
        "pool_crash",
        "fetchq.max_workers = 2\nrestart_after_crash = on",
    );
    let server = cluster.server();
    origin(
        &server,
        "select fetchq.schedule_create('second', 'q', '* * * * * *')",
    )
    .await;
    let databases = copies(&server, "crash", 5).await;
    for (round, victim) in [WORKER, LAUNCHER, WORKER, LAUNCHER].into_iter().enumerate() {
        let admin = server.connect_when_up("postgres").await;
        wait_until("the process runs", async || {
            process_id(&admin, victim).await.is_some()
        })
        .await;
        let Some(pid) = process_id(&admin, victim).await else {
            continue;
        };
        if round < 2 {
            cluster.kill_if_there(pid);
            wait_until("the server has noticed", async || {
                admin.batch_execute("select").await.is_err()
            })
            .await;
        } else {
            admin
                .sql(&format!("select pg_terminate_backend({pid})"))
                .await;
        }
        for db in &databases {
            let session = db.server.connect_when_up(&db.name).await;
            let subject = format!("after{round}");
            plan(&session, &subject, "10 ms").await;
            has_status(&session, &subject, "1").await;
        }
    }
}

#[tokio::test]
async fn databases_are_dropped_while_they_wait() {
    let cluster = with_worker("pool_drop", "fetchq.max_workers = 1");
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    origin(
        &server,
        "select fetchq.schedule_create('second', 'q', '* * * * * *')",
    )
    .await;
    let databases = copies(&server, "drop", 4).await;
    for session in connect_all(&databases).await {
        let ticked = "select count(*) > 0 from fetchq_data.q__docs";
        wait_for_rows("the schedule has ticked", &session, ticked, &["t"]).await;
    }
    for db in &databases[..2] {
        admin.sql(&format!("drop database {}", db.name)).await;
    }
    admin.sql("alter database drop2 rename to renamed").await;
    for name in ["renamed", "drop3"] {
        let session = server.connect(name).await;
        plan(&session, "a", "10 ms").await;
        has_status(&session, "a", "1").await;
    }
    let served: BTreeSet<String> = processes(&admin).await.into_iter().collect();
    assert!(served.len() <= 2, "{served:?}");
}

#[tokio::test]
async fn notifications_and_sessions_without_a_resident_background_worker() {
    let cluster = with_worker("pool_signals", "fetchq.max_workers = 1");
    let server = cluster.server();
    origin(&server, "select fetchq.queue_enable_notify('q')").await;
    let databases = copies(&server, "signals", 4).await;
    let listeners = connect_all(&databases).await;
    let sessions = connect_all(&databases).await;
    for listener in &listeners {
        listener.sql("listen fetchq__q__pnd").await;
    }
    for round in 0..10 {
        for (listener, session) in listeners.iter().zip(&sessions) {
            listener.take_notifications().await;
            session
                .sql(&format!("select fetchq.doc_push('q', 'd{round}')"))
                .await;
            wait_until("the push is announced", async || {
                let heard = listener.take_notifications().await;
                heard.iter().any(|n| n.starts_with("fetchq__q__pnd "))
            })
            .await;
        }
        // So that the background worker moves on.
        for session in &sessions {
            plan(session, &format!("p{round}"), "10 ms").await;
        }
        for (listener, session) in listeners.iter().zip(&sessions) {
            has_status(session, &format!("p{round}"), "1").await;
            wait_until(
                "the document that became pending is announced",
                async || {
                    let heard = listener.take_notifications().await;
                    heard.iter().any(|n| n.starts_with("fetchq__q__pnd "))
                },
            )
            .await;
        }
    }
    // Leases that are bound to sessions which end.
    for db in &databases {
        let session = db.connect().await;
        session
            .sql(
                "set fetchq.session_leases = 'return'; select fetchq.doc_pick('q', 0, 2, '1 hour')",
            )
            .await;
    }
    for session in &sessions {
        let leased = "select count(*) from fetchq_data.q__docs where status = 2";
        wait_for_rows("the leases are returned", session, leased, &["0"]).await;
    }
}

#[tokio::test]
async fn the_status_of_a_database_that_waits() {
    let cluster = with_worker("pool_status", "fetchq.max_workers = 1");
    let server = cluster.server();
    origin(&server, "select").await;
    let databases = copies(&server, "status", 2).await;
    let sessions = connect_all(&databases).await;
    let states =
        "select string_agg(state, ',') from fetchq.status() where component = 'background worker'";
    wait_until("one is served, and one waits", async || {
        let mut found = Vec::new();
        for session in &sessions {
            found.push(session.text(states).await);
        }
        // The launcher has looked at all of them.
        found.contains(&"idle".to_owned()) && !found.contains(&"not running".to_owned())
    })
    .await;
    // The other one may not have been visited yet.
    for session in &sessions {
        let served = "select has_background_worker from fetchq.info()";
        wait_for_rows("it is served", session, served, &["t"]).await;
    }
    // From then on a database that waits is served, too.
    for session in sessions.iter().cycle().take(20) {
        let served = "select has_background_worker from fetchq.info()";
        assert_eq!(session.text(served).await, "t");
    }
}

/// Rows are loaded without notes while no background worker runs. What the ready floors said before
/// does not count for the next one.
#[tokio::test]
async fn what_was_loaded_without_notes_is_due_for_the_next_background_worker() {
    let cluster = with_worker("pool_epoch", "");
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    origin(
        &server,
        "select fetchq.doc_push('q', 'later', 0, 0, now() + interval '1 day', '{}')",
    )
    .await;
    let session = server.connect(ORIGIN).await;
    // The floor of planned documents is somewhere in the future, and that of leases at the end.
    let known = "select count(*) from fetchq.ready_floors('q') where index = 'due' and (is_empty or next_iteration > now())";
    wait_for_rows("the floors are known", &session, known, &["2"]).await;
    switch(&admin, "off").await;
    worker_goes(&admin, ORIGIN).await;
    session
        .sql(
            "begin;
             alter table fetchq_data.q__docs disable trigger fetchq_ready;
             insert into fetchq_data.q__docs (subject, status, next_iteration) values ('loaded', 0, now());
             alter table fetchq_data.q__docs enable always trigger fetchq_ready;
             commit",
        )
        .await;
    switch(&admin, "on").await;
    has_status(&session, "loaded", "1").await;
}

/// Something of a queue fails in one of many databases: the move to its dead-letter queue, and the
/// end of its bound leases. Each visit is that of a new process.
#[tokio::test]
async fn what_fails_waits_although_its_background_worker_leaves() {
    let cluster = with_worker(
        "pool_waits",
        "fetchq.max_workers = 1\nlog_min_messages = debug1",
    );
    let server = cluster.server();
    let admin = server.connect("postgres").await;
    switch(&admin, "off").await;
    // A sequence counts the attempts, because nothing rolls it back.
    origin(
        &server,
        "select fetchq.schedule_create('second', 'q', '* * * * * *');
         select fetchq.queue_create('moves'), fetchq.queue_create('dead'), fetchq.queue_create('bound');
         select fetchq.queue_configure('moves', '{\"dead_letter\": \"dead\"}');
         create sequence moves; create sequence ends;
         create function fails() returns trigger language plpgsql as $$ begin
             perform nextval(tg_argv[0]::regclass);
             raise 'it fails';
         end $$;
         create trigger fails before insert on fetchq_data.dead__docs
             for each row execute function fails('public.moves');
         create trigger fails before update on fetchq_data.bound__docs
             for each row when (old.status = 2 and new.status = 2) execute function fails('public.ends')",
    )
    .await;
    let databases = copies(&server, "waits", 3).await;
    let session = databases[0].connect().await;
    session
        .sql(
            "select fetchq.doc_put('moves', 'poison', max_attempts => 1), fetchq.doc_pick('moves', 0, 1, '1 ms');
             select fetchq.doc_push('bound', 'a')",
        )
        .await;
    let bound = databases[0].connect().await;
    bound
        .sql(
            "set fetchq.session_leases = 'return'; select fetchq.doc_pick('bound', 0, 1, '1 hour')",
        )
        .await;
    drop(bound);
    let before = starts(&cluster);
    switch(&admin, "on").await;

    let documents = "select state || coalesce(substring(detail from 'failing for .*'), '')
        from fetchq.status() where component = 'maintenance: documents'";
    let both = "failingfailing for \"bound\", \"moves\"";
    wait_for_rows("status() names both queues", &session, documents, &[both]).await;
    // The wait doubles with each failure of the move, across the processes.
    let failures = "select coalesce(payload -> 'waits' -> 'kills' ->> 'failures', '0')::int from fetchq.jobs where task = 'mnt' and queue = 'moves'";
    wait_until("the move has failed four times", async || {
        assert_eq!(session.text(documents).await, both);
        session.text(failures).await.parse::<i32>().unwrap() >= 4
    })
    .await;
    assert!(starts(&cluster) > before + 4, "many processes have visited");
    // An attempt may have failed that is not noted yet.
    let unnoted = format!("select (last_value - ({failures})) in (0, 1) from moves");
    assert_eq!(session.text(&unnoted).await, "t");
    let noted = "select count(*) from fetchq.jobs where task = 'mnt' and queue = 'bound' and payload -> 'waits' -> 'sessions' ->> 'until' is not null";
    assert_eq!(session.text(noted).await, "1");

    // What no longer fails is no longer reported, whichever process finds that out.
    session
        .sql("drop trigger fails on fetchq_data.dead__docs; drop trigger fails on fetchq_data.bound__docs")
        .await;
    let moved = "select count(*) from fetchq_data.dead__docs where status <> 2";
    wait_for_rows("the document has moved", &session, moved, &["1"]).await;
    let returned = "select count(*) from fetchq_data.bound__docs where status = 1";
    wait_for_rows("the lease was returned", &session, returned, &["1"]).await;
    wait_for_rows("status() reports neither", &session, documents, &["fine"]).await;
    let left = "select count(*) from fetchq.jobs where payload ? 'waits' or payload ? 'error'";
    wait_for_rows("nothing is left", &session, left, &["0"]).await;
}
