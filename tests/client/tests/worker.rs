//! The launcher and the background workers do what is due, recover from failures, and do not
//! block other sessions.

use std::time::{Duration, Instant};

use fetchq_client_tests::{
    Cluster, Database, LAUNCHER, Session, WORKER, counters_are_exact, has_worker, processes,
    wait_for_rows, wait_until, with_worker, worker_comes, worker_goes,
};

/// Pushes a document that is planned for a moment from now.
async fn planned(session: &Session, subject: &str, delay: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_push('q', '{subject}', 0, 0, clock_timestamp() + interval '{delay}', '{{}}')"
        ))
        .await;
}

async fn becomes(session: &Session, subject: &str, status: i32) {
    wait_until("the document has its status", async || {
        session
            .text(&format!(
                "select status from fetchq_data.q__docs where subject = '{subject}'"
            ))
            .await
            == status.to_string()
    })
    .await;
}

async fn with_queue(cluster: &Cluster, name: &str) -> (Database, Session) {
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}

#[tokio::test]
async fn due_documents_are_processed_without_a_client() {
    let cluster = with_worker("due", "");
    let (db, mut session) = with_queue(&cluster, "due").await;
    worker_comes(&session, &db.name).await;

    // Planned documents; a later push may be due before the document that is waited for.
    for (subject, delay) in [("a", "2 s"), ("b", "500 ms"), ("c", "1 s")] {
        planned(&session, subject, delay).await;
    }
    for subject in ["b", "c", "a"] {
        becomes(&session, subject, 1).await;
    }
    let late = session
        .text("select count(*) from fetchq_data.q__docs where status <> 1")
        .await;
    assert_eq!(late, "0");

    // A lease that expires repeatedly, until the document has no attempts left.
    session
        .sql("update fetchq.queues set max_attempts = 2")
        .await;
    session
        .sql("select fetchq.doc_pick('q', 0, 3, '200 ms')")
        .await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q', 0, 3, '200 ms')")
        .await;
    becomes(&session, "a", -1).await;
    becomes(&session, "c", -1).await;

    // A transaction is still open when its document becomes due.
    let other = db.connect().await;
    other.sql("begin").await;
    planned(&other, "slow", "100 ms").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    other.sql("commit").await;
    becomes(&session, "slow", 1).await;

    counters_are_exact(&mut session, "q").await;

    // A plain UPDATE makes a document due.
    session
        .sql("insert into fetchq_data.q__docs (subject, next_iteration) values ('plain', clock_timestamp() + interval '300 ms')")
        .await;
    becomes(&session, "plain", 1).await;
    // Changes by plain SQL are counted when the queue is recounted.
    session.sql("select * from fetchq.mnt()").await;
    counters_are_exact(&mut session, "q").await;
    assert_eq!(
        session
            .text("select floor_misses from fetchq.ready_stats()")
            .await,
        "0"
    );
}

#[tokio::test]
async fn the_background_worker_follows_extension_and_settings() {
    let cluster = with_worker("extension", "");
    let admin = cluster.server().connect("postgres").await;
    assert!(!has_worker(&admin, "postgres").await);
    let (db, session) = with_queue(&cluster, "extension").await;
    worker_comes(&admin, &db.name).await;

    session.sql("drop extension fetchq cascade").await;
    worker_goes(&admin, &db.name).await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    worker_comes(&admin, &db.name).await;

    admin
        .sql("alter system set fetchq.databases = 'postgres, somewhere_else'")
        .await;
    admin.sql("select pg_reload_conf()").await;
    worker_goes(&admin, &db.name).await;
    admin.sql("alter system reset fetchq.databases").await;
    admin.sql("select pg_reload_conf()").await;
    worker_comes(&admin, &db.name).await;

    admin
        .sql("alter system set fetchq.background_worker = off")
        .await;
    admin.sql("select pg_reload_conf()").await;
    worker_goes(&admin, &db.name).await;
}

