//! No two leases of a document have the same number, also when the clock was set back. A clock
//! that was set back is a document whose last lease number is far in the future.

use std::collections::HashSet;

use fetchq_client_tests::{Cluster, Database, Server, Session, counters_are_exact, wait_until};

/// What no lease number reaches, so that JavaScript can hold it.
const TOO_LARGE: i64 = 1 << 53;

/// A number that the server gives only in a day.
async fn future(session: &Session) -> i64 {
    session
        .sql("select fetchq.queue_create('numbers'); select fetchq.doc_push('numbers', 'a')")
        .await;
    let lease = session
        .text("select lease from fetchq.doc_pick('numbers')")
        .await;
    session.sql("select fetchq.queue_drop('numbers')").await;
    lease.parse::<i64>().expect("a number") + 86_400_000_000
}

async fn database(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'), fetchq.queue_create('other')")
        .await;
    (db, session)
}

/// Adds pending documents in order, each with its last lease number and a priority.
async fn add(session: &Session, queue: &str, docs: &[(&str, Option<i64>, i32)]) {
    for (subject, lease, priority) in docs {
        let lease = lease.map_or("null".to_owned(), |lease| lease.to_string());
        session
            .sql(&format!(
                "insert into fetchq_data.{queue}__docs (subject, status, next_iteration, lease, priority)
                 values ('{subject}', 1, '2020-01-01', {lease}, {priority})"
            ))
            .await;
    }
    session
        .sql(&format!("select fetchq.metric_reset('{queue}')"))
        .await;
}

struct Picked {
    subjects: Vec<String>,
    lease: i64,
}

/// Runs a pick of at least one document, and checks that all its documents have one number, and
/// that the answer is what the table says.
async fn pick(session: &Session, statement: &str) -> Picked {
    let rows = session
        .rows(&format!("select subject, lease from {statement}"))
        .await;
    let mut subjects = Vec::new();
    let mut leases = HashSet::new();
    for row in &rows {
        let (subject, lease) = row.split_once('|').expect("two columns");
        let stored = session
            .text(&format!(
                "select lease from (select * from fetchq_data.q__docs union all select * from fetchq_data.other__docs) d
                 where status = 2 and subject = '{subject}'"
            ))
            .await;
        assert_eq!(stored, lease, "{statement} {subject}");
        subjects.push(subject.to_owned());
        leases.insert(lease.parse::<i64>().expect("a number"));
    }
    assert_eq!(leases.len(), 1, "{statement}: {rows:?}");
    let lease = leases.into_iter().next().unwrap_or(0);
    assert!(lease > 0 && lease < TOO_LARGE, "{lease}");
    Picked { subjects, lease }
}

const PICKS: [(&str, &str); 5] = [
    ("", "fetchq.doc_pick('q', 0, 10, '1h')"),
    (
        "select fetchq.queue_configure('q', '{\"max_active\": 100}')",
        "fetchq.doc_pick('q', 0, 10, '1h')",
    ),
    (
        "select fetchq.queue_configure('q', '{\"rate\": {\"picks\": 100, \"per\": \"1h\"}}')",
        "fetchq.doc_pick('q', 0, 10, '1h')",
    ),
    ("", "fetchq.doc_lease_any(array['other', 'q'], 10, '1h')"),
    ("", "fetchq.doc_lease('q', 10, '1h')"),
];

#[tokio::test]
async fn a_lease_number_is_greater_than_the_last_one_though_the_clock_was_set_back() {
    for direct in ["on", "off"] {
        for (settings, statement) in PICKS {
            let (db, mut session) = database("lease_numbers").await;
            let future = future(&session).await;
            session
                .sql(&format!("set fetchq.direct = {direct}; {settings}"))
                .await;
            add(
                &session,
                "q",
                &[
                    ("a", Some(future), 0),
                    ("b", Some(future + 5), 0),
                    ("c", None, 0),
                ],
            )
            .await;
            let picked = pick(&session, statement).await;
            // The number of the first document is high, so all get a number above all.
            assert_eq!(picked.subjects, ["a", "b", "c"], "{statement} {direct}");
            assert!(picked.lease > future + 5, "{statement} {direct}");
            let lost = format!("select fetchq.doc_complete('q', 'a', lease => {future})");
            assert_eq!(session.state(&lost).await, "55000", "{statement} {direct}");
            let held = format!(
                "select fetchq.doc_complete('q', s, lease => {}) from unnest('{{a,b,c}}'::text[]) s",
                picked.lease
            );
            assert_eq!(session.column(&held).await, ["1"; 3]);
            counters_are_exact(&mut session, "q").await;
            drop(session);
            db.remove().await;
        }
    }
}

