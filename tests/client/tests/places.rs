//! A queue that moves to another server while sessions use it: each of them fails with the error that
//! says where the queue is.

use fetchq_client_tests::{Database, Server, Session, error_of, state_of, wait_until};
use tokio::task::JoinHandle;
use tokio_postgres::Error;

const PLACE: &str = "db2:5432/app";

/// A call in a session of its own, in the background.
async fn calls(db: &Database, call: &str) -> JoinHandle<Result<(), Error>> {
    let session = db.connect().await;
    session.sql("set application_name = 'calls'").await;
    let call = call.to_owned();
    tokio::spawn(async move { session.query(&call, &[]).await.map(|_| ()) })
}

async fn wait_for(session: &Session, wait_event_type: &str, n: usize) {
    let sql = format!(
        "select count(*) from pg_stat_activity
         where application_name = 'calls' and wait_event_type = '{wait_event_type}'"
    );
    wait_until("the sessions wait", async || {
        session.text(&sql).await == n.to_string()
    })
    .await;
}

/// What the last transaction of a move does on the old server.
async fn moves_away(session: &Session) {
    session
        .sql(&format!(
            "begin; lock table fetchq_data.q__docs in access exclusive mode;
             select fetchq.queue_drop('q'); select fetchq.queue_place_set('q', '{PLACE}'); commit"
        ))
        .await;
}

/// Checks that a call failed because the queue is elsewhere.
fn learns_the_place(result: Result<(), Error>) -> Error {
    let error = result.expect_err("the queue is elsewhere");
    assert_eq!(state_of(&error), "3D000");
    let told = error_of(&error).message();
    assert_eq!(
        told,
        format!("queue \"q\" lives on another server: {PLACE}")
    );
    error
}

#[tokio::test]
async fn sessions_that_wait_learn_where_the_queue_is() {
    let db = Server::of_suite().database("places_waits").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_create('other'); select fetchq.doc_put('q', 'a', delay => '1 day')")
        .await;
    let mut waiting = Vec::new();
    for call in [
        "call fetchq.queue_wait(array['other', 'q'], '10 min')",
        "call fetchq.doc_await('q', 'a', '10 min')",
    ] {
        waiting.push(calls(&db, call).await);
    }
    wait_for(&session, "Extension", 2).await;
    moves_away(&session).await;
    for one in waiting {
        learns_the_place(one.await.unwrap());
    }
    db.remove().await;
}

#[tokio::test]
async fn a_worker_in_sql_ends_when_its_queue_has_moved() {
    let db = Server::of_suite().database("places_work").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q');
             create table done (n int);
             create function handle(payload jsonb) returns void language plpgsql as $$
             begin
                 insert into done values (1);
                 perform pg_advisory_xact_lock_shared(7);
             end $$",
        )
        .await;
    // It waits for a document.
    let idle = calls(&db, "call fetchq.work('q', 'handle')").await;
    wait_for(&session, "Extension", 1).await;
    moves_away(&session).await;
    learns_the_place(idle.await.unwrap());

    // It runs a handler, whose work is undone: the document is done again on the other server.
    session
        .sql("select fetchq.queue_place_set('q', null); select fetchq.queue_create('q'); select fetchq.doc_put('q', 'a'); select pg_advisory_lock(7)")
        .await;
    let busy = calls(&db, "call fetchq.work('q', 'handle')").await;
    wait_for(&session, "Lock", 1).await;
    moves_away(&session).await;
    session.sql("select pg_advisory_unlock(7)").await;
    let error = learns_the_place(busy.await.unwrap());
    let hint = error_of(&error).hint().unwrap_or_default();
    assert!(
        hint.contains("in a new connection to that server"),
        "{hint}"
    );
    assert_eq!(session.text("select count(*) from done").await, "0");
    db.remove().await;
}
