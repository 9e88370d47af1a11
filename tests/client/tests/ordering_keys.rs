//! Queues in which one document of an ordering key, or a number of them, run at a time: workers that
//! roll back, reject, abandon leases, settle lists, and are terminated. No key ever has more active
//! documents than places, none is started before its turn, and in the end no document is left. The
//! ledgers are outside of the database.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fetchq_client_tests::{Cluster, Database, Server, Session, counters_are_exact, wait_until};
use tokio::task::JoinSet;

use crate::flow::{Dice, is_terminated, maintains};

/// A queue, and the documents that are pushed into it.
#[derive(Clone, Copy)]
struct Order {
    settings: &'static str,
    /// How many documents of a key can run.
    places: usize,
    /// A document that is retried keeps the others of its key waiting.
    keeps_place_on_retry: bool,
    /// The documents are pushed by plain SQL, which the counters do not see.
    is_plain_sql: bool,
    keys: u32,
    of_a_key: u32,
}

const ORDERED: Order = Order {
    settings: r#"{"ordered": true, "max_attempts": 1000000}"#,
    places: 1,
    keeps_place_on_retry: true,
    is_plain_sql: true,
    keys: 12,
    of_a_key: 40,
};

const PLACES: Order = Order {
    settings: r#"{"max_active_per_key": 3, "max_attempts": 1000000}"#,
    places: 3,
    keeps_place_on_retry: false,
    is_plain_sql: false,
    keys: 5,
    of_a_key: 80,
};

const PUSHERS: u32 = 5;

/// What is known of the documents of a key, which are numbered in the order in which they became
/// ready.
#[derive(Default)]
struct Line {
    /// Those that certainly run: added after the pick has committed, removed before the document is
    /// settled.
    running: HashSet<u32>,
    done: BTreeSet<u32>,
    /// Those that became ready again, and have another turn.
    retried: HashSet<u32>,
}

struct Lines {
    order: Order,
    of_key: BTreeMap<String, Line>,
    done: usize,
}

