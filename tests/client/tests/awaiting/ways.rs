//! Every way to settle a document wakes its awaiters, and what they learn.

use fetchq_client_tests::{Cluster, Database, Server, Session, state_of, wait_until};

use super::{CALL, DEAD, HISTORY, asleep, queue, waits, woken};

/// Settings of the queue, what happens before the session waits, how the document is settled, and
/// what the session learns.
const WAYS: &[(&str, &str, &str, &str)] = &[
    (
        "{}",
        "lease",
        "select fetchq.doc_complete('q', 'a', result => '{\"n\": 1}')",
        "completed|{\"n\": 1}|",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_complete('q', 'a')",
        "completed||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_complete('q', 'a', result => '[1]')",
        "completed|[1]|",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_complete('q', 'a', result => '[1]')",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_complete_many('q', array['x', 'a'], results => array['1', '2']::jsonb[])",
        "completed|2|",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_complete_many('q', array['x', 'a'])",
        "completed||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_complete_many('q', array['a', 'x'], results => array['1', '2']::jsonb[])",
        "completed|1|",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_complete_many('q', array['a', 'x'])",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "killed||no",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_kill('q', 'a')",
        "killed||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "killed||no",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "dropped||",
    ),
    (
        DEAD,
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "killed||no",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_drop('q', 'a')",
        "dropped||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_drop('q', 'a')",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_drop_many('q', array['a', 'x'])",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "killed||boom",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "killed||boom",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "dropped||",
    ),
    (
        DEAD,
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "killed||boom",
    ),
    (
        "{}",
        "lease",
        EXPIRE,
        "killed||the lease of attempt 1 ran out",
    ),
    (
        HISTORY,
        "lease",
        EXPIRE,
        "killed||the lease of attempt 1 ran out",
    ),
    (
        DEAD,
        "lease",
        EXPIRE,
        "killed||the lease of attempt 1 ran out",
    ),
    (
        "{}",
        "",
        "select fetchq.doc_cancel('q', 'a')",
        "killed||cancelled",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_cancel('q', 'a')",
        "killed||cancelled",
    ),
    (
        HISTORY,
        "",
        "select fetchq.doc_cancel('q', 'a')",
        "killed||cancelled",
    ),
    (
        "{}",
        "",
        "select fetchq.docs_kill('q', '{\"status\": \"pending\"}')",
        "killed||cancelled",
    ),
    (
        HISTORY,
        "",
        "select fetchq.docs_kill('q', '{\"status\": \"pending\"}')",
        "killed||cancelled",
    ),
    (
        "{}",
        "lease",
        "select fetchq.docs_kill('q', '{\"status\": \"active\"}')",
        "killed||cancelled",
    ),
    (
        "{}",
        "",
        "select fetchq.docs_drop('q', '{\"status\": \"pending\"}')",
        "dropped||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.docs_drop('q', '{\"status\": \"active\"}')",
        "dropped||",
    ),
    (
        "{}",
        "",
        "select fetchq.docs_move('q', 'dead', '{\"status\": \"pending\"}')",
        "dropped||",
    ),
    ("{}", "", "select fetchq.doc_pop('q', 0, 2)", "dropped||"),
    (HISTORY, "", "select fetchq.doc_pop('q', 0, 2)", "dropped||"),
    (
        "{}",
        "lease",
        "select fetchq.queue_truncate('q')",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "begin; savepoint s; select fetchq.doc_complete('q', 'a'); rollback to s; select fetchq.doc_complete('q', 'a', result => '3'); commit",
        "completed|3|",
    ),
    (
        "{}",
        "lease",
        "begin; savepoint s; select fetchq.doc_complete('q', 'a', result => '4'); release s; commit",
        "completed|4|",
    ),
    // The first transaction that settles it rolls back.
    (
        "{}",
        "lease",
        "begin; select fetchq.doc_drop('q', 'a'); rollback; select fetchq.doc_complete('q', 'a', result => '5')",
        "completed|5|",
    ),
    // It is given back first, and rescheduled: neither settles it.
    (
        "{}",
        "lease",
        "select fetchq.doc_snooze('q', 'a'); select fetchq.doc_pick('q', 2); select fetchq.doc_reschedule('q', 'a', now()); select fetchq.doc_pick('q', 2); select fetchq.doc_complete('q', 'a', result => '6')",
        "completed|6|",
    ),
];

const NOTHING: &str = r#"{"history": {"completed": "0", "killed": "0", "dropped": "0"}}"#;
const EXPIRE: &str = "update fetchq_data.q__docs set next_iteration = now() - interval '1 s';
    select fetchq.mnt_run('q', 10)";

