//! Nothing is missed or forgotten while a database has no process: notifications, the ends of sessions,
//! the status, what was loaded, and what has failed.

use fetchq_client_tests::{wait_for_rows, wait_until, with_worker, worker_goes};

use super::{ORIGIN, connect_all, copies, has_status, origin, plan, starts, switch};

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
    // The floor of planned documents is somewhere in the future, and that of leases at the end. The
    // background worker may have looked before the queue was there, and has no reason to look again.
    session.sql("select fetchq.mnt_run('q', 1)").await;
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
    let failures = "select coalesce(kills_failures, 0) from fetchq.jobs where task = 'mnt' and queue = 'moves'";
    wait_until("the move has failed four times", async || {
        assert_eq!(session.text(documents).await, both);
        session.text(failures).await.parse::<i32>().unwrap() >= 4
    })
    .await;
    assert!(starts(&cluster) > before + 4, "many processes have visited");
    // An attempt may have failed that is not noted yet.
    let unnoted = format!("select (last_value - ({failures})) in (0, 1) from moves");
    assert_eq!(session.text(&unnoted).await, "t");
    let noted = "select count(*) from fetchq.jobs where task = 'mnt' and queue = 'bound' and sessions_until is not null";
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
    let left = "select count(*) from fetchq.jobs where num_nonnulls(kills_until, kills_error, sessions_until, sessions_error) > 0 or payload ? 'error'";
    wait_for_rows("nothing is left", &session, left, &["0"]).await;
}
