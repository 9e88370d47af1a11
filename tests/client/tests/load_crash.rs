//! Processes are killed while eight workers push, pick and settle.
//! No acknowledged change is lost, no document has two leases, the counters are exact, and the
//! ready floors recover after the shared memory was lost.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fetchq_client_tests::{Cluster, Session, counters_are_exact, wait_until};

const WORKERS: usize = 8;
/// The number of documents that are settled between two crashes.
const WORK: usize = 400;

/// What the workers know about a document.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// A push was requested; its answer is pending.
    Pushing,
    /// The document can be picked. A pick may have committed without an answer.
    Queued,
    /// A worker received the document.
    Held,
    /// Settling was requested; its answer is pending.
    Completing,
    Dropping,
    Completed,
    Dropped,
}

#[derive(Default)]
struct Ledger {
    states: Mutex<BTreeMap<String, State>>,
    settled: Mutex<usize>,
}

impl Ledger {
    fn set(&self, subject: &str, state: State) {
        self.states
            .lock()
            .unwrap()
            .insert(subject.to_owned(), state);
    }

    /// Records the answer to a push, unless a worker has picked the document already.
    fn pushed(&self, subject: &str) {
        let mut states = self.states.lock().unwrap();
        if states.get(subject) == Some(&State::Pushing) {
            states.insert(subject.to_owned(), State::Queued);
        }
    }

    fn picked(&self, subject: &str) {
        let before = self
            .states
            .lock()
            .unwrap()
            .insert(subject.to_owned(), State::Held);
        assert!(
            matches!(before, Some(State::Pushing | State::Queued)),
            "{subject} was leased while it was {before:?}"
        );
    }

    fn settled(&self) -> usize {
        *self.settled.lock().unwrap()
    }

