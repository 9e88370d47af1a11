//! Sixteen workers reject and crash, their sessions are terminated, and the server is stopped
//! with an immediate shutdown in the middle.
//! A ledger outside of the database records the answers that the workers received.
//! No document is lost, none has two live leases, no stale lease settles a document, each
//! document is settled once, and the counters are exact. Leases wait for the disk: otherwise the crash may lose
//! the last ones, and their documents are leased again at once.
//!
//! In a second test an operator rewrites, reindexes and alters the tables all the time, and the
//! owner of another queue attaches a trigger that fails, or that takes long. Leases do not wait, which is the default.
//!
//! In a third one, leases are late, the background worker that writes them is terminated all the time, and the
//! crash comes towards the end: for a while after it, leases are written at once.
//!
//! FETCHQ_CHAOS_SECONDS sets the duration of each test; scripts/soak.sh uses it.

mod disturbances;
mod end;
mod ledger;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fetchq_client_tests::{Cluster, with_worker};

use disturbances::{DDL, MISBEHAVING_TRIGGER, cancel, kill, operate, terminate_background_worker};
use end::finish;
use ledger::Ledger;
use worker::Worker;

const WORKERS: usize = 16;

fn seconds() -> u64 {
    std::env::var("FETCHQ_CHAOS_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(12)
}

struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

async fn restart(cluster: &Cluster, ledger: &Ledger) {
    for life in 0..ledger.lives.load(Ordering::Relaxed) + WORKERS {
        ledger.doom(life);
    }
    ledger.crashes();
    cluster.stop("immediate");
    cluster.start();
}

/// What happens beside the work.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Ddl,
    /// Leases are late by these milliseconds.
    LateLeases(i64),
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos() {
    run("chaos", Beside::Nothing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ddl_and_a_misbehaving_owner() {
    run("chaos-ddl", Beside::Ddl).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_leases_and_no_background_worker() {
    run("chaos-late", Beside::LateLeases(100)).await;
}

async fn run(name: &str, beside: Beside) {
    let with_ddl = beside == Beside::Ddl;
    let leases = match beside {
        Beside::Nothing => "fetchq.synchronous_leases = on\n".to_owned(),
        Beside::Ddl => String::new(),
        Beside::LateLeases(delay) => {
            format!("fetchq.late_lease_slots = 4096\nfetchq.lease_write_delay = {delay}\n")
        }
    };
    let settings = format!("synchronous_commit = on\nlog_min_messages = fatal\n{leases}");
    let cluster = with_worker(name, &settings);
    let server = cluster.server();
    let setup = server.connect("postgres").await;
    setup
        .sql(
            "create extension fetchq;
             select fetchq.queue_create('q');
             select fetchq.queue_configure('q', '{\"retry\": {\"base\": \"20 ms\", \"factor\": 1.1, \"max_delay\": \"200 ms\", \"jitter\": 0.5}, \"max_attempts\": 1000000}');
             create table effects (subject text not null, lease bigint not null)",
        )
        .await;
    if with_ddl {
        setup.sql(MISBEHAVING_TRIGGER).await;
    }
    drop(setup);
    let ledger = match beside {
        Beside::Nothing => Ledger::default(),
        Beside::LateLeases(delay) => Ledger::losing(delay),
        // Every test can be run with late leases, as tests/client/src/cluster.rs says.
        Beside::Ddl if std::env::var_os("FETCHQ_LATE_LEASES").is_some() => Ledger::losing(1000),
        Beside::Ddl => Ledger::losing(0),
    };
    let ledger = Arc::new(ledger);
    let pids = Arc::new(Mutex::new(BTreeMap::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker::new(number, ledger.clone(), pids.clone());
        tasks.spawn(worker.run(server.clone()));
    }
    tasks.spawn(cancel(server.clone(), ledger.clone()));
    tasks.spawn(kill(server.clone(), ledger.clone(), pids));
    if matches!(beside, Beside::LateLeases(_)) {
        tasks.spawn(terminate_background_worker(server.clone(), ledger.clone()));
    }
    let operator = with_ddl.then(|| tokio::spawn(operate(server.clone(), ledger.clone())));

    let begun = Instant::now();
    let all = Duration::from_secs(seconds());
    let restart_after = match beside {
        Beside::LateLeases(_) => all * 3 / 4,
        _ => all / 2,
    };
    let mut was_restarted = false;
    while begun.elapsed() < all {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(ended) = tasks.try_join_next() {
            ended.expect("a worker failed");
            panic!("a worker has ended");
        }
        if !was_restarted && begun.elapsed() >= restart_after {
            restart(&cluster, &ledger).await;
            was_restarted = true;
        }
    }
    ledger.ended.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a worker failed");
    }
    if let Some(operator) = operator {
        let done = operator.await.expect("a statement of the operator failed");
        assert!(
            done > 2 * DDL.len(),
            "the operator has done {done} statements"
        );
    }
    finish(&server, &ledger).await;
}
