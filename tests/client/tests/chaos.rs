//! Sixteen workers reject and crash, their sessions are terminated, and the server is stopped
//! with an immediate shutdown in the middle.
//! A ledger outside of the database records the answers that the workers received.
//! No document is lost, none has two live leases, no stale lease settles a document, each
//! document is settled once, and the counters are exact.
//!
//! In a second test an operator rewrites, reindexes and alters the tables all the time, and the
//! owner of another queue attaches a trigger that fails, or that takes long.
//!
//! FETCHQ_CHAOS_SECONDS sets the duration of each test; scripts/soak.sh uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fetchq_client_tests::{
    Cluster, Server, Session, counters_are_exact, state_of, wait_until, with_worker,
};
use tokio_postgres::Error;

const WORKERS: usize = 16;

fn seconds() -> u64 {
    std::env::var("FETCHQ_CHAOS_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(12)
}

/// What happens to a lease when its session ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Binding {
    Off,
    Return,
    Keep,
}

impl Binding {
    fn of(worker: usize) -> Self {
        [Self::Off, Self::Return, Self::Keep][worker % 3]
    }

    fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Return => "return",
            Self::Keep => "keep",
        }
    }
}

/// A lease that a worker received and has not given up.
#[derive(Clone, Debug)]
struct Hold {
    lease: i64,
    /// The time of the pick: microseconds, by the server's clock.
    at: i64,
    /// The time of expiry: microseconds, by the server's clock.
    until: i64,
    binding: Binding,
    /// The session that owns the lease; each session of each worker has its own number.
    life: usize,
}

#[derive(Default, Debug)]
struct Document {
    is_pushed: bool,
    hold: Option<Hold>,
    /// The newest lease that a worker received.
    newest: i64,
    /// The lease whose worker received the answer that the document is settled.
    settled_by: Option<i64>,
    is_cancelled: bool,
    /// The time of the cancellation: microseconds since 2000, by the server's clock.
    cancelled_at: i64,
    /// A cancellation was requested, and its answer may be lost.
    may_be_cancelled: bool,
}

#[derive(Default)]
struct Ledger {
    documents: Mutex<BTreeMap<String, Document>>,
    /// The lease numbers of all picks.
    leases: Mutex<BTreeSet<i64>>,
    /// Sessions that are about to be ended, or have ended.
    doomed: Mutex<BTreeSet<usize>>,
    lives: AtomicUsize,
    picks: AtomicUsize,
    refused: AtomicUsize,
    ended: AtomicBool,
}

impl Ledger {
    fn with<R>(&self, subject: &str, change: impl FnOnce(&mut Document) -> R) -> R {
        let mut documents = self.documents.lock().unwrap();
        change(documents.entry(subject.to_owned()).or_default())
    }

    fn is_doomed(&self, life: usize) -> bool {
        self.doomed.lock().unwrap().contains(&life)
    }

    fn doom(&self, life: usize) {
        self.doomed.lock().unwrap().insert(life);
    }

    /// Whether a lease was over when the next one was granted.
    fn was_over(&self, hold: &Hold, at: i64) -> bool {
        match hold.binding {
            Binding::Off => hold.until <= at,
            Binding::Return => hold.until <= at || self.is_doomed(hold.life),
            Binding::Keep => self.is_doomed(hold.life),
        }
    }

    /// Records a pick. The answer may arrive late, after other workers had the document.
    fn picked(&self, subject: &str, hold: Hold) {
        self.picks.fetch_add(1, Ordering::Relaxed);
        let mut documents = self.documents.lock().unwrap();
        let document = documents
            .get_mut(subject)
            .unwrap_or_else(|| panic!("{subject} was never pushed"));
        let is_late = document.settled_by.is_some_and(|by| by > hold.lease)
            || document.is_cancelled && hold.at < document.cancelled_at
            || document.hold.is_none() && document.newest > hold.lease;
        if is_late {
            return;
        }
        assert!(
            document.settled_by.is_none() && !document.is_cancelled,
            "{subject} was picked after it was settled or cancelled: {document:?}"
        );
        let (before, after) = match &document.hold {
            Some(other) if other.lease > hold.lease => (Some(&hold), other),
            other => (other.as_ref(), &hold),
        };
        if let Some(before) = before {
            assert!(
                self.was_over(before, after.at),
                "{subject} was picked as {after:?} while another lease was live: {before:?}"
            );
        }
        if after.lease == hold.lease {
            document.newest = hold.lease;
            document.hold = Some(hold);
        }
    }

