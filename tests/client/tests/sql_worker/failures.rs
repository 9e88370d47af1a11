//! What a worker does with a document whose handler, commit or rejection fails.

use fetchq_client_tests::{Server, counters_are_exact, state_of};

use super::{HANDLER, document, ledger, put, works};

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
