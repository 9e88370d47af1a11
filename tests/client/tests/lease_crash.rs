//! A transaction that only leases documents does not wait for the disk. A crash can lose it, and
//! nothing else.

use std::collections::HashSet;

use fetchq_client_tests::{Cluster, Server, Session, counters_are_exact, wait_until};

/// A cluster with a queue `q` that waits for the disk at each commit, and in which nothing but a
/// commit writes to the disk.
async fn cluster(name: &str) -> (Cluster, Server) {
    cluster_with(name, "").await
}

async fn cluster_with(name: &str, settings: &str) -> (Cluster, Server) {
    let cluster = Cluster::new(
        name,
        &format!(
            "synchronous_commit = on\nfsync = on\nautovacuum = off\nfetchq.background_worker = off\n\
             wal_writer_delay = 10s\nbgwriter_lru_maxpages = 0\n{settings}"
        ),
    );
    cluster.start();
    let server = cluster.server();
    server
        .connect("postgres")
        .await
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    (cluster, server)
}

/// Runs a statement, and returns whether its commit has waited until it was on disk.
async fn waits(session: &Session, sql: &str) -> bool {
    // A transaction that must be on disk, so that the next one begins with a log that is.
    session
        .sql("select fetchq.metric_log_increment('q', 'marker', 1)")
        .await;
    let inserted = session.text("select pg_current_wal_insert_lsn()").await;
    session.sql(sql).await;
    session
        .text(&format!("select pg_current_wal_flush_lsn() > '{inserted}'"))
        .await
        == "t"
}

/// Stops the WAL writer, so that an asynchronous commit does not reach the disk soon: while it sleeps, or it
/// might have a lock that other commits need.
async fn freeze_wal_writer(cluster: &Cluster, session: &Session) -> u32 {
    let pid: u32 = session
        .text("select pid from pg_stat_activity where backend_type = 'walwriter'")
        .await
        .parse()
        .expect("a WAL writer runs");
    wait_until("the WAL writer sleeps", async || {
        cluster.signal(pid, "STOP");
        let waits =
            format!("select coalesce(wait_event, '') from pg_stat_activity where pid = {pid}");
        let sleeps = session.text(&waits).await == "WalWriterMain";
        if !sleeps {
            cluster.signal(pid, "CONT");
        }
        sleeps
    })
    .await;
    pid
}

/// Kills all processes of the server at once.
async fn kill_all(cluster: &Cluster, session: Session) {
    let all = session
        .column("select pid from pg_stat_activity where pid <> pg_backend_pid()")
        .await;
    cluster.kill(cluster.pid().expect("the server runs"));
    for pid in all {
        cluster.kill_if_there(pid.parse().unwrap());
    }
    drop(session);
    wait_until("its processes have ended", async || !cluster.is_running()).await;
    cluster.clear_locks();
}

/// Whether the tests run with shared memory. Without, no lease may be lost.
fn is_preloaded() -> bool {
    std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1")
}

const LEASE: &str = "select fetchq.doc_lease('q', 1, '1 hour')";

