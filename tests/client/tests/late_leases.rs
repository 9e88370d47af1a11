//! Leases that are in shared memory until they have lasted for a while.

use fetchq_client_tests::{Cluster, Server, Session, counters_are_exact, wait_until, with_worker};

/// A cluster with a background worker and a queue `q`, whose leases are written after a time that no test
/// reaches unless it sets another one. None where the tests run without shared memory.
async fn cluster(name: &str, settings: &str) -> Option<(Cluster, Server)> {
    match is_preloaded() {
        true => Some(prepared(with_worker(name, &with_late_leases(settings))).await),
        false => None,
    }
}

fn with_late_leases(settings: &str) -> String {
    format!(
        "fetchq.late_lease_slots = 4096\nfetchq.lease_write_delay = 60s\n\
         log_min_messages = fatal\n{settings}"
    )
}

async fn prepared(cluster: Cluster) -> (Cluster, Server) {
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql(
            "create extension fetchq; select fetchq.queue_create('q');
             -- What a job reads, it has written.
             update fetchq.jobs set next_iteration = 'infinity'",
        )
        .await;
    wait_until("the background worker serves the database", async || {
        session.sql("select fetchq.doc_put('q', 'first')").await;
        session.sql(LEASE).await;
        let is_late = session.text(RAW).await == "1";
        session.sql("select fetchq.queue_truncate('q', true)").await;
        is_late
    })
    .await;
    session
        .sql("update fetchq.jobs set next_iteration = 'infinity'")
        .await;
    (cluster, server)
}

fn is_preloaded() -> bool {
    std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1")
}

/// What plain SQL sees.
const RAW: &str = "select string_agg(status::text, ',' order by subject) from fetchq_data.q__docs";
const LEASE: &str = "select subject, lease from fetchq.doc_lease('q', 1, '1 hour')";

/// Leases a document, and returns its subject and its number.
async fn lease(session: &Session) -> Option<(String, String)> {
    let row = session.rows(LEASE).await.pop()?;
    let (subject, lease) = row.split_once('|').expect("two columns");
    Some((subject.to_owned(), lease.to_owned()))
}

fn complete((subject, lease): &(String, String)) -> String {
    format!("select fetchq.doc_complete('q', '{subject}', lease => {lease})")
}