#[tokio::test]
async fn the_background_worker_does_not_block_database_commands() {
    let cluster = with_worker("commands", "");
    let (db, session) = with_queue(&cluster, "commands").await;
    let admin = cluster.server().connect("postgres").await;
    worker_comes(&admin, &db.name).await;
    std::mem::drop(session);

    admin
        .sql(&format!("create database copied template {}", db.name))
        .await;
    worker_comes(&admin, "copied").await;
    worker_comes(&admin, &db.name).await;
    admin.sql("alter database copied rename to renamed").await;
    worker_comes(&admin, "renamed").await;
    admin.sql("drop database renamed").await;
    admin.sql(&format!("drop database {}", db.name)).await;
    wait_until("only the launcher is left", async || {
        processes(&admin).await == [LAUNCHER]
    })
    .await;
}

#[tokio::test]
async fn the_background_worker_has_the_rights_of_the_owner() {
    let cluster = with_worker("owner", "");
    let (db, session) = with_queue(&cluster, "owner").await;
    session
        .sql(
            "create role owner_of_q;
             grant usage on schema fetchq, fetchq_data to owner_of_q;
             grant select on fetchq.queues to owner_of_q;
             create table public.seen (who text, super text);
             grant insert on public.seen to owner_of_q;
             grant create on schema fetchq_data to owner_of_q;
             set role owner_of_q;
             create function fetchq_data.now() returns timestamptz language plpgsql as $$
             begin
                 insert into public.seen values ('now: ' || current_user, 'maybe');
                 return clock_timestamp();
             end $$;
             reset role;
             create function public.look() returns trigger language plpgsql as $$
             begin
                 -- This setting must not last in the background worker.
                 perform pg_catalog.set_config('search_path', 'fetchq_data, pg_catalog', false);
                 insert into public.seen values (current_user, (select rolsuper::text from pg_catalog.pg_roles where rolname = current_user));
                 return new;
             end $$;
             alter table fetchq_data.q__docs owner to owner_of_q;
             create trigger look after update on fetchq_data.q__docs for each row execute function public.look()",
        )
        .await;
    worker_comes(&session, &db.name).await;
    planned(&session, "a", "100 ms").await;
    becomes(&session, "a", 1).await;
    planned(&session, "b", "100 ms").await;
    becomes(&session, "b", 1).await;
    assert_eq!(
        session
            .rows("select distinct who, super from public.seen")
            .await,
        ["owner_of_q|false"]
    );
}

/// The start of the line that the server logs when the launcher ends; it logs the same about
/// other background workers.
const LAST_WORDS: &str = "background worker \"fetchq launcher\" (PID ";

#[tokio::test]
async fn the_log_is_silent_in_normal_operation() {
    let cluster = with_worker("silent", "log_min_messages = info");
    let (db, session) = with_queue(&cluster, "silent").await;
    worker_comes(&session, &db.name).await;
    planned(&session, "a", "300 ms").await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q', 0, 1, '200 ms')")
        .await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q'); select fetchq.doc_complete('q', 'a')")
        .await;
    session
        .sql("call fetchq.queue_wait(array['q'], '100 ms')")
        .await;
    session
        .sql("select fetchq.queue_drop('q'); drop extension fetchq")
        .await;
    worker_goes(&session, &db.name).await;
    session.sql("create extension fetchq").await;
    worker_comes(&session, &db.name).await;
    // An interrupted process would write to the log.
    wait_until("the background worker is idle", async || {
        let state =
            "select state from pg_stat_activity where backend_type = 'fetchq background worker'";
        session.column(state).await == ["idle"]
    })
    .await;
    std::mem::drop(session);
    cluster.stops("fast");

    let said: Vec<String> = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("fetchq "))
        .collect();
    assert!(
        said.len() <= 1 && said.iter().all(|line| line.contains(LAST_WORDS)),
        "{}",
        said.join("\n")
    );
}

