//! A subject loses no event: what is put on a leased document runs once more, and once only, whatever
//! becomes of the lease, of the session and of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{
    Cluster, Database, Server, Session, counters_are_exact, error_of, state_of, wait_until,
};

/// The statement of the guide that synchronises a customer after a quiet time, with a shorter one.
fn debounced() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/pushing.md");
    let page = std::fs::read_to_string(page).expect("the guide");
    let mut lines = page.lines().filter(|line| line.contains("'customer-12'"));
    let line = lines.next().expect("the example of the guide");
    let (before, after) = line.split_once("'10 minutes'").expect("its delay");
    format!("{before}'1 ms'{after}")
}

async fn lease(session: &Session) -> (String, String) {
    let sql = "select fetchq.mnt_run('jobs', 10); select lease || ' ' || payload from fetchq.doc_lease('jobs', 1, '1 hour')";
    let mut found = Vec::new();
    wait_until("the document is due", async || {
        found = session.column(sql).await;
        found.len() == 2
    })
    .await;
    let (lease, payload) = found[1].split_once(' ').expect("two values");
    (lease.to_owned(), payload.to_owned())
}

#[tokio::test]
async fn the_debounced_customer_of_the_guide_works_for_ever() {
    let db = Server::of_suite().database("put_debounced").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('jobs')").await;
    let put = debounced();
    for history in [
        "null",
        "{}",
        "{\"completed\": \"1 day\"}",
        "{\"completed\": \"0\"}",
    ] {
        session
            .sql(&format!(
                "select from fetchq.queue_configure('jobs', '{{\"history\": {history}}}')"
            ))
            .await;
        for week in 0..3 {
            assert_eq!(session.text(&put).await, "created", "{history} {week}");
            assert_eq!(session.text(&put).await, "updated", "{history} {week}");
            let (number, payload) = lease(&session).await;
            assert_eq!(payload, "{\"changed\": \"address\"}");
            // The customer changes something while it is synchronised.
            for _ in 0..3 {
                assert_eq!(session.text(&put).await, "queued", "{history} {week}");
            }
            let complete = |number: &str| {
                format!("select fetchq.doc_complete('jobs', 'customer-12', lease => {number})")
            };
            assert_eq!(session.text(&complete(&number)).await, "1");
            let (again, _) = lease(&session).await;
            assert_ne!(number, again);
            assert_eq!(session.text(&complete(&again)).await, "1");
            let unfinished =
                "select count(*) from fetchq_data.jobs__docs where status in (0, 1, 2)";
            assert_eq!(
                session.text(unfinished).await,
                "0",
                "it runs once more only"
            );
        }
    }
    counters_are_exact(&mut session, "jobs").await;
    db.remove().await;
}

/// What the document is: its status, and what waits in it.
const STATE: &str = "select status || ' ' || coalesce(queued ->> 'payload', '-') || ' ' || payload from fetchq_data.q__docs";