    /// Compares the ledger with the documents, and continues with the state of the documents.
    /// `keeps_leases`: the commit of a lease has waited for the disk. Otherwise the crash may have
    /// lost it, and the document is pending again.
    async fn compare(&self, session: &Session, keeps_leases: bool) {
        let rows = session
            .rows("select subject, status from fetchq_data.q__docs")
            .await;
        let there: BTreeMap<&str, i32> = rows
            .iter()
            .map(|row| {
                let (subject, status) = row.split_once('|').expect("two columns");
                (subject, status.parse().expect("a status"))
            })
            .collect();
        let mut states = self.states.lock().unwrap();
        for (subject, state) in states.iter_mut() {
            let status = there.get(subject.as_str()).copied();
            let is_lost = !keeps_leases && status == Some(1);
            let right = match state {
                State::Pushing => matches!(status, None | Some(1 | 2)),
                State::Queued => matches!(status, Some(1 | 2)),
                State::Held => status == Some(2) || is_lost,
                State::Completing => matches!(status, Some(2 | 3)) || is_lost,
                State::Dropping => matches!(status, None | Some(2)) || is_lost,
                State::Completed => status == Some(3),
                State::Dropped => status.is_none(),
            };
            assert!(right, "{subject} is {state:?}, and has status {status:?}");
            *state = match status {
                // Its prepared transaction is undecided, or was rolled back.
                None if *state == State::Pushing => State::Pushing,
                None => State::Dropped,
                Some(3) => State::Completed,
                // The lease of a worker that is gone ends later.
                _ => State::Queued,
            };
        }
        for subject in there.keys() {
            assert!(states.contains_key(*subject), "{subject} was never pushed");
        }
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Works until the server is gone.
async fn work(
    session: Session,
    name: String,
    ledger: Arc<Ledger>,
) -> Result<(), tokio_postgres::Error> {
    let mut dice = Dice(name.bytes().fold(1469, |h, b| h * 31 + u64::from(b)));
    for turn in 0.. {
        for i in 0..dice.roll(4) {
            let subject = format!("{name}-{turn}-{i}");
            let priority = dice.roll(3) as i32;
            ledger.set(&subject, State::Pushing);
            // Some documents are written with plain SQL, some with one timestamp for many.
            let sql = match dice.roll(4) {
                0 => {
                    "insert into fetchq_data.q__docs (subject, priority, status) values ($1, $2, 1)"
                }
                1 => "select fetchq.doc_push('q', $1, 0, $2, '2020-01-01', '{}')",
                _ => "select fetchq.doc_push('q', $1, 0, $2, now(), '{}')",
            };
            session.execute(sql, &[&subject, &priority]).await?;
            ledger.pushed(&subject);
        }
        let limit = 1 + dice.roll(3) as i32;
        let picked = session
            .query(
                "select subject from fetchq.doc_pick('q', 0, $1, '1 hour')",
                &[&limit],
            )
            .await?;
        let picked: Vec<String> = picked.iter().map(|row| row.get(0)).collect();
        for subject in &picked {
            ledger.picked(subject);
        }
        for subject in &picked {
            let (call, asked, done) = match dice.roll(10) {
                0 => continue, // The lease stays.
                1 | 2 => (
                    "doc_reschedule('q', $1, now())",
                    State::Queued,
                    State::Queued,
                ),
                3..6 => ("doc_drop('q', $1)", State::Dropping, State::Dropped),
                _ => ("doc_complete('q', $1)", State::Completing, State::Completed),
            };
            // A rescheduled document may be picked before this worker receives its answer.
            ledger.set(subject, asked);
            let row = session
                .query_one(&format!("select fetchq.{call}"), &[subject])
                .await?;
            assert_eq!(row.get::<_, i32>(0), 1, "{call} did not settle {subject}");
            if done != State::Queued {
                ledger.set(subject, done);
            }
            *ledger.settled.lock().unwrap() += 1;
        }
    }
    Ok(())
}

/// Runs maintenance and checks the floors until the server is gone.
async fn maintain(session: Session) -> Result<(), tokio_postgres::Error> {
    loop {
        session
            .query("select * from fetchq.mnt_run_all(100)", &[])
            .await?;
        session
            .query("select fetchq.metric_log_pack()", &[])
            .await?;
        if let Some(misses) = floor_misses(&session).await? {
            assert_eq!(misses, 0, "floor_misses");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const STATS: &str = "select floor_misses, advances from fetchq.ready_stats() where slots > 0";

async fn floor_misses(session: &Session) -> Result<Option<i64>, tokio_postgres::Error> {
    let exists = session
        .query_one("select to_regproc('fetchq.ready_stats') is not null", &[])
        .await?;
    if !exists.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = session.query_opt(STATS, &[]).await?;
    Ok(row.map(|row| row.get(0)))
}

#[derive(Clone, Copy, Debug)]
enum Crash {
    /// SIGKILL of one backend: the postmaster ends the others and restarts.
    Backend,
    /// SIGKILL of the postmaster and of all its backends.
    Everything,
    Immediate,
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_under_load() {
    let settings = "synchronous_commit = on\nfsync = on\nlog_min_messages = fatal\nmax_prepared_transactions = 5";
    let cluster = Cluster::new("load", settings);
    cluster.start();
    let server = cluster.server();
    let setup = server.connect("postgres").await;
    setup
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    drop(setup);
    let ledger = Arc::new(Ledger::default());

    let crashes = [
        Crash::Backend,
        Crash::Everything,
        Crash::Backend,
        Crash::Immediate,
    ];
    for (round, crash) in crashes.iter().enumerate() {
        let (session, holder) = tokio::join!(
            server.connect_when_up("postgres"),
            server.connect_when_up("postgres")
        );
        // In every second round an open snapshot prevents VACUUM from removing dead rows.
        if round % 2 == 1 {
            holder
                .sql("begin isolation level repeatable read; select count(*) from fetchq.queues")
                .await;
        }
        let keeps_leases = round >= crashes.len() / 2;
        let mut tasks = tokio::task::JoinSet::new();
        let mut pids = Vec::new();
        for number in 0..WORKERS {
            let worker = server.connect("postgres").await;
            worker
                .sql(&format!("set fetchq.synchronous_leases = {keeps_leases}"))
                .await;
            pids.push(worker.text("select pg_backend_pid()").await);
            tasks.spawn(work(worker, format!("{round}-{number}"), ledger.clone()));
        }
        tasks.spawn(maintain(server.connect("postgres").await));
        let enough = ledger.settled() + WORK;
        let half = ledger.settled() + WORK / 2;
        let failed = AtomicBool::new(false);
        let reach = async |n: usize| {
            wait_until("enough documents are settled", async || {
                ledger.settled() >= n || failed.load(Ordering::Relaxed)
            })
            .await;
        };
        reach(half).await;
        // A prepared transaction that survives the crash: first undecided, then committed or not.
        let old = session.column("select gid from pg_prepared_xacts").await;
        for gid in old {
            let end = if round % 2 == 0 { "commit" } else { "rollback" };
            session.sql(&format!("{end} prepared '{gid}'")).await;
        }
        let subject = format!("prepared-{round}");
        ledger.set(&subject, State::Pushing);
        session
            .sql(&format!(
                "begin; select fetchq.doc_push('q', '{subject}', 0, {}, '2020-01-01', '{{}}');
                 select fetchq.doc_pick('q', 0, 1, '1 hour'); prepare transaction '{subject}'",
                round % 3
            ))
            .await;
        reach(enough).await;

        let postmaster = cluster.pid().expect("the server runs");
        match crash {
            Crash::Backend => cluster.kill(pids[round].parse().unwrap()),
            Crash::Everything => {
                let all = session
                    .column("select pid from pg_stat_activity where pid <> pg_backend_pid()")
                    .await;
                cluster.kill(postmaster);
                for pid in all {
                    cluster.kill_if_there(pid.parse().unwrap());
                }
            }
            Crash::Immediate => cluster.stop("immediate"),
        }
        while let Some(ended) = tasks.join_next().await {
            ended
                .expect("a worker failed")
                .expect_err("the server is gone");
        }
        drop((session, holder));
        match crash {
            Crash::Backend => {}
            Crash::Everything => {
                wait_until("its processes have ended", async || !cluster.is_running()).await;
                cluster.clear_locks();
                cluster.start();
            }
            Crash::Immediate => cluster.start(),
        }

        let mut session = server.connect_when_up("postgres").await;
        ledger.compare(&session, keeps_leases).await;
        // Plain SQL has written to the queue, so it is recounted before the comparison.
        session.sql("select * from fetchq.mnt()").await;
        counters_are_exact(&mut session, "q").await;
        // The leases of ended sessions end.
        end_leases(&session).await;
        engine_is_back(&session).await;
    }

    let mut session = server.connect_when_up("postgres").await;
    for gid in session.column("select gid from pg_prepared_xacts").await {
        session.sql(&format!("commit prepared '{gid}'")).await;
    }
    end_leases(&session).await;
    ledger.compare(&session, true).await;
    let mut left: HashSet<String> = ledger
        .states
        .lock()
        .unwrap()
        .iter()
        .filter(|(_, state)| **state == State::Queued)
        .map(|(subject, _)| subject.clone())
        .collect();
    assert!(left.len() > 10, "only {} documents are left", left.len());
    loop {
        let picked = session
            .column("select subject from fetchq.doc_pick('q', 0, 10, '1 hour')")
            .await;
        if picked.is_empty() {
            break;
        }
        for subject in picked {
            assert!(
                left.remove(&subject),
                "{subject} was picked, but was not left"
            );
        }
    }
    assert!(left.is_empty(), "never picked: {left:?}");
    assert_eq!(floor_misses(&session).await.unwrap().unwrap_or(0), 0);
    session.sql("select * from fetchq.mnt()").await;
    counters_are_exact(&mut session, "q").await;
}

/// Ends the leases of all documents, except those that an undecided transaction has locked.
/// A pick may also have locked a document that another pick has leased first.
async fn end_leases(session: &Session) {
    session
        .sql(
            "update fetchq_data.q__docs set next_iteration = now() - interval '1 minute'
             where subject in (select subject from fetchq_data.q__docs where status = 2 for update skip locked);
             select * from fetchq.mnt_run_all(100000)",
        )
        .await;
}

/// Checks that floors advance again after the shared memory was lost.
async fn engine_is_back(session: &Session) {
    if floor_misses(session).await.unwrap().is_none() {
        return;
    }
    let advances = async || -> i64 {
        let row = session.query_one(STATS, &[]).await.expect("ready_stats");
        row.get(1)
    };
    let before = advances().await;
    for _ in 0..100 {
        session
            .sql("select fetchq.doc_push('q', 'floor', 0, 7, '2020-01-01', '{}')")
            .await;
        session
            .sql("select fetchq.doc_drop('q', subject) from fetchq.doc_pick('q', 0, 1, '1 hour')")
            .await;
    }
    assert!(advances().await > before, "no floor was advanced");
    let floors = session
        .column("select level from fetchq.ready_floors('q') where index = 'pick' and isfinite(next_iteration)")
        .await;
    assert!(!floors.is_empty(), "all floors are at the start");
}
