//! What fails when the next document is leased has nothing to do with the document before it.

use fetchq_client_tests::{Server, Session, counters_are_exact, error_of, state_of};

use super::{HANDLER, document, in_handler, ledger, put, works};

/// A sequence that counts the runs of the handler, and is not rolled back with them.
const COUNTED: &str = "
    create sequence runs;
    create function counted(queue text, doc jsonb) returns void language plpgsql as $$ begin
        perform nextval('runs');
        perform handle(queue, doc);
    end $$;
    select fetchq.queue_configure('q', '{\"max_attempts\": 1}')";

const RUNS: &str = "select case when is_called then last_value else 0 end from runs";

async fn prepare(session: &Session) {
    session.sql(HANDLER).await;
    session.sql(COUNTED).await;
    put(session, "a", "{}").await;
    put(session, "b", "{}").await;
}

#[tokio::test]
async fn a_lease_that_fails_does_not_undo_the_document_before_it() {
    let db = Server::of_suite().database("work_next").await;
    let mut session = db.connect().await;
    prepare(&session).await;
    session
        .sql(
            "create function boom() returns trigger language plpgsql as $$ begin
                 raise exception 'b cannot be leased' using errcode = 'DE007'; end $$",
        )
        .await;
    for trigger in [
        "create trigger boom before update on fetchq_data.q__docs",
        "create constraint trigger boom after update on fetchq_data.q__docs deferrable initially deferred",
    ] {
        session
            .sql(&format!(
                "select fetchq.queue_truncate('q', empty => true); truncate ledger;
                 {trigger} for each row when (new.status = 2 and new.subject = 'b') execute function boom()"
            ))
            .await;
        put(&session, "a", "{}").await;
        put(&session, "b", "{}").await;
        let worker = db.connect().await;
        let error = worker
            .query("call fetchq.work('q', 'counted')", &[])
            .await
            .expect_err(trigger);
        assert_eq!(state_of(&error), "DE007", "{trigger}");
        assert_eq!(error_of(&error).message(), "b cannot be leased");
        assert_eq!(document(&session, "a").await, "3 0", "{trigger}");
        assert_eq!(document(&session, "b").await, "1 0", "{trigger}");
        assert_eq!(ledger(&session).await, ["a 1"], "{trigger}");
        counters_are_exact(&mut session, "q").await;

        session
            .sql("drop trigger boom on fetchq_data.q__docs")
            .await;
        let row = worker
            .query_one("call fetchq.work('q', 'counted', max_docs => 1)", &[])
            .await
            .expect("the worker ends without an error");
        assert_eq!(row.get::<_, i32>("processed"), 1);
    }
    db.remove().await;
}

#[tokio::test]
async fn a_worker_goes_on_when_a_lease_fails_once() {
    let db = Server::of_suite().database("work_next_once").await;
    let mut session = db.connect().await;
    prepare(&session).await;
    put(&session, "c", "{}").await;
    // The sequence tells the first attempt to lease b from the second one.
    session
        .sql(
            "create sequence leases;
             create function once() returns trigger language plpgsql as $$ begin
                 if nextval('public.leases') = 1 then
                     raise exception 'not now' using errcode = 'deadlock_detected';
                 end if;
                 return new;
             end $$;
             create trigger once before update on fetchq_data.q__docs
                 for each row when (new.status = 2 and new.subject = 'b') execute function once()",
        )
        .await;
    let worker = db.connect().await;
    let row = worker
        .query_one("call fetchq.work('q', 'counted', max_docs => 3)", &[])
        .await
        .expect("the worker ends without an error");
    let counts: (i32, i32) = (row.get("processed"), row.get("failed"));
    assert_eq!(counts, (3, 0));
    assert_eq!(ledger(&session).await, ["a 1", "b 1", "c 1"]);
    // Only the handler of a has run again.
    assert_eq!(session.text(RUNS).await, "4");
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_handler_does_not_run_again_when_its_own_document_cannot_be_settled() {
    let db = Server::of_suite().database("work_next_own").await;
    let mut session = db.connect().await;
    prepare(&session).await;
    session
        .sql(
            "create function bad_answer(jsonb) returns jsonb language sql
                 as $$ select '{\"action\": \"reschedule\"}'::jsonb from nextval('runs') $$;
             create function refuse() returns trigger language plpgsql as $$ begin
                 raise exception 'a stays' using errcode = '55000'; end $$;
             create trigger refuse before update on fetchq_data.q__docs for each row
                 when (new.status = 3 and new.subject = 'a') execute function refuse();
             create table parent (id int primary key);
             create table child (id int references parent deferrable initially deferred);
             create function late(jsonb) returns void language sql
                 as 'insert into child select 1 from nextval(''runs'')'",
        )
        .await;
    for (handler, error) in [
        ("bad_answer", "delay"),
        ("counted", "a stays"),
        ("late", "violates foreign key"),
    ] {
        session
            .sql(
                "select fetchq.queue_truncate('q', empty => true); select setval('runs', 1, false)",
            )
            .await;
        put(&session, "a", "{}").await;
        put(&session, "b", "{}").await;
        let row = db
            .connect()
            .await
            .query_one(
                &format!("call fetchq.work('q', '{handler}', max_docs => 2)"),
                &[],
            )
            .await
            .expect("the worker continues");
        assert!(row.get::<_, i32>("failed") >= 1, "{handler}");
        assert_eq!(document(&session, "a").await, "-1 1", "{handler}");
        let told = "select coalesce(last_error, '') from fetchq_data.q__docs where subject = 'a'";
        let told = session.text(told).await;
        assert!(told.contains(error), "{handler}: {told}");
        assert_eq!(session.text(RUNS).await, "2", "{handler}");
        counters_are_exact(&mut session, "q").await;
    }

    // Another session cancels the document.
    session
        .sql("select fetchq.queue_truncate('q', empty => true); select setval('runs', 1, false)")
        .await;
    put(&session, "x", "{\"sleep\": 0.7}").await;
    put(&session, "y", "{}").await;
    let worker = db.connect().await;
    let worker = tokio::spawn(async move {
        let call = "call fetchq.work('q', 'counted', max_docs => 2)";
        worker.query_one(call, &[]).await
    });
    in_handler(&session).await;
    session.sql("select fetchq.doc_cancel('q', 'x')").await;
    let row = worker.await.unwrap().expect("the worker continues");
    assert_eq!(row.get::<_, i32>("failed"), 1);
    assert_eq!(session.text(RUNS).await, "2");
    db.remove().await;
}

#[tokio::test]
async fn a_document_whose_handler_succeeds_counts_one_attempt() {
    let db = Server::of_suite().database("work_next_attempt").await;
    let session = db.connect().await;
    prepare(&session).await;
    session
        .sql(
            "create function stuck() returns trigger language plpgsql as $$ begin
                 perform set_config('lock_timeout', '1ms', true);
                 raise exception 'no lock' using errcode = 'lock_not_available'; end $$;
             create trigger stuck before update on fetchq_data.q__docs
                 for each row when (new.status = 2 and new.subject = 'b') execute function stuck()",
        )
        .await;
    let ended = works(db.connect().await, "").await.unwrap();
    assert_eq!(state_of(&ended.unwrap_err()), "55P03");
    // The row of the ledger has the number of the attempt.
    assert_eq!(ledger(&session).await, ["a 1"]);
    assert_eq!(document(&session, "a").await, "3 0");
    db.remove().await;
}
