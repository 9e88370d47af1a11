//! A lease that is bound to a session lasts as long as that session, whoever runs maintenance, with
//! whatever snapshot, and whatever the clock says.

mod clock;
mod interleaved;
mod many;
mod registration;

use fetchq_client_tests::{Cluster, Server, Session, wait_until, with_worker};

/// A cluster whose maintenance is what clients run, with the queue `q` and documents in it.
async fn by_clients(name: &str) -> (Cluster, Server, Session) {
    let cluster = with_worker(name, "fetchq.background_worker = off\nfsync = off");
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql(
            "create extension fetchq; select fetchq.queue_create('q');
             select fetchq.doc_push('q', 'd' || i) from generate_series(1, 5) i",
        )
        .await;
    (cluster, server, session)
}

/// Leases a document for an hour. Returns its subject and its lease number.
async fn lease(session: &Session, queue: &str, binding: &str) -> String {
    let rows = session
        .rows(&format!(
            "select subject, lease from fetchq.doc_lease('{queue}', duration => '1 hour', binding => '{binding}')"
        ))
        .await;
    assert_eq!(rows.len(), 1, "there is a document to lease");
    rows[0].clone()
}

/// Settles a document of `lease`, which must not be lost.
async fn complete(session: &Session, queue: &str, leased: &str) {
    let (subject, lease) = leased.split_once('|').unwrap();
    let done = session
        .text(&format!(
            "select fetchq.doc_complete('{queue}', '{subject}', lease => {lease})"
        ))
        .await;
    assert_eq!(done, "1");
}

/// The bindings of all leases.
async fn bindings(session: &Session) -> Vec<String> {
    session
        .column("select binding from fetchq.leases order by 1")
        .await
}

/// Waits until only sessions that the caller knows are connected: clients that run maintenance.
async fn sessions_are(session: &Session, n: usize) {
    wait_until("the other sessions have ended", async || {
        session
            .text(
                "select pg_stat_clear_snapshot();
                 select count(*) from pg_stat_activity where backend_type = 'client backend'",
            )
            .await
            == n.to_string()
    })
    .await;
}

#[tokio::test]
async fn maintenance_that_has_read_the_sessions_before_ends_no_lease_of_a_later_one() {
    let (_cluster, server, cron) = by_clients("bound_later").await;
    for isolation in ["read committed", "repeatable read"] {
        cron.sql(&format!("begin isolation level {isolation}"))
            .await;
        cron.sql("select count(*) from pg_stat_activity").await;
        let mut workers = Vec::new();
        for binding in ["keep", "return"] {
            let worker = server.connect("postgres").await;
            let leased = lease(&worker, "q", binding).await;
            workers.push((worker, leased));
        }
        let changed = cron
            .rows("select rescheduled_count, killed_count from fetchq.mnt_run('q', 10)")
            .await;
        assert_eq!(changed, ["0|0"], "{isolation}");
        cron.sql("select fetchq.mnt()").await;
        cron.sql("commit").await;
        for (worker, leased) in workers {
            complete(&worker, "q", &leased).await;
        }
    }
}

#[tokio::test]
async fn the_second_run_of_a_transaction_ends_no_lease_of_a_session_that_began_after_the_first() {
    let (_cluster, server, cron) = by_clients("bound_twice").await;
    cron.sql("select fetchq.queue_create('first'); select fetchq.doc_push('first', 'd')")
        .await;
    // The first run looks for the sessions, because there is one with a bound lease.
    let other = server.connect("postgres").await;
    lease(&other, "first", "keep").await;
    cron.sql("begin; select fetchq.mnt_run('first', 10)").await;
    let worker = server.connect("postgres").await;
    let leased = lease(&worker, "q", "keep").await;
    cron.sql("select fetchq.mnt_run('q', 10); commit").await;
    complete(&worker, "q", &leased).await;
}

#[tokio::test]
async fn a_long_run_of_all_queues_ends_no_lease_of_a_session_that_began_meanwhile() {
    let (_cluster, server, look) = by_clients("bound_long").await;
    // The run waits for this session in the middle of the queue `a`, when it has looked for the
    // sessions of that queue.
    look.sql(
        "select fetchq.queue_create('a'); select fetchq.doc_push('a', 'leased');
         select fetchq.doc_push('a', 'due', 0, 0, now() + interval '10 ms', '{}');
         create function hold() returns trigger language plpgsql as $$
             begin
                 perform pg_advisory_xact_lock(1) where new.subject = 'due';
                 return new;
             end $$;
         create trigger hold before update on fetchq_data.a__docs for each row execute function hold();
         select pg_advisory_lock(1)",
    )
    .await;
    let other = server.connect("postgres").await;
    lease(&other, "a", "keep").await;
    let cron = server.connect("postgres").await;
    let run = tokio::spawn(async move { cron.sql("select fetchq.mnt_run_all(100)").await });
    wait_until("the run waits", async || {
        look.text("select count(*) from pg_locks where locktype = 'advisory' and not granted")
            .await
            == "1"
    })
    .await;
    let worker = server.connect("postgres").await;
    let leased = lease(&worker, "q", "keep").await;
    look.sql("select pg_advisory_unlock(1)").await;
    run.await.unwrap();
    complete(&worker, "q", &leased).await;
}

#[tokio::test]
async fn a_role_that_may_not_see_the_sessions_ends_no_lease_of_one_that_runs() {
    let (_cluster, server, look) = by_clients("bound_hidden").await;
    look.sql(
        "create role cron login; grant usage on schema fetchq, fetchq_data to cron;
         grant execute on all functions in schema fetchq to cron;
         select fetchq.queue_grant('q', 'cron', 'manager')",
    )
    .await;
    let kept = server.connect("postgres").await;
    let kept_lease = lease(&kept, "q", "keep").await;
    let called = server.connect("postgres").await;
    let call = tokio::spawn(async move {
        let _ = called
            .batch_execute(
                "do $$ begin
                    perform fetchq.doc_lease('q', duration => '1 hour', binding => 'call');
                    commit;
                    perform pg_advisory_lock(7);
                end $$",
            )
            .await;
        called
    });
    look.sql("select pg_advisory_lock(7)").await;
    wait_until("the call has a lease", async || {
        bindings(&look).await == ["call", "keep"]
    })
    .await;
    let cron = server.connect("postgres").await;
    cron.sql("set role cron").await;
    let hidden = cron
        .text("select count(*) from pg_stat_activity where datname is not null and state is null")
        .await;
    assert_ne!(hidden, "0", "the role sees less than a superuser");
    for _ in 0..3 {
        cron.sql("select fetchq.mnt_run('q', 10)").await;
    }
    assert_eq!(bindings(&look).await, ["call", "keep"]);
    complete(&kept, "q", &kept_lease).await;
    look.sql("select pg_advisory_unlock(7)").await;
    // It sees which processes there are.
    drop(call.await.unwrap());
    drop(kept);
    sessions_are(&look, 2).await;
    cron.sql("select fetchq.mnt_run('q', 10)").await;
    assert!(bindings(&look).await.is_empty());
}
