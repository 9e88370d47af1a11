//! Workers settle, fail and are terminated: every document ends once, and redrives lose and double none.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fetchq_client_tests::{Database, Server, Session, counters_are_exact, in_snapshot};
use tokio::task::JoinSet;

use super::{finish, run_loop, until};

const WORKERS: u64 = 16;
const DOCUMENTS: u32 = 3_000;

/// A random number generator for each worker, so that runs differ only in timing.
struct Dice(u64);

impl Dice {
    fn new(number: u64) -> Self {
        Self(number * 7919 + 1)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Creates queue `q` with the dead-letter queue `dead`, a history, and `DOCUMENTS` documents.
async fn prepare(name: &str) -> Database {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session
        .sql(&format!(
            "select fetchq.queue_create('q'), fetchq.queue_create('dead');
             select fetchq.queue_configure('q', '{{\"dead_letter\": \"dead\", \"history\": {{\"completed\": \"1 day\", \"killed\": \"0\", \"dropped\": \"1 day\"}}}}');
             select fetchq.queue_set_max_attempts('q', 2);
             select fetchq.doc_push('q', 'd' || i, i % 2, i % 3, now(), jsonb_build_object('i', i))
             from generate_series(1, {DOCUMENTS}) i"
        ))
        .await;
    db
}

/// Counts the documents by place; each document must be in exactly one.
async fn places(session: &mut Session) -> HashMap<String, i64> {
    let tx = session
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .expect("begin");
    let rows = tx
        .query(
            "with places as (
                 select subject::text, 'queue' as place from fetchq_data.q__docs
                 union all select subject, outcome from fetchq.history where queue = 'q'
                 union all select origin ->> 'subject', 'dead' from fetchq_data.dead__docs)
             select place, count(*), (select count(distinct subject) from places) from places group by 1",
            &[],
        )
        .await
        .expect("places");
    tx.commit().await.expect("commit");
    let all: i64 = rows.iter().map(|row| row.get::<_, i64>(1)).sum();
    let distinct: i64 = rows.first().map_or(0, |row| row.get(2));
    let places = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(
        (all, distinct),
        (i64::from(DOCUMENTS), i64::from(DOCUMENTS)),
        "{places:?}"
    );
    places
}

/// Runs one transaction of a worker. An error means that the session was terminated.
async fn turn(
    session: &Session,
    dice: &mut Dice,
    dies: u64,
) -> Result<usize, tokio_postgres::Error> {
    let version = dice.roll(2) as i32;
    // Some lease durations are so short that the lease expires.
    let duration = if dice.roll(5) == 0 { "1 ms" } else { "1 hour" };
    let undo = dice.roll(6) == 0;
    session.batch_execute("begin").await?;
    let sql = format!("select subject, lease from fetchq.doc_pick('q', $1, $2, '{duration}')");
    let limit = 1 + dice.roll(8) as i32;
    let picked = session.query(&sql, &[&version, &limit]).await?;
    // After this commit, maintenance sees the lease.
    if duration != "1 hour" {
        session.batch_execute("commit; begin").await?;
    }
    for row in &picked {
        let (subject, lease): (&str, i64) = (row.get(0), row.get(1));
        let call = match dice.roll(10) {
            _ if duration != "1 hour" && dice.roll(2) == 0 => continue,
            0 => "fetchq.doc_drop('q', $1, lease => $2)",
            1 => "fetchq.doc_kill('q', $1, lease => $2)",
            n if n < dies => "fetchq.doc_reject('q', $1, 'why', '{}', lease => $2, delay => '0')",
            9 => "(select settled from fetchq.doc_complete_many('q', array[$1], lease => $2))::int",
            _ => "fetchq.doc_complete('q', $1, lease => $2)",
        };
        session.batch_execute("savepoint s").await?;
        let done = session
            .query_one(&format!("select {call}"), &[&subject, &lease])
            .await;
        if let Err(e) = done {
            // Maintenance has ended the short lease first.
            let state = e.code().map(|c| c.code().to_owned());
            if state.as_deref() == Some("55000") && duration != "1 hour" {
                session.batch_execute("rollback to s").await?;
                continue;
            }
            return Err(e);
        }
    }
    let end = if undo { "rollback" } else { "commit" };
    session.batch_execute(end).await?;
    Ok(picked.len())
}

/// Starts the workers, which end when `stop` is set. They reject a document when a die of ten faces,
/// counted from 0, shows 2 or more and less than `dies`.
fn start_workers(
    tasks: &mut JoinSet<()>,
    db: &Database,
    dies: u64,
    stop: &Arc<AtomicBool>,
    terminated: &Arc<AtomicU32>,
) {
    for number in 1..=WORKERS {
        let (stop, terminated) = (stop.clone(), terminated.clone());
        tasks.spawn(work(db.clone(), number, dies, stop, terminated));
    }
}

/// Works until `stop` is set. A session that was terminated is replaced by a new one.
async fn work(
    db: Database,
    number: u64,
    dies: u64,
    stop: Arc<AtomicBool>,
    terminated: Arc<AtomicU32>,
) {
    let mut dice = Dice::new(number);
    let mut session = None;
    while !stop.load(Ordering::Relaxed) {
        let current = match session.take() {
            Some(session) => session,
            None => {
                let new = db.connect().await;
                let direct = if number.is_multiple_of(3) {
                    "off"
                } else {
                    "on"
                };
                let set = format!("set fetchq.direct = {direct}; set application_name = 'worker'");
                if new.batch_execute(&set).await.is_err() {
                    continue;
                }
                new
            }
        };
        match turn(&current, &mut dice, dies).await {
            Ok(0) => tokio::time::sleep(Duration::from_millis(2)).await,
            Ok(_) => {}
            Err(e) => {
                let state = e.code().map(|c| c.code().to_owned());
                assert!(
                    state.as_deref() == Some("57P01") || e.is_closed() || state.is_none(),
                    "{e:?}"
                );
                terminated.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        }
        session = Some(current);
    }
}

/// Terminates a worker's session now and then.
async fn terminate(db: Database, stop: Arc<AtomicBool>) {
    let session = db.connect().await;
    while !stop.load(Ordering::Relaxed) {
        session
            .sql(
                "select pg_terminate_backend(pid) from pg_stat_activity
                 where application_name = 'worker' and datname = current_database() order by random() limit 1",
            )
            .await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_document_ends_once_in_the_history_or_the_dead_letter_queue() {
    let db = prepare("dead_letters").await;
    let mut session = db.connect().await;
    let stop = Arc::new(AtomicBool::new(false));
    let terminated = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    start_workers(&mut tasks, &db, 6, &stop, &terminated);
    tasks.spawn(run_loop(
        db.clone(),
        &["fetchq.mnt_run('q', 100)", "fetchq.metric_log_pack()"],
        stop.clone(),
    ));
    tasks.spawn(run_loop(
        db.clone(),
        &["fetchq.mnt_run('q', 7)"],
        stop.clone(),
    ));
    tasks.spawn(terminate(db.clone(), stop.clone()));
    let mut watcher = db.connect().await;
    until(&mut tasks, "the queue is empty", async || {
        counters_are_exact(&mut watcher, "q").await;
        counters_are_exact(&mut watcher, "dead").await;
        !places(&mut watcher).await.contains_key("queue")
    })
    .await;
    finish(&mut tasks, &stop).await;

    let places = places(&mut session).await;
    assert!(
        ["completed", "dropped", "dead"]
            .iter()
            .all(|place| places.get(*place).is_some_and(|n| *n > 0)),
        "{places:?}"
    );
    assert!(terminated.load(Ordering::Relaxed) > 0);
    let q = in_snapshot(&mut session, "q").await;
    let dead = in_snapshot(&mut session, "dead").await;
    let n = i64::from(DOCUMENTS);
    assert_eq!([q["ent"], q["drp"], q["cnt"]], [n, n, 0], "{q:?}");
    assert_eq!(
        [q["ded"], dead["ent"]],
        [places["dead"]; 2],
        "{q:?} {dead:?}"
    );
    // Each dead letter keeps its origin and its number of attempts.
    let odd = session
        .text("select count(*) from fetchq_data.dead__docs where origin ->> 'queue' <> 'q' or (origin ->> 'attempts')::int not in (1, 2) or subject <> origin ->> 'subject'")
        .await;
    assert_eq!(odd, "0");
    db.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redrives_while_workers_fail() {
    let db = prepare("redrives").await;
    let mut session = db.connect().await;
    let stop = Arc::new(AtomicBool::new(false));
    let terminated = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    start_workers(&mut tasks, &db, 7, &stop, &terminated);
    for calls in [
        &["fetchq.queue_redrive('q', 50)", "fetchq.mnt_run('q', 100)"][..],
        &["fetchq.queue_redrive('q', 7)"][..],
        &[
            "fetchq.queue_redrive('dead', 30)",
            "fetchq.metric_log_pack()",
        ][..],
        &["fetchq.queue_redrive('dead', 20, '{\"version\": 1}')"][..],
    ] {
        tasks.spawn(run_loop(db.clone(), calls, stop.clone()));
    }
    tasks.spawn(terminate(db.clone(), stop.clone()));
    let mut watcher = db.connect().await;
    until(&mut tasks, "all documents are done", async || {
        counters_are_exact(&mut watcher, "q").await;
        counters_are_exact(&mut watcher, "dead").await;
        let places = places(&mut watcher).await;
        !places.contains_key("queue") && !places.contains_key("dead")
    })
    .await;
    finish(&mut tasks, &stop).await;
    places(&mut session).await;
    let q = in_snapshot(&mut session, "q").await;
    let dead = in_snapshot(&mut session, "dead").await;
    assert!(q["ded"] > 0, "{q:?}");
    assert_eq!(
        q["ent"],
        i64::from(DOCUMENTS) + dead["drp"],
        "{q:?} {dead:?}"
    );
    assert_eq!([q["cnt"], dead["cnt"], dead["ent"] - dead["drp"]], [0; 3]);
    // The history has every document once; counters alone would not show a duplicate.
    let done = session
        .text("select count(*) filter (where payload ->> 'i' = substr(subject, 2)) from fetchq.history")
        .await;
    assert_eq!(done, DOCUMENTS.to_string());
    db.remove().await;
}
