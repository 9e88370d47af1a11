//! `call fetchq.work(…)`: each handler takes effect exactly once, whatever fails.

mod one_commit;

use std::time::Duration;

use fetchq_client_tests::{
    Cluster, Server, Session, counters_are_exact, error_of, state_of, wait_until, with_worker,
    worker_comes,
};
use tokio::task::JoinHandle;
use tokio_postgres::Error;

use crate::search_path::traps;

/// The handlers of these tests: they write a row to the ledger, and then do what the payload
/// requests.
const HANDLER: &str = "
    create table ledger (subject text, attempts int, pid int default pg_backend_pid());
    create function handle(queue text, doc jsonb) returns void language plpgsql as $$
    declare
        what jsonb := doc -> 'payload';
    begin
        insert into ledger values (doc ->> 'subject', (doc ->> 'attempts')::int);
        perform pg_sleep((what ->> 'sleep')::float) where (doc ->> 'attempts')::int = 1;
        if (what ->> 'fails')::int >= (doc ->> 'attempts')::int then
            raise exception 'bad luck' using errcode = 'DE001', detail = 'very bad';
        end if;
    end $$;
    select fetchq.queue_create('q');
    select fetchq.queue_configure('q', '{\"retry\": {\"base\": \"10 ms\"}, \"max_attempts\": 3}')";

type Ended = Result<(i32, i32), Error>;

/// Starts a worker; returns the numbers of documents that it has processed and that failed.
fn works(session: Session, arguments: &str) -> JoinHandle<Ended> {
    let call = format!("call fetchq.work('q', 'handle'{arguments})");
    tokio::spawn(async move {
        let row = session.query_one(&call, &[]).await?;
        Ok((row.get("processed"), row.get("failed")))
    })
}

async fn named(server: &Server, database: &str, name: &str) -> Session {
    let session = server.connect(database).await;
    session.sql(&format!("set fetchq.worker = '{name}'")).await;
    session
}

/// Waits until a handler runs, and returns its process ID.
async fn in_handler(session: &Session) -> String {
    let sql = "select pid from pg_stat_activity where wait_event = 'PgSleep'";
    let mut found = Vec::new();
    wait_until("a handler runs", async || {
        found = session.column(sql).await;
        found.len() == 1
    })
    .await;
    found.remove(0)
}

async fn put(session: &Session, subject: &str, payload: &str) {
    let sql = format!("select fetchq.doc_put('q', '{subject}', '{payload}')");
    assert_eq!(session.text(&sql).await, "created");
}

async fn ledger(session: &Session) -> Vec<String> {
    let sql = "select subject || ' ' || attempts from ledger order by 1";
    session.column(sql).await
}

async fn document(session: &Session, subject: &str) -> String {
    let sql = format!(
        "select status || ' ' || attempts from fetchq_data.q__docs where subject = '{subject}'"
    );
    session.text(&sql).await
}