#[tokio::test]
async fn a_pick_ends_before_a_document_that_cannot_get_its_number() {
    for direct in ["on", "off"] {
        let (db, mut session) = database("lease_numbers").await;
        let future = future(&session).await;
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        add(
            &session,
            "q",
            &[
                ("first", None, 9),
                ("second", Some(future), 9),
                ("third", None, 9),
                ("last", None, 0),
            ],
        )
        .await;
        let mut order = Vec::new();
        let mut newest = 0;
        for _ in 0..4 {
            if order.len() == 4 {
                break;
            }
            let picked = pick(&session, "fetchq.doc_pick('q', 0, 10, '1h')").await;
            assert!(picked.lease > newest);
            newest = picked.lease;
            order.extend(picked.subjects);
        }
        // Nothing of a lower priority came first, and nothing was forgotten.
        assert_eq!(order, ["first", "second", "third", "last"], "{direct}");
        assert!(newest > future);
        counters_are_exact(&mut session, "q").await;
        let misses = "select floor_misses from fetchq.ready_stats()";
        assert_eq!(session.text(misses).await, "0");
        drop(session);
        db.remove().await;
    }
}

#[tokio::test]
async fn a_pick_of_many_queues_has_one_number() {
    for direct in ["on", "off"] {
        let (db, session) = database("lease_numbers").await;
        let future = future(&session).await;
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        add(&session, "other", &[("a", None, 0), ("b", None, 0)]).await;
        add(&session, "q", &[("c", Some(future), 0), ("d", None, 0)]).await;
        let mut all = HashSet::new();
        let mut by_pick = Vec::new();
        while all.len() < 4 && by_pick.len() < 4 {
            let picked = pick(
                &session,
                "fetchq.doc_lease_any(array['q', 'other'], 10, '1h')",
            )
            .await;
            by_pick.push(picked.lease);
            all.extend(picked.subjects);
        }
        assert_eq!(all.len(), 4, "{by_pick:?}");
        assert!(by_pick.is_sorted_by(|a, b| a < b), "{by_pick:?}");
        let of_c = "select lease from fetchq_data.q__docs where subject = 'c'";
        assert!(session.text(of_c).await.parse::<i64>().unwrap() > future);
        drop(session);
        db.remove().await;
    }
}

#[tokio::test]
async fn a_number_that_was_written_by_hand_exhausts_nothing() {
    for direct in ["on", "off"] {
        let (db, session) = database("lease_numbers").await;
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for absurd in [TOO_LARGE - 2, TOO_LARGE - 1, TOO_LARGE, i64::MAX, -5] {
            add(&session, "q", &[("a", Some(absurd), 0), ("b", None, 0)]).await;
            for _ in 0..3 {
                let picked = pick(&session, "fetchq.doc_pick('q', 0, 10, '1h')").await;
                assert_eq!(picked.subjects, ["a", "b"]);
                assert_ne!(picked.lease, absurd);
                session
                    .sql("select fetchq.doc_snooze('q', 'a'), fetchq.doc_snooze('q', 'b')")
                    .await;
            }
            session.sql("truncate fetchq_data.q__docs").await;
        }
        drop(session);
        db.remove().await;
    }
}

