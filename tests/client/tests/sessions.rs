//! Leases that are bound to the session of their worker.

use fetchq_client_tests::{
    Server, Session, counters_are_exact, process_id, wait_until, with_worker, worker_comes,
};

const MODES: [&str; 3] = ["off", "return", "keep"];

/// A session that has picked one document of `q` with a binding.
async fn holder(server: &Server, database: &str, mode: &str, duration: &str) -> Session {
    let session = server.connect(database).await;
    session
        .sql(&format!(
            "set fetchq.session_leases = '{mode}'; set fetchq.worker = 'of {mode}'"
        ))
        .await;
    let picked = session
        .column(&format!(
            "select subject from fetchq.doc_pick('q', 0, 1, interval '{duration}')"
        ))
        .await;
    assert_eq!(picked.len(), 1);
    session
}

/// The bindings of all leases.
async fn bindings(session: &Session) -> Vec<String> {
    session
        .column("select binding from fetchq.leases order by 1")
        .await
}

async fn end(session: &Session, pid: &str) {
    session
        .sql(&format!("select pg_terminate_backend({pid})"))
        .await;
}

const PID: &str = "select pg_backend_pid()";

#[tokio::test]
async fn bound_leases_end_with_their_sessions() {
    let cluster = with_worker(
        "sessions",
        "synchronous_commit = on\nfetchq.synchronous_leases = on",
    );
    let server = cluster.server();
    let mut look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq; select fetchq.queue_create('q');
         select fetchq.doc_push('q', 'd' || i) from generate_series(1, 20) i",
    )
    .await;
    worker_comes(&look, "postgres").await;

    // The session disconnects, or is terminated.
    for is_killed in [false, true] {
        for mode in MODES {
            let session = holder(&server, "postgres", mode, "1 hour").await;
            if is_killed {
                end(&look, &session.text(PID).await).await;
            }
        }
        let left = if is_killed { 2 } else { 1 };
        wait_until("only unbound leases are left", async || {
            bindings(&look).await == vec!["off"; left]
        })
        .await;
    }
    let back = look
        .rows("select attempts, count(*) from fetchq_data.q__docs where last_error is not null group by 1")
        .await;
    assert_eq!(back, ["1|4"], "each release must count as an attempt");
    counters_are_exact(&mut look, "q").await;

    // One process is killed, and the server ends all other sessions.
    let mut holders = Vec::new();
    for mode in MODES {
        holders.push(holder(&server, "postgres", mode, "1 hour").await);
    }
    let pid: u32 = holders[0].text(PID).await.parse().unwrap();
    cluster.kill(pid);
    wait_until("the session has ended", async || {
        look.simple_query("select").await.is_err()
    })
    .await;
    let mut look = server.connect_when_up("postgres").await;
    wait_until(
        "the leases of the crashed sessions have ended",
        async || bindings(&look).await == ["off"; 3],
    )
    .await;
    counters_are_exact(&mut look, "q").await;
}

#[tokio::test]
async fn a_kept_lease_lasts_as_long_as_its_session() {
    let cluster = with_worker("kept", "");
    let server = cluster.server();
    let look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq; select fetchq.queue_create('q');
         select fetchq.doc_push('q', 'd' || i) from generate_series(1, 3) i",
    )
    .await;
    worker_comes(&look, "postgres").await;
    let mut holders = Vec::new();
    for mode in MODES {
        holders.push(holder(&server, "postgres", mode, "3 s").await);
    }
    wait_until("the other leases have expired", async || {
        bindings(&look).await == ["keep"]
    })
    .await;
    let left = look
        .text("select lease_ends > now() + interval '10 s' from fetchq.leases")
        .await;
    assert_eq!(left, "t");
    // Without a background worker the lease is neither extended nor ended.
    look.sql("alter system set fetchq.background_worker = off")
        .await;
    look.sql("select pg_reload_conf()").await;
    wait_until("the background worker has ended", async || {
        process_id(&look, "fetchq background worker")
            .await
            .is_none()
    })
    .await;
    drop(holders);
    wait_until("the worker's session is gone", async || {
        look.text("select sum(sessions) from fetchq.workers where documents > 0")
            .await
            == "0"
    })
    .await;
    assert_eq!(bindings(&look).await, ["keep"]);
    // Maintenance that a client runs ends the lease.
    look.sql("select fetchq.mnt_run('q', 10)").await;
    assert!(bindings(&look).await.is_empty());
}