async fn all_ways(session: &Session, db: &Database) {
    for (settings, before, settle, expected) in WAYS {
        let what = format!("{settings} {settle}");
        queue(session, settings).await;
        if *before == "lease" {
            session
                .sql("select fetchq.doc_pick('q', 0, 2, '1 hour')")
                .await;
        }
        let waiting = waits(db, CALL).await;
        asleep(session, 1).await;
        session.sql(settle).await;
        assert_eq!(woken(waiting, &what).await.unwrap(), *expected, "{what}");
        // It is settled already, and what is known of it has stayed.
        let again = match *expected {
            "dropped||" if *settings != HISTORY || settle.contains("truncate") => {
                assert_eq!(session.state(CALL).await, "P0002", "{what}");
                continue;
            }
            known => known,
        };
        assert_eq!(session.rows(CALL).await, [again], "{what}");
    }
}

#[tokio::test]
async fn every_way_to_settle_wakes_who_waits() {
    let db = Server::of_suite().database("await_ways").await;
    let session = db.connect().await;
    all_ways(&session, &db).await;
    db.remove().await;
}

#[tokio::test]
async fn every_way_to_settle_by_statements_wakes_who_waits() {
    let db = Server::of_suite().database("await_statements").await;
    let session = db.connect().await;
    session.sql("set fetchq.direct = off").await;
    all_ways(&session, &db).await;
    db.remove().await;
}

