//! What fails in one queue, or is wrong in one row, keeps no other queue from its maintenance.

use fetchq_client_tests::{Database, Server, Session, wait_until, with_worker};

/// A database with the queues `aa` and `zz`, in this order.
async fn two_queues(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('aa'), fetchq.queue_create('zz')")
        .await;
    (db, session)
}

/// A trigger function of a superuser, which runs these statements for each row.
async fn trigger_function(session: &Session, statements: &str) {
    session
        .sql(&format!(
            "create function boom() returns trigger language plpgsql as $$
             begin {statements}; return new; end $$"
        ))
        .await;
}

/// Pushes a document into both queues that is due when this returns.
async fn due_documents(session: &Session, subject: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_put(queue, '{subject}', delay => '20 ms') from unnest(array['aa', 'zz']) queue;
             select pg_sleep(0.05)"
        ))
        .await;
}

/// How many documents of `zz` are pending.
const SERVED: &str = "select count(*) from fetchq_data.zz__docs where status = 1";

/// Runs a tick of each schedule of every minute.
const SCHEDULES: &str = "select fetchq.schedule_run_at(10, now() + interval '1 minute')";

/// How many documents of `zz` are of schedules.
const PUSHED: &str = "select count(*) from fetchq_data.zz__docs where subject not like 'd%'";

fn warns_of(session: &Session, text: &str) -> bool {
    let notices = session.notices();
    notices.iter().any(|n| n.message().contains(text))
}

/// As a trigger does that calls another server, whose statement was cancelled.
#[tokio::test]
async fn a_trigger_that_raises_the_code_of_a_cancel_stops_no_other_queue() {
    for code in ["57014", "57P01"] {
        let (db, session) = two_queues("left_out_code").await;
        let raise = format!("raise 'boom' using errcode = '{code}'");
        trigger_function(&session, &raise).await;
        for n in 0..2 {
            due_documents(&session, &format!("d{n}")).await;
        }
        session
            .sql(
                "create trigger boom before update or insert on fetchq_data.aa__docs
                  for each row execute function boom()",
            )
            .await;
        session.sql("select fetchq.mnt_run_all(1)").await;
        assert_eq!(session.text(SERVED).await, "1", "{code}");
        assert!(warns_of(&session, "queue \"aa\" is left out: boom"));
        session
            .sql("update fetchq.jobs set next_iteration = now()")
            .await;
        session.sql("select fetchq.mnt()").await;
        assert_eq!(session.text(SERVED).await, "2", "{code}");
        assert!(warns_of(&session, "failed: boom"));
        // Schedules too.
        session
            .sql(
                "select fetchq.schedule_create(queue, queue, '* * * * *') from unnest(array['aa', 'zz']) queue",
            )
            .await;
        session.sql(SCHEDULES).await;
        assert_eq!(session.text(PUSHED).await, "1", "{code}");
        assert!(warns_of(&session, "schedule \"aa\" failed: boom"));
        drop(session);
        db.remove().await;
    }
}

#[tokio::test]
async fn a_deferred_trigger_that_fails_stops_no_other_queue() {
    let (db, session) = two_queues("left_out_deferred").await;
    trigger_function(&session, "raise 'boom'").await;
    for n in 0..2 {
        due_documents(&session, &format!("d{n}")).await;
    }
    session
        .sql(
            "create constraint trigger boom after update or insert on fetchq_data.aa__docs
             deferrable initially deferred for each row execute function boom()",
        )
        .await;
    session.sql("select fetchq.mnt_run_all(1)").await;
    assert_eq!(session.text(SERVED).await, "1");
    assert!(warns_of(&session, "queue \"aa\" is left out: boom"));
    session
        .sql("update fetchq.jobs set next_iteration = now()")
        .await;
    session.sql("select fetchq.mnt()").await;
    assert_eq!(session.text(SERVED).await, "2");
    assert!(warns_of(&session, "failed: boom"));
    session
        .sql(
            "select fetchq.schedule_create(queue, queue, '* * * * *') from unnest(array['aa', 'zz']) queue",
        )
        .await;
    session.sql(SCHEDULES).await;
    assert_eq!(session.text(PUSHED).await, "1");
    assert!(warns_of(&session, "schedule \"aa\" failed: boom"));
    // It stays deferred for the other statements of a transaction.
    session
        .sql("drop trigger boom on fetchq_data.aa__docs; select fetchq.mnt_run_all(100)")
        .await;
    due_documents(&session, "d9").await;
    session
        .sql(
            "create constraint trigger boom after insert on fetchq_data.aa__docs
             deferrable initially deferred for each row execute function boom();
             create constraint trigger done after update on fetchq_data.aa__docs
             deferrable initially deferred for each row when (false) execute function boom()",
        )
        .await;
    session
        .sql("begin; select fetchq.mnt_run_all(100); select fetchq.doc_put('aa', 'mine')")
        .await;
    assert_eq!(session.state("commit").await, "P0001");
    drop(session);
    db.remove().await;
}

