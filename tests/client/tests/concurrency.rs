//! Sixteen connections use one queue while transactions are rolled back.
//! No document is lost or leased twice, and the counters are exact at any moment.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{
    Database, Server, Session, counters_are_exact, in_snapshot, timed, wait_until,
};

const WORKERS: u32 = 16;
const DOCUMENTS: u32 = 20_000;
const QUEUE: &str = "q";

/// What is rolled back while the documents are processed.
#[derive(Clone, Copy, PartialEq)]
enum Undo {
    Nothing,
    EveryFifthTransaction,
    Savepoints,
}

/// The documents that are leased. A document becomes free only when its worker decides to roll
/// back; until then the server must not lease it again.
#[derive(Default)]
struct Ledger {
    held: Mutex<HashSet<String>>,
    settled: AtomicU32,
    rolled_back: AtomicU32,
}

impl Ledger {
    fn picked(&self, subjects: &[String]) {
        let mut held = self.held.lock().unwrap();
        for subject in subjects {
            assert!(
                held.insert(subject.clone()),
                "{subject} was leased twice, or picked again after it was settled"
            );
        }
    }

    fn given_back(&self, subjects: &[String]) {
        let mut held = self.held.lock().unwrap();
        for subject in subjects {
            assert!(held.remove(subject));
        }
    }
}

/// A random number generator for each worker, so that runs differ only in timing.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Pushes documents `from..to` of a worker with each of the push functions.
async fn push(session: &Session, worker: u32, from: u32, to: u32, planned: bool) {
    let name = |i: u32| format!("{worker}-{i}");
    let one = |n: i32| assert_eq!(n, 1, "a new document was not pushed");
    // A time in the near future, so that maintenance must make the documents pending.
    let at = if planned {
        "now() + interval '20 milliseconds'"
    } else {
        "now()"
    };
    match from % 4 {
        0 => {
            let list: Vec<String> = (from..to)
                .map(|i| format!("('{}', {}, '{{}}', {{DATA}})", name(i), i % 3))
                .collect();
            let sql = format!("select fetchq.doc_push($1, 0, {at}, $2)");
            let n: i32 = session
                .query_one(&sql, &[&QUEUE, &list.join(", ")])
                .await
                .expect("push many")
                .get(0);
            assert_eq!(n as u32, to - from);
        }
        1 => {
            for _ in from..to {
                let subject: Option<String> = session
                    .query_one("select fetchq.doc_append($1, '{}')", &[&QUEUE])
                    .await
                    .expect("append")
                    .get(0);
                assert!(subject.is_some());
            }
        }
        2 => {
            let sql =
                format!("select queued_docs from fetchq.doc_upsert($1, $2, 0, 1, {at}, '{{}}')");
            let upsert = session.prepare(&sql).await.unwrap();
            for i in from..to {
                one(session
                    .query_one(&upsert, &[&QUEUE, &name(i)])
                    .await
                    .expect("upsert")
                    .get(0));
            }
        }
        _ => {
            let sql = format!("select fetchq.doc_push($1, $2, '{{}}'::jsonb, {at})");
            let push = session.prepare(&sql).await.unwrap();
            for i in from..to {
                one(session
                    .query_one(&push, &[&QUEUE, &name(i)])
                    .await
                    .expect("push")
                    .get(0));
            }
        }
    }
}

/// Picks up to `limit` documents and settles them in one of the ways that prevent another pick
/// during the test.
async fn pick_and_settle(
    session: &Session,
    dice: &mut Dice,
    limit: i32,
    ledger: &Ledger,
) -> Vec<String> {
    let picked: Vec<String> = session
        .query(
            "select subject from fetchq.doc_pick($1, $2::int)",
            &[&QUEUE, &limit],
        )
        .await
        .expect("pick")
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(picked.len() <= limit as usize);
    ledger.picked(&picked);
    for subject in &picked {
        let call = match dice.roll(10) {
            0 => "doc_kill($1, $2)",
            1 => "doc_drop($1, $2)",
            2 => "doc_reschedule($1, $2, now() + interval '1 year')",
            // The retry is due when the lease would have expired: in five minutes.
            3 => "doc_reject($1, $2, 'why', '{}')",
            _ => "doc_complete($1, $2)",
        };
        let n: i32 = session
            .query_one(&format!("select fetchq.{call}"), &[&QUEUE, subject])
            .await
            .expect(call)
            .get(0);
        assert_eq!(n, 1, "{call} did not settle {subject}");
    }
    picked
}

