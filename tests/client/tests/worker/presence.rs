//! Where there is a background worker, and what works without one.

use std::time::Duration;

use fetchq_client_tests::{
    Cluster, counters_are_exact, has_worker, with_worker, worker_comes, worker_goes,
};

use super::{planned, with_queue};

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
                .rows("select subject from fetchq.doc_pick('q', 2)")
                .await
        })
    };
    assert_eq!(waiting.await.unwrap(), ["a"]);
    session.sql("select fetchq.doc_complete('q', 'a')").await;
    counters_are_exact(&mut session, "q").await;
}
