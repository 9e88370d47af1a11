//! Everything at once, and the ledger: nothing is lost, nothing is settled twice, and no lease is lost that
//! need not be. MINUTES sets how long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::adapter::{Adapter, Definition};
use crate::place::{Host, Place, pause, until};
use crate::proxy::{Proxy, Way};

crate::scenarios!(chaos_of_connections, chaos_of_kills, chaos_of_all_languages);

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What was put, and what the documents have left behind.
struct Ledger {
    put: usize,
    killed: usize,
}

const PLAIN: &str = "plain";
const WRITES: &str = "writes";

/// Puts documents: every third one fails at first, and where handlers can write, half of them do.
async fn put(p: &Place, ledger: &mut Ledger, writes: bool) {
    for _ in 0..5 {
        ledger.put += 1;
        let n = ledger.put;
        let mut script = vec![json!({"op": "sleep", "seconds": f64::from((n % 5) as u32) * 0.05})];
        let queue = if writes && n.is_multiple_of(2) {
            WRITES
        } else {
            PLAIN
        };
        if queue == WRITES {
            script.push(json!({"op": "sql", "sql": format!("insert into {}_effects values ('d{n}')", p.queue)}));
        }
        let scripts = match n % 3 {
            0 => json!([[script[0], {"op": "throw", "message": "the first time"}], script]),
            _ => json!([script]),
        };
        p.put_with(
            &format!("{}{queue}", p.queue),
            &format!("d{n}"),
            json!({"n": n, "scripts": scripts}),
            "",
        )
        .await;
    }
}

async fn prepare(p: &Place) {
    let settings = json!({"retry": {"base": "20 ms", "factor": 1.1, "max_delay": "200 ms"}, "max_attempts": 1000});
    for queue in [PLAIN, WRITES] {
        p.create_queue(&format!("{}{queue}", p.queue), settings.clone())
            .await;
    }
    // An audit of every settlement: a document is completed once.
    p.sql
        .sql(&format!(
            "create table {0}_effects (subject text);
             create table {0}_settled (queue text, subject text, lease bigint);
             create function {0}_audit() returns trigger language plpgsql as $$ begin
                 insert into {0}_settled values (tg_table_name, new.subject, 0); return new; end $$;
             create trigger audit before update on fetchq_data.{0}{PLAIN}__docs for each row
                 when (new.status = 3 and old.status = 2) execute function {0}_audit();
             create trigger audit before update on fetchq_data.{0}{WRITES}__docs for each row
                 when (new.status = 3 and old.status = 2) execute function {0}_audit()",
            p.queue
        ))
        .await;
}

async fn workers(p: &Place, adapter: &Definition, url: &str, lease: &str) -> Adapter {
    let program = p.program_of(adapter).await;
    program.ok(p.connect(json!({"url": url, "pool": 12}))).await;
    let mut tasks =
        vec![json!({"queue": format!("{}{PLAIN}", p.queue), "concurrency": 5, "lease": lease})];
    if program.can("transactional") {
        tasks.push(json!({"queue": format!("{}{WRITES}", p.queue), "concurrency": 2, "lease": lease, "transactional": true}));
    }
    // The server may be away at this moment.
    until("the worker starts", async || {
        let start = p.start(json!({}), json!({"tasks": tasks, "grace": 5}));
        match program.ask(start).await {
            Ok(_) => true,
            Err(error) => {
                assert_ne!(error["code"], "unsupported", "{error}");
                false
            }
        }
    })
    .await;
    program
}

/// All that was put is completed once, and has had its effects once.
async fn balance(p: &Place, ledger: &Ledger) {
    let count = |status: &str| {
        let of = |queue: &str| {
            format!(
                "(select count(*) from fetchq_data.{}{queue}__docs where status {status})",
                p.queue
            )
        };
        format!("select {} + {}", of(PLAIN), of(WRITES))
    };
    // A machine that is busy needs longer for what was put meanwhile; what counts is that it goes on.
    let (mut most, mut since) = (0, Instant::now());
    loop {
        let completed = p.number(&count("= 3")).await;
        if completed >= ledger.put {
            break;
        }
        if completed > most {
            (most, since) = (completed, Instant::now());
        }
        if since.elapsed() > Duration::from_secs(90) {
            let left = format!(
                "select concat_ws(' ', tableoid::regclass, subject, status, attempts, last_error)
                 from (select * from fetchq_data.{0}{PLAIN}__docs union all select * from fetchq_data.{0}{WRITES}__docs) d
                 where status <> 3 limit 10",
                p.queue
            );
            let left = left.replace("tableoid::regclass, ", "");
            panic!("not completed: {:#?}", p.sql.column(&left).await);
        }
        pause(100).await;
    }
    assert_eq!(
        p.number(&count("is not null")).await,
        ledger.put,
        "nothing is lost"
    );
    let twice = format!(
        "select queue || ' ' || subject from {}_settled group by queue, subject having count(*) > 1",
        p.queue
    );
    assert_eq!(
        p.sql.column(&twice).await,
        Vec::<String>::new(),
        "settled twice"
    );
    let effects = format!(
        "select subject from {}_effects group by subject having count(*) > 1",
        p.queue
    );
    assert_eq!(
        p.sql.column(&effects).await,
        Vec::<String>::new(),
        "two effects"
    );
    let missing = format!(
        "select subject from fetchq_data.{0}{WRITES}__docs where subject not in (select subject from {0}_effects)",
        p.queue
    );
    assert_eq!(
        p.sql.column(&missing).await,
        Vec::<String>::new(),
        "no effect"
    );
}