#[tokio::test]
async fn what_waits_in_a_leased_document_survives_a_kill() {
    let cluster = Cluster::new(
        "put_kill",
        "synchronous_commit = on\nfetchq.synchronous_leases = on\nfsync = on\nlog_min_messages = panic",
    );
    cluster.start();
    let server = cluster.server();
    let mut session = server.connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q'); select fetchq.doc_put('q', 's', '{\"n\": 1}');
             create table held as select lease from fetchq.doc_lease('q', 1, '1 hour');
             select fetchq.doc_put('q', 's', '{\"a\": 1}', mode => 'merge')")
        .await;
    let kept = "2 {\"a\": 1} {\"n\": 1}";
    assert_eq!(session.text(STATE).await, kept);
    let settle = "select fetchq.doc_complete('q', 's', lease => lease) from held";
    for what in [
        "select fetchq.doc_put('q', 's', '{\"b\": 1}', mode => 'merge')",
        settle,
        "select fetchq.doc_drop('q', 's', lease => lease) from held",
        "select fetchq.doc_cancel('q', 's')",
        "select fetchq.doc_reject('q', 's', 'no', lease => lease) from held",
    ] {
        let victim = server.connect_when_up("postgres").await;
        let pid = victim.text("select pg_backend_pid()").await;
        victim.sql(&format!("begin; {what}")).await;
        cluster.kill(pid.parse().expect("a number"));
        // All sessions end when it has, and not only that one.
        wait_until("the server has noticed", async || {
            session.batch_execute("select").await.is_err()
        })
        .await;
        session = server.connect_when_up("postgres").await;
        assert_eq!(session.text(STATE).await, kept, "{what}");
    }
    // The server itself, after a put and before the settlement; then its lease expires.
    let session = server.connect_when_up("postgres").await;
    session
        .sql("select fetchq.doc_put('q', 's', '{\"c\": 1}', mode => 'merge')")
        .await;
    cluster.kill(cluster.pid().expect("the server runs"));
    wait_until("its processes have ended", async || !cluster.is_running()).await;
    cluster.clear_locks();
    cluster.start();
    let mut session = server.connect_when_up("postgres").await;
    assert_eq!(
        session.text(STATE).await,
        "2 {\"a\": 1, \"c\": 1} {\"n\": 1}"
    );
    session
        .sql("update fetchq_data.q__docs set next_iteration = now() - interval '1 s'; select fetchq.mnt_run('q', 10)")
        .await;
    let ready = "1 - {\"a\": 1, \"c\": 1, \"n\": 1}";
    wait_until("the lease has expired", async || {
        session.text(STATE).await == ready
    })
    .await;
    counters_are_exact(&mut session, "q").await;
    assert_eq!(
        session
            .text("select attempts from fetchq.doc_lease('q')")
            .await,
        "1"
    );
}

/// What the load of the test below has been told.
#[derive(Default)]
struct Told {
    put: BTreeSet<String>,
    /// Puts without an answer.
    unknown: BTreeSet<String>,
}

/// An error that a session gets because its backend was terminated, or that says to do it again.
fn is_expected(error: &tokio_postgres::Error) -> bool {
    error.is_closed() || ["57P01", "40P01", "55000", "40001"].contains(&state_of(error).as_str())
}

const SUBJECTS: u64 = 3;

/// Puts events, each with a key of its own, until they end.
async fn produce(db: Database, number: u64, told: Arc<Mutex<Told>>, ends: Arc<AtomicBool>) {
    let mut session = db.connect().await;
    let mut turn = 0u64;
    while !ends.load(Ordering::Relaxed) {
        turn += 1;
        let id = format!("e{number}-{turn}");
        let subject = format!("s{}", (number + turn) % SUBJECTS);
        told.lock().unwrap().unknown.insert(id.clone());
        let call = match turn % 5 {
            0 => format!(
                "select action from fetchq.doc_put_many('q', '[{{\"subject\": \"{subject}\", \"payload\": {{\"{id}\": 1}}}}]', 'merge')"
            ),
            _ => format!(
                "select fetchq.doc_put('q', '{subject}', '{{\"{id}\": 1}}', mode => 'merge')"
            ),
        };
        match session.simple_query(&call).await {
            Ok(_) => {
                let mut told = told.lock().unwrap();
                told.unknown.remove(&id);
                told.put.insert(id);
            }
            Err(error) if is_expected(&error) => session = db.connect().await,
            Err(error) => panic!("{call}: {error} {:?}", error_of(&error)),
        }
        if turn.is_multiple_of(7) {
            let _ = session.simple_query("select fetchq.mnt_run('q', 10)").await;
        }
    }
}

/// Leases and settles in every way. What ends with a settlement is noted in its transaction.
async fn work(db: Database, number: u64, ends: Arc<AtomicBool>) {
    let mut session = db.connect().await;
    let mut turn = number * 3;
    while !ends.load(Ordering::Relaxed) {
        turn += 1;
        if turn.is_multiple_of(11) {
            let _ = session.simple_query("set fetchq.direct = off").await;
        }
        let duration = if turn.is_multiple_of(4) {
            "20 ms"
        } else {
            "1 hour"
        };
        let sql = format!(
            "select subject, lease from fetchq.doc_lease('q', 1, '{duration}', worker => 'w{number}')"
        );
        let leased = match session.query(&sql, &[]).await {
            Ok(leased) => leased,
            Err(error) if is_expected(&error) => {
                session = db.connect().await;
                continue;
            }
            Err(error) => panic!("{sql}: {error}"),
        };
        let Some(row) = leased.first() else {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        };
        let (subject, lease): (String, i64) = (row.get(0), row.get(1));
        // Some time for puts.
        tokio::time::sleep(Duration::from_millis(turn % 13)).await;
        let note = format!(
            "insert into seen select k from fetchq_data.q__docs d, jsonb_object_keys(d.payload) k where d.subject = '{subject}' and d.status = 2 and d.lease = {lease}"
        );
        let settle = match turn % 9 {
            0 | 1 => {
                format!("{note}; select fetchq.doc_complete('q', '{subject}', lease => {lease})")
            }
            2 => format!("{note}; select fetchq.doc_drop('q', '{subject}', lease => {lease})"),
            3 => format!("select fetchq.doc_kill('q', '{subject}', lease => {lease})"),
            4 => format!(
                "{note}; select fetchq.docs_next('q', '[{{\"subject\": \"{subject}\", \"lease\": {lease}, \"action\": \"complete\"}}]', 0, on_lost => 'error')"
            ),
            5 => format!(
                "select fetchq.doc_reject('q', '{subject}', 'no', lease => {lease}, delay => '0')"
            ),
            6 => format!("select fetchq.doc_snooze('q', '{subject}', now(), lease => {lease})"),
            7 => format!("select fetchq.worker_release('w{number}')"),
            // The operator takes it away. The lock shows what it has then.
            _ => format!(
                "select from fetchq_data.q__docs where subject = '{subject}' for update; {note}; select fetchq.docs_drop('q', '{{\"subject\": \"{subject}\", \"status\": \"active\"}}') where exists (select from fetchq_data.q__docs d where d.subject = '{subject}' and d.status = 2 and d.lease = {lease})"
            ),
        };
        if let Err(error) = session
            .simple_query(&format!("begin; {settle}; commit"))
            .await
        {
            assert!(is_expected(&error), "{settle}: {error:?}");
            if session.simple_query("rollback").await.is_err() {
                session = db.connect().await;
            }
        }
    }
}

/// The keys of payloads, and how often each is there.
async fn keys(session: &Session, from: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for key in session.column(from).await {
        *found.entry(key).or_default() += 1;
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_ends_in_one_place_under_load_with_kills() {
    for (n, settings) in [
        "{\"max_attempts\": 3, \"dead_letter\": \"dead\"}",
        "{\"max_attempts\": 3, \"dead_letter\": \"dead\", \"history\": {\"completed\": \"1 day\", \"dropped\": \"1 day\"}}",
        "{\"max_attempts\": 3, \"dead_letter\": \"dead\", \"ordered\": true}",
    ]
    .iter()
    .enumerate()
    {
        let db = Server::of_suite().database(&format!("put_events{n}")).await;
        let mut session = db.connect().await;
        session
            .sql(&format!("select fetchq.queue_create('dead'); select fetchq.queue_create('q');
                select from fetchq.queue_configure('q', '{settings}'); create table seen (id text)"))
            .await;
        let told = Arc::new(Mutex::new(Told::default()));
        let ends = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..3 {
            tasks.spawn(produce(db.clone(), number, told.clone(), ends.clone()));
            tasks.spawn(work(db.clone(), number, ends.clone()));
        }
        for turn in 0..25 {
            tokio::time::sleep(Duration::from_millis(120)).await;
            let sql = format!("select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
                order by md5(pid || '{turn}') limit 1");
            session.sql(&sql).await;
        }
        ends.store(true, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a session failed");
        }
        // What is left runs: leases that nobody has any more expire.
        wait_until("all documents are settled", async || {
            session
                .sql("update fetchq_data.q__docs set next_iteration = now() - interval '1 s' where status in (0, 2);
                      select fetchq.mnt_run('q', 100);
                      with done as materialized (select * from fetchq.doc_lease('q', 10)),
                           noted as (insert into seen select k from done d, jsonb_object_keys(d.payload) k)
                      select fetchq.doc_complete('q', d.subject, lease => d.lease) from done d")
                .await;
            let left = "select count(*) from fetchq_data.q__docs where status in (0, 1, 2)";
            session.text(left).await == "0"
        })
        .await;
        let seen = keys(&session, "select id from seen union all
            select k from fetchq_data.dead__docs d, jsonb_object_keys(d.payload) k").await;
        let told = std::mem::take(&mut *told.lock().unwrap());
        let lost: Vec<_> = told.put.iter().filter(|id| !seen.contains_key(*id)).collect();
        assert!(lost.is_empty(), "{settings}: lost {lost:?}");
        let twice: Vec<_> = seen.iter().filter(|(_, n)| **n > 1).collect();
        assert!(twice.is_empty(), "{settings}: twice {twice:?}");
        let strange: Vec<_> = seen
            .keys()
            .filter(|id| !told.put.contains(*id) && !told.unknown.contains(*id))
            .collect();
        assert!(strange.is_empty(), "{settings}: never put {strange:?}");
        let queued = "select count(*) from fetchq_data.q__docs where queued is not null";
        assert_eq!(session.text(queued).await, "0", "{settings}");
        println!("{settings}: {} events", told.put.len());
        assert!(told.put.len() > 100, "{settings}: {} events", told.put.len());
        counters_are_exact(&mut session, "q").await;
        db.remove().await;
    }
}
