//! Random histories over several sessions, whose transactions stay open across steps.
//! After each history, every document that can be picked must be picked once and in order, and
//! maintenance must find every document that is due. No ready floor may hide a document.
//!
//! FETCHQ_MODEL_SEED=n      starts with this seed; a failure prints its seed
//! FETCHQ_MODEL_CHAINS=n    plays n chains of histories instead of the usual number
//! FETCHQ_MODEL_SECONDS=n   runs for n seconds, and leaves the databases for inspection

mod check;
mod dice;
mod history;
mod shrink;
mod step;
mod world;

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fetchq_client_tests::{Cluster, Server, with_worker};

use dice::Dice;
use history::History;
use step::{PLACES, Step};
use world::{World, Wrong};

/// The number of worlds that run at the same time, each with its own database.
const WORLDS: usize = 2;
/// Histories on one queue. Each starts with the memory and the indexes that the last one left.
const HISTORIES: usize = 40;
/// The number of queues in a run without FETCHQ_MODEL_SECONDS.
const CHAINS: u64 = 50;
const CHAINS_IN_SHORT_MEMORY: u64 = 8;
const CHAINS_OF_LATE_LEASES: u64 = 8;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
    )
}

struct Run<'a> {
    server: Server,
    /// The cluster, where its leases are late.
    late: Option<&'a Cluster>,
    chains: u64,
    first_seed: u64,
    next: AtomicU64,
    deadline: Option<Instant>,
    failed: AtomicBool,
    histories: AtomicU64,
    statements: AtomicU64,
}

impl Run<'_> {
    /// The seed of the next chain.
    fn take(&self) -> Option<u64> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let go_on = match self.deadline {
            Some(deadline) => Instant::now() < deadline,
            None => n < self.chains,
        };
        (go_on && !self.failed.load(Ordering::Relaxed)).then(|| self.first_seed.wrapping_add(n))
    }
}

#[test]
fn no_document_is_ever_hidden() {
    play(Server::of_suite(), None, CHAINS);
}

/// Leases are in shared memory only, and the process that would write them stands still.
#[test]
fn no_document_is_hidden_or_given_twice_where_leases_are_late() {
    if std::env::var("FETCHQ_NO_PRELOAD").as_deref() == Ok("1") {
        return;
    }
    let settings = "fsync = off\nlog_min_messages = panic\nmax_prepared_transactions = 0\n\
        fetchq.late_lease_slots = 4096\nfetchq.lease_write_delay = 10ms";
    let cluster = with_worker("model-late", settings);
    play(cluster.server(), Some(&cluster), CHAINS_OF_LATE_LEASES);
}

/// Shared memory for a few floors only: they are evicted and found again all the time.
#[test]
fn no_document_is_hidden_when_memory_is_short() {
    let settings = "fetchq.ready_slots = 16\nfsync = off\nmax_prepared_transactions = 20\nlog_min_messages = panic";
    let cluster = Cluster::new("model", settings);
    cluster.start();
    play(cluster.server(), None, CHAINS_IN_SHORT_MEMORY);
}

fn play(server: Server, late: Option<&Cluster>, chains: u64) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH);
    let clock = clock.expect("a clock").as_micros() as u64;
    let seconds = setting("FETCHQ_MODEL_SECONDS");
    let run = Run {
        server,
        late,
        chains: setting("FETCHQ_MODEL_CHAINS").unwrap_or(chains),
        first_seed: setting("FETCHQ_MODEL_SEED").unwrap_or(clock),
        next: AtomicU64::new(0),
        deadline: seconds.map(|s| Instant::now() + Duration::from_secs(s)),
        failed: AtomicBool::new(false),
        histories: AtomicU64::new(0),
        statements: AtomicU64::new(0),
    };
    println!("FETCHQ_MODEL_SEED={}", run.first_seed);
    std::thread::scope(|scope| {
        let worlds: Vec<_> = (0..WORLDS)
            .map(|number| {
                scope.spawn({
                    let run = &run;
                    move || in_a_world(number, run)
                })
            })
            .collect();
        while worlds.iter().any(|world| !world.is_finished()) {
            std::thread::sleep(Duration::from_millis(100));
            progress(&run, false);
        }
        for world in worlds {
            if let Err(panic) = world.join() {
                resume_unwind(panic);
            }
        }
    });
    progress(&run, true);
}

fn in_a_world(number: usize, run: &Run<'_>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let mut world = World::new(&run.server, &format!("model{number}"), run.late).await;
        let before = world.read_engine().await;
        while let Some(seed) = run.take() {
            chain(&mut world, seed, run).await;
        }
        world.indexes_are_sound().await;
        // Without advances the test would have checked nothing.
        if let (Some(before), Some(after)) = (before, world.read_engine().await) {
            assert!(
                after.advances > before.advances,
                "no floor was ever advanced"
            );
        }
        world.let_leases_be_written(run.late);
        if run.deadline.is_none() {
            world.db.remove().await;
        }
    });
}

/// Prints the progress every 15 seconds, and at the end.
fn progress(run: &Run<'_>, now: bool) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap();
    let due = last.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(15);
    if !due && !now {
        return;
    }
    *last = Some(Instant::now());
    println!(
        "… {} histories, {} steps",
        run.histories.load(Ordering::Relaxed),
        run.statements.load(Ordering::Relaxed)
    );
}

/// Runs a chain: a new queue, and histories on it.
async fn chain(world: &mut World, seed: u64, run: &Run<'_>) {
    world.reset().await;
    let mut dice = Dice::new(seed);
    let mut steps = Vec::new();
    let mut subjects = 0;
    let is_keyed = dice.percent(30);
    if is_keyed {
        steps.push(Step::sql(0, *dice.one(&PLACES)));
        if let Err(Wrong(what)) = world.run(&steps[0]).await {
            report(world, run, seed, &steps, &what).await;
        }
    }
    for _ in 0..HISTORIES {
        let before = world.statements;
        let mut history = History::new(Dice::new(dice.next()), subjects, is_keyed);
        while let Some(next) = history.next(world) {
            for step in next {
                steps.push(step);
                let step = &steps[steps.len() - 1];
                if let Err(Wrong(what)) = world.run(step).await {
                    report(world, run, seed, &steps, &what).await;
                }
            }
        }
        subjects = history.subjects();
        run.histories.fetch_add(1, Ordering::Relaxed);
        run.statements
            .fetch_add(world.statements - before, Ordering::Relaxed);
    }
    if let Err(Wrong(what)) = world.engine_is_content().await {
        report(world, run, seed, &steps, &what).await;
    }
}

/// Fails with the seed and the shortest list of steps that still fails.
async fn report(world: &mut World, run: &Run<'_>, seed: u64, steps: &[Step], what: &str) -> ! {
    run.failed.store(true, Ordering::Relaxed);
    println!(
        "seed {seed}: {what}\nlooking for fewer steps than {} …",
        steps.len()
    );
    let (steps, what) = shrink::shrink(world, steps, what).await;
    let script: Vec<String> = steps.iter().map(ToString::to_string).collect();
    // What is wrong comes last, too: a log that is cut off keeps its end.
    panic!(
        "FETCHQ_MODEL_SEED={seed}\n{what}\n\n{}\n\nFETCHQ_MODEL_SEED={seed}\n{what}\n",
        script.join("\n")
    );
}