#[tokio::test]
async fn several_workers_and_handlers_that_fail() {
    let db = Server::of_suite().database("work_many").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    // Of 400 documents, 80 fail once and 8 always fail.
    session
        .sql(
            "select fetchq.doc_put('q', 's' || i, case when i % 50 = 0 then '{\"fails\": 9}'
                 when i % 5 = 0 then '{\"fails\": 1}' else '{}' end::jsonb) from generate_series(1, 400) i",
        )
        .await;
    let mut all = Vec::new();
    for number in 0..4 {
        let worker = db.connect().await;
        if number == 0 {
            worker.sql("set fetchq.direct = off").await;
        }
        all.push(works(worker, ", idle_timeout => '2 s'"));
    }
    let (mut processed, mut failed) = (0, 0);
    for one in all {
        let (done, not) = one.await.unwrap().expect("a worker");
        processed += done;
        failed += not;
    }
    assert_eq!((processed, failed), (392, 72 + 8 * 3));
    let wrong =
        "select count(*) from (select subject from ledger group by 1 having count(*) <> 1) x";
    assert_eq!(session.text(wrong).await, "0");
    assert_eq!(session.text("select count(*) from ledger").await, "392");
    let killed =
        "select count(*) || ' ' || min(last_error) from fetchq_data.q__docs where status = -1";
    assert_eq!(session.text(killed).await, "8 bad luck");
    let logged =
        "select count(*) || ' ' || min(details ->> 'sqlstate') || ' ' || min(details ->> 'detail')
        from fetchq_data.q__logs where message = 'bad luck'";
    assert_eq!(session.text(logged).await, "96 DE001 very bad");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_worker_stops_on_request() {
    let db = Server::of_suite().database("work_stop").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 1.5}").await;
    put(&session, "next", "{}").await;
    let busy = works(named(&db.server, &db.name, "busy").await, "");
    in_handler(&session).await;
    session.sql("select fetchq.worker_stop('busy')").await;
    assert_eq!(
        busy.await
            .unwrap()
            .expect("the worker ends without an error"),
        (1, 0)
    );
    assert_eq!(ledger(&session).await, ["slow 1"]);

    // A worker of that name that is started later works normally.
    let worker = named(&db.server, &db.name, "busy").await;
    let done = works(worker, ", max_docs => 1").await.unwrap();
    assert_eq!(done.expect("the worker ends without an error"), (1, 0));

    // The worker waits, and has no lease meanwhile.
    let worker = named(&db.server, &db.name, "idle").await;
    worker.sql("set application_name = 'idle'").await;
    let idle = works(worker, "");
    let sleeps = "select count(*) from pg_stat_activity where application_name = 'idle'
        and wait_event_type = 'Extension' and backend_xmin is null and backend_xid is null
        and not exists (select from pg_locks l where l.pid = pg_stat_activity.pid and l.relation::regclass::text like '%docs%')";
    wait_until("the worker sleeps", async || {
        session.text(sleeps).await == "1"
    })
    .await;
    session.sql("select fetchq.worker_stop('idle')").await;
    assert_eq!(
        idle.await
            .unwrap()
            .expect("the worker ends without an error"),
        (0, 0)
    );
    db.remove().await;
}

#[tokio::test]
async fn a_cancelled_worker_releases_its_document() {
    let db = Server::of_suite().database("work_cancel").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 60}").await;
    let worker = works(db.connect().await, "");
    let pid = in_handler(&session).await;
    session
        .sql(&format!("select pg_cancel_backend({pid})"))
        .await;
    let error = worker.await.unwrap().expect_err("the call was cancelled");
    assert_eq!(state_of(&error), "57014");
    assert_eq!(document(&session, "slow").await, "1 0");
    assert_eq!(ledger(&session).await, [""; 0]);
    counters_are_exact(&mut session, "q").await;

    // A worker that waits has no lease to give up.
    session.sql("select fetchq.queue_truncate('q')").await;
    let worker = db.connect().await;
    worker.sql("set application_name = 'idle'").await;
    let pid = worker.text("select pg_backend_pid()").await;
    let worker = works(worker, "");
    let sleeps = "select count(*) from pg_stat_activity
        where application_name = 'idle' and wait_event_type = 'Extension'";
    wait_until("the worker sleeps", async || {
        session.text(sleeps).await == "1"
    })
    .await;
    session
        .sql(&format!("select pg_cancel_backend({pid})"))
        .await;
    let error = worker.await.unwrap().expect_err("the call was cancelled");
    assert_eq!(state_of(&error), "57014");
    db.remove().await;
}