/// How a document can be ready again after it was picked. `:lease` is its lease number.
const RETURNS: [(&str, &str); 17] = [
    (
        "reject",
        "select fetchq.doc_reject('q', 'a', 'no', null, lease => :lease, delay => '0s')",
    ),
    (
        "snooze",
        "select fetchq.doc_snooze('q', 'a', lease => :lease)",
    ),
    (
        "reschedule",
        "select fetchq.doc_reschedule('q', 'a', now(), lease => :lease)",
    ),
    (
        "reschedule_many",
        "select fetchq.doc_reschedule_many('q', '{a}', now(), lease => :lease)",
    ),
    ("release", "select fetchq.worker_release('numbers')"),
    (
        "expiry",
        "update fetchq_data.q__docs set next_iteration = now() - interval '1s'; select fetchq.mnt_run('q', 10)",
    ),
    (
        "expiry alone",
        "update fetchq_data.q__docs set next_iteration = now() - interval '1s'; select fetchq.mnt_reschedule_orphans('q', 10)",
    ),
    (
        "complete",
        "select fetchq.doc_complete('q', 'a', lease => :lease); select fetchq.doc_revive('q', 'a')",
    ),
    (
        "complete_many",
        "select fetchq.doc_complete_many('q', '{a}', lease => :lease); select fetchq.docs_retry('q', '{\"status\": \"completed\"}')",
    ),
    (
        "complete_many with payloads",
        "select fetchq.doc_complete_many('q', '{a}', array['{}']::jsonb[], :lease); select fetchq.doc_revive('q', 'a')",
    ),
    (
        "kill",
        "select fetchq.doc_kill('q', 'a', lease => :lease); select fetchq.doc_revive('q', 'a')",
    ),
    (
        "death",
        "update fetchq_data.q__docs set next_iteration = now() - interval '1s', max_attempts = 1; select fetchq.mnt_run('q', 10); select fetchq.doc_revive('q', 'a')",
    ),
    (
        "death alone",
        "update fetchq_data.q__docs set next_iteration = now() - interval '1s', max_attempts = 1; select fetchq.mnt_mark_dead('q', 10); select fetchq.queue_redrive('q')",
    ),
    (
        "cancel",
        "select fetchq.doc_cancel('q', 'a'); select fetchq.doc_revive('q', 'a')",
    ),
    (
        "docs_kill",
        "select fetchq.docs_kill('q', '{\"status\": \"active\"}'); select fetchq.doc_revive('q', 'a')",
    ),
    (
        "a move and back",
        "select fetchq.doc_snooze('q', 'a'); select fetchq.docs_move('q', 'other', '{\"subject\": \"a\"}'); select fetchq.docs_move('other', 'q', '{\"subject\": \"a\"}')",
    ),
    (
        "a dead letter",
        "select fetchq.queue_configure('q', '{\"dead_letter\": \"other\"}'); select fetchq.doc_kill('q', 'a', lease => :lease); select fetchq.queue_redrive('q'); select fetchq.queue_configure('q', '{\"dead_letter\": null}')",
    ),
];

#[tokio::test]
async fn a_document_that_is_ready_again_remembers_its_last_number() {
    for direct in ["on", "off"] {
        let (db, session) = database("lease_numbers").await;
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; set fetchq.worker = 'numbers'"
            ))
            .await;
        for (what, statement) in RETURNS {
            let future = future(&session).await;
            add(&session, "q", &[("a", None, 0)]).await;
            // Another session for each pick, which knows no number.
            let other = db.connect().await;
            pick(&session, "fetchq.doc_pick('q', 0, 1, '1h')").await;
            session
                .sql(&format!("update fetchq_data.q__docs set lease = {future}"))
                .await;
            session
                .sql(&statement.replace(":lease", &future.to_string()))
                .await;
            let again = pick(&other, "fetchq.doc_pick('q', 0, 1, '1h')").await;
            assert!(again.lease > future, "{what}: {}", again.lease);
            let late = format!("select fetchq.doc_complete('q', 'a', lease => {future})");
            assert_eq!(session.state(&late).await, "55000", "{what}");
            session.sql("truncate fetchq_data.q__docs").await;
        }
        drop(session);
        db.remove().await;
    }
}

