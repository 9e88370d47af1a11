//! A worker works whatever the isolation level and the search path of its session are.

use std::time::Duration;

use fetchq_client_tests::{Server, counters_are_exact};

use crate::search_path::traps;

use super::{HANDLER, ledger, put, works};

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
