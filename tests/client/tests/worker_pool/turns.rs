//! Databases take turns, when there are more of them than processes.

use std::time::Duration;

use fetchq_client_tests::{WORKER, wait_for_rows, with_worker};

use super::{connect_all, copies, has_status, origin, plan, switch};

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
    // Each document takes 5 ms, so that the databases are busy for longer than the test takes.
    origin(
        &server,
        "update fetchq.jobs set settings = '{\"delay\": \"100ms\", \"limit\": 1}' where task = 'mnt';
         create function public.slow() returns trigger language plpgsql as
             'begin perform pg_sleep(0.005); return new; end';
         create trigger slow before update on fetchq_data.q__docs
             for each row execute function public.slow()",
    )
    .await;
    let databases = copies(&server, "busy", 3).await;
    let sessions = connect_all(&databases).await;
    for session in &sessions[..2] {
        session
            .sql(&format!(
                "select count(*) from fetchq.doc_put_many('q', (
                     select jsonb_agg(jsonb_build_object('subject', 'd' || n, 'due_at', now() + interval '1 ms'))
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