#[tokio::test]
async fn a_crash_loses_the_last_leases_and_nothing_that_was_settled() {
    if !is_preloaded() {
        return;
    }
    let (cluster, server) = cluster("lease_crash").await;
    let mut session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_put('q', 'settled'), fetchq.doc_put('q', 'leased', '{}', delay => '0')")
        .await;
    freeze_wal_writer(&cluster, &session).await;
    let settled = session
        .text("select lease from fetchq.doc_lease('q', 1, '1 hour')")
        .await;
    session
        .sql(&format!(
            "select fetchq.doc_complete('q', 'settled', lease => {settled})"
        ))
        .await;
    let lost: i64 = session
        .text("select lease from fetchq.doc_lease('q', 1, '1 hour')")
        .await
        .parse()
        .unwrap();
    kill_all(&cluster, session).await;
    cluster.start();

    session = server.connect_when_up("postgres").await;
    assert_eq!(
        session
            .rows(
                "select subject, status, attempts, lease from fetchq_data.q__docs order by subject"
            )
            .await,
        ["leased|1|0|".to_owned(), format!("settled|3|0|{settled}")]
    );
    counters_are_exact(&mut session, "q").await;
    // The worker that has it can no longer settle, before and after it is leased again.
    let settle = format!("select fetchq.doc_complete('q', 'leased', lease => {lost})");
    assert_eq!(session.state(&settle).await, "55000");
    let again: i64 = session
        .text("select lease from fetchq.doc_lease('q', 1, '1 hour')")
        .await
        .parse()
        .unwrap();
    assert!(again > lost, "{again} {lost}");
    assert_eq!(session.state(&settle).await, "55000");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

/// Leases a document of `q` in each call, and returns the subjects and numbers.
async fn lease_four(session: &Session) -> Vec<(String, String)> {
    let mut leased = Vec::new();
    for _ in 0..4 {
        let lease = "select subject || ' ' || lease from fetchq.doc_lease('q', 1, '1 hour')";
        let row = session.text(lease).await;
        let (subject, lease) = row.rsplit_once(' ').expect("two words");
        leased.push((subject.to_owned(), lease.to_owned()));
    }
    leased
}

/// Leases four documents, crashes the server, and leases them again. Returns the numbers of before and
/// after; None if a lease was not lost, because reading a page has pruned it, which is written too.
async fn lease_over_a_crash(
    cluster: &Cluster,
    direct: &str,
    kills: bool,
) -> Option<[Vec<(String, String)>; 2]> {
    // After a crash, leases are not lost for ten minutes; after a shutdown, they can be.
    cluster.stop("fast");
    cluster.start();
    let server = cluster.server();
    let set = format!("set fetchq.direct = {direct}");
    let session = server.connect("postgres").await;
    session.sql(&set).await;
    // Reads the catalog.
    session
        .sql("select fetchq.doc_append('warm', '{}'); select fetchq.doc_lease('warm')")
        .await;
    session.sql("checkpoint").await;
    let stored = "select subject, status, lease from fetchq_data.q__docs order by seq";
    let before = session.rows(stored).await;
    freeze_wal_writer(cluster, &session).await;
    let lost = lease_four(&session).await;
    match kills {
        true => kill_all(cluster, session).await,
        false => {
            drop(session);
            cluster.stop("immediate");
        }
    }
    cluster.start();
    let session = server.connect_when_up("postgres").await;
    session.sql(&set).await;
    if session.rows(stored).await != before {
        session
            .sql("select fetchq.worker_release('crashing')")
            .await;
        return None;
    }
    let again = lease_four(&session).await;
    for (subject, lost) in &lost {
        let settle = format!("select fetchq.doc_complete('q', '{subject}', lease => {lost})");
        assert_eq!(session.state(&settle).await, "55000", "{lost:?} {again:?}");
    }
    for (subject, held) in &again {
        let back = format!("select fetchq.doc_snooze('q', '{subject}', lease => {held})");
        assert_eq!(session.text(&back).await, "1");
    }
    Some([lost, again])
}

/// Documents that come from a server that was promoted several times have numbers that are days ahead.
/// What is stored is then all that the next number could be made of, and a crash restores it.
#[tokio::test]
async fn a_crash_gives_no_lease_number_twice_where_numbers_are_ahead_of_the_clock() {
    if !is_preloaded() {
        return;
    }
    let (cluster, server) = cluster_with("lease_ahead", "fetchq.worker = 'crashing'").await;
    let session = server.connect("postgres").await;
    for (subject, days) in [("a", "3"), ("new", "null"), ("behind", "-3"), ("b", "9")] {
        // A number is the microseconds since 2020.
        session
            .sql(&format!(
                "select fetchq.doc_put('q', '{subject}');
                 update fetchq_data.q__docs set lease =
                     extract(epoch from now() - '2020-01-01' + {days} * interval '1 day') * 1000000
                 where subject = '{subject}'"
            ))
            .await;
    }
    session.sql("select fetchq.queue_create('warm')").await;
    session.sql("vacuum").await;
    drop(session);
    let mut given = HashSet::new();
    for (direct, kills) in [("on", false), ("off", false), ("on", true), ("off", true)] {
        let mut tries = 0;
        let both = loop {
            tries += 1;
            assert!(tries < 9, "no crash loses a lease");
            if let Some(both) = lease_over_a_crash(&cluster, direct, kills).await {
                break both;
            }
        };
        for one in both.into_iter().flatten() {
            assert!(given.insert(one.clone()), "{one:?} was given twice");
        }
    }
    cluster.stop("fast");
}

#[tokio::test]
async fn what_else_a_transaction_does_is_on_disk_when_it_commits() {
    let (cluster, server) = cluster("lease_commit").await;
    let session = server.connect("postgres").await;
    session
        .sql(
            "create table mine (id int);
             select fetchq.queue_create(queue, settings::jsonb) from (values
                ('once', '{\"max_attempts\": 1}'), ('capped', '{\"max_active\": 50}'),
                ('rated', '{\"rate\": {\"picks\": 100, \"per\": \"1 hour\"}}'),
                ('ordered', '{\"ordered\": true}'), ('own', '{}')) queues (queue, settings);
             select fetchq.doc_append(queue, '{}') from generate_series(1, 90),
                unnest(array['q', 'once', 'capped', 'rated', 'ordered', 'own']) queue;
             create function noted() returns trigger language plpgsql as
                'begin insert into mine values (2); return new; end';
             create trigger noted after update on fetchq_data.own__docs
                for each row execute function noted();
             create sequence numbers;
             create table leasing (id int);
             create function leases() returns trigger language plpgsql as
                'begin perform fetchq.doc_lease(''q'', 1); return null; end';
             create trigger leases after insert on leasing for each row execute function leases();
             create function leases_and_writes() returns void language plpgsql as
                'begin perform fetchq.doc_lease(''q'', 1); insert into mine values (4); end';
             create procedure in_two() language plpgsql as
                'begin perform fetchq.doc_lease(''q'', 1); commit; insert into mine values (5); commit; end';
             create procedure leases_twice() language plpgsql as
                'begin perform fetchq.doc_lease(''q'', 1); commit; perform fetchq.doc_lease(''q'', 1); end';
             select fetchq.doc_put('q', 'last attempt', '{}', priority => 9, max_attempts => 1),
                fetchq.doc_put('q', 'last by statement', '{}', priority => 8, max_attempts => 1)",
        )
        .await;
    let frozen = freeze_wal_writer(&cluster, &session).await;
    assert!(
        waits(&session, LEASE).await,
        "the only attempt of a document"
    );
    let by_statement = format!("set fetchq.direct = off; {LEASE}; reset fetchq.direct");
    assert!(
        waits(&session, &by_statement).await,
        "the same, by a statement"
    );
    for sql in [
        LEASE,
        "select fetchq.doc_pick('q', 1)",
        "select fetchq.doc_lease_any(array['q'], 1)",
        "select fetchq.docs_next('q', '[]', 1)",
        "begin; select fetchq.doc_lease('q', 1); select fetchq.doc_lease('q', 1); select 1; commit",
        "call leases_twice()",
        "begin; declare c cursor for select fetchq.doc_lease('q', 1); fetch c; commit",
        "begin; set local synchronous_commit = local; select fetchq.doc_lease('q', 1); commit",
    ] {
        // Reading a page can prune it, which is written too: not each time, so it is tried again.
        let mut has_waited = true;
        for _ in 0..4 {
            has_waited = has_waited && waits(&session, sql).await;
        }
        assert_eq!(has_waited, !is_preloaded(), "{sql}");
    }
    for sql in [
        "select fetchq.doc_lease('once', 1)",
        "select fetchq.doc_lease('q', 1, binding => 'keep')",
        "set fetchq.session_leases = 'return'; select fetchq.doc_pick('q', 1); reset fetchq.session_leases",
        "select fetchq.doc_lease('capped', 1)",
        "select fetchq.doc_lease('rated', 1)",
        "select fetchq.doc_lease('own', 1)",
        "select fetchq.doc_pop('q', 0, 1)",
        "begin; insert into mine values (1); select fetchq.doc_lease('q', 1); commit",
        "begin; select fetchq.doc_lease('q', 1); insert into mine values (1); commit",
        "begin; select fetchq.doc_lease('q', 1); insert into mine values (1); select fetchq.doc_lease('q', 1); commit",
        "begin; savepoint s; insert into mine values (1); rollback to s; select fetchq.doc_lease('q', 1); commit",
        "begin; savepoint s; select fetchq.doc_lease('q', 1); rollback to s; insert into mine values (1); commit",
        "begin; select fetchq.doc_lease('q', 1); savepoint s; insert into mine values (1); release s; commit",
        "begin; select fetchq.doc_lease('q', 1); savepoint s; insert into mine values (1); rollback to s; commit",
        "begin; select nextval('numbers'); select fetchq.doc_lease('q', 1); commit",
        "begin; select fetchq.doc_lease('q', 1); select lo_create(0); commit",
        "begin; select fetchq.doc_lease('q', 1); select pg_logical_emit_message(false, 'a', 'b'); commit",
        "begin; select fetchq.doc_lease('q', 1); create table defined (); commit",
        "begin; select from mine for update; select fetchq.doc_lease('q', 1); commit",
        "begin; declare c cursor for select fetchq.doc_lease('q', 1); fetch c; insert into mine values (1); commit",
        "insert into leasing values (1)",
        "select leases_and_writes()",
        "call in_two()",
        "with leased as (select * from fetchq.doc_lease('q', 1)) insert into mine select 3 from leased",
        "select fetchq.doc_drop('q', subject, lease) from fetchq.doc_lease('q', 1)",
        "select fetchq.docs_next('q', jsonb_build_array(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'drop')), 1)
         from fetchq.doc_lease('q', 1)",
        "set fetchq.synchronous_leases = on; select fetchq.doc_lease('q', 1); reset fetchq.synchronous_leases",
        // It will be settled by its subject alone.
        "set fetchq.compat = '4.2.0'; select fetchq.doc_pick('q', 0, 1, '5m'); reset fetchq.compat",
    ] {
        assert!(waits(&session, sql).await, "{sql}");
    }
    // The setting of the session is as it was, or as the transaction has set it.
    assert_eq!(session.text("show synchronous_commit").await, "on");
    for (scope, after) in [("", "remote_write"), ("local", "on")] {
        let set = format!("begin; set {scope} synchronous_commit = remote_write; {LEASE}; commit");
        session.sql(&set).await;
        assert_eq!(session.text("show synchronous_commit").await, after);
        session.sql("reset synchronous_commit").await;
    }
    assert!(waits(&session, "insert into mine values (6)").await);
    let ordered = "select fetchq.doc_put('ordered', 'o', '{}', ordering_key => 'k', priority => 9)";
    session.sql(ordered).await;
    assert!(waits(&session, "select fetchq.doc_lease('ordered', 1)").await);
    cluster.signal(frozen, "CONT");
    cluster.stop("fast");
}

/// A document of `q` that is leased, as `subject` and `lease`.
const HELD: &str = "(select subject, lease from fetchq.doc_lease('q', 1, '1 hour')) held";

fn settlement(more: &str) -> String {
    format!(
        "jsonb_build_array(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete'{more}))"
    )
}

/// With `fetchq.synchronous_settling = off`, in queues that keep what is finished in the table, in the
/// history, and nowhere.
#[tokio::test]
async fn settling_waits_for_the_disk_unless_it_was_told_otherwise() {
    let (cluster, server) = cluster("settle_commit").await;
    let session = server.connect("postgres").await;
    session
        .sql(
            "create table mine (id int);
             select fetchq.queue_create('failed');
             select fetchq.queue_create('own');
             select fetchq.doc_append('own', '{}') from generate_series(1, 20);
             create function noted() returns trigger language plpgsql as
                'begin insert into mine values (2); return null; end';
             create trigger noted after update on fetchq_data.own__docs
                for each row execute function noted()",
        )
        .await;
    let frozen = freeze_wal_writer(&cluster, &session).await;
    let list = settlement("");
    let then = settlement(", 'then', '[{}]'::jsonb");
    for kept in [
        r#"{"history": {"completed": null, "killed": null}}"#,
        r#"{"history": {"completed": "1 day", "killed": "1 day"}}"#,
        r#"{"history": {"completed": "0", "killed": "0"}}"#,
    ] {
        session
            .sql(&format!(
                "reset fetchq.synchronous_settling;
                 select fetchq.queue_configure('q', '{kept}'), fetchq.queue_truncate('q', true);
                 select fetchq.doc_append('q', '{{}}') from generate_series(1, 200)"
            ))
            .await;
        let settles = [
            format!("select fetchq.doc_complete('q', subject, lease => lease) from {HELD}"),
            format!("select fetchq.doc_kill('q', subject, lease => lease) from {HELD}"),
            format!("select fetchq.doc_drop('q', subject, lease => lease) from {HELD}"),
            format!(
                "select fetchq.doc_reject('q', subject, 'no', lease => lease, delay => '1 day') from {HELD}"
            ),
            format!(
                "select fetchq.doc_reschedule('q', subject, delay => '1 day', lease => lease) from {HELD}"
            ),
            format!("select fetchq.docs_settle('q', {list}) from {HELD}"),
            format!("select fetchq.docs_next('q', {list}, 1) from {HELD}"),
            format!(
                "begin; select fetchq.docs_next('q', {list}, 1) from {HELD}; select fetchq.docs_settle('q', {list}) from {HELD}; commit"
            ),
        ];
        for sql in &settles {
            assert!(waits(&session, sql).await, "{kept} {sql}");
        }
        session.sql("set fetchq.synchronous_settling = off").await;
        for sql in &settles {
            // Reading a page can prune it, which is written too: not each time, so it is tried again.
            let mut has_waited = true;
            for _ in 0..4 {
                has_waited = has_waited && waits(&session, sql).await;
            }
            assert_eq!(has_waited, !is_preloaded(), "{kept} {sql}");
        }
        for sql in [
            format!("begin; insert into mine values (1); {}; commit", settles[0]),
            format!("begin; {}; insert into mine values (1); commit", settles[0]),
            format!("begin; {}; insert into mine values (1); {}; commit", settles[6], settles[6]),
            format!("begin; savepoint s; insert into mine values (1); rollback to s; {}; commit", settles[6]),
            format!("with held as (select * from {HELD}), mine as (insert into mine values (3)) select fetchq.doc_complete('q', subject, lease => lease) from held"),
            format!("begin; {}; select fetchq.doc_append('q', '{{}}'); commit", settles[0]),
            format!("select fetchq.docs_settle('q', {then}) from {HELD}"),
            format!("select fetchq.docs_next('q', {then}, 1) from {HELD}"),
            "select fetchq.doc_complete('own', subject, lease => lease) from fetchq.doc_lease('own', 1, '1 hour')".to_owned(),
            format!("set fetchq.compat = '4.2.0'; {}; reset fetchq.compat", settles[0]),
            // The last attempt.
            format!("begin; update fetchq_data.q__docs set max_attempts = 1; commit; {}; update fetchq_data.q__docs set max_attempts = null", settles[0]),
        ] {
            assert!(waits(&session, &sql).await, "{kept} {sql}");
        }
    }
    // Each alone decides.
    for (change, back, what) in [
        (
            "select fetchq.queue_configure('q', '{\"dead_letter\": \"failed\"}')",
            "select fetchq.queue_configure('q', '{\"dead_letter\": null}')",
            format!("select fetchq.doc_kill('q', subject, lease => lease) from {HELD}"),
        ),
        (
            "create trigger noted after insert on fetchq_data.q__history for each row execute function noted();
             select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\"}}')",
            "drop trigger noted on fetchq_data.q__history",
            format!("select fetchq.doc_complete('q', subject, lease => lease) from {HELD}"),
        ),
    ] {
        session.sql(change).await;
        for _ in 0..4 {
            assert!(waits(&session, &what).await, "{what}");
        }
        session.sql(back).await;
    }
    cluster.signal(frozen, "CONT");
    cluster.stop("fast");
}

#[tokio::test]
async fn a_crash_loses_the_last_settlements_where_that_was_chosen_and_their_documents_come_back() {
    if !is_preloaded() {
        return;
    }
    let (cluster, server) = cluster("settle_crash").await;
    let session = server.connect("postgres").await;
    session
        .sql(
            "create table mine (subject text);
             select fetchq.doc_put('q', s) from unnest('{flushed,written,lost}'::text[]) s;
             create table held as select subject, lease from fetchq.doc_lease('q', 3, '2 seconds');
             set fetchq.synchronous_settling = off",
        )
        .await;
    let settle = |subject: &str| {
        format!(
            "select fetchq.doc_complete('q', subject, lease => lease) from held where subject = '{subject}'"
        )
    };
    freeze_wal_writer(&cluster, &session).await;
    session.sql(&settle("flushed")).await;
    // What comes later and waits, takes it along.
    let written = format!(
        "begin; {}; insert into mine values ('written'); commit",
        settle("written")
    );
    session.sql(&written).await;
    session.sql(&settle("lost")).await;
    kill_all(&cluster, session).await;
    cluster.start();

    let mut session = server.connect_when_up("postgres").await;
    let states = "select subject, status, attempts from fetchq_data.q__docs order by subject";
    assert_eq!(
        session.rows(states).await,
        ["flushed|3|0", "lost|2|1", "written|3|0"]
    );
    assert_eq!(session.text("select subject from mine").await, "written");
    counters_are_exact(&mut session, "q").await;
    wait_until("the document is pending again", async || {
        session.sql("select fetchq.mnt_run('q', 10)").await;
        session
            .text("select status from fetchq_data.q__docs where subject = 'lost'")
            .await
            == "1"
    })
    .await;
    let again = "select subject || ' ' || attempts from fetchq.doc_lease('q', 3, '1 hour')";
    assert_eq!(session.column(again).await, ["lost 2"]);
    // Its former worker gets an error if it tries once more.
    assert_eq!(session.state(&settle("lost")).await, "55000");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

#[tokio::test]
async fn a_document_whose_work_crashes_the_server_at_once_runs_out_of_attempts() {
    let (cluster, server) = cluster("lease_poison").await;
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "select fetchq.queue_configure('q', '{\"max_attempts\": 3}');
             select fetchq.doc_put('q', 'poison')",
        )
        .await;
    let lease = "select attempts from fetchq.doc_lease('q', 1, '1 ms')";
    let mut crashes = 0;
    loop {
        let writer = freeze_wal_writer(&cluster, &session).await;
        if session.column(lease).await.is_empty() {
            cluster.signal(writer, "CONT");
            break;
        }
        crashes += 1;
        // The first attempt may be lost.
        assert!(
            crashes <= 4,
            "the document still runs after {crashes} crashes"
        );
        // The server ends all its processes, and starts again.
        cluster.kill(writer);
        wait_until("the crash is noticed", async || session.is_closed()).await;
        session = server.connect_when_up("postgres").await;
        session.sql("select fetchq.mnt_run('q', 10)").await;
    }
    let status = "select status from fetchq_data.q__docs where subject = 'poison'";
    assert_eq!(session.text(status).await, "-1");
    counters_are_exact(&mut session, "q").await;
    cluster.stop("fast");
}

/// Citus writes the records by which it recovers transactions after fetchq has looked what a transaction
/// has written. Another library stands in for it, under its name.
#[tokio::test]
async fn no_lease_is_lost_beside_citus_which_writes_at_commit() {
    if !is_preloaded() {
        return;
    }
    let libraries = Server::of_suite().connect("postgres").await;
    let libraries = libraries
        .text("select setting from pg_config where name = 'PKGLIBDIR'")
        .await;
    let folder = std::env::temp_dir().join(format!("fetchq citus {}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let stand_in = format!("{libraries}/dict_snowball.so");
    for (name, library, waits_for_disk) in [
        ("lease_citus", "citus", true),
        ("lease_other", "other", false),
    ] {
        let file = folder.join(format!("{library}.so"));
        std::fs::copy(&stand_in, file).expect("a library");
        let list = format!("\"{}/{library}\", fetchq", folder.display());
        let settings = format!("shared_preload_libraries = '{list}'");
        let (cluster, server) = cluster_with(name, &settings).await;
        let session = server.connect("postgres").await;
        assert_eq!(session.text("show shared_preload_libraries").await, list);
        session
            .sql("select fetchq.doc_append('q', '{}') from generate_series(1, 10)")
            .await;
        let frozen = freeze_wal_writer(&cluster, &session).await;
        let mut has_waited = true;
        for _ in 0..4 {
            has_waited = has_waited && waits(&session, LEASE).await;
        }
        assert_eq!(has_waited, waits_for_disk, "{library}");
        cluster.signal(frozen, "CONT");
        cluster.stop("fast");
    }
    std::fs::remove_dir_all(&folder).expect("the folder is removed");
}

/// A standby that was promoted has mostly taken the place of a server that crashed. It may have been started
/// long before, and after a clean shutdown.
#[tokio::test]
async fn the_first_leases_of_a_promoted_server_are_on_disk() {
    let (cluster, server) = cluster("lease_promoted").await;
    let session = server.connect("postgres").await;
    session
        .sql("select fetchq.doc_append('q', '{}') from generate_series(1, 10)")
        .await;
    let standby = cluster.standby("lease_standby", "");
    standby.stop("fast");
    standby.start();
    drop(session);
    cluster.stop("fast");
    standby.promote();
    let session = standby.server().connect("postgres").await;
    let frozen = freeze_wal_writer(&standby, &session).await;
    for _ in 0..3 {
        assert!(waits(&session, LEASE).await, "the work may crash it, too");
    }
    standby.signal(frozen, "CONT");
    standby.stop("fast");
}
