//! Ordering keys.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{Database, Server, counters_are_exact, wait_until};
use tokio::task::JoinSet;

use super::{Dice, is_terminated, maintains};

/// The ordering keys that run, and the number of each key's next document.
#[derive(Default)]
struct Lines {
    running: HashSet<String>,
    next: BTreeMap<String, u32>,
    done: usize,
}

const KEYS: u32 = 12;
const OF_A_KEY: u32 = 40;

/// Pushes documents; each key has one pusher, so that its documents have an order.
async fn pushes_keyed(db: Database, pusher: u64, pushers: u64) {
    let mut dice = Dice::of(pusher + 100);
    let session = db.connect().await;
    for n in 0..OF_A_KEY {
        for key in (pusher as u32..KEYS).step_by(pushers as usize) {
            let status = u64::from(dice.roll(5) > 0);
            let sql = format!(
                "insert into fetchq_data.q__docs (subject, status, ordering_key, payload)
                 values ('{key}-{n}', {status}, 'k{key}', '{{}}')"
            );
            if dice.roll(4) == 0 {
                session.sql(&format!("begin; {sql}; rollback")).await;
            }
            session.sql(&sql).await;
            if status == 0 {
                // A planned document has no place in the order yet.
                // The next one must be pushed after it is pending.
                let is_planned = format!(
                    "select count(*) from fetchq_data.q__docs where subject = '{key}-{n}' and status = 0"
                );
                while session.text(&is_planned).await != "0" {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

async fn works_in_order(db: Database, lines: Arc<Mutex<Lines>>, worker: u64) {
    let mut dice = Dice::of(worker);
    let mut session = db.connect().await;
    let all = (KEYS * OF_A_KEY) as usize;
    while lines.lock().unwrap().done < all {
        let abandons = dice.roll(12) == 0;
        let lease = if abandons { "50 ms" } else { "1 hour" };
        let limit = 1 + dice.roll(3);
        session.sql("begin").await;
        let pick = format!("select subject from fetchq.doc_pick('q', 0, {limit}, '{lease}')");
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
        for subject in &subjects {
            let (key, n) = subject.split_once('-').unwrap();
            let mut lines = lines.lock().unwrap();
            assert!(
                !lines.running.contains(key),
                "two documents of key {key} run: {subject}"
            );
            let next = *lines.next.entry(key.to_owned()).or_default();
            assert_eq!(n.parse::<u32>().unwrap(), next, "key {key} is out of order");
            if !abandons {
                lines.running.insert(key.to_owned());
            }
        }
        if abandons {
            continue;
        }
        for subject in subjects {
            let (key, _) = subject.split_once('-').unwrap();
            if dice.roll(6) == 0 {
                session
                    .sql(&format!(
                        "begin; select fetchq.doc_complete('q', '{subject}'); rollback"
                    ))
                    .await;
            }
            let is_rejected = dice.roll(6) == 0;
            let settle = match dice.roll(4) {
                _ if is_rejected => "doc_reject('q', $1, 'why', '{}')",
                0 => "doc_drop('q', $1)",
                1 => "doc_kill('q', $1)",
                2 => "doc_complete_many('q', array[$1])",
                _ => "doc_complete('q', $1)",
            };
            {
                let mut lines = lines.lock().unwrap();
                lines.running.remove(key);
                if !is_rejected {
                    *lines.next.get_mut(key).unwrap() += 1;
                    lines.done += 1;
                }
            }
            let settle = settle.replace("$1", &format!("'{subject}'"));
            session.sql(&format!("select * from fetchq.{settle}")).await;
            if is_rejected {
                session
                    .sql(&format!("update fetchq_data.q__docs set next_iteration = now() where subject = '{subject}' and status = 1"))
                    .await;
            }
        }
    }
}

#[tokio::test]
async fn documents_of_a_key_run_one_at_a_time_and_in_order() {
    let db = Server::of_suite().database("flow_order").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_configure('q', '{\"ordered\": true}'); select fetchq.queue_set_max_attempts('q', 1000000)")
        .await;
    let lines = Arc::<Mutex<Lines>>::default();
    let is_done = Arc::<AtomicBool>::default();
    let mut workers = JoinSet::new();
    for worker in 1..=12 {
        workers.spawn(works_in_order(db.clone(), lines.clone(), worker));
    }
    for pusher in 0..4 {
        workers.spawn(pushes_keyed(db.clone(), pusher, 4));
    }
    let maintenance = tokio::spawn(maintains(db.clone(), is_done.clone()));
    // The queue becomes empty, so no document is stuck. Meanwhile no key has two documents that can
    // be picked or run, and no key has only blocked documents.
    let mut last = (0, std::time::Instant::now());
    while !workers.is_empty() {
        while let Some(ended) = workers.try_join_next() {
            ended.unwrap();
        }
        let wrong = session
            .rows(
                "select ordering_key, count(*) filter (where lock_upgrade is null) as open, count(*)
                 from fetchq_data.q__docs where status in (1, 2) group by 1
                 having count(*) filter (where lock_upgrade is null) <> 1",
            )
            .await;
        assert!(wrong.is_empty(), "{wrong:?}");
        let done = lines.lock().unwrap().done;
        if done > last.0 {
            last = (done, std::time::Instant::now());
        }
        assert!(
            last.1.elapsed() < Duration::from_secs(60),
            "stuck after {done} documents"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    is_done.store(true, Ordering::SeqCst);
    maintenance.await.unwrap();
    for what in [
        "select count(*) from fetchq_data.q__docs where status in (0, 1, 2)",
        "select count(*) from fetchq.ordering_keys",
    ] {
        assert_eq!(session.text(what).await, "0", "{what}");
    }
    db.remove().await;
}

#[tokio::test]
async fn documents_that_were_active_when_the_order_was_switched_on_wait_when_they_are_retried() {
    let db = Server::of_suite().database("flow_order_retried").await;
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
                 select fetchq.doc_lease('{q}', 3, '1 hour');
                 select fetchq.queue_configure('{q}', '{{\"ordered\": true}}');
                 select fetchq.doc_put('{q}', 'b', ordering_key => 'k')"
            ))
            .await;
        session.sql(&retry.replace("{q}", &q)).await;
        let lease = format!("select subject from fetchq.doc_lease('{q}', 9, '1 hour')");
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