/// Attempts beyond those that the scripts ask for: each was lost with its lease.
async fn lost(programs: &[Adapter]) -> usize {
    let mut attempts: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut wanted: BTreeMap<(String, String), u64> = BTreeMap::new();
    for program in programs {
        for began in program.events("began", json!({})) {
            let key = (
                began.value["queue"].to_string(),
                began.value["subject"].to_string(),
            );
            *attempts.entry(key.clone()).or_default() += 1;
            let scripts = began.value["payload"]["scripts"]
                .as_array()
                .map_or(1, Vec::len);
            wanted.insert(key, scripts as u64);
        }
    }
    let more = attempts
        .iter()
        .map(|(key, n)| n.saturating_sub(wanted[key]));
    usize::try_from(more.sum::<u64>()).expect("a number")
}

fn time(p: &Place) -> Duration {
    Duration::from_secs(p.world.seconds)
}

/// Connections are cut, frozen and delayed for less than a lease, so no lease need be lost.
async fn chaos_of_connections(p: Place) {
    prepare(&p).await;
    let proxy = p.proxy().await;
    let url = p.url_by(proxy.port);
    let mut programs = Vec::new();
    for _ in 0..2 {
        programs.push(workers(&p, &p.adapter, &url, "30 seconds").await);
    }
    let writes = programs[0].can("transactional");
    let mut ledger = Ledger { put: 0, killed: 0 };
    let mut dice = Dice(11);
    let end = Instant::now() + time(&p);
    while Instant::now() < end {
        put(&p, &mut ledger, writes).await;
        match dice.roll(8) {
            0 => proxy.now(Way::Cut),
            1 => {
                proxy.now(Way::Frozen);
                pause(dice.roll(1500)).await;
                proxy.now(Way::Through);
            }
            2 => {
                proxy.now(Way::Mute);
                pause(dice.roll(300)).await;
                proxy.now(Way::Cut);
            }
            3 => {
                proxy.all(Way::Cut);
                pause(dice.roll(1000)).await;
                proxy.later(Way::Through);
            }
            4 => proxy.delay(Duration::from_millis(dice.roll(100))),
            _ => proxy.cut_one(dice.roll(50) as usize),
        }
        pause(200).await;
    }
    proxy.delay(Duration::ZERO);
    proxy.all(Way::Through);
    balance(&p, &ledger).await;
    let lost = lost(&programs).await;
    let aborted = programs
        .iter()
        .map(|program| program.count("aborted", json!({"reason": "lost"})))
        .sum::<usize>();
    p.note(&format!(
        "{} documents, {lost} attempts more than asked for, {aborted} aborted as lost",
        ledger.put
    ));
    for program in &programs {
        assert_eq!(program.count("stopped", json!({})), 0);
        assert!(program.stop().await.value["error"].is_null());
    }
    // A transaction that breaks is no lost lease: only plain handlers count.
    let plain: usize = {
        let mut attempts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for program in &programs {
            for began in program.events("began", json!({"queue": format!("{}{PLAIN}", p.queue)})) {
                let scripts = began.value["payload"]["scripts"]
                    .as_array()
                    .map_or(1, Vec::len);
                let entry = attempts
                    .entry(began.value["subject"].to_string())
                    .or_default();
                *entry = (entry.0 + 1, scripts);
            }
        }
        attempts
            .values()
            .map(|(n, wanted)| n.saturating_sub(*wanted))
            .sum()
    };
    assert_eq!(
        plain, 0,
        "leases were lost though no outage was as long as one"
    );
}

/// Workers are killed, and so is the server, half-way.
async fn chaos_of_kills(p: Place) {
    let adapters = vec![p.adapter.clone(); 3];
    kills(p, adapters).await;
}

/// The same with a worker of each adapter; once, for the first one of the table.
async fn chaos_of_all_languages(p: Place) {
    let there: Vec<Definition> = p
        .world
        .adapters
        .iter()
        .filter(|one| one.program().exists())
        .cloned()
        .collect();
    if there[0].name == p.adapter.name && there.len() > 1 {
        kills(p, there).await;
    }
}

async fn kills(p: Place, adapters: Vec<Definition>) {
    let seconds = p.world.seconds;
    let host = Host::start(&p.queue, "max_connections = 150\nsynchronous_commit = on").await;
    let mut p = p.on(Arc::new(host)).await;
    prepare(&p).await;
    let proxy = Proxy::start(p.host.port).await;
    let url = p.url_by(proxy.port);
    let mut programs = Vec::new();
    for adapter in &adapters {
        programs.push(workers(&p, adapter, &url, "4 seconds").await);
    }
    let writes = programs.iter().all(|program| program.can("transactional"));
    let mut ledger = Ledger { put: 0, killed: 0 };
    let mut dice = Dice(5);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut was_restarted = false;
    let mut running: Vec<usize> = (0..adapters.len()).collect();
    while Instant::now() < end {
        put(&p, &mut ledger, writes).await;
        pause(300).await;
        proxy.cut_one(dice.roll(50) as usize);
        if dice.roll(8) == 0 {
            let victim = dice.roll(adapters.len() as u64) as usize;
            programs[running[victim]].kill();
            ledger.killed += 1;
            programs.push(workers(&p, &adapters[victim], &url, "4 seconds").await);
            running[victim] = programs.len() - 1;
        }
        if !was_restarted && Instant::now() + Duration::from_secs(seconds / 2) > end {
            was_restarted = true;
            p.host.cluster.stop("immediate");
            pause(1000).await;
            p.host.cluster.start();
            let host = p.host.clone();
            p = p.on(host).await;
        }
    }
    balance(&p, &ledger).await;
    let lost = lost(&programs).await;
    p.note(&format!(
        "{} documents, {} workers killed, {lost} attempts more than asked for",
        ledger.put, ledger.killed
    ));
    for worker in running {
        let stopped: Value = programs[worker].stop().await.value;
        assert!(stopped["error"].is_null(), "{stopped}");
    }
}