#[tokio::test]
async fn work_under_a_lost_lease_is_rolled_back() {
    let db = Server::of_suite().database("work_lost").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    put(&session, "slow", "{\"sleep\": 1.5}").await;
    put(&session, "next", "{}").await;
    let worker = works(db.connect().await, ", max_docs => 2");
    in_handler(&session).await;
    let cancel = "select was_cancelled from fetchq.doc_cancel('q', 'slow')";
    assert_eq!(session.text(cancel).await, "t");
    assert_eq!(worker.await.unwrap().expect("the worker continues"), (1, 1));
    assert_eq!(ledger(&session).await, ["next 1"]);
    assert_eq!(document(&session, "slow").await, "-1 0");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_document_that_cannot_be_rejected_is_released() {
    let db = Server::of_suite().database("work_stuck").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "select fetchq.queue_create('d'); select fetchq.queue_configure('q', '{\"dead_letter\": \"d\"}');
             create function deferred() returns trigger language plpgsql as $$ begin
                 raise exception 'too late' using errcode = 'DE003'; end $$",
        )
        .await;
    let once = "{\"fails\": 9}";
    for (broken, mended, state) in [
        (
            "alter table fetchq_data.q__logs add constraint never check (false) not valid",
            "alter table fetchq_data.q__logs drop constraint never",
            "23514",
        ),
        (
            "create constraint trigger late after insert on fetchq_data.q__logs
                 deferrable initially deferred for each row execute function deferred()",
            "drop trigger late on fetchq_data.q__logs",
            "DE003",
        ),
        // The SQLSTATE of a lost lease.
        (
            "create trigger never before insert on fetchq_data.d__docs
                 for each row execute function suppress_redundant_updates_trigger()",
            "drop trigger never on fetchq_data.d__docs",
            "39P01",
        ),
        (
            "create function nothing() returns trigger language plpgsql as 'begin return null; end';
             create trigger never before insert on fetchq_data.d__docs for each row execute function nothing()",
            "drop trigger never on fetchq_data.d__docs",
            "55000",
        ),
        ("drop table fetchq_data.d__docs", "", "42704"),
    ] {
        session
            .sql("select fetchq.queue_truncate('q', empty => true)")
            .await;
        put(&session, "bad", once).await;
        put(&session, "good", "{}").await;
        session
            .sql(&format!(
                "update fetchq_data.q__docs set max_attempts = 1; truncate ledger; {broken}"
            ))
            .await;
        let worker = db.connect().await;
        let row = worker
            .query_one("call fetchq.work('q', 'handle', max_docs => 2)", &[])
            .await
            .expect("the worker continues");
        let counts: (i32, i32) = (row.get("processed"), row.get("failed"));
        assert_eq!(counts, (1, 1), "{state}");
        assert_eq!(document(&session, "bad").await, "0 0", "{state}");
        assert_eq!(document(&session, "good").await, "3 0", "{state}");
        assert_eq!(ledger(&session).await, ["good 1"], "{state}");
        let told: Vec<String> = worker
            .notices()
            .iter()
            .filter(|n| n.severity() == "WARNING")
            .map(|n| n.code().code().to_owned())
            .collect();
        assert_eq!(told, [state]);
        counters_are_exact(&mut session, "q").await;
        session.sql(mended).await;
    }

    // When the document cannot be released either, the worker ends.
    session
        .sql(
            "select fetchq.queue_configure('q', '{\"dead_letter\": null}');
             select fetchq.queue_truncate('q', empty => true);
             create function kept() returns trigger language plpgsql as $$ begin
                 raise exception 'it stays' using errcode = 'check_violation'; end $$;
             create trigger keep before update on fetchq_data.q__docs
                 for each row when (old.status = 2) execute function kept()",
        )
        .await;
    put(&session, "x", "{}").await;
    let worker = works(db.connect().await, "");
    assert_eq!(state_of(&worker.await.unwrap().unwrap_err()), "23514");
    db.remove().await;
}