/// A foreign key to documents has deferred triggers on them, and a name that another role's trigger
/// in its schema may have, too.
#[tokio::test]
async fn a_deferred_trigger_of_another_schema_does_not_run_as_the_data_owner() {
    let (db, session) = two_queues("left_out_schemas").await;
    session
        .sql(
            "create schema shop; create role left_out_x;
             grant all on schema shop to left_out_x;
             grant all on schema fetchq, fetchq_data to left_out_x;
             select fetchq.queue_grant('zz', 'left_out_x', 'manager');
             create table shop.jobs (subject varchar,
                constraint fk foreign key (subject) references fetchq_data.aa__docs (subject)
                    deferrable initially deferred);
             set role left_out_x;
             create table shop.ran (by text);
             create table shop.x (n int);
             create function shop.f() returns trigger language plpgsql as
                'begin insert into shop.ran values (current_user); return null; end';
             grant all on shop.ran to public;
             create constraint trigger fk after insert on shop.x
                deferrable initially deferred for each row execute function shop.f();
             begin; insert into shop.x values (1); select * from fetchq.mnt_run_all(100)",
        )
        .await;
    assert_eq!(
        session.column("select by from shop.ran").await,
        Vec::<String>::new()
    );
    session.sql("commit; reset role").await;
    assert_eq!(
        session.column("select by from shop.ran").await,
        ["left_out_x"]
    );
    session
        .sql("drop schema shop cascade; select fetchq.queue_drop('zz'); drop owned by left_out_x; drop role left_out_x")
        .await;
    drop(session);
    db.remove().await;
}

#[tokio::test]
async fn a_cancel_of_the_call_is_not_taken_for_a_failure_of_a_queue() {
    let (db, session) = two_queues("left_out_cancel").await;
    trigger_function(&session, "perform pg_sleep(600)").await;
    session
        .sql("create trigger boom before update on fetchq_data.aa__docs for each row execute function boom()")
        .await;
    due_documents(&session, "d").await;
    for call in ["fetchq.mnt_run_all(100)", "fetchq.mnt()"] {
        session.sql("set statement_timeout = '1 s'").await;
        assert_eq!(session.state(&format!("select {call}")).await, "57014");
        session.sql("set statement_timeout = 0").await;
        let runs = db.connect().await;
        let pid = runs.text("select pg_backend_pid()").await;
        let statement = format!("select {call}");
        let run = tokio::spawn(async move { runs.state(&statement).await });
        let asleep = format!(
            "select count(*) from pg_stat_activity where pid = {pid} and wait_event = 'PgSleep'"
        );
        wait_until("the trigger sleeps", async || {
            session.text(&asleep).await == "1"
        })
        .await;
        session
            .sql(&format!("select pg_cancel_backend({pid})"))
            .await;
        assert_eq!(run.await.unwrap(), "57014", "{call}");
    }
    assert_eq!(session.text(SERVED).await, "0");
    drop(session);
    db.remove().await;
}

