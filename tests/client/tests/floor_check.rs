//! The job `cmp` checks the ready floors: a document that a floor has hidden is found and reported,
//! and the floors stay.

use fetchq_client_tests::{Cluster, Session, wait_until};

const SETTINGS: &str = "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = off\nfsync = off\nautovacuum = off";
const PICK_AND_DROP: &str = "select coalesce(string_agg(subject, ' ' order by n), '') from (
        select subject, n, fetchq.doc_drop('q', subject)
        from fetchq.doc_pick('q', 0, 1, '1 hour') with ordinality
            d (subject, payload, version, priority, attempts, iterations, created_at, last_iteration,
               next_iteration, lock_upgrade, n)) x";
const FLOORS: &str = "select * from fetchq.ready_floors('q')";

/// A cluster with a queue `q`. 100 documents were picked from it, so the floor of their priority was
/// advanced.
async fn cluster(name: &str) -> (Cluster, Session) {
    let cluster = Cluster::new(name, SETTINGS);
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    session
        .sql(
            "create extension fetchq;
             select fetchq.queue_create('q');
             select fetchq.doc_append('q', '{}') from generate_series(1, 1000)",
        )
        .await;
    for _ in 0..100 {
        session.sql(PICK_AND_DROP).await;
    }
    (cluster, session)
}

/// Runs the job `cmp` of the queue, a day after it has looked.
async fn check(session: &Session) {
    session
        .sql("update fetchq.jobs set payload = payload - 'counted'")
        .await;
    let jobs = "update fetchq.jobs set next_iteration = case task when 'cmp' then timestamptz '2020-01-01' else 'infinity' end";
    session.sql(jobs).await;
    let run = "select success from fetchq.mnt_job_run(1)";
    assert_eq!(session.text(run).await, "t");
}

async fn misses(session: &Session) -> String {
    session
        .text("select floor_misses from fetchq.ready_stats()")
        .await
}

/// Adds documents of which the floors learn nothing: the trigger that notes them does nothing.
async fn add_unseen(session: &Session, rows: &str) {
    let definition = "select pg_get_functiondef('fetchq.trigger_docs_ready()'::regprocedure)";
    let definition = session.text(definition).await;
    session
        .sql(
            "create or replace function fetchq.trigger_docs_ready() returns trigger language plpgsql
             as 'begin return null; end'",
        )
        .await;
    session
        .sql(&format!(
            "insert into fetchq_data.q__docs (subject, priority, status, next_iteration) values {rows}"
        ))
        .await;
    session.sql(&definition).await;
}

#[tokio::test]
async fn a_check_leaves_the_floors_as_they_are() {
    let (_cluster, session) = cluster("floor_check_stay").await;
    let before = session.rows(FLOORS).await;
    let first = "-infinity";
    assert!(
        !before.is_empty() && !before[0].contains(first),
        "{before:?}"
    );
    check(&session).await;
    assert_eq!(session.rows(FLOORS).await[0], before[0]);
    assert_eq!(misses(&session).await, "0");
}

/// Picks miss a document with this subject, which should be the first one, until the check has found it.
async fn is_found(session: &Session, subject: &str, priority: i32) {
    let row = format!("('{subject}', {priority}, 1, '2003-01-01')");
    add_unseen(session, &row).await;
    assert_ne!(session.text(PICK_AND_DROP).await, subject);
    check(session).await;
    assert_eq!(misses(session).await, "1");
    assert_eq!(session.text(PICK_AND_DROP).await, subject);
}

#[tokio::test]
async fn a_check_finds_a_document_below_the_floor() {
    let (_cluster, session) = cluster("floor_check_below").await;
    is_found(&session, "unseen", 0).await;
}

#[tokio::test]
async fn a_check_finds_a_priority_that_is_not_known() {
    let (_cluster, session) = cluster("floor_check_priority").await;
    is_found(&session, "urgent", 7).await;
}

/// Maintenance misses a document that was due at a time, until the check has found it.
async fn is_due_found(session: &Session, time: &str) {
    // The floor of the planned documents is advanced to this one.
    session
        .sql("select fetchq.doc_push('q', 'later', 0, 0, now() + interval '1 hour', '{}')")
        .await;
    session.sql("select fetchq.mnt_run('q', 1000)").await;
    add_unseen(session, &format!("('planned', 0, 0, {time})")).await;
    // The floors of the due index are checked once a second, or less often where that takes long.
    wait_until("the check has found it", async || {
        check(session).await;
        misses(session).await == "1"
    })
    .await;
    session.sql("select fetchq.mnt_run('q', 1000)").await;
    let status = "select status from fetchq.doc_get('q', 'planned')";
    assert_eq!(session.text(status).await, "pending");
}

#[tokio::test]
async fn a_check_finds_a_due_document_below_the_floor() {
    let (_cluster, session) = cluster("floor_check_due").await;
    is_due_found(&session, "'2003-01-01'").await;
}

/// The check looks at a hundred entries, and then runs a statement.
#[tokio::test]
async fn a_check_finds_a_due_document_behind_many_that_are_gone() {
    let (cluster, session) = cluster("floor_check_gone").await;
    let holder = cluster.server().connect("postgres").await;
    holder
        .sql("begin isolation level repeatable read; select txid_current_snapshot()")
        .await;
    session
        .sql(
            "select fetchq.doc_push('q', 'soon' || n, 0, 0, now() + interval '100 ms', '{}')
             from generate_series(1, 1000) n",
        )
        .await;
    wait_until("they are pending", async || {
        session.sql("select fetchq.mnt_run('q', 1000)").await;
        let planned = "select count(*) from fetchq_data.q__docs where status = 0";
        session.text(planned).await == "0"
    })
    .await;
    is_due_found(&session, "clock_timestamp()").await;
    holder.sql("rollback").await;
}

/// The index has entries of more priorities than the shared memory has floors for, because nothing has
/// removed those of documents that are gone.
#[tokio::test]
async fn a_check_of_many_priorities_leaves_the_floors() {
    let (_cluster, session) = cluster("floor_check_many").await;
    for priority in 1..=30 {
        let append = format!("select fetchq.doc_append('q', '{{}}', 0, {priority})");
        session.sql(&append).await;
        // The second pick finds that the priority is empty.
        session.sql(PICK_AND_DROP).await;
        session.sql(PICK_AND_DROP).await;
    }
    let before = session.rows(FLOORS).await;
    assert!(!before.is_empty());
    is_found(&session, "urgent", 31).await;
    assert!(session.rows(FLOORS).await.len() >= before.len());
}

#[tokio::test]
async fn a_check_with_an_older_snapshot_forgets_the_floors() {
    let (_cluster, session) = cluster("floor_check_snapshot").await;
    add_unseen(&session, "('unseen', 0, 1, '2003-01-01')").await;
    session
        .sql("set default_transaction_isolation = 'repeatable read'")
        .await;
    check(&session).await;
    session.sql("reset default_transaction_isolation").await;
    assert_eq!(misses(&session).await, "0");
    assert_eq!(session.text(PICK_AND_DROP).await, "unseen");
}