#[tokio::test]
async fn any_default_isolation_level() {
    let db = Server::of_suite().database("work_isolation").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    for level in ["repeatable read", "serializable"] {
        session
            .sql("select fetchq.queue_truncate('q', empty => true); truncate ledger")
            .await;
        put(&session, "slow", "{\"sleep\": 1}").await;
        put(&session, "bad", "{\"sleep\": 1, \"fails\": 1}").await;
        let worker = db.connect().await;
        worker
            .sql(&format!("set default_transaction_isolation = '{level}'"))
            .await;
        let worker = works(worker, ", idle_timeout => '1 s'");
        // The documents change while their handlers run.
        let extend = "select fetchq.doc_extend('q', subject, '1 hour', lease) from fetchq_data.q__docs where status = 2";
        while !worker.is_finished() {
            // The document may be settled meanwhile.
            let _ = session.batch_execute(extend).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(
            worker.await.unwrap().expect("the worker succeeds"),
            (2, 1),
            "{level}"
        );
        assert_eq!(ledger(&session).await, ["bad 2", "slow 1"], "{level}");
        counters_are_exact(&mut session, "q").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn a_failure_at_commit_is_rejected() {
    let db = Server::of_suite().database("work_deferred").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "create table parent (id text primary key);
             alter table ledger add foreign key (subject) references parent deferrable initially deferred;
             insert into parent values ('good');
             create function asserts(jsonb) returns void language plpgsql as $$ begin assert false; end $$",
        )
        .await;
    put(&session, "bad", "{}").await;
    put(&session, "good", "{}").await;
    let done = works(db.connect().await, ", max_docs => 2").await.unwrap();
    assert_eq!(done.expect("the worker continues"), (1, 1));
    assert_eq!(ledger(&session).await, ["good 1"]);
    let row = session
        .query_one("call fetchq.work('q', 'asserts', max_docs => 1)", &[])
        .await
        .expect("the worker continues");
    assert_eq!(row.get::<_, i32>("failed"), 1);
    db.remove().await;
}

#[tokio::test]
async fn handlers_are_checked_before_anything_is_picked() {
    let db = Server::of_suite().database("work_check").await;
    let session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "create function takes_json(json) returns void language sql as '';
             create function gives_text(jsonb) returns text language sql as 'select $1::text';
             create function gives_many(jsonb) returns setof jsonb language sql as 'select $1';
             create procedure is_procedure(jsonb) language sql as '';
             create function secret(jsonb) returns void language sql as '';
             revoke all on function secret from public",
        )
        .await;
    put(&session, "x", "{}").await;
    for handler in ["takes_json", "gives_text", "gives_many", "is_procedure"] {
        let call = format!("call fetchq.work('q', '{handler}')");
        let error = session.query(&call, &[]).await.expect_err(handler);
        assert_eq!(state_of(&error), "42883", "{handler}");
        assert!(
            error_of(&error).hint().unwrap_or("").contains("jsonb"),
            "{handler}"
        );
    }
    assert_eq!(session.state("call fetchq.work('q', null)").await, "22004");
    for option in ["max_docs => -1", "idle_timeout => '-1 s'"] {
        let call = format!("call fetchq.work('q', 'handle', {option})");
        let error = session.query(&call, &[]).await.expect_err(option);
        assert_eq!(state_of(&error), "22023", "{option}");
        let name = option.split(' ').next().unwrap();
        assert!(error_of(&error).message().contains(name), "{option}");
    }
    assert_eq!(
        session.state("call fetchq.work('r', 'handle')").await,
        "42704"
    );
    // Where it cannot commit: in a transaction block, beside another statement, in a function.
    session
        .sql("create function works() returns void language plpgsql as $$ declare p int; f int; begin call fetchq.work('q', 'handle', processed => p, failed => f); end $$")
        .await;
    for call in [
        "begin; call fetchq.work('q', 'handle')",
        "rollback; select 1; call fetchq.work('q', 'handle')",
        "select works()",
        "begin; select works()",
    ] {
        session.cannot_wait(call, "fetchq.work").await;
    }
    session.sql("rollback; drop function works()").await;
    let untouched = "select count(*) from fetchq_data.q__docs where status = 2";
    assert_eq!(session.text(untouched).await, "0");
    session
        .sql(
            "drop role if exists fetchq_work_test; create role fetchq_work_test;
              grant usage on schema fetchq, fetchq_data to fetchq_work_test;
              grant all on all tables in schema fetchq to fetchq_work_test;
              grant all on all tables in schema fetchq_data to fetchq_work_test;
              set role fetchq_work_test",
        )
        .await;
    assert_eq!(
        session.state("call fetchq.work('q', 'secret')").await,
        "42501"
    );
    session
        .sql("reset role; drop owned by fetchq_work_test; drop role fetchq_work_test")
        .await;
    assert_eq!(document(&session, "x").await, "1 0");
    db.remove().await;
}

#[tokio::test]
async fn a_handler_decides_the_result() {
    let db = Server::of_suite().database("work_answer").await;
    let mut session = db.connect().await;
    session.sql(HANDLER).await;
    session
        .sql(
            "create function answer(jsonb) returns jsonb language sql as 'select $1';
             create function later(jsonb) returns timestamptz language sql as
                 'select timestamptz ''2099-01-01'' where $1 ? ''later''';
             create schema \"Odd\"\"Schema\";
             create function \"Odd\"\"Schema\".\"Odd handler\"(jsonb) returns void language sql as ''",
        )
        .await;
    for (handler, payload, becomes) in [
        ("answer", "{}", "3 0 1 {}"),
        ("answer", r#"{"payload": [1]}"#, "3 0 1 [1]"),
        (
            "answer",
            r#"{"action": "kill", "payload": {}}"#,
            "-1 0 1 {}",
        ),
        ("answer", r#"{"action": "drop"}"#, ""),
        (
            "answer",
            r#"{"action": "reschedule", "next_iteration": "2099-01-01", "payload": {}}"#,
            "0 0 1 {}",
        ),
        (
            "answer",
            r#"{"action": "snooze", "delay": "1 hour"}"#,
            r#"0 0 0 {"delay": "1 hour", "action": "snooze"}"#,
        ),
        (
            "answer",
            r#"{"action": null, "result": 7}"#,
            "3 0 1 {\"action\": null, \"result\": 7} 7",
        ),
        (
            "answer",
            r#"{"action": "reject", "message": "no luck"}"#,
            r#"1 1 1 {"action": "reject", "message": "no luck"} no luck"#,
        ),
        (
            "answer",
            r#"{"action": "snooze", "at": "2099-01-01"}"#,
            r#"1 1 1 {"at": "2099-01-01", "action": "snooze"} settlement 1 is not valid: it has an unknown key "at""#,
        ),
        (
            "answer",
            r#"{"subject": "y"}"#,
            r#"1 1 1 {"subject": "y"} the answer of the handler has a subject or a lease, which are those of its document"#,
        ),
        (
            "answer",
            "[]",
            "1 1 1 [] the answer of the handler is not a JSON object: []",
        ),
        (
            "answer",
            r#"{"action": "sing"}"#,
            r#"1 1 1 {"action": "sing"} settlement 1 is not valid: its action is "sing", expected complete, drop, reject, kill, snooze or reschedule"#,
        ),
        (
            "answer",
            r#"{"action": "reschedule"}"#,
            r#"1 1 1 {"action": "reschedule"} settlement 1 is not valid: it has no delay and no next_iteration, which reschedule needs"#,
        ),
        ("later", "{}", "3 0 1 {}"),
        ("later", r#"{"later": 1}"#, r#"0 0 1 {"later": 1}"#),
        (r#""Odd""Schema"."Odd handler""#, "{}", "3 0 1 {}"),
    ] {
        session.sql("select fetchq.queue_truncate('q')").await;
        put(&session, "x", payload).await;
        session
            .sql(&format!(
                "call fetchq.work('q', '{handler}', max_docs => 1)"
            ))
            .await;
        let sql = "select coalesce(string_agg(concat_ws(' ', status, attempts, iterations, payload, result, last_error), ''), '')
            from fetchq_data.q__docs";
        assert_eq!(session.text(sql).await, becomes, "{handler} {payload}");
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn any_search_path() {
    let db = Server::of_suite().database("work_path").await;
    let session = db.connect().await;
    session
        .sql(&format!(
            "create schema mine; set search_path = mine; {HANDLER};
             alter function handle set search_path = mine, pg_catalog"
        ))
        .await;
    traps(&session, "evil", "evil, pg_catalog").await;
    for path in ["evil, pg_catalog, mine", "mine, evil, pg_catalog"] {
        let put = "select from fetchq.doc_put('q', 'good', mode => 'reset');
            select from fetchq.doc_put('q', 'bad', '{\"fails\": 9}', mode => 'reset')";
        session.sql(put).await;
        let worker = db.connect().await;
        worker.sql(&format!("set search_path = {path}")).await;
        let ended = works(worker, ", idle_timeout => '1 s'").await.unwrap();
        assert_eq!(ended.expect("the worker succeeds"), (1, 3), "{path}");
        let sql = "select count(*) from fetchq_data.q__docs where subject = 'bad' and last_error <> 'bad luck'";
        assert_eq!(session.text(sql).await, "0");
    }
    db.remove().await;
}

async fn cluster(name: &str) -> (Cluster, Server, Session) {
    let cluster = with_worker(name, "");
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session.sql("create extension fetchq").await;
    worker_comes(&session, "postgres").await;
    session.sql(HANDLER).await;
    (cluster, server, session)
}

#[tokio::test]
async fn a_document_is_picked_again_when_its_session_ends() {
    let (cluster, server, mut session) = cluster("work-end").await;
    for how in ["terminate", "kill"] {
        session
            .sql("select fetchq.queue_truncate('q'); truncate ledger")
            .await;
        put(&session, "slow", "{\"sleep\": 600}").await;
        // The lease lasts a day, so it does not expire during the test.
        let first = works(server.connect("postgres").await, ", duration => '1 day'");
        let pid = in_handler(&session).await;
        if how == "terminate" {
            session
                .sql(&format!("select pg_terminate_backend({pid})"))
                .await;
        } else {
            // The server restarts, and the test's session ends with it.
            cluster.kill(pid.parse().unwrap());
        }
        assert!(first.await.unwrap().is_err());
        if how == "kill" {
            // (the backend is gone a moment before the server knows of it)
            wait_until("the server starts again", async || {
                session.batch_execute("select").await.is_err()
            })
            .await;
            session = server.connect_when_up("postgres").await;
            worker_comes(&session, "postgres").await;
        }
        let second = works(server.connect("postgres").await, ", max_docs => 1");
        assert_eq!(
            second.await.unwrap().expect("the worker succeeds"),
            (1, 0),
            "{how}"
        );
        assert_eq!(ledger(&session).await, ["slow 2"], "{how}");
        assert_eq!(document(&session, "slow").await, "3 0", "{how}");
        counters_are_exact(&mut session, "q").await;
    }
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_the_handler() {
    let (_cluster, server, mut session) = cluster("work-long").await;
    put(&session, "slow", "{\"sleep\": 8}").await;
    let first = works(
        server.connect("postgres").await,
        ", max_docs => 1, duration => '3 s'",
    );
    // (if the second were quicker, the first would wait for a document for ever)
    in_handler(&session).await;
    // The second one must not be the one that leases it: the first one waits for a document.
    wait_until("the first worker has leased the document", async || {
        session.column("select count(*) from fetchq.leases").await == ["1"]
    })
    .await;
    let second = works(server.connect("postgres").await, ", idle_timeout => '8 s'");
    assert_eq!(
        first.await.unwrap().unwrap().0 + second.await.unwrap().unwrap().0,
        1
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ledger(&session).await, ["slow 1"]);
    counters_are_exact(&mut session, "q").await;
}
