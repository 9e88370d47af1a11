//! Runs the scenarios that every client must pass: README.md. Prints a line for each scenario and adapter.
//!
//!     conformance [--adapter NAME]… [--scenario PART]… [--pair NAME:SCENARIO]… [--jobs N] [--list]
//!
//! FETCHQ_CLIENTS is the folder of the clients, FETCHQ_STATE_DIR one for servers and logs. MINUTES is the
//! duration of the scenarios of chaos, which is 15 seconds otherwise.

mod adapter;
mod log;
mod place;
mod proxy;
mod scenarios;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use adapter::{Adapter, Definition};
use log::Log;
use place::{Place, World};

/// What happens, and which capabilities of the adapter it needs.
pub struct Scenario {
    pub name: &'static str,
    pub needs: &'static [&'static str],
    pub run: fn(Place) -> Pin<Box<dyn Future<Output = ()>>>,
}

/// A scenario has the name of its function.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident $([$($need:literal),*])?),* $(,)?) => {
        pub const ALL: &[$crate::Scenario] = &[$($crate::Scenario {
            name: stringify!($name),
            needs: &[$($($need),*)?],
            run: |place| Box::pin($name(place)),
        }),*];
    };
}

tokio::task_local! {
    static LOG: Arc<Log>;
}

#[derive(Default)]
struct Options {
    adapters: Vec<String>,
    scenarios: Vec<String>,
    /// Scenarios that run for one adapter only, as `adapter:scenario`.
    pairs: Vec<(String, String)>,
    jobs: usize,
    list: bool,
}

fn options() -> Options {
    let mut options = Options {
        jobs: 8,
        ..Options::default()
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .unwrap_or_else(|| panic!("{word} needs a value"))
        };
        match word.as_str() {
            "--adapter" => options.adapters.push(value()),
            "--scenario" => options.scenarios.push(value()),
            "--pair" => {
                let pair = value();
                let (adapter, scenario) = pair.split_once(':').expect("--pair ADAPTER:SCENARIO");
                options
                    .pairs
                    .push((adapter.to_owned(), scenario.to_owned()));
            }
            "--jobs" => options.jobs = value().parse().expect("--jobs is a number"),
            "--list" => options.list = true,
            _ => panic!("unknown option {word}"),
        }
    }
    options
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic")
}

/// What became of a scenario.
enum Outcome {
    Passed,
    Failed,
}

async fn run(world: Arc<World>, definition: Definition, scenario: &'static Scenario) -> Outcome {
    let name = format!("{}: {}", definition.name, scenario.name);
    let path = world
        .folder
        .join(format!("{}.{}.log", definition.name, scenario.name));
    let log = Arc::new(Log::new(&path));
    let began = Instant::now();
    // Each scenario has a thread of its own: some of what they do blocks it.
    let lines = log.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(LOG.scope(lines.clone(), async {
            (scenario.run)(Place::new(&world, &definition, lines).await).await;
        }));
        runtime.shutdown_background();
    });
    let ended = tokio::task::spawn_blocking(|| thread.join())
        .await
        .expect("join");
    let seconds = began.elapsed().as_secs_f64();
    match ended {
        Ok(()) => {
            println!("ok: {name} ({seconds:.1} s)");
            Outcome::Passed
        }
        Err(panic) => {
            println!(
                "FAILED: {name} ({seconds:.1} s): {}\n{}",
                said(&*panic),
                log.end(40)
            );
            Outcome::Failed
        }
    }
}

/// Greets each adapter. `is_asked`: each must be there. Returns what those can that are there, and how many are not right.
async fn greet(
    world: &Arc<World>,
    slots: &Arc<Semaphore>,
    is_asked: bool,
) -> (BTreeMap<String, BTreeSet<String>>, usize) {
    let mut capabilities = BTreeMap::new();
    let mut failed = 0;
    let mut greeted = Vec::new();
    for definition in &world.adapters {
        let path = world.folder.join(format!("{}.hello.log", definition.name));
        let log = Arc::new(Log::new(&path));
        if !definition.program().exists() {
            // A client that is not there is no failure, unless it was asked for.
            let what = if is_asked { "FAILED" } else { "skipped" };
            failed += usize::from(is_asked);
            println!(
                "{what}: {}: there is no {}",
                definition.name,
                definition.program().display()
            );
            continue;
        }
        let (adapter, slots) = (definition.clone(), slots.clone());
        greeted.push((
            definition.name.clone(),
            log.clone(),
            tokio::spawn(async move {
                let _slot = slots.acquire_owned().await.expect("a slot");
                let adapter = Adapter::start(&adapter, &adapter.name, &[], log).await;
                let hello = &adapter.hello;
                println!(
                    "ok: {}: hello: {}, {}, {}",
                    adapter.name(),
                    hello["client"],
                    hello["language"],
                    hello["driver"]
                );
                let capabilities = adapter.capabilities();
                adapter.tell(serde_json::json!({"do": "exit"})).await;
                assert_eq!(adapter.status().await, Some(0), "exit ends with 0");
                capabilities
            }),
        ));
    }
    for (name, log, greeted) in greeted {
        match greeted.await {
            Ok(can) => drop(capabilities.insert(name, can)),
            Err(e) => {
                failed += 1;
                let panic = e.into_panic();
                println!("FAILED: {name}: hello: {}\n{}", said(&*panic), log.end(20));
            }
        }
    }
    (capabilities, failed)
}