/// Pushes documents; each key has one pusher, so that its documents have an order.
async fn pushes(db: Database, order: Order, pusher: u32) {
    let mut dice = Dice::of(u64::from(pusher) + 100);
    let session = db.connect().await;
    for n in 0..order.of_a_key {
        for key in (pusher..order.keys).step_by(PUSHERS as usize) {
            let is_planned = dice.roll(6) == 0;
            let put = if order.is_plain_sql {
                format!(
                    "insert into fetchq_data.q__docs (subject, status, ordering_key, payload)
                     values ('{key}-{n}', {}, 'k{key}', '{{}}')",
                    u32::from(!is_planned)
                )
            } else {
                let delay = if is_planned { ", delay => '20 ms'" } else { "" };
                format!("select fetchq.doc_put('q', '{key}-{n}', ordering_key => 'k{key}'{delay})")
            };
            if dice.roll(4) == 0 {
                session.sql(&format!("begin; {put}; rollback")).await;
            }
            session.sql(&put).await;
            // A planned document has no turn yet. The next one must be pushed after it has.
            let planned = format!(
                "select count(*) from fetchq_data.q__docs where subject = '{key}-{n}' and status = 0"
            );
            while is_planned && session.text(&planned).await != "0" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

fn split(subject: &str) -> (String, u32) {
    let (key, n) = subject.split_once('-').unwrap();
    (key.to_owned(), n.parse().unwrap())
}

impl Lines {
    /// A pick has committed.
    fn picked(&mut self, subjects: &[String], is_abandoned: bool) {
        let Order {
            places,
            keeps_place_on_retry,
            ..
        } = self.order;
        for subject in subjects {
            let (key, n) = split(subject);
            let line = self.of_key.entry(key).or_default();
            let has_new_turn = |m: &u32| !keeps_place_on_retry && line.retried.contains(m);
            let before = (0..n)
                .filter(|m| !line.done.contains(m) && !has_new_turn(m))
                .count();
            assert!(
                has_new_turn(&n) || before < places,
                "{subject} was started before its turn: {before} before it are not done"
            );
            if is_abandoned {
                line.retried.insert(n);
            } else {
                assert!(line.running.insert(n), "{subject} has two leases");
                let running = &line.running;
                assert!(running.len() <= places, "{running:?} of {subject} run");
            }
        }
    }

    /// A document is about to be settled.
    fn ends(&mut self, subject: &str, is_retried: bool) {
        let (key, n) = split(subject);
        let line = self.of_key.entry(key).or_default();
        line.running.remove(&n);
        if is_retried {
            line.retried.insert(n);
        } else {
            assert!(line.done.insert(n), "{subject} is done twice");
            self.done += 1;
        }
    }
}

async fn settles_a_list(session: &Session, lines: &Mutex<Lines>, dice: &mut Dice, all: &[String]) {
    let mut settlements = Vec::new();
    for subject in all {
        let action = match dice.roll(5) {
            0 => r#""action": "reject", "message": "why", "delay": "10 ms""#,
            1 => r#""action": "snooze", "delay": "5 ms""#,
            2 => r#""action": "drop""#,
            _ => r#""action": "complete""#,
        };
        let is_retried = action.contains("delay");
        lines.lock().unwrap().ends(subject, is_retried);
        settlements.push(format!(r#"{{"subject": "{subject}", {action}}}"#));
    }
    let list = settlements.join(", ");
    session
        .sql(&format!("select fetchq.docs_settle('q', '[{list}]')"))
        .await;
}

async fn settles_each(session: &Session, lines: &Mutex<Lines>, dice: &mut Dice, all: &[String]) {
    for subject in all {
        let mut retry_now = String::new();
        if dice.roll(6) == 0 {
            session
                .sql(&format!(
                    "begin; select fetchq.doc_complete('q', '{subject}'); rollback"
                ))
                .await;
        }
        let settle = match dice.roll(9) {
            0 => format!("doc_reject('q', '{subject}', 'why', '{{}}', delay => '10 ms')"),
            1 => format!("doc_reject('q', '{subject}', 'why', '{{}}', delay => '0 s')"),
            2 => {
                // Without a delay it waits until its lease would have ended.
                retry_now = format!(
                    "update fetchq_data.q__docs set next_iteration = now() where subject = '{subject}' and status in (0, 1)"
                );
                format!("doc_reject('q', '{subject}', 'why', '{{}}')")
            }
            3 => format!("doc_drop('q', '{subject}')"),
            4 => format!("doc_kill('q', '{subject}')"),
            5 => format!("doc_complete_many('q', array['{subject}'])"),
            _ => format!("doc_complete('q', '{subject}')"),
        };
        let is_retried = settle.contains("reject");
        lines.lock().unwrap().ends(subject, is_retried);
        session
            .sql(&format!("select * from fetchq.{settle}; {retry_now}"))
            .await;
    }
}

async fn works(db: Database, order: Order, lines: Arc<Mutex<Lines>>, worker: u64) {
    let mut dice = Dice::of(worker);
    let mut session = db.connect().await;
    let all = (order.keys * order.of_a_key) as usize;
    while lines.lock().unwrap().done < all {
        // Abandoned leases expire soon. Their documents are not known to run.
        let is_abandoned = dice.roll(12) == 0;
        let lease = if is_abandoned { "50 ms" } else { "1 hour" };
        let limit = 1 + dice.roll(5);
        session.sql("begin").await;
        let pick = match dice.roll(2) {
            0 => format!("select subject from fetchq.doc_pick('q', 0, {limit}, '{lease}')"),
            _ => format!("select subject from fetchq.doc_pick('q', 0, {limit}, '{lease}')"),
        };
        let subjects = session.column(&pick).await;
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
        lines.lock().unwrap().picked(&subjects, is_abandoned);
        if is_abandoned {
            continue;
        }
        match dice.roll(2) {
            0 => settles_a_list(&session, &lines, &mut dice, &subjects).await,
            _ => settles_each(&session, &lines, &mut dice, &subjects).await,
        }
    }
}

/// Pushes and works until no document is left. Meanwhile no key has more documents that can run than
/// places, and none is blocked in vain.
async fn all_documents_run(name: &str, order: Order) {
    let db = Server::of_suite().database(name).await;
    let mut session = db.connect().await;
    session
        .sql(&format!(
            "select fetchq.queue_create('q', '{}')",
            order.settings
        ))
        .await;
    let lines = Arc::new(Mutex::new(Lines {
        order,
        of_key: BTreeMap::new(),
        done: 0,
    }));
    let is_done = Arc::<AtomicBool>::default();
    let mut workers = JoinSet::new();
    for worker in 1..=12 {
        workers.spawn(works(db.clone(), order, lines.clone(), worker));
    }
    for pusher in 0..PUSHERS {
        workers.spawn(pushes(db.clone(), order, pusher));
    }
    let maintenance = tokio::spawn(maintains(db.clone(), is_done.clone()));
    let mut highest = 0;
    let mut last = (0, Instant::now());
    while !workers.is_empty() {
        while let Some(ended) = workers.try_join_next() {
            ended.unwrap();
        }
        let wrong = session
            .rows(&format!(
                // A document that keeps its place until its retry is planned, and all others are blocked.
                "select ordering_key, count(*) filter (where lock_upgrade is null), count(*)
                 from fetchq_data.q__docs d where status in (1, 2) group by 1
                 having count(*) filter (where lock_upgrade is null) <> least(count(*), {})
                     and not ({} and count(*) filter (where lock_upgrade is null) = 0 and exists (
                         select from fetchq.ordering_keys k join fetchq_data.q__docs p on p.subject = any (k.unblocked)
                         where k.key = d.ordering_key and p.status = 0))",
                order.places, order.keeps_place_on_retry
            ))
            .await;
        assert!(wrong.is_empty(), "{wrong:?}");
        let active = "select coalesce(max(n), 0) from (
            select count(*) as n from fetchq_data.q__docs where status = 2 group by ordering_key) k";
        let active: usize = session.text(active).await.parse().unwrap();
        highest = highest.max(active);
        let done = lines.lock().unwrap().done;
        if done > last.0 {
            last = (done, Instant::now());
        }
        assert!(
            last.1.elapsed() < Duration::from_secs(60),
            "stuck after {done} documents"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(highest, order.places, "the places were never all in use");
    is_done.store(true, Ordering::SeqCst);
    maintenance.await.unwrap();
    for what in [
        "select count(*) from fetchq_data.q__docs where status in (0, 1, 2)",
        "select count(*) from fetchq.ordering_keys",
    ] {
        assert_eq!(session.text(what).await, "0", "{what}");
    }
    if !order.is_plain_sql {
        counters_are_exact(&mut session, "q").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn documents_of_a_key_run_one_at_a_time_and_in_order() {
    all_documents_run("keys_ordered", ORDERED).await;
}

#[tokio::test]
async fn no_more_documents_of_a_key_run_than_it_has_places() {
    all_documents_run("keys_places", PLACES).await;
}

/// The place of a worker that was killed goes to the next document when its lease ends, and not
/// before.
#[tokio::test]
async fn the_place_of_a_killed_worker_comes_back() {
    let cluster = Cluster::new("ordering_keys", "fsync = off\nlog_min_messages = panic");
    cluster.start();
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql(
            "create extension fetchq;
             select fetchq.queue_create('q', '{\"max_active_per_key\": 2}');
             select fetchq.doc_put('q', 'k' || i, ordering_key => 'k') from generate_series(1, 5) i",
        )
        .await;
    let lease = "select subject from fetchq.doc_pick('q', 0, 9, '1 hour')";
    let victim = server.connect("postgres").await;
    let held = victim
        .column("select subject from fetchq.doc_pick('q', 0, 1, '1 hour')")
        .await;
    assert_eq!(held, ["k1"]);
    // It dies while it settles its document, and does not finish.
    victim
        .sql("begin; select fetchq.doc_complete('q', 'k1')")
        .await;
    let pid = victim.text("select pg_backend_pid()").await;
    cluster.kill(pid.parse().unwrap());
    wait_until("the server has noticed", async || {
        session.batch_execute("select").await.is_err()
    })
    .await;
    let session = server.connect_when_up("postgres").await;
    assert_eq!(session.column(lease).await, ["k2"]);
    assert_eq!(session.column(lease).await, [""; 0]);
    // The lease ends.
    session
        .sql("update fetchq_data.q__docs set next_iteration = clock_timestamp() where subject = 'k1'")
        .await;
    wait_until("the lease is taken back", async || {
        session.sql("select fetchq.mnt_run('q', 9)").await;
        let status = "select status from fetchq_data.q__docs where subject = 'k1'";
        session.text(status).await == "1"
    })
    .await;
    // The documents that became ready before have their turn.
    let mut came = Vec::new();
    while let Some(subject) = session.column(lease).await.first() {
        assert_eq!(
            session
                .text("select count(*) from fetchq_data.q__docs where status = 2")
                .await,
            "2"
        );
        came.push(subject.clone());
        let oldest = "select fetchq.doc_complete('q', subject) from (
            select subject from fetchq_data.q__docs where status = 2 order by picked_at limit 1) d";
        session.sql(oldest).await;
    }
    assert_eq!(came, ["k3", "k4", "k5", "k1"]);
    cluster.stop("fast");
}

#[tokio::test]
async fn documents_that_were_active_when_the_order_was_switched_on_wait_when_they_are_retried() {
    let db = Server::of_suite().database("keys_retried").await;
    let mut session = db.connect().await;
    for (n, retry) in [
        "select fetchq.doc_reject('{q}', subject, 'why', delay => '0 s') from unnest('{a1,a2,a3}'::text[]) subject",
        "select fetchq.doc_reject('{q}', subject, 'why', delay => '1 ms') from unnest('{a3,a2,a1}'::text[]) subject",
        "select fetchq.doc_snooze('{q}', subject, now()) from unnest('{a2,a3,a1}'::text[]) subject",
        "select fetchq.docs_settle('{q}', '[{\"subject\": \"a2\", \"action\": \"reject\", \"message\": \"why\", \"delay\": \"0 s\"},
            {\"subject\": \"a1\", \"action\": \"snooze\", \"delay\": \"0 s\"}, {\"subject\": \"a3\", \"action\": \"reject\", \"message\": \"why\"}]')",
        "update fetchq_data.{q}__docs set next_iteration = now() where status = 2; select fetchq.mnt_run('{q}', 10)",
    ]
    .into_iter()
    .enumerate()
    {
        let q = format!("q{n}");
        session
            .sql(&format!(
                "select fetchq.queue_create('{q}', '{{\"retry\": {{\"base\": \"1 ms\"}}}}');
                 select fetchq.doc_put('{q}', 'a' || i, ordering_key => 'k') from generate_series(1, 4) i;
                 select fetchq.doc_pick('{q}', 0, 3, '1 hour');
                 select fetchq.queue_configure('{q}', '{{\"ordered\": true}}');
                 select fetchq.doc_put('{q}', 'b', ordering_key => 'k')"
            ))
            .await;
        session.sql(&retry.replace("{q}", &q)).await;
        let lease = format!("select subject from fetchq.doc_pick('{q}', 0, 9, '1 hour')");
        let mut done = Vec::new();
        wait_until("all have run, one at a time", async || {
            session
                .sql(&format!("select fetchq.mnt_run('{q}', 10)"))
                .await;
            let leased = session.column(&lease).await;
            assert!(leased.len() <= 1, "{retry}: {leased:?}");
            for subject in leased {
                session
                    .sql(&format!("select fetchq.doc_complete('{q}', '{subject}')"))
                    .await;
                done.push(subject);
            }
            done.len() == 5
        })
        .await;
        counters_are_exact(&mut session, &q).await;
        assert_eq!(
            session
                .text("select count(*) from fetchq.ordering_keys")
                .await,
            "0"
        );
    }
}