    /// Records a request to settle the document or to give it up: others may pick it from now on.
    fn gives_back(&self, subject: &str, lease: i64) {
        self.with(subject, |document| {
            if document
                .hold
                .as_ref()
                .is_some_and(|hold| hold.lease == lease)
            {
                document.hold = None;
            }
        });
    }

    fn settled(&self, subject: &str, lease: i64) {
        self.with(subject, |document| {
            assert!(
                document.settled_by.is_none() && !document.is_cancelled,
                "{subject} was settled by {lease} after it was settled or cancelled: {document:?}"
            );
            assert!(
                document.hold.is_none(),
                "{subject} was settled by {lease} while another lease was live: {document:?}"
            );
            document.settled_by = Some(lease);
        });
    }
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

/// A worker. When its session ends, the worker opens a new one.
struct Worker {
    number: usize,
    binding: Binding,
    ledger: Arc<Ledger>,
    dice: Dice,
    /// The number of its session, and the sessions that can be terminated.
    life: usize,
    pids: Arc<Mutex<BTreeMap<i32, usize>>>,
    turn: usize,
}

impl Worker {
    async fn run(mut self, server: Server) {
        while !self.ledger.ended.load(Ordering::Relaxed) {
            let Ok(mut session) = server.try_connect("postgres").await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            self.life = self.ledger.lives.fetch_add(1, Ordering::Relaxed);
            let pid = self.work(&mut session).await;
            // For any cause of the end, its leases may be released.
            self.ledger.doom(self.life);
            if let Some(pid) = pid {
                self.pids.lock().unwrap().remove(&pid);
            }
        }
    }

    /// Works until something ends the session; returns its process ID.
    async fn work(&mut self, session: &mut Session) -> Option<i32> {
        let binding = self.binding.word();
        let name = self.number;
        let begin = format!(
            "set fetchq.worker = 'w{name}'; set fetchq.session_leases = '{binding}'; set fetchq.direct = {}",
            if name % 4 == 3 { "off" } else { "on" }
        );
        session.batch_execute(&begin).await.ok()?;
        let row = session
            .query_one("select pg_backend_pid()", &[])
            .await
            .ok()?;
        let pid: i32 = row.get(0);
        self.pids.lock().unwrap().insert(pid, self.life);
        while !self.ledger.ended.load(Ordering::Relaxed) {
            match self.turn(session).await {
                Ok(true) => {}
                // The worker crashes.
                Ok(false) => break,
                Err(e) => {
                    let state = state_of(&e);
                    // The session was terminated, or the server stops or is starting.
                    let is_expected = e.is_closed()
                        || state.starts_with("57P")
                        || state.starts_with("08")
                        || e.code().is_none();
                    assert!(is_expected, "worker {name}: {e:?}");
                    break;
                }
            }
        }
        Some(pid)
    }

