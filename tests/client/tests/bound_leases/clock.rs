//! The clock was set back: nothing is decided by the order of two times. The tests move the times
//! that are stored instead.

use fetchq_client_tests::{Session, wait_until, with_worker, worker_comes};

use super::{bindings, by_clients, lease};

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_end_a_call_that_runs() {
    let cluster = with_worker("bound_clock", "fsync = off");
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq; select fetchq.queue_create('q');
         select fetchq.doc_push('q', 'd' || i) from generate_series(1, 3) i;
         create table ledger (subject text);
         create function handle(queue text, doc jsonb) returns void language plpgsql as $$ begin
             insert into ledger values (doc ->> 'subject');
             perform pg_sleep(2);
         end $$",
    )
    .await;
    worker_comes(&look, "postgres").await;
    let worker = server.connect("postgres").await;
    let work = tokio::spawn(async move {
        worker
            .sql("call fetchq.work('q', 'handle', max_docs => 3, duration => '1 hour')")
            .await;
    });
    wait_until("the handler runs", async || {
        bindings(&look).await == ["call"]
    })
    .await;
    // The documents were leased after the clock was set back by an hour, the call began before.
    while !work.is_finished() {
        look.sql(
            "update fetchq.worker_sessions set since = since - interval '1 hour' where binding = 3",
        )
        .await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    work.await.unwrap();
    let processed = look.column("select subject from ledger order by 1").await;
    assert_eq!(processed, ["d1", "d2", "d3"], "each of them once");
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_keep_the_leases_of_a_call_that_is_over() {
    let (_cluster, server, look) = by_clients("bound_over").await;
    // The call registered at a time that is yet to come.
    let ahead = "update fetchq.worker_sessions set since = since + interval '1 hour'";
    let idle = server.connect("postgres").await;
    lease(&idle, "q", "call").await;
    look.sql(ahead).await;
    look.sql("select fetchq.mnt_run('q', 10)").await;
    assert!(bindings(&look).await.is_empty(), "the session is idle");
    // The session runs another statement.
    let busy = server.connect("postgres").await;
    lease(&busy, "q", "call").await;
    look.sql(ahead).await;
    look.sql("select pg_advisory_lock(7)").await;
    let waits = tokio::spawn(async move { busy.sql("select pg_advisory_lock(7)").await });
    wait_until("the session runs another statement", async || {
        look.text("select count(*) from pg_locks where locktype = 'advisory' and not granted")
            .await
            == "1"
    })
    .await;
    look.sql("select fetchq.mnt_run('q', 10)").await;
    assert!(bindings(&look).await.is_empty(), "the session is busy");
    look.sql("select pg_advisory_unlock(7)").await;
    waits.await.unwrap();
    // No row of a call that is over is left.
    look.sql("select fetchq.mnt()").await;
    let rows = look
        .text("select count(*) from fetchq.worker_sessions")
        .await;
    assert_eq!(rows, "0");
}

#[tokio::test]
async fn a_session_registers_again_by_its_id_whatever_the_clock_says() {
    let (_cluster, server, look) = by_clients("bound_again").await;
    let worker = server.connect("postgres").await;
    let leased = lease(&worker, "q", "keep").await;
    super::complete(&worker, "q", &leased).await;
    // The first row is gone for the session, and lies in the future.
    look.sql("update fetchq.worker_sessions set since = since + interval '1 hour'")
        .await;
    let leased = lease(&worker, "q", "keep").await;
    let newest = "select max(id) from fetchq.worker_sessions";
    let newest = look.text(newest).await;
    super::complete(&worker, "q", &leased).await;
    look.sql("select fetchq.mnt()").await;
    let left = look.column("select id from fetchq.worker_sessions").await;
    assert_eq!(left, [newest]);
}

/// The answer of `doc_extend`.
async fn is_stopped(session: &Session, leased: &str) -> bool {
    let (subject, lease) = leased.split_once('|').unwrap();
    let sql =
        format!("select stop from fetchq.doc_extend('q', '{subject}', '1 hour', lease => {lease})");
    session.text(&sql).await == "t"
}

#[tokio::test]
async fn a_clock_that_is_set_back_changes_nothing_about_requests_to_stop() {
    let (_cluster, server, look) = by_clients("bound_stop").await;
    let moved = |by: &str| {
        format!(
            "begin; select fetchq.worker_stop('w');
             update fetchq.stop_requests set since = since {by} interval '1 hour'; commit"
        )
    };
    let worker = server.connect("postgres").await;
    worker.sql("set fetchq.worker = 'w'").await;
    let leased = lease(&worker, "q", "off").await;
    look.sql("create function handle(payload jsonb) returns void language sql as ''")
        .await;
    // The request came after the clock was set back: it holds for those that were there.
    let waiting = server.connect("postgres").await;
    let pid = waiting.text("select pg_backend_pid()").await;
    look.sql("select fetchq.queue_create('empty')").await;
    let work = tokio::spawn(async move {
        waiting.sql("set fetchq.worker = 'w'; ").await;
        waiting.sql("call fetchq.work('empty', 'handle')").await;
        waiting
    });
    wait_until("the worker waits", async || {
        look.text(&format!(
            "select pg_stat_clear_snapshot(); select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Extension'"
        ))
        .await
            == "1"
    })
    .await;
    look.sql(&moved("-")).await;
    assert!(is_stopped(&worker, &leased).await);
    let waiting = work.await.unwrap();
    // It came before the clock was set back: it does not hold for those that begin later.
    look.sql(&moved("+")).await;
    let later = server.connect("postgres").await;
    later.sql("set fetchq.worker = 'w'").await;
    let leased = lease(&later, "q", "off").await;
    assert!(!is_stopped(&later, &leased).await);
    waiting
        .sql("call fetchq.work('q', 'handle', max_docs => 2)")
        .await;
    let done = look
        .text("select count(*) from fetchq_data.q__docs where status = 3")
        .await;
    assert_eq!(done, "2");
    let asked = "select is_asked_to_stop from fetchq.workers where name = 'w'";
    assert_eq!(look.text(asked).await, "t", "the first session was asked");
}