/// Rows of `fetchq.jobs` as nobody but an operator's hand writes them.
#[tokio::test]
async fn a_job_with_absurd_values_stops_no_other_job() {
    for absurd in [
        "attempts = 2147483647",
        "attempts = -2147483648",
        "planned_at = 'infinity'",
        "planned_at = '294000-01-01'",
        "planned_at = '294000-01-01', next_iteration = '4000-01-01 BC'",
        "planned_at = '-infinity'",
        "planned_at = null",
    ] {
        let (db, session) = two_queues("left_out_job").await;
        session.sql("select fetchq.mnt()").await;
        session
            .sql("update fetchq.jobs set next_iteration = now(), iterations = 0, settings = settings || '{\"delay\": \"1 h\"}'")
            .await;
        session
            .sql(&format!(
                "update fetchq.jobs set {absurd} where queue = 'aa'"
            ))
            .await;
        session.sql("select fetchq.mnt_job_run(100)").await;
        let left = "select task, queue, attempts from fetchq.jobs
            where iterations <> 1 or attempts <> 0 or not isfinite(planned_at)";
        assert!(session.rows(left).await.is_empty(), "{absurd}");
        // As the background worker reads the job.
        due_documents(&session, "d").await;
        session
            .sql(&format!(
                "update fetchq.jobs set {absurd} where queue = 'aa'"
            ))
            .await;
        session.sql("select fetchq.mnt()").await;
        assert_eq!(session.text(SERVED).await, "1", "{absurd}");
        drop(session);
        db.remove().await;
    }
}

/// The background worker runs each queue alone. Here it reads rows that were written by hand.
#[tokio::test]
async fn the_background_worker_goes_on_where_a_job_has_absurd_values() {
    let cluster = with_worker("absurd", "fsync = off");
    let session = cluster.server().connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('aa'), fetchq.queue_create('zz')")
        .await;
    for absurd in [
        "attempts = 2147483647",
        "planned_at = 'infinity'",
        "planned_at = '294000-01-01', next_iteration = '4000-01-01 BC'",
    ] {
        session
            .sql(&format!(
                "update fetchq.jobs set iterations = 0, next_iteration = now(), planned_at = now();
                 update fetchq.jobs set {absurd} where queue = 'aa' and task <> 'mnt'"
            ))
            .await;
        let left =
            "select count(*) from fetchq.jobs where task not in ('mnt', 'lgp') and iterations = 0";
        wait_until(absurd, async || session.text(left).await == "0").await;
    }
    for (n, absurd) in [
        "planned_at = 'infinity'",
        "planned_at = '294000-01-01', next_iteration = '4000-01-01 BC'",
    ]
    .into_iter()
    .enumerate()
    {
        session
            .sql(&format!(
                "update fetchq.jobs set {absurd} where queue = 'aa' and task = 'mnt'"
            ))
            .await;
        due_documents(&session, &format!("d{n}")).await;
        for queue in ["aa", "zz"] {
            let pending =
                format!("select count(*) from fetchq_data.{queue}__docs where status = 0");
            wait_until(absurd, async || session.text(&pending).await == "0").await;
        }
    }
}

/// The deferred triggers of a queue are looked up when it is that queue's turn.
#[tokio::test]
async fn deferred_triggers_of_a_queue_that_is_dropped_meanwhile_stop_no_other_queue() {
    let (db, session) = two_queues("left_out_dropped").await;
    session.sql("select fetchq.queue_create('mm')").await;
    trigger_function(&session, "perform pg_catalog.pg_advisory_xact_lock(7)").await;
    due_documents(&session, "d0").await;
    session
        .sql(
            "create trigger waits before update on fetchq_data.aa__docs
             for each row execute function boom();
             create constraint trigger gone after update on fetchq_data.mm__docs
             deferrable initially deferred for each row execute function boom()",
        )
        .await;
    let (holder, other) = (db.connect().await, db.connect().await);
    holder.sql("begin; select pg_advisory_xact_lock(7)").await;
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted
        and database = (select oid from pg_database where datname = current_database())";
    let drop_queue = async {
        while other.text(waiting).await != "1" {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        other.sql("select fetchq.queue_drop('mm')").await;
        holder.sql("commit").await;
    };
    tokio::join!(session.sql("select fetchq.mnt_run_all(1)"), drop_queue);
    assert_eq!(session.text(SERVED).await, "1");
    assert!(!warns_of(&session, "left out"), "{:?}", session.notices());
    drop((session, holder, other));
    db.remove().await;
}
