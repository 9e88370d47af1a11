//! The background workers block nobody, and a lock of another session does not block maintenance.

use std::time::Duration;

use fetchq_client_tests::{LAUNCHER, WORKER, processes, wait_until, with_worker, worker_comes};

use super::{becomes, planned, with_queue};

#[tokio::test]
async fn the_background_worker_does_not_block_database_commands() {
    let cluster = with_worker("commands", "");
    let (db, session) = with_queue(&cluster, "commands").await;
    let admin = cluster.server().connect("postgres").await;
    worker_comes(&admin, &db.name).await;
    std::mem::drop(session);

    admin
        .sql(&format!("create database copied template {}", db.name))
        .await;
    worker_comes(&admin, "copied").await;
    worker_comes(&admin, &db.name).await;
    admin.sql("alter database copied rename to renamed").await;
    worker_comes(&admin, "renamed").await;
    admin.sql("drop database renamed").await;
    admin.sql(&format!("drop database {}", db.name)).await;
    wait_until("only the launcher is left", async || {
        processes(&admin).await == [LAUNCHER]
    })
    .await;
}

#[tokio::test]
async fn an_idle_background_worker_keeps_no_locks() {
    let cluster = with_worker("idle", "");
    let (db, session) = with_queue(&cluster, "idle").await;
    worker_comes(&session, &db.name).await;
    planned(&session, "a", "100 ms").await;
    becomes(&session, "a", 1).await;
    // The background worker looks once a second, and may be seen doing so.
    let mut held = 0;
    for _ in 0..100 {
        let sql = format!(
            "select count(*) from pg_stat_activity a
             where backend_type like '{WORKER}' and (backend_xmin is not null or backend_xid is not null
                 or exists (select from pg_locks l where l.pid = a.pid))"
        );
        held += i32::from(session.text(&sql).await != "0");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(held < 20, "it had locks or a snapshot {held} times of 100");
}

#[tokio::test]
async fn a_lock_on_the_jobs_does_not_block_maintenance() {
    let cluster = with_worker("held_jobs", "");
    let (db, session) = with_queue(&cluster, "held_jobs").await;
    worker_comes(&session, &db.name).await;
    let other = db.connect().await;
    other.sql("begin; select from fetchq.jobs for update").await;
    for n in 0..5 {
        let subject = format!("a{n}");
        planned(&session, &subject, "100 ms").await;
        becomes(&session, &subject, 1).await;
    }
    // The queue is dropped while the background worker maintains it.
    other.sql("rollback").await;
    session.sql("select fetchq.queue_drop('q')").await;
    let complaints: Vec<String> = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("fetchq background worker:"))
        .collect();
    assert_eq!(complaints, [""; 0]);
}

#[tokio::test]
async fn a_job_that_is_locked_for_a_moment_after_its_claim_runs_at_once() {
    let cluster = with_worker("locked_claims", "fsync = off");
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q' || i) from generate_series(1, 30) i")
        .await;
    worker_comes(&session, "postgres").await;
    wait_until("all jobs have run", async || {
        let left = "select count(*) from fetchq.jobs where iterations = 0 and task = 'cmp'";
        session.text(left).await == "0"
    })
    .await;
    // The claim takes so long that another session waits for the row, and locks it when the claim has
    // committed.
    session
        .sql(
            "create function hold() returns trigger language plpgsql as $$
                 begin perform pg_sleep(0.02); return new; end $$;
             create trigger hold before update on fetchq.jobs for each row
                 when (new.task = 'cmp' and new.attempts > old.attempts) execute function hold()",
        )
        .await;
    let other = server.connect("postgres").await;
    let locks = tokio::spawn(async move {
        loop {
            other
                .sql(
                    "select from fetchq.jobs where task = 'cmp' order by next_iteration for update",
                )
                .await;
        }
    });
    let before = session
        .text("update fetchq.jobs set iterations = 0, next_iteration = now() where task = 'cmp' returning now()")
        .await;
    wait_until("all jobs have run again", async || {
        let left = format!(
            "select count(*) from fetchq.jobs
             where task = 'cmp' and (last_iteration is null or last_iteration < '{before}')"
        );
        session.text(&left).await == "0"
    })
    .await;
    locks.abort();
}