#[tokio::test]
async fn a_short_job_is_written_once_and_everybody_sees_its_lease() {
    let Some((cluster, server)) = cluster("late_short", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b,c}'::text[]) s")
        .await;
    let a = lease(&session).await.expect("a document");
    assert_eq!(a.0, "a");
    assert_eq!(session.text(RAW).await, "1,1,1");
    let b = lease(&other).await.expect("another one");
    assert_eq!(b.0, "b");
    assert_eq!(session.text(&complete(&a)).await, "1");
    assert_eq!(session.state(&complete(&a)).await, "55000");
    let wrong = ("b".to_owned(), a.1.clone());
    assert_eq!(session.state(&complete(&wrong)).await, "55000");
    // The error says what became of the document, so its lease was written for that.
    assert_eq!(session.text(RAW).await, "3,2,1");
    // A report has the leases written.
    let status = "select status from fetchq.doc_get('q', 'b')";
    assert_eq!(session.text(status).await, "active");
    assert_eq!(session.text(RAW).await, "3,2,1");
    assert_eq!(session.text(&complete(&b)).await, "1");
    let c = lease(&session).await.expect("the last one");
    assert_eq!(lease(&other).await, None);
    assert_eq!(
        session
            .text("select count(*) from fetchq.lease_list('q')")
            .await,
        "1"
    );
    let act = "select current_value from fetchq.metric_get('q') where metric = 'act'";
    assert_eq!(session.text(act).await, "1");
    assert_eq!(other.text(&complete(&c)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn rollbacks_give_back_what_was_leased_and_keep_what_was_settled() {
    let Some((cluster, server)) = cluster("late_rollback", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b}'::text[]) s")
        .await;
    session.sql("begin").await;
    assert_eq!(lease(&session).await.expect("a").0, "a");
    assert_eq!(lease(&other).await.expect("b").0, "b");
    assert_eq!(lease(&other).await, None);
    session.sql("rollback").await;
    let a = lease(&other).await.expect("a is free again");
    // A settlement that is rolled back, as a whole and to a savepoint.
    for (begin, end) in [
        ("begin", "rollback"),
        ("begin; savepoint s", "rollback to s; commit"),
    ] {
        session.sql(begin).await;
        assert_eq!(session.text(&complete(&a)).await, "1");
        session.sql(end).await;
        assert_eq!(session.text(RAW).await, "1,1");
        assert_eq!(lease(&session).await, None);
    }
    assert_eq!(session.text(&complete(&a)).await, "1");
    // A lease within a savepoint that is rolled back, while another one is kept.
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{c,d}'::text[]) s")
        .await;
    session.sql("begin").await;
    let c = lease(&session).await.expect("c");
    session.sql("savepoint s").await;
    assert_eq!(lease(&session).await.expect("d").0, "d");
    session.sql("rollback to s").await;
    assert_eq!(lease(&other).await.expect("d").0, "d");
    // Settled and leased again in one transaction.
    let back = format!("select fetchq.doc_snooze('q', 'c', lease => {})", c.1);
    assert_eq!(session.text(&back).await, "1");
    let again = lease(&session).await.expect("c again");
    assert_eq!(again.0, "c");
    session.sql("commit").await;
    assert_eq!(lease(&other).await, None);
    assert_eq!(other.text(&complete(&again)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn whatever_changes_a_leased_document_sees_its_lease() {
    let Some((cluster, server)) = cluster("late_verbs", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    for (verb, found) in [
        ("select fetchq.doc_cancel('q', 'x')", "-1"),
        (
            "select fetchq.doc_put('q', 'x', '{\"n\": 2}', mode => 'replace')",
            "2",
        ),
        ("select fetchq.doc_extend('q', 'x', '2 hours', NUMBER)", "2"),
        (
            "select fetchq.docs_extend('q', '[{\"subject\": \"x\", \"lease\": NUMBER}]', '2 hours')",
            "2",
        ),
        (
            "select fetchq.docs_kill('q', '{\"status\": \"active\"}')",
            "-1",
        ),
        ("select fetchq.worker_release('w')", "1"),
    ] {
        session.sql("set fetchq.worker = 'w'").await;
        session.sql("select fetchq.doc_put('q', 'x')").await;
        let x = lease(&session).await.expect("x");
        assert_eq!(session.text(RAW).await, "1", "{verb}");
        other.sql(&verb.replace("NUMBER", &x.1)).await;
        assert_eq!(other.text(RAW).await, found, "{verb}");
        match found {
            "2" => assert_eq!(session.text(&complete(&x)).await, "1", "{verb}"),
            _ => assert_eq!(session.state(&complete(&x)).await, "55000", "{verb}"),
        }
        session.sql("select fetchq.queue_truncate('q', true)").await;
    }
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn leases_are_written_after_the_delay_and_by_a_clean_shutdown() {
    let Some((cluster, server)) = cluster("late_tick", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b}'::text[]) s; set fetchq.lease_write_delay = 200")
        .await;
    let a = lease(&session).await.expect("a");
    wait_until("the lease is in its row", async || {
        session.text(RAW).await == "2,1"
    })
    .await;
    session.sql("reset fetchq.lease_write_delay").await;
    let b = lease(&session).await.expect("b");
    assert_eq!(session.text(RAW).await, "2,1");
    drop(session);
    cluster.stop("fast");
    cluster.start();
    session = server.connect_when_up("postgres").await;
    assert_eq!(session.text(RAW).await, "2,2");
    for doc in [a, b] {
        assert_eq!(session.text(&complete(&doc)).await, "1");
    }
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_crash_loses_late_leases_and_their_numbers_settle_nothing() {
    let Some((cluster, server)) = cluster("late_crash", "synchronous_commit = on").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b}'::text[]) s")
        .await;
    let a = lease(&session).await.expect("a");
    let b = lease(&session).await.expect("b");
    assert_eq!(session.text(&complete(&b)).await, "1");
    drop(session);
    cluster.stop("immediate");
    cluster.start();
    session = server.connect_when_up("postgres").await;
    assert_eq!(session.text(RAW).await, "1,3");
    assert_eq!(session.state(&complete(&a)).await, "55000");
    let again = lease(&session).await.expect("a again");
    // Soon after a crash, leases are written at once.
    assert_eq!(session.text(RAW).await, "2,3");
    assert_eq!(session.state(&complete(&a)).await, "55000");
    assert_eq!(session.text(&complete(&again)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn documents_that_others_have_changed_are_not_settled_by_mistake() {
    let Some((cluster, server)) = cluster("late_foreign", "").await else {
        return;
    };
    let session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    // Dropped with SQL, and put again under the same subject.
    session.sql("select fetchq.doc_put('q', 'x')").await;
    let x = lease(&session).await.expect("x");
    other
        .sql("delete from fetchq_data.q__docs; select fetchq.doc_put('q', 'x')")
        .await;
    assert_eq!(session.state(&complete(&x)).await, "55000");
    // The error arrives before its transaction has ended.
    session.sql("select 1").await;
    let again = lease(&other).await.expect("the new one is leased");
    assert_eq!(session.state(&complete(&x)).await, "55000");
    assert_eq!(other.text(&complete(&again)).await, "1");
    // Numbers that begin again.
    session
        .sql("select fetchq.queue_truncate('q', true); select fetchq.doc_put('q', 'x')")
        .await;
    let x = lease(&session).await.expect("x");
    other
        .sql("truncate fetchq_data.q__docs restart identity; select fetchq.doc_put('q', 'x')")
        .await;
    assert_eq!(session.state(&complete(&x)).await, "55000");
    // The error arrives before its transaction has ended.
    session.sql("select 1").await;
    let again = lease(&other).await.expect("the new one is leased");
    assert_eq!(other.text(&complete(&again)).await, "1");
    // A table that is written anew.
    session.sql("select fetchq.queue_truncate('q', true)").await;
    session
        .sql("select fetchq.doc_put('q', 's' || n) from generate_series(1, 50) n; delete from fetchq_data.q__docs where subject < 's3'")
        .await;
    let x = lease(&session).await.expect("a document");
    other.sql("vacuum full fetchq_data.q__docs").await;
    assert_eq!(session.text(&complete(&x)).await, "1");
    cluster.stop("fast");
}

#[tokio::test]
async fn leases_are_written_at_once_where_there_is_no_room() {
    let Some((cluster, server)) = cluster("late_full", "fetchq.late_lease_slots = 64").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_append('q', '{}') from generate_series(1, 200)")
        .await;
    session
        .sql("create table held as select * from fetchq.doc_lease('q', 150, '1 hour')")
        .await;
    let states = "select string_agg(n::text, ',' order by status) from
        (select status, count(*) n from fetchq_data.q__docs group by status) s";
    assert_eq!(session.text(states).await, "114,86");
    assert_eq!(
        session
            .text("select late_slots_used from fetchq.ready_stats()")
            .await,
        "64"
    );
    assert_eq!(
        session.text("select count(distinct subject) from (select subject from held union all select subject from fetchq.doc_lease('q', 150, '1 hour')) d").await,
        "200"
    );
    session
        .sql("select fetchq.doc_complete('q', subject, lease => lease) from held")
        .await;
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_subject_that_is_stored_compressed_is_found() {
    let Some((cluster, server)) = cluster("late_long", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    // Everything else is shorter, so that the subject is what the server compresses.
    session
        .sql(
            "select fetchq.doc_put('q', repeat('\u{1f41f}', 250), jsonb_build_object('p', (select string_agg(md5(n::text), '') from generate_series(1, 28) n)),
                 ordering_key => (select string_agg(md5(n::text), '') from generate_series(1, 7) n))",
        )
        .await;
    assert_eq!(
        session
            .text("select pg_column_size(subject) < 500 from fetchq_data.q__docs")
            .await,
        "t"
    );
    let x = lease(&session).await.expect("the document");
    assert_eq!(lease(&session).await, None);
    assert_eq!(session.text(&complete(&x)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_queue_has_a_delay_of_its_own_and_its_leases_are_written_on_request() {
    let Some((cluster, server)) = cluster("late_queue", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session
        .sql(
            "select fetchq.doc_put('q', s) from unnest('{a,b,c,d}'::text[]) s;
             select fetchq.queue_configure('q', '{\"lease_write_delay\": \"0\"}')",
        )
        .await;
    let a = lease(&other).await.expect("a");
    assert_eq!(session.text(RAW).await, "2,1,1,1");
    session
        .sql("select fetchq.queue_configure('q', '{\"lease_write_delay\": \"30 s\"}')")
        .await;
    let b = lease(&other).await.expect("b");
    assert_eq!(session.text(RAW).await, "2,1,1,1");
    // Those of other sessions are committed, and no lease is late until the end.
    session.sql("begin").await;
    assert_eq!(session.text("select fetchq.leases_write('q')").await, "1");
    assert_eq!(other.text(RAW).await, "2,2,1,1");
    let c = lease(&other).await.expect("c");
    assert_eq!(other.text(RAW).await, "2,2,2,1");
    session.sql("commit").await;
    // It waits for a transaction that has leased.
    other.sql("begin").await;
    let d = lease(&other).await.expect("d");
    session.sql("set lock_timeout = 300").await;
    let write = "select fetchq.leases_write('q')";
    assert_eq!(session.state(write).await, "55P03");
    other.sql("commit").await;
    assert_eq!(session.text(write).await, "1");
    assert_eq!(session.text(RAW).await, "2,2,2,2");
    for doc in [a, b, c, d] {
        assert_eq!(session.text(&complete(&doc)).await, "1");
    }
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn documents_die_side_by_side() {
    let Some((cluster, server)) = cluster("late_kill", "deadlock_timeout = 100ms").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session
        .sql(
            "select fetchq.queue_create('dead');
             select fetchq.queue_configure('q', '{\"dead_letter\": \"dead\"}');
             select fetchq.doc_put('q', s) from unnest('{a,b,c,d}'::text[]) s",
        )
        .await;
    let kill = |doc: &(String, String)| {
        format!(
            "select fetchq.doc_kill('q', '{}', lease => {})",
            doc.0, doc.1
        )
    };
    let [a, b] = [lease(&session).await, lease(&other).await].map(|doc| doc.expect("a document"));
    session.sql("begin").await;
    other.sql("begin").await;
    let c = lease(&session).await.expect("c");
    let d = lease(&other).await.expect("d");
    for (session, doc) in [(&session, &a), (&other, &b), (&session, &c), (&other, &d)] {
        assert_eq!(session.text(&kill(doc)).await, "1");
    }
    session.sql("commit").await;
    other.sql("commit").await;
    assert_eq!(session.text(RAW).await, "");
    let dead = "select string_agg(subject, ',' order by subject) from fetchq_data.dead__docs";
    assert_eq!(session.text(dead).await, "a,b,c,d");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

/// Whoever changes a row has the document reserved, and waits for nobody else who has.
#[tokio::test]
async fn the_rows_decide_between_those_who_change_documents_without_a_lease() {
    let Some((cluster, server)) = cluster("late_reserved", "lock_timeout = 5s").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    let put = "select fetchq.doc_put('q', 'x', mode => 'replace')";
    session.sql(put).await;
    // The row is locked by SQL of the user's while another session waits to change it.
    session
        .sql("begin; select from fetchq_data.q__docs for update")
        .await;
    let waits = async {
        other.sql(put).await;
    };
    let goes_on = async {
        wait_until("the other session waits", async || {
            session
                .text("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
                .await
                == "1"
        })
        .await;
        session.sql(put).await;
        session.sql("commit").await;
    };
    tokio::join!(waits, goes_on);
    let x = lease(&other).await.expect("x");
    assert_eq!(other.text(&complete(&x)).await, "1");
    // Settled, and another one put, in one transaction.
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b}'::text[]) s")
        .await;
    let a = lease(&session).await.expect("a");
    let b = lease(&other).await.expect("b");
    session.sql("begin").await;
    other.sql("begin").await;
    assert_eq!(session.text(&complete(&a)).await, "1");
    assert_eq!(other.text(&complete(&b)).await, "1");
    session.sql("select fetchq.doc_put('q', 'c')").await;
    other.sql("select fetchq.doc_put('q', 'd')").await;
    other.sql("commit").await;
    assert_eq!(session.text("select fetchq.leases_write('q')").await, "0");
    session.sql("commit").await;
    assert_eq!(session.text(RAW).await, "3,3,1,1,3");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_snapshot_that_is_older_than_a_lease_does_not_take_it_for_lost() {
    let Some((cluster, server)) = cluster("late_snapshot", "").await else {
        return;
    };
    let session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session.sql("select fetchq.doc_put('q', 'x')").await;
    let x = lease(&session).await.expect("x");
    let list = format!(
        "select fetchq.docs_settle('q', '[{{\"action\": \"complete\", \"subject\": \"x\", \"lease\": {}}}]')",
        x.1
    );
    session
        .sql("begin isolation level repeatable read; select count(*) from fetchq.queues")
        .await;
    other.sql("select fetchq.leases_write('q')").await;
    assert_eq!(other.text(RAW).await, "2");
    session.sql("savepoint s").await;
    assert_eq!(session.state(&complete(&x)).await, "40001");
    session.sql("rollback to s").await;
    assert_eq!(session.state(&list).await, "40001");
    session
        .sql("rollback; begin isolation level repeatable read")
        .await;
    assert_eq!(session.text(&complete(&x)).await, "1");
    session.sql("commit").await;
    // A document that is newer than the snapshot of a transaction that changes all there are.
    session
        .sql("begin isolation level repeatable read; select count(*) from fetchq.queues")
        .await;
    other.sql("select fetchq.doc_put('q', 'y')").await;
    let y = lease(&other).await.expect("y");
    let kill = "select fetchq.docs_kill('q', '{\"status\": \"active\"}')";
    assert_eq!(session.state(kill).await, "40001");
    session.sql("rollback").await;
    assert_eq!(lease(&session).await, None);
    assert_eq!(other.text(&complete(&y)).await, "1");
    cluster.stop("fast");
}

/// A bulk action passes over a document that a transaction has leased, and holds up nobody meanwhile.
#[tokio::test]
async fn a_bulk_action_waits_for_no_lease() {
    let Some((cluster, server)) = cluster("late_bulk", "lock_timeout = 5s").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let [holder, other] = [
        server.connect("postgres").await,
        server.connect("postgres").await,
    ];
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b,c}'::text[]) s")
        .await;
    holder.sql("begin").await;
    let a = lease(&holder).await.expect("a");
    let b = lease(&other).await.expect("b");
    assert_eq!(lease(&other).await.expect("c").0, "c");
    let kill =
        "select fetchq.docs_kill('q', '{\"status\": \"active\", \"subject\": [\"a\", \"c\"]}')";
    session.sql(kill).await;
    assert_eq!(session.text(RAW).await, "1,2,-1");
    assert_eq!(other.text(&complete(&b)).await, "1");
    holder.sql("commit").await;
    assert_eq!(holder.text(&complete(&a)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_document_that_is_leased_does_not_expire() {
    let Some((cluster, server)) = cluster("late_expiry", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "update fetchq.jobs set next_iteration = now() where task = 'mnt';
             select fetchq.doc_put('q', s, expires_in => '300 ms') from unnest('{a,b}'::text[]) s",
        )
        .await;
    let a = lease(&session).await.expect("a");
    wait_until("the other one has expired", async || {
        session
            .text("select status from fetchq_data.q__docs where subject = 'b'")
            .await
            == "-1"
    })
    .await;
    assert_eq!(session.text(&complete(&a)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn leases_are_written_when_the_background_worker_leaves() {
    let Some((cluster, server)) = cluster("late_leaves", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    let third = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b,c,d}'::text[]) s")
        .await;
    let a = lease(&session).await.expect("a");
    // Transactions that have leased late, and end when nobody serves the database.
    other.sql("set fetchq.lease_write_delay = 500; begin").await;
    let b = lease(&other).await.expect("b");
    third.sql("begin").await;
    let c = lease(&third).await.expect("c");
    session
        .sql("alter system set fetchq.background_worker = off")
        .await;
    session.sql("select pg_reload_conf()").await;
    wait_until("the lease is in its row", async || {
        session.text(RAW).await == "2,1,1,1"
    })
    .await;
    other.sql("commit").await;
    third.sql("commit").await;
    assert_eq!(session.text(RAW).await, "2,1,1,1");
    // A pick writes what is overdue, and its own one at once.
    let d = lease(&session).await.expect("d");
    wait_until("a pick has written it", async || {
        lease(&session).await;
        session.text(RAW).await == "2,2,1,2"
    })
    .await;
    assert_eq!(session.text("select fetchq.leases_write('q')").await, "1");
    assert_eq!(session.text(RAW).await, "2,2,2,2");
    for doc in [a, b, c, d] {
        assert_eq!(session.text(&complete(&doc)).await, "1");
    }
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

/// The background worker is in a statement that does not end when the server shuts down.
#[tokio::test]
async fn a_shutdown_writes_leases_whatever_the_background_worker_does() {
    let Some((cluster, server)) = cluster("late_shutdown", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "select fetchq.queue_create('slow');
             create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(600); return new; end $$;
             create trigger slow before update on fetchq_data.slow__docs for each row
                 when (new.status = 1) execute function slow();
             select fetchq.doc_put('slow', 'x', '{}', due_at => clock_timestamp() + interval '100 ms')",
        )
        .await;
    session.sql("select fetchq.doc_put('q', 'a')").await;
    let a = lease(&session).await.expect("a");
    wait_until("the background worker is in its statement", async || {
        session
            .text("select count(*) from pg_stat_activity where backend_type = 'fetchq background worker' and wait_event = 'PgSleep'")
            .await
            == "1"
    })
    .await;
    assert_eq!(session.text(RAW).await, "1");
    drop(session);
    cluster.stop("fast");
    cluster.start();
    session = server.connect_when_up("postgres").await;
    assert_eq!(session.text(RAW).await, "2");
    assert_eq!(session.text(&complete(&a)).await, "1");
    cluster.stop("fast");
}

#[tokio::test]
async fn another_owner_of_the_tables_can_pick() {
    let Some((cluster, server)) = cluster("late_owner", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "create role owner_of_data nologin;
             select fetchq.data_owner_set('owner_of_data');
             select fetchq.doc_put('q', s) from unnest('{a,b}'::text[]) s;
             set fetchq.direct = off",
        )
        .await;
    let a = lease(&session).await.expect("a");
    session.sql("set fetchq.direct = on").await;
    let b = lease(&session).await.expect("b");
    session.sql("select fetchq.leases_write('q')").await;
    for doc in [a, b] {
        assert_eq!(session.text(&complete(&doc)).await, "1");
    }
    session
        .sql("revoke execute on function fetchq.late_lease from owner_of_data")
        .await;
    let state =
        "select concat(state, ': ', detail) from fetchq.status() where component = 'data owner'";
    let state = session.text(state).await;
    assert!(
        state.contains("EXECUTE on function fetchq.late_lease"),
        "{state}"
    );
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_failover_loses_leases_that_are_not_written_and_nothing_else() {
    let Some((cluster, server)) = cluster("late_failover", "").await else {
        return;
    };
    let session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', s) from unnest('{a,b}'::text[]) s")
        .await;
    let a = lease(&session).await.expect("a");
    session.sql("select fetchq.leases_write('q')").await;
    let b = lease(&session).await.expect("b");
    let standby = cluster.standby("late_standby", "");
    drop(session);
    cluster.stop("immediate");
    standby.promote();
    let mut session = standby.server().connect_when_up("postgres").await;
    wait_until("the standby is promoted", async || {
        session.text("select pg_is_in_recovery()").await == "f"
    })
    .await;
    assert_eq!(session.text(RAW).await, "2,1");
    assert_eq!(session.state(&complete(&b)).await, "55000");
    assert_eq!(session.text(&complete(&a)).await, "1");
    let again = lease(&session).await.expect("b again");
    // As after a crash, leases are written at once for a while.
    assert_eq!(session.text(RAW).await, "3,2");
    assert_eq!(session.state(&complete(&b)).await, "55000");
    assert_eq!(session.text(&complete(&again)).await, "1");
    counters_are_exact(&mut session, "q").await;
    standby.stop("fast");
}

#[tokio::test]
async fn leases_are_written_when_the_clock_is_set_back() {
    if !is_preloaded() {
        return;
    }
    let settings = "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = on";
    let cluster = Cluster::with_clock("late_clock", &with_late_leases(settings));
    cluster.start();
    let (cluster, server) = prepared(cluster).await;
    let mut session = server.connect("postgres").await;
    session.sql("select fetchq.doc_put('q', 'a')").await;
    let a = lease(&session).await.expect("a");
    cluster.set_clock(-3600);
    wait_until("the lease is in its row", async || {
        session.text(RAW).await == "2"
    })
    .await;
    assert_eq!(session.text(&complete(&a)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn the_history_has_what_was_leased_late() {
    let Some((cluster, server)) = cluster("late_history", "fetchq.worker = 'w'").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\"}}');
             select fetchq.doc_put('q', s) from unnest('{a,b,c}'::text[]) s",
        )
        .await;
    let a = lease(&session).await.expect("a");
    let b = lease(&session).await.expect("b");
    let c = lease(&session).await.expect("c");
    assert_eq!(session.text(RAW).await, "1,1,1");
    session.sql("begin").await;
    assert_eq!(session.text(&complete(&a)).await, "1");
    let updated = "select pg_stat_get_xact_tuples_updated('fetchq_data.q__docs'::regclass)";
    assert_eq!(session.text(updated).await, "0");
    session.sql("rollback").await;
    assert_eq!(session.text(RAW).await, "1,1,1");
    assert_eq!(session.text(&complete(&a)).await, "1");
    // One of a list has its lease in its row.
    session
        .sql(&format!(
            "select fetchq.doc_extend('q', 'b', '1 hour', {}, progress => '1')",
            b.1
        ))
        .await;
    assert_eq!(session.text(RAW).await, "2,1");
    let both = format!(
        "select count(*) from fetchq.docs_settle('q', '[{{\"action\": \"complete\", \"subject\": \"b\", \"lease\": {}}}, {{\"action\": \"complete\", \"subject\": \"c\", \"lease\": {}}}]', 'error')",
        b.1, c.1
    );
    session.sql(&both).await;
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.q__docs")
            .await,
        "0"
    );
    let history = "select subject, attempts, iterations, worker, due_at <= picked_at, ran >= '0'::interval, lease
         from fetchq_data.q__history order by subject";
    let expected = [a, b, c].map(|(subject, lease)| format!("{subject}|1|1|w|t|t|{lease}"));
    assert_eq!(session.rows(history).await, expected);
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn what_is_settled_in_a_list_is_timed() {
    let Some((cluster, server)) = cluster("late_timed", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "select fetchq.doc_put('q', s, due_at => now() - interval '1 hour')
             from unnest('{a,b,c,d,e}'::text[]) s",
        )
        .await;
    let mut docs = Vec::new();
    while let Some(doc) = lease(&session).await {
        docs.push(doc);
    }
    assert_eq!(session.text(RAW).await, "1,1,1,1,1");
    let list = docs.iter().skip(1).map(|(subject, lease)| {
        format!("{{\"subject\": \"{subject}\", \"lease\": {lease}, \"action\": \"drop\"}}")
    });
    let list = list.collect::<Vec<_>>().join(",");
    session
        .sql(&format!("select fetchq.docs_settle('q', '[{list}]')"))
        .await;
    let drop = |(subject, lease): &(String, String)| {
        format!("select fetchq.doc_drop('q', '{subject}', {lease})")
    };
    assert_eq!(session.text(&drop(&docs[0])).await, "1");
    let times = "select (wait_p50 between interval '59 min' and interval '80 min')::text || (wait_p99 < interval '80 min')::text
         || (run_p99 < interval '5 min')::text from fetchq.queue_stats('q')";
    assert_eq!(session.text(times).await, "truetruetrue");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_lease_that_was_replaced_is_there_again_after_a_rollback() {
    let Some((cluster, server)) = cluster("late_replaced", "").await else {
        return;
    };
    let session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session.sql("select fetchq.doc_put('q', 'x')").await;
    let x = lease(&session).await.expect("x");
    other.sql("begin").await;
    other
        .sql("delete from fetchq_data.q__docs; select fetchq.doc_put('q', 'x')")
        .await;
    assert_eq!(lease(&other).await.expect("the new one").0, "x");
    other.sql("rollback").await;
    assert_eq!(lease(&other).await, None);
    assert_eq!(session.text(&complete(&x)).await, "1");
    cluster.stop("fast");
}

/// SQL that changes a document, and does not call leases_write before.
#[tokio::test]
async fn a_lease_is_written_into_a_row_that_was_changed_meanwhile() {
    let Some((cluster, server)) = cluster("late_changed", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    let other = server.connect("postgres").await;
    session.sql("select fetchq.doc_put('q', 'x')").await;
    let x = lease(&session).await.expect("x");
    other.sql("begin").await;
    other
        .sql("update fetchq_data.q__docs set payload = '1'")
        .await;
    let extend = format!(
        "select stop from fetchq.doc_extend('q', 'x', '2 hours', {})",
        x.1
    );
    let (stop, ()) = tokio::join!(session.text(&extend), async {
        wait_until("the other one waits", async || {
            let waits = "select count(*) from pg_locks where not granted";
            other.text(waits).await == "1"
        })
        .await;
        other.sql("commit").await;
    });
    assert_eq!(stop, "f");
    assert_eq!(session.text(&complete(&x)).await, "1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

/// Sessions that lease and settle, and others that write all leases: none of them deadlock.
#[tokio::test]
async fn settings_are_changed_and_workers_are_released_beside_settlements() {
    let Some((cluster, server)) = cluster("late_settings", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', 's' || n) from generate_series(1, 400) n")
        .await;
    let work = |worker: i32| {
        let server = &server;
        async move {
            let session = server.connect("postgres").await;
            for _ in 0..150 {
                let lease = format!(
                    "create temp table l as select subject, lease from fetchq.doc_lease('q', 20, '1 hour', worker => 'w{worker}');
                     select pg_sleep(0.002)"
                );
                session.sql(&lease).await;
                session
                    .sql(
                        "select fetchq.docs_settle('q', coalesce(jsonb_agg(to_jsonb(l) || jsonb_build_object('action', 'reschedule', 'delay', '0 s')
                             order by random()), '[]')) from l;
                         drop table l",
                    )
                    .await;
            }
        }
    };
    let settings = async {
        let session = server.connect("postgres").await;
        for n in 0..30 {
            let limit = if n % 2 == 0 { "100000" } else { "null" };
            session
                .sql(&format!(
                    "select fetchq.queue_configure('q', '{{\"max_active\": {limit}, \"lease_write_delay\": \"{} s\"}}')",
                    20 + n
                ))
                .await;
            session.sql("select fetchq.worker_release('w1')").await;
            session.sql("select fetchq.leases_write('q')").await;
        }
    };
    tokio::join!(work(1), work(2), work(3), work(4), settings);
    counters_are_exact(&mut session, "q").await;
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.q__docs")
            .await,
        "400"
    );
    cluster.stop("fast");
}

/// Documents that are leased late and rescheduled: no pick returns nothing while there are some.
#[tokio::test]
async fn a_pick_finds_a_document_while_there_are_some() {
    let Some((cluster, server)) = cluster("late_calendar", "").await else {
        return;
    };
    let mut session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', 's' || n) from generate_series(1, 2000) n")
        .await;
    let work = || async {
        let session = server.connect("postgres").await;
        for _ in 0..3000 {
            let (subject, lease) = lease(&session).await.expect("a document");
            let plan =
                format!("select fetchq.doc_reschedule('q', '{subject}', now(), lease => {lease})");
            assert_eq!(session.text(&plan).await, "1");
        }
    };
    tokio::join!(work(), work(), work(), work());
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}