/// A document keeps its number when it is settled, so `doc_extend` has to tell what was cancelled
/// from what its worker has settled itself.
#[tokio::test]
async fn only_a_cancelled_document_tells_its_worker_to_stop() {
    for direct in ["on", "off"] {
        let (db, session) = database("lease_numbers").await;
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for (call, state, stop) in [
            ("doc_cancel('q', 'a')", "", "|t"),
            ("docs_kill('q', '{\"status\": \"active\"}')", "", "|t"),
            ("doc_kill('q', 'a')", "55000", ""),
            ("doc_complete('q', 'a')", "55000", ""),
            ("doc_reject('q', 'a', 'cancelled', null)", "55000", ""),
        ] {
            add(&session, "q", &[("a", None, 0)]).await;
            session
                .sql("update fetchq_data.q__docs set max_attempts = 1")
                .await;
            let lease = pick(&session, "fetchq.doc_pick('q', 0, 1, '1h')")
                .await
                .lease;
            session.sql(&format!("select fetchq.{call}")).await;
            let extend = format!("select * from fetchq.doc_extend('q', 'a', '1h', {lease})");
            assert_eq!(session.state(&extend).await, state, "{call}");
            if state.is_empty() {
                assert_eq!(session.rows(&extend).await, [stop], "{call}");
            }
            session.sql("truncate fetchq_data.q__docs").await;
        }
        drop(session);
        db.remove().await;
    }
}

/// What was cancelled while it was leased stays until its lease would have ended. All else that was
/// killed leaves with the first sweep, though it keeps the number of a lease that has not ended.
#[tokio::test]
async fn a_sweep_waits_only_for_workers_of_cancelled_documents() {
    let (db, session) = database("lease_numbers").await;
    add(
        &session,
        "q",
        &[
            ("killed", None, 0),
            ("cancelled", None, 0),
            ("later", None, 0),
        ],
    )
    .await;
    pick(&session, "fetchq.doc_pick('q', 0, 10, '1h')").await;
    session
        .sql(
            "select fetchq.doc_kill('q', 'killed'); select fetchq.doc_cancel('q', 'cancelled');
             select fetchq.doc_snooze('q', 'later', '2970-01-01'); select fetchq.doc_cancel('q', 'later');
             select fetchq.queue_configure('q', '{\"history\": {\"completed\": null, \"killed\": \"1 day\"}}');
             update fetchq.jobs set next_iteration = now(); select fetchq.mnt_job_run(100)",
        )
        .await;
    let left = "select subject from fetchq_data.q__docs order by 1";
    assert_eq!(session.column(left).await, ["cancelled"]);
    session
        .sql(
            "update fetchq_data.q__docs set next_iteration = now() - interval '1s';
             update fetchq.jobs set next_iteration = now(); select fetchq.mnt_job_run(100)",
        )
        .await;
    assert_eq!(session.column(left).await.len(), 0);
    drop(session);
    db.remove().await;
}

/// Many sessions pick the same documents and give them back at once.
#[tokio::test]
async fn no_number_is_given_twice_for_a_document_by_many_sessions() {
    let (db, session) = database("lease_numbers").await;
    let future = future(&session).await;
    add(
        &session,
        "q",
        &[("a", Some(future), 0), ("b", None, 0), ("c", None, 0)],
    )
    .await;
    let mut sessions = Vec::new();
    for number in 0..8 {
        let session = db.connect().await;
        sessions.push(tokio::spawn(async move {
            if number % 2 == 1 {
                session.sql("set fetchq.direct = off").await;
            }
            let mut got = Vec::new();
            for _ in 0..200 {
                let rows = session
                    .rows("select subject, lease from fetchq.doc_pick('q', 0, 2, '1h')")
                    .await;
                for row in rows {
                    let (subject, lease) = row.split_once('|').expect("two columns");
                    let back =
                        format!("select fetchq.doc_snooze('q', '{subject}', lease => {lease})");
                    assert_eq!(session.text(&back).await, "1");
                    got.push(row);
                }
            }
            got
        }));
    }
    let mut seen = HashSet::new();
    let mut greatest = 0;
    let mut n = 0;
    for one in sessions {
        for row in one.await.expect("a session") {
            n += 1;
            let lease = row.split_once('|').expect("two columns").1;
            greatest = greatest.max(lease.parse::<i64>().expect("a number"));
            assert!(seen.insert(row.clone()), "{row} was given twice");
        }
    }
    assert!(n > 100, "{n}");
    // The random steps do not add up.
    assert!(greatest - future < HALF_A_DAY_US, "{greatest} {future}");
    drop(session);
    db.remove().await;
}