#[tokio::test]
async fn a_lease_of_a_call_lasts_as_long_as_the_call() {
    let cluster = with_worker("called", "");
    let server = cluster.server();
    let mut look = server.connect("postgres").await;
    look.sql(
        "create extension fetchq; select fetchq.queue_create('q');
         select fetchq.doc_push('q', 'd' || i) from generate_series(1, 3) i",
    )
    .await;
    worker_comes(&look, "postgres").await;
    let lease =
        "select subject from fetchq.doc_lease('q', duration => '1 hour', binding => 'call')";
    let is_over = async || {
        wait_until("the lease is over", async || {
            bindings(&look).await.is_empty()
        })
        .await;
        // The document is as if it had not been picked.
        let back = "select status, attempts, last_error, count(*) from fetchq_data.q__docs group by 1, 2, 3";
        assert_eq!(look.rows(back).await, ["1|0||3"]);
        wait_until("the call is forgotten", async || {
            look.text("select count(*) from fetchq.worker_sessions")
                .await
                == "0"
        })
        .await;
    };
    let session = server.connect("postgres").await;
    let pid = session.text(PID).await;

    // The session is idle afterwards, or runs another statement.
    assert_eq!(session.column(lease).await.len(), 1);
    is_over().await;
    assert_eq!(session.column(lease).await.len(), 1);
    let session = tokio::spawn(async move {
        let _ = session.batch_execute("select pg_sleep(600)").await;
        session
    });
    is_over().await;
    let cancel = format!("select pg_cancel_backend({pid})");
    look.sql(&cancel).await;
    let session = session.await.unwrap();

    // As long as the call runs, the lease is extended.
    let call = "do $$ begin
            perform fetchq.doc_lease('q', duration => '2 s', binding => 'call');
            commit;
            perform pg_sleep(600);
        end $$";
    let session = tokio::spawn(async move {
        let _ = session.batch_execute(call).await;
        session
    });
    let extended =
        "select count(*) from fetchq.leases where lease_ends > picked_at + interval '10 s'";
    wait_until("the lease is extended", async || {
        look.text(extended).await == "1"
    })
    .await;
    assert_eq!(bindings(&look).await, ["call"]);
    look.sql(&cancel).await;
    let _session = session.await.unwrap();
    is_over().await;
    counters_are_exact(&mut look, "q").await;
}

#[tokio::test]
async fn worker_release_releases_the_leases_of_all_sessions() {
    let db = Server::of_suite().database("release").await;
    let mut look = db.connect().await;
    look.sql(
        "select fetchq.queue_create(q) from unnest('{q,p,other}'::text[]) q;
         select fetchq.doc_push(q, 'd' || i) from generate_series(1, 5) i, unnest('{q,p,other}'::text[]) q",
    )
    .await;
    let mut sessions = Vec::new();
    for (worker, queue) in [("node", "q"), ("node", "q"), ("node", "p"), ("other", "q")] {
        let session = db.connect().await;
        session
            .sql(&format!(
                "set fetchq.worker = '{worker}'; select fetchq.doc_pick('{queue}')"
            ))
            .await;
        sessions.push(session);
    }
    // A document that one of the sessions is settling stays with that session.
    sessions[0]
        .sql("begin; select fetchq.doc_complete(queue, subject, null, lease) from fetchq.leases where pid = pg_backend_pid()")
        .await;
    let released = look.text("select fetchq.worker_release('node')").await;
    assert_eq!(released, "2");
    sessions[0].sql("commit").await;
    let left = look
        .rows("select worker, count(*) from fetchq.leases group by 1")
        .await;
    assert_eq!(left, ["other|1"]);
    let attempts = look
        .text("select sum(attempts) from fetchq_data.q__docs where status = 1")
        .await;
    assert_eq!(attempts, "0");
    for queue in ["q", "p", "other"] {
        counters_are_exact(&mut look, queue).await;
    }
    // Ended sessions without leases are removed from the table.
    drop(sessions);
    wait_until("the sessions are removed", async || {
        look.sql("select fetchq.mnt()").await;
        look.text("select count(*) from fetchq.worker_sessions")
            .await
            == "1"
    })
    .await;
    db.remove().await;
}