async fn worker(db: Database, number: u32, undo: Undo, planned: bool, ledger: Arc<Ledger>) {
    let session = db.connect().await;
    let mut dice = Dice(u64::from(number) * 7919 + 1);
    let mut turn = 0u32;
    let mut rolls_back = || {
        turn += 1;
        undo == Undo::EveryFifthTransaction && turn.is_multiple_of(5)
    };

    let share = DOCUMENTS / WORKERS;
    let mut next = 0;
    while ledger.settled.load(Ordering::Relaxed) < DOCUMENTS {
        if next < share {
            // 1 to 25 documents at a time, so that each way of pushing is used.
            let to = share.min(next + 1 + dice.roll(25) as u32);
            session.sql("begin").await;
            if undo == Undo::Savepoints {
                session.sql("savepoint s").await;
                push(&session, number, next, to, planned).await;
                session.sql("rollback to s").await;
            }
            push(&session, number, next, to, planned).await;
            if rolls_back() {
                session.sql("rollback").await;
            } else {
                session.sql("commit").await;
                next = to;
            }
        }

        let limit = if dice.roll(2) == 0 {
            1
        } else {
            1 + dice.roll(40) as i32
        };
        // Half of the calls that are not rolled back run without a transaction block.
        let block = undo != Undo::Nothing || dice.roll(2) == 0;
        if block {
            session.sql("begin").await;
        }
        if undo == Undo::Savepoints {
            session.sql("savepoint s").await;
            let undone = pick_and_settle(&session, &mut dice, limit, &ledger).await;
            ledger.given_back(&undone);
            session.sql("rollback to s").await;
            ledger
                .rolled_back
                .fetch_add(undone.len() as u32, Ordering::Relaxed);
        }
        let settled = pick_and_settle(&session, &mut dice, limit, &ledger).await;
        if block && rolls_back() {
            ledger.given_back(&settled);
            session.sql("rollback").await;
            ledger
                .rolled_back
                .fetch_add(settled.len() as u32, Ordering::Relaxed);
        } else {
            if block {
                session.sql("commit").await;
            }
            ledger
                .settled
                .fetch_add(settled.len() as u32, Ordering::Relaxed);
        }
        if settled.is_empty() && next == share {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Runs maintenance in a loop, as a client would.
async fn maintain(db: Database, finished: Arc<AtomicBool>) {
    let session = db.connect().await;
    let mut turn = 0;
    while !finished.load(Ordering::Relaxed) {
        turn += 1;
        let call = match turn % 5 {
            0 => "mnt_job_run(100)",
            1 => "metric_log_pack()",
            2 => "mnt_run('q', 300)",
            3 => "mnt()",
            _ => "mnt_run_all(500)",
        };
        session.sql(&format!("select * from fetchq.{call}")).await;
        // Of two that run at once, one may say what it has left to the other: tables that the
        // other has locked, or counters that the other packs.
        let failed: Vec<String> = session
            .notices()
            .iter()
            .map(|n| n.message().to_owned())
            .filter(|m| !m.contains("locked") && !m.contains("another session packs them"))
            .collect();
        assert!(failed.is_empty(), "{call}: {failed:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Compares the counters with the documents repeatedly; returns the number of comparisons.
async fn read(db: Database, finished: Arc<AtomicBool>) -> u32 {
    let mut session = db.connect().await;
    let mut reads = 0;
    while !finished.load(Ordering::Relaxed) {
        counters_are_exact(&mut session, QUEUE).await;
        reads += 1;
    }
    reads
}

async fn process(name: &str, undo: Undo, maintenance: bool) {
    let db = Server::of_suite().database(name).await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let ledger = Arc::new(Ledger::default());
    let finished = Arc::new(AtomicBool::new(false));

    let reader = tokio::spawn(read(db.clone(), finished.clone()));
    let mut loops = Vec::new();
    if maintenance {
        for _ in 0..2 {
            loops.push(tokio::spawn(maintain(db.clone(), finished.clone())));
        }
    }
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..WORKERS {
        workers.spawn(worker(
            db.clone(),
            number,
            undo,
            maintenance,
            ledger.clone(),
        ));
    }
    // The first failure ends the test, because the other workers would wait forever.
    while let Some(ended) = workers.join_next().await {
        ended.expect("a worker failed");
    }
    finished.store(true, Ordering::Relaxed);
    let reads = reader
        .await
        .expect("the counters were wrong during the test");
    for task in loops {
        task.await.expect("maintenance failed");
    }
    assert!(reads > 10, "only {reads} comparisons during the test");
    assert_eq!(
        ledger.rolled_back.load(Ordering::Relaxed) > 0,
        undo != Undo::Nothing
    );

    assert_eq!(
        ledger.held.lock().unwrap().len() as u32,
        DOCUMENTS,
        "each document must be picked and settled once"
    );
    let before = in_snapshot(&mut session, QUEUE).await;
    let of = |metric: &str| before.get(metric).copied().unwrap_or(0);
    let n = i64::from(DOCUMENTS);
    assert_eq!([of("ent"), of("pkd"), of("prc")], [n, n, n], "{before:?}");
    assert_eq!(of("cnt") + of("drp"), n, "{before:?}");
    assert_eq!([of("act"), of("orp")], [0, 0], "{before:?}");
    // Nothing was popped, so each document has a wait and a run.
    assert_eq!(timed(&session, QUEUE, "wait").await, n);
    assert_eq!(timed(&session, QUEUE, "run").await, n);
    assert_eq!([of("pln"), of("pnd")], [of("res"), of("rej")], "{before:?}");
    assert!(
        ["cpl", "kll", "drp", "res", "rej"]
            .iter()
            .all(|m| of(m) > 0),
        "not every way of settling was used: {before:?}"
    );
    // Packing and recounting must not change the metrics.
    session.sql("select * from fetchq.mnt()").await;
    wait_until("all counter events are packed", async || {
        session.sql("select fetchq.metric_log_pack()").await;
        session
            .text("select count(*) from fetchq.counter_log")
            .await
            == "0"
    })
    .await;
    assert_eq!(in_snapshot(&mut session, QUEUE).await, before);
    assert_eq!(timed(&session, QUEUE, "wait").await, n);
    assert_eq!(timed(&session, QUEUE, "run").await, n);
    db.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_connections() {
    process("plain", Undo::Nothing, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_connections_with_every_fifth_transaction_rolled_back() {
    process("rollback", Undo::EveryFifthTransaction, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_connections_with_savepoints_rolled_back() {
    process("savepoints", Undo::Savepoints, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_connections_beside_two_maintenance_loops() {
    process("maintenance", Undo::EveryFifthTransaction, true).await;
}