#[tokio::test]
async fn waiters_wake_when_a_planned_document_becomes_pending() {
    let cluster = with_worker("woken", "");
    let (db, session) = with_queue(&cluster, "woken").await;
    worker_comes(&session, &db.name).await;
    for round in 0..2 {
        let waiting = db.connect().await;
        let waiting = tokio::spawn(async move {
            let row = waiting
                .query_one("call fetchq.queue_wait(array['q'], '30 s')", &[])
                .await
                .expect("queue_wait");
            row.get::<_, Option<String>>(0).is_some()
        });
        let asleep = "select count(*) from pg_stat_activity
            where query like 'call fetchq.queue_wait%' and wait_event_type = 'Extension'";
        wait_until("the waiter sleeps", async || {
            session.text(asleep).await == "1"
        })
        .await;
        let start = Instant::now();
        // A planned document, and one whose lease expires.
        match round {
            0 => planned(&session, "a", "700 ms").await,
            _ => session.sql("begin; select fetchq.doc_push('q', 'b'); select fetchq.doc_pick('q', 0, 1, '700 ms'); commit").await,
        }
        assert!(waiting.await.unwrap());
        // Without a wake-up the waiter looks again after five seconds.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(4), "{took:.1?}");
        session
            .sql("select fetchq.doc_pick('q', 0, 10, '1 hour')")
            .await;
    }
}