    /// Pushes, picks, and settles what it picked. Returns false when it crashes.
    async fn turn(&mut self, session: &mut Session) -> Result<bool, Error> {
        self.turn += 1;
        for i in 0..self.dice.roll(3) {
            let subject = format!("{}-{}-{i}", self.number, self.turn);
            // It is recorded first, because another worker may pick it before the answer arrives.
            self.ledger.with(&subject, |_| ());
            let delay = self.dice.roll(3) as f64 * 0.1;
            session
                .query_one(
                    "select fetchq.doc_push('q', $1, 0, 0, now() + make_interval(secs => $2), '{}')",
                    &[&subject, &delay],
                )
                .await?;
            self.ledger
                .with(&subject, |document| document.is_pushed = true);
        }
        let duration = match self.binding {
            Binding::Off => "1.5 s",
            Binding::Return | Binding::Keep => "1 hour",
        };
        let limit = 1 + self.dice.roll(3) as i32;
        let picked = session
            .query(
                &format!(
                    "select subject, lease, (extract(epoch from next_iteration) * 1000000)::int8,
                         (extract(epoch from now()) * 1000000)::int8
                     from fetchq.doc_pick('q', 0, $1, interval '{duration}')"
                ),
                &[&limit],
            )
            .await?;
        let mut held: Vec<(String, i64)> = Vec::new();
        for row in &picked {
            let (subject, lease): (String, i64) = (row.get(0), row.get(1));
            let hold = Hold {
                lease,
                at: row.get(3),
                until: row.get(2),
                binding: self.binding,
                life: self.life,
            };
            self.ledger.picked(&subject, hold);
            held.push((subject, lease));
        }
        if let Some((_, lease)) = held.first() {
            assert!(held.iter().all(|(_, other)| other == lease));
            assert!(
                self.ledger.leases.lock().unwrap().insert(*lease),
                "lease {lease} was granted twice"
            );
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (subject, lease) in held {
            if self.dice.roll(100) < 5 {
                return Ok(false);
            }
            if self.dice.roll(20) == 0 && self.binding == Binding::Off {
                // The worker hangs for longer than its lease duration.
                tokio::time::sleep(Duration::from_millis(1700)).await;
            }
            if self.dice.roll(10) == 0 {
                self.extend(session, &subject, lease).await?;
            }
            self.settle(session, &subject, lease).await?;
        }
        Ok(true)
    }

    async fn extend(
        &mut self,
        session: &mut Session,
        subject: &str,
        lease: i64,
    ) -> Result<(), Error> {
        let extended = session
            .query_one(
                "select (extract(epoch from next_iteration) * 1000000)::int8, stop
                 from fetchq.doc_extend('q', $1, interval '2 s', $2)",
                &[&subject, &lease],
            )
            .await;
        match extended {
            Ok(row) => match row.get::<_, Option<i64>>(0) {
                Some(until) => self.ledger.with(subject, |document| {
                    let hold = document.hold.as_mut();
                    let hold = hold.filter(|hold| hold.lease == lease);
                    match hold {
                        Some(hold) => hold.until = until,
                        None => assert!(document.may_be_cancelled, "{subject}: {document:?}"),
                    }
                }),
                None => assert!(
                    row.get::<_, bool>(1),
                    "the worker of a cancelled document must be asked to stop"
                ),
            },
            Err(e) if state_of(&e) == "55000" => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Settles a document, and records an effect in the same transaction.
    async fn settle(
        &mut self,
        session: &mut Session,
        subject: &str,
        lease: i64,
    ) -> Result<(), Error> {
        let (call, is_last) = match self.dice.roll(100) {
            0..20 => ("doc_reject('q', $1, 'no luck', '{}', null, $2)", false),
            20..28 => ("doc_reschedule('q', $1, now(), null, $2)", false),
            28..34 => ("doc_snooze('q', $1, now(), $2)", false),
            34..40 => ("doc_kill('q', $1, null, $2)", true),
            40..55 => ("doc_drop('q', $1, $2)", true),
            _ => ("doc_complete('q', $1, null, $2)", true),
        };
        self.ledger.gives_back(subject, lease);
        let transaction = session.transaction().await?;
        if is_last {
            transaction
                .execute("insert into effects values ($1, $2)", &[&subject, &lease])
                .await?;
        }
        let settled = transaction
            .query_one(&format!("select fetchq.{call}"), &[&subject, &lease])
            .await;
        match settled {
            Ok(row) => {
                assert_eq!(row.get::<_, i32>(0), 1, "{call} of {subject}");
                transaction.commit().await?;
                if is_last {
                    self.ledger.settled(subject, lease);
                }
            }
            Err(e) if state_of(&e) == "55000" => {
                self.ledger.refused.fetch_add(1, Ordering::Relaxed);
                transaction.rollback().await?;
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

/// Cancels a document now and then, in any state.
async fn cancel(server: Server, ledger: Arc<Ledger>) {
    let mut dice = Dice::new(7);
    let mut session: Option<Session> = None;
    while !ledger.ended.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let subject = {
            let mut documents = ledger.documents.lock().unwrap();
            let open = documents
                .iter_mut()
                .filter(|(_, d)| d.is_pushed && d.settled_by.is_none() && !d.is_cancelled);
            let open: Vec<_> = open.collect();
            if open.is_empty() {
                continue;
            }
            let at = dice.roll(open.len() as u64) as usize;
            let (subject, document) = open.into_iter().nth(at).expect("an open document");
            document.may_be_cancelled = true;
            subject.clone()
        };
        let answer = open
            .query_one(
                "select was_cancelled, (extract(epoch from clock_timestamp()) * 1000000)::int8
                 from fetchq.doc_cancel('q', $1)",
                &[&subject],
            )
            .await;
        match answer {
            Ok(row) if row.get(0) => ledger.with(&subject, |document| {
                assert!(
                    document.settled_by.is_none(),
                    "{subject} was cancelled after it was settled: {document:?}"
                );
                document.is_cancelled = true;
                document.cancelled_at = row.get(1);
                document.hold = None;
            }),
            Ok(_) => {}
            Err(_) => session = None,
        }
    }
}

/// Terminates the session of a worker every second.
async fn kill(server: Server, ledger: Arc<Ledger>, pids: Arc<Mutex<BTreeMap<i32, usize>>>) {
    let mut dice = Dice::new(3);
    let mut session: Option<Session> = None;
    while !ledger.ended.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let victim = {
            let pids = pids.lock().unwrap();
            let at = dice.roll(pids.len().max(1) as u64) as usize;
            pids.iter().nth(at).map(|(pid, life)| (*pid, *life))
        };
        if let Some((pid, life)) = victim {
            ledger.doom(life);
            let killed = open.query("select pg_terminate_backend($1)", &[&pid]).await;
            if killed.is_err() {
                session = None;
            }
        }
    }
}

/// What an operator does to the tables of a queue while it is used. The last two are cancelled
/// half-way.
const DDL: [&str; 11] = [
    "vacuum full fetchq_data.q__docs",
    "cluster fetchq_data.q__docs using q__docs_pkey",
    "reindex table concurrently fetchq_data.q__docs",
    "reindex index fetchq_data.q__docs_pick_idx",
    "alter table fetchq_data.q__docs alter column payload set storage external",
    "alter table fetchq_data.q__docs set (fillfactor = 90)",
    "vacuum (analyze) fetchq_data.q__docs",
    "vacuum full fetchq.jobs",
    "vacuum full fetchq.queues",
    "create index concurrently operators_idx on fetchq_data.q__docs (created_at)",
    "reindex table concurrently fetchq_data.q__docs",
];

/// How many statements at the end of `DDL` are cancelled.
const CANCELLED: usize = 2;

/// Runs the statements of `DDL` all the time. Returns how many have succeeded.
async fn operate(server: Server, ledger: Arc<Ledger>) -> usize {
    let mut session: Option<Session> = None;
    let mut done = 0;
    for turn in 0.. {
        if ledger.ended.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Some(open) = &session else {
            session = server.try_connect("postgres").await.ok();
            continue;
        };
        let at = turn % DDL.len();
        // A short timeout cancels a statement while it waits, or while it works.
        let timeout = match at {
            _ if at < DDL.len() - CANCELLED => 0,
            _ => 1 + turn % 40,
        };
        // A statement that was cancelled leaves an index behind that is not valid.
        let mut is_closed = false;
        for statement in [
            &format!("set statement_timeout = {timeout}"),
            DDL[at],
            "set statement_timeout = 0",
            "drop index if exists fetchq_data.operators_idx",
        ] {
            match open.batch_execute(statement).await {
                Ok(()) => done += 1,
                Err(e) if e.is_closed() || e.code().is_none() => {
                    is_closed = true;
                    break;
                }
                Err(e) => {
                    let state = state_of(&e);
                    let is_expected = state == "57014" || state.starts_with("57P");
                    assert!(is_expected, "{statement}: {e:?}");
                }
            }
        }
        if is_closed {
            session = None;
        }
    }
    done
}

/// A queue whose owner attaches a trigger that fails for one document, and takes long for all.
const MISBEHAVING_OWNER: &str = "
    select fetchq.queue_create('bad');
    create function misbehave() returns trigger language plpgsql as $$
    begin
        perform pg_sleep(0.2);
        if new.subject = 'bad' then
            raise exception 'no';
        end if;
        return new;
    end $$;
    insert into fetchq_data.bad__docs (subject, next_iteration)
        select unnest(array['bad', 'slow 1', 'slow 2', 'slow 3']), now() + interval '1 s';
    create trigger misbehave before update on fetchq_data.bad__docs
        for each row execute function misbehave()";

async fn restart(cluster: &Cluster, ledger: &Ledger) {
    for life in 0..ledger.lives.load(Ordering::Relaxed) + WORKERS {
        ledger.doom(life);
    }
    cluster.stop("immediate");
    cluster.start();
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos() {
    run("chaos", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ddl_and_a_misbehaving_owner() {
    run("chaos-ddl", true).await;
}

async fn run(name: &str, with_ddl: bool) {
    let cluster = with_worker(name, "synchronous_commit = on\nlog_min_messages = fatal");
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
        setup.sql(MISBEHAVING_OWNER).await;
    }
    drop(setup);
    let ledger = Arc::new(Ledger::default());
    let pids = Arc::new(Mutex::new(BTreeMap::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker {
            number,
            binding: Binding::of(number),
            ledger: ledger.clone(),
            dice: Dice::new(number as u64 + 1),
            life: 0,
            pids: pids.clone(),
            turn: 0,
        };
        tasks.spawn(worker.run(server.clone()));
    }
    tasks.spawn(cancel(server.clone(), ledger.clone()));
    tasks.spawn(kill(server.clone(), ledger.clone(), pids));
    let operator = with_ddl.then(|| tokio::spawn(operate(server.clone(), ledger.clone())));

    let begun = Instant::now();
    let half = Duration::from_secs(seconds().div_ceil(2));
    let mut was_restarted = false;
    while begun.elapsed() < half * 2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(ended) = tasks.try_join_next() {
            ended.expect("a worker failed");
            panic!("a worker has ended");
        }
        if !was_restarted && begun.elapsed() >= half {
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

/// Completes the remaining documents, and compares the ledger with the tables.
async fn finish(server: &Server, ledger: &Ledger) {
    let mut session = server.connect_when_up("postgres").await;
    // Leases of ended sessions are released; the others expire.
    wait_until("nothing is planned or leased", async || {
        session
            .text("select count(*) from fetchq_data.q__docs where status in (0, 2)")
            .await
            == "0"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
    wait_until("all documents are settled", async || {
        session
            .sql(
                "with picked as (select * from fetchq.doc_pick('q', 0, 1000, interval '1 hour')),
                 settled as (select subject, lease, fetchq.doc_complete('q', subject, null, lease) from picked)
                 insert into effects select subject, lease from settled",
            )
            .await;
        session
            .text("select count(*) from fetchq_data.q__docs where status not in (3, -1)")
            .await
            == "0"
    })
    .await;
    counters_are_exact(&mut session, "q").await;

    let effects = session
        .column("select subject from effects order by 1")
        .await;
    let settled: BTreeSet<&String> = effects.iter().collect();
    assert_eq!(settled.len(), effects.len(), "a document was settled twice");
    let there = session
        .rows("select subject, status, coalesce(last_error, '') = 'cancelled' from fetchq_data.q__docs")
        .await;
    let cancelled: BTreeSet<String> = there
        .iter()
        .filter(|row| row.ends_with("|-1|t"))
        .map(|row| row.split('|').next().unwrap().to_owned())
        .collect();
    compare(ledger, &there, &settled, &cancelled);
    let misses = session.text("select floor_misses from fetchq.ready_stats()");
    assert_eq!(misses.await, "0");
}

/// Compares the answers that the workers received with the documents and the effects.
fn compare(
    ledger: &Ledger,
    there: &[String],
    settled: &BTreeSet<&String>,
    cancelled: &BTreeSet<String>,
) {
    let documents = ledger.documents.lock().unwrap();
    for (subject, document) in documents.iter() {
        let (is_settled, is_cancelled) = (settled.contains(subject), cancelled.contains(subject));
        assert!(
            !(is_settled && is_cancelled),
            "{subject} was settled and cancelled"
        );
        if document.settled_by.is_some() {
            assert!(is_settled, "the effect of {subject} is lost: {document:?}");
        }
        if document.is_cancelled {
            assert!(is_cancelled, "{subject} is not cancelled: {document:?}");
        }
        if document.is_pushed {
            assert!(
                is_settled || is_cancelled && document.may_be_cancelled,
                "{subject} is lost: {document:?}"
            );
        }
    }
    for row in there {
        let subject = row.split('|').next().unwrap();
        assert!(
            documents.contains_key(subject),
            "{subject} was never pushed"
        );
    }
    let picks = ledger.picks.load(Ordering::Relaxed);
    let refused = ledger.refused.load(Ordering::Relaxed);
    eprintln!(
        "{} documents, {picks} picks, {} settled, {} cancelled, {refused} refused",
        documents.len(),
        settled.len(),
        cancelled.len()
    );
    assert!(refused > 0, "no lease was lost, so the test proves nothing");
    assert!(picks > documents.len() && documents.len() > 100);
}