const HALF_A_DAY_US: i64 = 43_200_000_000;

/// The new primary has another clock, which may be behind: by that alone, its numbers would come to those of
/// the leases that were lost.
#[tokio::test]
async fn a_promoted_server_gives_no_number_of_a_lease_that_was_lost() {
    let (lost, again) = fail_over("").await;
    assert!(
        again > lost + HALF_A_DAY_US,
        "{again} would not be above {lost} if the clock were half a day behind"
    );
}

/// A document of a server that was promoted several times is ahead of the next timeline, too.
#[tokio::test]
async fn a_promoted_server_gives_no_lost_number_of_a_document_that_is_ahead() {
    let ahead = "update fetchq_data.q__docs set lease =
        extract(epoch from now() - '2020-01-01' + interval '3 days') * 1000000 where status = 1";
    let (lost, again) = fail_over(ahead).await;
    assert_ne!(lost, again);
}

/// Leases a document on a primary whose last commits are lost, and again on the promoted standby.
/// Returns both numbers. `prepare` is run before the standby is made.
async fn fail_over(prepare: &str) -> (i64, i64) {
    let primary_cluster = Cluster::new("numbers_primary", "fsync = off");
    primary_cluster.start();
    let primary = primary_cluster.server().connect("postgres").await;
    primary
        .sql(
            "create extension fetchq; select fetchq.queue_create('q');
             select fetchq.doc_push('q', 'a'), fetchq.doc_push('q', 'kept')",
        )
        .await;
    let lease = "select lease from fetchq.doc_lease('q', 1, '1 hour')";
    let kept = primary.text(lease).await;
    primary.sql(prepare).await;
    let standby_cluster = primary_cluster.standby("numbers_standby", "");
    let standby = standby_cluster.server().connect("postgres").await;
    let position = primary.text("select pg_current_wal_flush_lsn()").await;
    wait_until("the standby has all", async || {
        standby
            .text(&format!(
                "select pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
            ))
            .await
            == "t"
    })
    .await;
    // What comes now is lost.
    standby.sql("alter system set primary_conninfo = ''").await;
    standby.sql("select pg_reload_conf()").await;
    wait_until("it receives nothing", async || {
        standby
            .text("select count(*) from pg_stat_wal_receiver")
            .await
            == "0"
    })
    .await;
    let lost: i64 = primary.text(lease).await.parse().unwrap();
    drop(primary);
    primary_cluster.stop("immediate");
    standby_cluster.promote();

    let mut session = standby_cluster.server().connect("postgres").await;
    let settle = |subject: &str, lease: i64| {
        format!("select fetchq.doc_complete('q', '{subject}', lease => {lease})")
    };
    let of_subject = "select subject from fetchq_data.q__docs where status = 1";
    let subject = session.text(of_subject).await;
    assert_eq!(session.state(&settle(&subject, lost)).await, "55000");
    let again: i64 = session.text(lease).await.parse().unwrap();
    assert!(again < TOO_LARGE, "{again}");
    assert_eq!(session.state(&settle(&subject, lost)).await, "55000");
    assert_eq!(session.text(&settle(&subject, again)).await, "1");
    // A lease of before that the standby knew holds.
    let other = if subject == "a" { "kept" } else { "a" };
    assert_eq!(
        session.text(&settle(other, kept.parse().unwrap())).await,
        "1"
    );
    counters_are_exact(&mut session, "q").await;
    standby_cluster.stop("fast");
    (lost, again)
}