#[tokio::test]
async fn an_idle_background_worker_keeps_no_locks() {
    let cluster = with_worker("idle", "");
    let (db, session) = with_queue(&cluster, "idle").await;
    worker_comes(&session, &db.name).await;
    planned(&session, "a", "100 ms").await;
    becomes(&session, "a", 1).await;
    // The background worker looks once a second, and may be seen doing so.
    let mut held = 0;
    for _ in 0..100 {
        let sql = format!(
            "select count(*) from pg_stat_activity a
             where backend_type like '{WORKER}' and (backend_xmin is not null or backend_xid is not null
                 or exists (select from pg_locks l where l.pid = a.pid))"
        );
        held += i32::from(session.text(&sql).await != "0");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(held < 20, "it had locks or a snapshot {held} times of 100");
}

#[tokio::test]
async fn busy_queues_among_many_that_are_idle() {
    const QUEUES: usize = 300;
    const BUSY: usize = 5;
    const DOCUMENTS: usize = 200;
    let cluster = with_worker("many", "");
    let db = cluster.server().database("many").await;
    let mut session = db.connect().await;
    worker_comes(&session, &db.name).await;
    for number in 0..QUEUES {
        session
            .sql(&format!("select fetchq.queue_create('q{number}')"))
            .await;
    }
    // Idle queues also have a document, which is due in a day.
    for number in BUSY..QUEUES {
        session
            .sql(&format!(
                "select fetchq.doc_push('q{number}', 'later', 0, 0, now() + interval '1 day', '{{}}')"
            ))
            .await;
    }
    for number in 0..BUSY {
        session
            .sql(&format!(
                "select fetchq.doc_push('q{number}', 'd' || n, 0, 0, clock_timestamp() + n * interval '10 ms', '{{}}')
                 from generate_series(1, {DOCUMENTS}) n"
            ))
            .await;
    }
    for number in 0..BUSY {
        let sql = format!("select count(*) from fetchq_data.q{number}__docs where status = 1");
        wait_until("all documents are pending", async || {
            session.text(&sql).await == DOCUMENTS.to_string()
        })
        .await;
        counters_are_exact(&mut session, &format!("q{number}")).await;
    }
    let pending = "select count(*) from fetchq.metric_get_all() where pnd > 0";
    assert_eq!(session.text(pending).await, BUSY.to_string());
}

#[tokio::test]
async fn a_queue_and_its_documents_in_one_commit() {
    let cluster = with_worker("fresh", "");
    let (db, session) = with_queue(&cluster, "fresh").await;
    worker_comes(&session, &db.name).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    session
        .sql("begin; select fetchq.queue_create('fresh'); select fetchq.doc_push('fresh', 'a', 0, 0, clock_timestamp() + interval '100 ms', '{}')")
        .await;
    // The background worker has received a due change of a table that it cannot see yet.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    session.sql("commit").await;
    wait_until("the document is pending", async || {
        let sql = "select status from fetchq_data.fresh__docs";
        session.text(sql).await == "1"
    })
    .await;
}

#[tokio::test]
async fn failing_maintenance_backs_off_and_is_logged() {
    let cluster = with_worker("failing", "");
    let (db, mut session) = with_queue(&cluster, "failing").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "create function public.fail() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
             create trigger fail before update on fetchq_data.q__docs for each row execute function public.fail()",
        )
        .await;
    planned(&session, "a", "100 ms").await;
    wait_until("the job has failed a few times", async || {
        let sql = "select attempts > 3 from fetchq.jobs where task = 'mnt' and queue = 'q'";
        session.text(sql).await == "t"
    })
    .await;
    assert_eq!(
        session
            .text("select state from fetchq.status() where component = 'maintenance: documents'")
            .await,
        "failing"
    );
    let told = || {
        let lines = cluster.log_lines();
        lines
            .iter()
            .filter(|line| line.contains("not today"))
            .count()
    };
    wait_until("the log reports the failure", async || told() > 0).await;
    // Other queues are not delayed.
    session.sql("select fetchq.queue_create('r')").await;
    session
        .sql("select fetchq.doc_push('r', 'b', 0, 0, clock_timestamp() + interval '100 ms', '{}')")
        .await;
    wait_until("the other queue is maintained", async || {
        session.text("select status from fetchq_data.r__docs").await == "1"
    })
    .await;
    let attempts = session
        .text("select attempts from fetchq.jobs where task = 'mnt' and queue = 'q'")
        .await;
    assert!(told() <= attempts.parse::<usize>().unwrap() + 1);

    session
        .sql("drop trigger fail on fetchq_data.q__docs")
        .await;
    becomes(&session, "a", 1).await;
    wait_until("the job works again", async || {
        let sql = "select attempts = 0 and next_iteration < now() + interval '1 second' from fetchq.jobs where task = 'mnt' and queue = 'q'";
        session.text(sql).await == "t"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
}

#[tokio::test]
async fn a_lock_on_the_jobs_does_not_block_maintenance() {
    let cluster = with_worker("held_jobs", "");
    let (db, session) = with_queue(&cluster, "held_jobs").await;
    worker_comes(&session, &db.name).await;
    let other = db.connect().await;
    other.sql("begin; select from fetchq.jobs for update").await;
    for n in 0..5 {
        let subject = format!("a{n}");
        planned(&session, &subject, "100 ms").await;
        becomes(&session, &subject, 1).await;
    }
    // The queue is dropped while the background worker maintains it.
    other.sql("rollback").await;
    session.sql("select fetchq.queue_drop('q')").await;
    let complaints: Vec<String> = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("fetchq background worker:"))
        .collect();
    assert_eq!(complaints, [""; 0]);
}

/// `component: state` of each row.
const STATES: &str = "select component || ': ' || state from fetchq.status()";

async fn states(session: &Session) -> Vec<String> {
    session.column(STATES).await
}

#[tokio::test]
async fn status_and_progress() {
    let cluster = with_worker("status", "");
    let (db, session) = with_queue(&cluster, "status").await;
    worker_comes(&session, &db.name).await;
    let well = [
        "server: primary",
        "library: preloaded",
        "memory: there",
        "launcher: running",
        "background worker: running",
        "maintenance: documents: fine",
        "maintenance: counters: fine",
        "maintenance: snapshots: fine",
        "maintenance: recounts: fine",
        "maintenance: retention: fine",
        "schedules: none",
        "places: none",
        "backlog: none",
        "planned: in time",
        "leases: in time",
        "counter log: short",
        "horizon: free",
    ];
    wait_for_rows("all components are well", &session, STATES, &well).await;
    let told = session
        .text("select count(*) from fetchq.status() where hint is not null")
        .await;
    assert_eq!(told, "0");

    // A dropped queue does not count as late.
    session
        .sql(
            "select fetchq.queue_create('gone'); select fetchq.doc_append('gone', '{}');
             select fetchq.doc_pick('gone', 0, 1, '500 ms'); select fetchq.queue_drop('gone')",
        )
        .await;
    tokio::time::sleep(Duration::from_millis(2000)).await;
    assert_eq!(states(&session).await, well);

    // fetchq.progress shows the services that run.
    session
        .sql("insert into fetchq_data.q__docs (subject, next_iteration) select 'd' || n, now() from generate_series(1, 200000) n")
        .await;
    let running = "select count(*) from fetchq.progress where service = 'documents' and queue = 'q' and done > 1000";
    wait_until("progress shows the service", async || {
        session.text(running).await == "1"
    })
    .await;
    wait_until("the service has ended", async || {
        session.text("select count(*) from fetchq.progress").await == "0"
            && session
                .text("select count(*) from fetchq_data.q__docs where status = 0")
                .await
                == "0"
    })
    .await;
    assert!(states(&session).await.contains(&"backlog: waiting".into()));

    // The status names the session with the oldest snapshot, and its age.
    let other = db.connect().await;
    other
        .sql("set application_name = 'reporter'; begin isolation level repeatable read; select")
        .await;
    // A transaction of the background worker may have an older snapshot for a moment.
    wait_for_rows(
        "the session is named",
        &session,
        "select detail like '%(reporter)%' from fetchq.status() where component = 'horizon'",
        &["t"],
    )
    .await;
    other.sql("rollback").await;

    // Without a background worker, due documents become late.
    session
        .sql("alter system set fetchq.background_worker = off")
        .await;
    session.sql("select pg_reload_conf()").await;
    worker_goes(&session, &db.name).await;
    // A document whose time has passed when it is pushed is pending at once, so the time is far
    // enough ahead for a slow machine.
    planned(&session, "late", "2 s").await;
    wait_for_rows(
        "the status is late",
        &session,
        "select state, hint is not null from fetchq.status() where component in ('background worker', 'planned')",
        &["off|t", "late|t"],
    )
    .await;
}

#[tokio::test]
async fn without_the_library_preloaded() {
    let cluster = Cluster::new(
        "bare",
        "shared_preload_libraries = ''\nfetchq.background_worker = on",
    );
    cluster.start();
    let db = cluster.server().database("bare").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_enable_notify('q'); listen fetchq__q__pnd")
        .await;
    let missing = session
        .rows("select component, state, hint is not null from fetchq.status() where component in ('library', 'memory', 'launcher', 'background worker')")
        .await;
    assert_eq!(
        missing,
        [
            "library|not preloaded|t",
            "memory|none|f",
            "launcher|not running|f",
            "background worker|not running|t"
        ]
    );
    planned(&session, "a", "100 ms").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    session.sql("select * from fetchq.mnt_job_run(10)").await;
    assert!(session.heard("fetchq__q__pnd a"));
    session
        .sql("call fetchq.queue_wait(array['q'], '30 s')")
        .await;
    let waiting = {
        let db = db.clone();
        tokio::spawn(async move {
            let session = db.connect().await;
            session
                .sql("call fetchq.queue_wait(array['q'], '30 s')")
                .await;
            session
                .rows("select subject from fetchq.doc_lease('q', 2)")
                .await
        })
    };
    assert_eq!(waiting.await.unwrap(), ["a"]);
    session.sql("select fetchq.doc_complete('q', 'a')").await;
    counters_are_exact(&mut session, "q").await;
}
