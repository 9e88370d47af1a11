//! Flow control with sixteen workers that roll back, reject, abandon leases, and are terminated.
//! No cap or rate is exceeded, and in the end no document is left. The ledgers are outside of the
//! database.

mod waiting;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{Database, Server, Session, counters_are_exact};
use tokio::task::JoinSet;

const WORKERS: u64 = 16;

/// A random number generator for each worker, so that runs differ only in timing.
pub struct Dice(u64);

impl Dice {
    pub fn of(worker: u64) -> Self {
        Self(worker * 7_919 + 12_345)
    }

    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Runs maintenance of queue `q` while the workers work, so that expired leases end.
pub async fn maintains(db: Database, is_done: Arc<AtomicBool>) {
    let session = db.connect().await;
    while !is_done.load(Ordering::SeqCst) {
        session.sql("select fetchq.mnt_run('q', 100)").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Terminates the session, as an administrator would.
pub async fn is_terminated(db: &Database, session: &mut Session) {
    let pid = session.text("select pg_backend_pid()").await;
    let other = db.connect().await;
    other
        .sql(&format!("select pg_terminate_backend({pid})"))
        .await;
    while session.batch_execute("select").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    *session = db.connect().await;
}

const CAP: usize = 5;

/// Documents that are certainly leased: added after the pick has committed, removed before the
/// document is settled.
#[derive(Default)]
struct Held(Mutex<HashSet<String>>);

/// Waits for a short time, in which a limit may keep all documents from being ready.
const WAIT: &str = "call fetchq.queue_wait(array['q'], '100 ms')";

async fn works_under_a_cap(
    db: Database,
    held: Arc<Held>,
    done: Arc<AtomicUsize>,
    worker: u64,
    documents: usize,
) {
    let mut dice = Dice::of(worker);
    let mut session = db.connect().await;
    while done.load(Ordering::SeqCst) < documents {
        // Abandoned leases expire soon and are not added to the ledger.
        let abandons = dice.roll(12) == 0;
        let lease = if abandons { "50 ms" } else { "1 hour" };
        let limit = 1 + dice.roll(4);
        let pick = if dice.roll(4) == 0 {
            session.sql(WAIT).await;
            format!("select subject from fetchq.doc_pick('q', 0, {limit}, '{lease}')")
        } else {
            format!("select subject from fetchq.doc_pick('q', 0, {limit}, '{lease}')")
        };
        session.sql("begin").await;
        if dice.roll(4) == 0 {
            session.sql("savepoint s").await;
            session.sql(&pick).await;
            session.sql("rollback to s").await;
        }
        let subjects = session.column(&pick).await;
        let active: usize = session
            .text("select count(*) from fetchq_data.q__docs where status = 2")
            .await
            .parse()
            .unwrap();
        assert!(active <= CAP, "{active} are active");
        match dice.roll(10) {
            0 => {
                session.sql("rollback").await;
                continue;
            }
            1 if worker.is_multiple_of(4) => {
                is_terminated(&db, &mut session).await;
                continue;
            }
            _ => session.sql("commit").await,
        }
        if abandons {
            continue;
        }
        {
            let mut held = held.0.lock().unwrap();
            for subject in &subjects {
                assert!(held.insert(subject.clone()), "{subject} has two leases");
            }
            assert!(held.len() <= CAP, "{} are leased", held.len());
        }
        for subject in subjects {
            if dice.roll(3) == 0 {
                tokio::time::sleep(Duration::from_millis(dice.roll(8))).await;
            }
            if dice.roll(6) == 0 {
                // A settlement that is rolled back leaves the lease in place.
                session
                    .sql(&format!(
                        "begin; select fetchq.doc_drop('q', '{subject}'); rollback"
                    ))
                    .await;
            }
            held.0.lock().unwrap().remove(&subject);
            let settle = match dice.roll(8) {
                0 => format!("doc_reject('q', '{subject}', 'why', '{{}}')"),
                1 => format!("doc_reschedule('q', '{subject}', now() + interval '10 ms')"),
                2 => format!("doc_drop('q', '{subject}')"),
                3 => format!("doc_kill('q', '{subject}')"),
                _ => format!("doc_complete('q', '{subject}')"),
            };
            assert_eq!(
                session.text(&format!("select fetchq.{settle}")).await,
                "1",
                "{settle}"
            );
            if settle.starts_with("doc_reject") {
                // The rejected document is made ready now, not when its lease would have
                // expired.
                session
                    .sql(&format!("update fetchq_data.q__docs set next_iteration = now() where subject = '{subject}' and status = 1"))
                    .await;
            } else if !settle.starts_with("doc_reschedule") {
                done.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

async fn a_cap(direct: &str, lowers: bool) {
    let db = Server::of_suite().database("flow_cap").await;
    let session = db.connect().await;
    let documents = 1_500;
    session
        .sql(&format!(
            "alter database \"{}\" set fetchq.direct = {direct};
             select fetchq.queue_create('q'); select fetchq.queue_set_max_attempts('q', 1000000);
             select fetchq.queue_configure('q', '{{\"max_active\": {CAP}}}');
             select fetchq.doc_push('q', 'd' || i) from generate_series(1, {documents}) i",
            db.name
        ))
        .await;
    let (held, done) = (Arc::<Held>::default(), Arc::<AtomicUsize>::default());
    let is_done = Arc::<AtomicBool>::default();
    let mut workers = JoinSet::new();
    for worker in 1..=WORKERS {
        workers.spawn(works_under_a_cap(
            db.clone(),
            held.clone(),
            done.clone(),
            worker,
            documents,
        ));
    }
    let maintenance = tokio::spawn(maintains(db.clone(), is_done.clone()));
    let mut highest = 0;
    let mut turn = 0;
    while !workers.is_empty() {
        while let Some(ended) = workers.try_join_next() {
            ended.unwrap();
        }
        let active: usize = session
            .text("select count(*) from fetchq_data.q__docs where status = 2")
            .await
            .parse()
            .unwrap();
        assert!(active <= CAP, "{active} are active");
        highest = highest.max(active);
        turn += 1;
        if lowers && turn % 20 == 0 {
            let cap = 1 + (turn / 20) % CAP;
            session
                .sql(&format!(
                    "select fetchq.queue_configure('q', '{{\"max_active\": {cap}}}')"
                ))
                .await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(highest, CAP, "the cap was never reached");
    is_done.store(true, Ordering::SeqCst);
    maintenance.await.unwrap();
    let left = "select subject, status, attempts, iterations, next_iteration - now(), lock_upgrade from fetchq_data.q__docs where status in (0, 1, 2)";
    assert_eq!(session.rows(left).await, [""; 0]);
    assert_eq!(
        session
            .text("select count(*) from fetchq.lease_slots where subject is not null")
            .await,
        "0"
    );
    let mut session = session;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_cap_is_never_exceeded() {
    a_cap("on", false).await;
}

#[tokio::test]
async fn a_cap_that_changes_is_never_exceeded() {
    a_cap("off", true).await;
}

const PICKS: usize = 20;
const WINDOW: i64 = 400_000;

async fn works_at_a_rate(
    db: Database,
    picked: Arc<Mutex<Vec<(i64, i64)>>>,
    worker: u64,
    documents: usize,
) {
    let mut dice = Dice::of(worker);
    let mut session = db.connect().await;
    while picked.lock().unwrap().len() < documents {
        let limit = 1 + dice.roll(5);
        let (ends, call) = if dice.roll(3) == 0 {
            session.sql(WAIT).await;
            ("lease_ends", format!("doc_lease('q', {limit}, '1 hour')"))
        } else {
            (
                "next_iteration",
                format!("doc_pick('q', 0, {limit}, '1 hour'::interval)"),
            )
        };
        // The time of the pick, as its result shows it, and the time at which the pick returns.
        let pick = format!(
            "select (extract(epoch from {ends} - interval '1 hour') * 1000000)::bigint::text
                || ' ' || (extract(epoch from clock_timestamp()) * 1000000)::bigint
             from fetchq.{call}"
        );
        session.sql("begin").await;
        if dice.roll(8) == 0 {
            // The pick runs long after the transaction began.
            tokio::time::sleep(Duration::from_millis(dice.roll(60))).await;
        }
        let times = session.column(&pick).await;
        match dice.roll(8) {
            0 => session.sql("rollback").await,
            1 if worker.is_multiple_of(4) => is_terminated(&db, &mut session).await,
            _ => {
                session.sql("commit").await;
                let times = times.iter().map(|both| {
                    let (said, returned) = both.split_once(' ').unwrap();
                    (said.parse().unwrap(), returned.parse().unwrap())
                });
                picked.lock().unwrap().extend(times);
            }
        }
        tokio::time::sleep(Duration::from_millis(dice.roll(4))).await;
    }
}

#[tokio::test]
async fn a_rate_is_kept_in_every_window() {
    let db = Server::of_suite().database("flow_rate").await;
    let session = db.connect().await;
    session
        .sql(&format!(
            "select fetchq.queue_create('q');
             select fetchq.doc_push('q', 'd' || i) from generate_series(1, 1000) i;
             select fetchq.queue_configure('q', '{{\"rate\": {{\"picks\": {PICKS}, \"per\": \"400 ms\"}}}}')"
        ))
        .await;
    let picked = Arc::<Mutex<Vec<(i64, i64)>>>::default();
    let mut workers = JoinSet::new();
    for worker in 1..=WORKERS {
        workers.spawn(works_at_a_rate(db.clone(), picked.clone(), worker, 200));
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    let mut picked = picked.lock().unwrap().clone();
    picked.sort();
    for window in picked.windows(PICKS + 1) {
        let (first, last) = (window[0].0, window[PICKS].0);
        assert!(
            last - first >= WINDOW,
            "{} picks within {} us",
            PICKS + 1,
            last - first
        );
    }
    // The active documents are those that the picks returned.
    let active = session
        .text("select count(*) from fetchq_data.q__docs where status = 2")
        .await;
    assert_eq!(active, picked.len().to_string());
    let mut session = session;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn queues_are_served_by_their_weights() {
    let db = Server::of_suite().database("flow_any").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create(q) from unnest(array['a', 'b', 'c']) q;
             select fetchq.doc_push(q, q || i) from unnest(array['a', 'b', 'c']) q, generate_series(1, 400) i",
        )
        .await;
    let call = "select queue from fetchq.doc_lease_any(array['a', 'b', 'c'], 1, weights => array[5, 2, 1])";
    let mut order = Vec::new();
    for _ in 0..80 {
        order.push(session.text(call).await);
    }
    // Each window of 8 picks matches the weights, so every queue is served in time.
    for stretch in order.windows(8) {
        for (queue, weight) in [("a", 5), ("b", 2), ("c", 1)] {
            let n = stretch.iter().filter(|q| *q == queue).count();
            assert_eq!(n, weight, "{queue} in {stretch:?}");
        }
    }
    for (queue, bound) in [("a", 4), ("b", 8), ("c", 16)] {
        for stretch in order.windows(bound) {
            assert!(stretch.iter().any(|q| q == queue), "{queue} in {stretch:?}");
        }
    }
    // Picks of several documents, beside a queue that is paused or empty.
    let shares = "select queue, count(*) from fetchq.doc_lease_any(array['a', 'b', 'c'], 16, weights => array[5, 2, 1]) group by 1 order by 1";
    assert_eq!(session.rows(shares).await, ["a|10", "b|4", "c|2"]);
    session.sql("select fetchq.queue_pause('a')").await;
    assert_eq!(session.rows(shares).await.len(), 2);
    session
        .sql("select fetchq.queue_resume('a'); select fetchq.queue_configure('b', '{\"max_active\": 1}')")
        .await;
    let rows = session.rows(shares).await;
    assert!(rows.len() == 2 && rows[0].starts_with("a|"), "{rows:?}");
    // Short sessions start with different queues.
    let mut seen = HashSet::new();
    for _ in 0..60 {
        let short = db.connect().await;
        seen.insert(
            short
                .text("select queue from fetchq.doc_lease_any(array['a', 'c'])")
                .await,
        );
    }
    assert_eq!(seen.len(), 2);
    // Many workers together serve all documents.
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let session = db.connect().await;
        workers.spawn(async move {
            let call = "select subject from fetchq.doc_lease_any(array['c', 'a'], 7, weights => array[1, 3])";
            let mut all = Vec::new();
            loop {
                let some = session.column(call).await;
                if some.is_empty() {
                    return all;
                }
                all.extend(some);
            }
        });
    }
    let mut all = HashSet::new();
    while let Some(some) = workers.join_next().await {
        for subject in some.unwrap() {
            assert!(all.insert(subject.clone()), "{subject} was leased twice");
        }
    }
    assert_eq!(
        session.text("select (select count(*) from fetchq_data.a__docs where status = 1) + (select count(*) from fetchq_data.c__docs where status = 1)").await,
        "0"
    );
    db.remove().await;
}