/// Ends the servers that a run which was killed has left.
fn end_servers(state: &str) {
    let folders = std::fs::read_dir(state).expect("read the folder of the servers");
    for folder in folders.flatten() {
        let data = folder.path().join("data");
        if data.join("postmaster.pid").exists() {
            // One of an earlier boot may have left its file only.
            let _ = fetchq_client_tests::bin("pg_ctl")
                .args(["stop", "-w", "-s", "-m", "immediate", "-D"])
                .arg(data)
                .status();
        }
    }
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).expect("handle SIGTERM");
    let mut int = signal(SignalKind::interrupt()).expect("handle SIGINT");
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[tokio::main]
async fn main() {
    let options = options();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clients = variable("FETCHQ_CLIENTS").map_or(here.join("../../clients"), PathBuf::from);
    let table = variable("FETCHQ_ADAPTERS").map_or(here.join("adapters"), PathBuf::from);
    let table = std::fs::read_to_string(table).expect("read the table of adapters");
    let mut adapters = Definition::all(&table, &clients);
    if !options.adapters.is_empty() {
        adapters.retain(|one| options.adapters.contains(&one.name));
        assert_eq!(
            adapters.len(),
            options.adapters.len(),
            "an adapter is not in the table"
        );
    }
    if !options.pairs.is_empty() {
        adapters.retain(|one| {
            options
                .pairs
                .iter()
                .any(|(adapter, _)| *adapter == one.name)
        });
    }
    let wanted = |name: &str| {
        options.scenarios.is_empty() || options.scenarios.iter().any(|part| name.contains(part))
    };
    let chosen: Vec<&'static Scenario> = scenarios::all()
        .filter(|scenario| wanted(scenario.name))
        .collect();
    if options.list {
        for scenario in chosen {
            println!("{} {}", scenario.name, scenario.needs.join(" "));
        }
        return;
    }
    assert!(!chosen.is_empty(), "there is no such scenario");

    // Failures are shown with the scenario; here they are kept with their place.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let text = format!("failed at {place}: {}", said(panic.payload()));
        if LOG.try_with(|log| log.add("driver", '!', &text)).is_err() {
            eprintln!("{text}");
        }
    }));
    let state = variable("FETCHQ_STATE_DIR").expect("FETCHQ_STATE_DIR: use tests/conformance/run");
    let folder = variable("FETCHQ_LOGS").map_or(Path::new(&state).join("logs"), PathBuf::from);
    std::fs::create_dir_all(&folder).expect("create the folder of the logs");
    end_servers(&state);
    tokio::spawn(async move {
        interrupted().await;
        println!("interrupted");
        end_servers(&state);
        std::process::exit(130);
    });
    let seconds = variable("MINUTES").map_or(15, |minutes| {
        (minutes.parse::<f64>().expect("MINUTES is a number") * 60.0) as u64
    });
    let world = Arc::new(World::new(adapters, folder, seconds).await);
    let slots = Arc::new(Semaphore::new(options.jobs));
    let (capabilities, mut failed) = greet(&world, &slots, !options.adapters.is_empty()).await;
    let (mut passed, mut skipped) = (0, 0);
    let mut running = JoinSet::new();
    for scenario in chosen {
        for definition in &world.adapters {
            let Some(can) = capabilities.get(&definition.name) else {
                continue;
            };
            let is_this = |(adapter, name): &(String, String)| {
                *adapter == definition.name && *name == scenario.name
            };
            if !options.pairs.is_empty() && !options.pairs.iter().any(is_this) {
                continue;
            }
            if let Some(lacks) = scenario.needs.iter().find(|need| !can.contains(**need)) {
                println!(
                    "skipped: {}: {}: it lacks {lacks}",
                    definition.name, scenario.name
                );
                skipped += 1;
                continue;
            }
            let (world, definition, slots) = (world.clone(), definition.clone(), slots.clone());
            running.spawn(async move {
                let _slot = slots.acquire_owned().await.expect("a slot");
                run(world, definition, scenario).await
            });
        }
    }
    while let Some(outcome) = running.join_next().await {
        match outcome.expect("a scenario is caught") {
            Outcome::Passed => passed += 1,
            Outcome::Failed => failed += 1,
        }
    }
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    drop(world);
    if failed > 0 || passed == 0 {
        std::process::exit(1);
    }
}