#[tokio::test]
async fn what_wakes_nobody_is_seen_at_the_next_look() {
    let db = Server::of_suite().database("await_looks").await;
    let session = db.connect().await;
    for (settle, expected) in [
        (
            "update fetchq_data.q__docs set status = 3, result = '1'",
            "completed|1|",
        ),
        ("delete from fetchq_data.q__docs", "dropped||"),
        ("truncate fetchq_data.q__docs", "dropped||"),
        ("drop table fetchq_data.q__docs", "42704"),
    ] {
        queue(&session, "{}").await;
        session
            .sql("select fetchq.doc_pick('q', 0, 2, '1 hour')")
            .await;
        let waiting = waits(&db, CALL).await;
        asleep(&session, 1).await;
        session.sql(settle).await;
        let got = waiting.await.unwrap().unwrap_or_else(|e| state_of(&e));
        assert_eq!(got, expected, "{settle}");
        if expected == "42704" {
            session.sql("create table fetchq_data.q__docs ()").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn a_document_that_was_settled_before_somebody_waited_in_an_open_transaction() {
    let db = Server::of_suite().database("await_open").await;
    let (session, other) = (db.connect().await, db.connect().await);
    queue(&session, "{}").await;
    session
        .sql("select fetchq.doc_pick('q', 0, 2, '1 hour')")
        .await;
    // Nobody waits when it is settled, so its subject is not noted.
    session
        .sql("begin; select fetchq.doc_complete('q', 'a', result => '1')")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&other, 1).await;
    session.sql("commit").await;
    assert_eq!(woken(waiting, "commit").await.unwrap(), "completed|1|");
    db.remove().await;
}

#[tokio::test]
async fn a_newer_document_with_the_subject_is_another_one() {
    let db = Server::of_suite().database("await_newer").await;
    let session = db.connect().await;
    // Its subject is in use in the dead-letter queue, so the dead letter gets another one.
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_push('dead', 'a'); select fetchq.doc_pick('q', 2)")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session
        .sql("begin; select fetchq.doc_reject('q', 'a', 'renamed'); select fetchq.doc_push('q', 'a'); commit")
        .await;
    assert_eq!(woken(waiting, "reject").await.unwrap(), "killed||renamed");
    // An older dead letter says nothing of a document that was dropped.
    session
        .sql("select fetchq.queue_truncate('dead'); select fetchq.doc_pick('q', 1); select fetchq.doc_kill('q', 'a', message => 'old')")
        .await;
    session
        .sql("select fetchq.doc_push('q', 'a'); select fetchq.doc_pick('q', 1)")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session.sql("select fetchq.doc_drop('q', 'a')").await;
    assert_eq!(woken(waiting, "drop").await.unwrap(), "dropped||");
    // Nor does an older entry of the history.
    queue(&session, HISTORY).await;
    session
        .sql("select fetchq.doc_pick('q', 2); select fetchq.doc_complete('q', 'a', result => '1')")
        .await;
    session
        .sql("select fetchq.doc_push('q', 'a'); select fetchq.queue_configure('q', '{\"history\": {\"dropped\": null}}')")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_pick('q'); select fetchq.doc_drop('q', 'a')")
        .await;
    assert_eq!(woken(waiting, "drop").await.unwrap(), "dropped||");
    db.remove().await;
}

#[tokio::test]
async fn when_the_time_is_over_the_status_tells_it() {
    let db = Server::of_suite().database("await_time").await;
    let session = db.connect().await;
    queue(&session, "{}").await;
    let call = "call fetchq.doc_await('q', 'a', '100 ms')";
    assert_eq!(session.rows(call).await, ["pending||"]);
    session.sql("select fetchq.doc_pick('q', 2)").await;
    assert_eq!(session.rows(call).await, ["active||"]);
    session
        .sql("select fetchq.doc_snooze('q', 'a', now() + interval '1 hour')")
        .await;
    assert_eq!(session.rows(call).await, ["planned||"]);
    let now = "call fetchq.doc_await('q', 'a', '0')";
    assert_eq!(session.rows(now).await, ["planned||"]);

    for (call, state) in [
        ("call fetchq.doc_await('q', 'nothing')", "P0002"),
        ("call fetchq.doc_await('nobody', 'a')", "42704"),
        ("call fetchq.doc_await('q', 'a', '-1 s')", "22023"),
        ("call fetchq.doc_await(null, 'a')", "22004"),
        ("call fetchq.doc_await('q', null)", "22004"),
        ("call fetchq.doc_await('q!', 'a')", "42602"),
        (
            "do $$ declare s text; r jsonb; m text; begin call fetchq.doc_await('q', 'a', '1 s', s, r, m); end $$",
            "",
        ),
        (
            "begin; do $$ declare s text; r jsonb; m text; begin call fetchq.doc_await('q', 'a', '1 s', s, r, m); end $$",
            "25001",
        ),
        ("rollback; begin; call fetchq.doc_await('q', 'a')", "25001"),
    ] {
        assert_eq!(session.state(call).await, state, "{call}");
    }
    session.sql("rollback").await;
    session
        .cannot_wait("begin; call fetchq.doc_await('q', 'a')", "fetchq.doc_await")
        .await;
    session.sql("rollback").await;
    // NULL stands for the default, and the settled document needs none of it.
    session
        .sql("select fetchq.docs_kill('q', '{\"all\": true}')")
        .await;
    let default = "call fetchq.doc_await('q', 'a', null)";
    assert_eq!(session.rows(default).await, ["killed||cancelled"]);
    // A driver prepares it without types.
    let prepared = session
        .prepare("call fetchq.doc_await($1, $2, $3)")
        .await
        .unwrap();
    assert_eq!(prepared.params().len(), 3);
    db.remove().await;
}

#[tokio::test]
async fn a_queue_that_is_dropped_ends_the_wait() {
    let db = Server::of_suite().database("await_drop").await;
    let session = db.connect().await;
    queue(&session, "{}").await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session.sql("select fetchq.queue_drop('q')").await;
    let error = woken(waiting, "drop").await.unwrap_err();
    assert_eq!(state_of(&error), "42704");
    // With an isolation level that keeps its snapshot.
    queue(&session, "{}").await;
    session
        .sql(&format!(
            "alter database {} set default_transaction_isolation = 'repeatable read'; select fetchq.doc_pick('q', 2)",
            db.name
        ))
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_complete('q', 'a', result => '8')")
        .await;
    assert_eq!(woken(waiting, "complete").await.unwrap(), "completed|8|");
    db.remove().await;
}

#[tokio::test]
async fn on_a_standby_the_document_is_looked_at_again_and_again() {
    let primary = Cluster::new("await_primary", "fsync = off");
    primary.start();
    let session = primary.server().connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q'); select fetchq.doc_push('q', 'a')")
        .await;
    let standby = primary.standby("await_standby", "");
    let reader = standby.server().connect("postgres").await;
    let waiting =
        tokio::spawn(async move { reader.rows("call fetchq.doc_await('q', 'a', '60 s')").await });
    let other = standby.server().connect("postgres").await;
    let asleep = "select count(*) from pg_stat_activity
        where query like 'call fetchq.doc_await%' and wait_event_type = 'Extension'";
    wait_until("the session sleeps", async || {
        other.text(asleep).await == "1"
    })
    .await;
    session
        .sql("select fetchq.doc_pick('q'); select fetchq.doc_complete('q', 'a', result => '9')")
        .await;
    assert_eq!(waiting.await.unwrap(), ["completed|9|"]);
    standby.stop("immediate");
    primary.stop("immediate");
}
