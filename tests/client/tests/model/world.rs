//! The sessions of a history in their own database, and the execution of steps.

use std::time::Duration;

use fetchq_client_tests::{Cluster, Database, Server, Session, WORKER, state_of, wait_until};
use futures_util::SinkExt;
use futures_util::future::join_all;
use tokio_postgres::SimpleQueryMessage;

use super::step::{CREATE, SESSIONS, Step, WORKERS, What, copy_sql};

/// A fault that a step or a check has found.
#[derive(Debug)]
pub struct Wrong(pub String);

pub type Result<T> = std::result::Result<T, Wrong>;

#[derive(Clone, Copy, PartialEq)]
pub enum Block {
    Closed,
    Open { savepoint: bool },
}

pub struct Worker {
    pub session: Session,
    pid: String,
    pub block: Block,
}

pub struct World {
    pub db: Database,
    pub workers: Vec<Worker>,
    /// Reads the documents without any index, and never keeps a lock.
    pub observer: Session,
    /// Plain SQL has changed documents, so the counters may be inexact.
    pub raw: bool,
    /// Triggers may be disabled, and indexes missing.
    pub altered: bool,
    /// The queue or its indexes may be missing.
    dropped: bool,
    pub engine: Option<Engine>,
    /// The names of functions, to know what the installed version has.
    functions: Vec<String>,
    pub statements: u64,
    /// The error of the last statement that failed.
    last_error: String,
    /// The process that stands still and does not write leases, where leases are late.
    writes_leases: Option<u32>,
}

/// Counters of the ready floors in shared memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Engine {
    pub advances: i64,
    pub floor_misses: i64,
}

/// The lock_timeout is short: the steps run one after another, so no other session can release
/// a lock while a step waits for it.
const SETTINGS: &str = "set lock_timeout = '15ms'; set statement_timeout = '20s';
    set client_min_messages = error; set application_name = 'model';
    set fetchq.strict = off";

/// Errors that a history may cause.
const EXPECTED: &[&str] = &[
    "55P03", // lock_timeout
    "40001", "40P01", // serialization, deadlock
    "23505", // a subject that exists
    "55006", // in use by the same session
    "25001", "25P01", // inside, or outside of, a transaction block
    "2D000", // a procedure that commits, called in a block
    "0A000", // PREPARE TRANSACTION after NOTIFY
    "42710", "42704", // a prepared transaction that exists already, or does not
    "3B001", // no such savepoint
];
const WITHOUT_QUEUE: &[&str] = &["42P01", "42704"];

impl World {
    pub async fn new(server: &Server, name: &str, late: Option<&Cluster>) -> Self {
        let db = server.empty_database(name).await;
        let session = db.connect().await;
        session.sql("create extension fetchq").await;
        session.sql(include_str!("setup.sql")).await;
        let functions = session
            .column(
                "select distinct proname from pg_proc where pronamespace = 'fetchq'::regnamespace",
            )
            .await;
        let observer = Self::observer(&db).await;
        let mut workers = Vec::new();
        for number in 0..SESSIONS {
            workers.push(Worker::new(&db, number).await);
        }
        let mut world = Self {
            db,
            workers,
            observer,
            raw: false,
            altered: false,
            dropped: false,
            engine: None,
            functions,
            statements: 0,
            last_error: String::new(),
            writes_leases: None,
        };
        if let Some(cluster) = late {
            world.keep_leases_late(cluster).await;
        }
        world.engine = world.read_engine().await;
        world
    }

    /// Stops the process that writes leases, when it is there: from then on they are late, and maintenance is
    /// for the steps alone.
    async fn keep_leases_late(&mut self, cluster: &Cluster) {
        self.observer.sql(CREATE).await;
        wait_until("leases are late", async || {
            self.observer
                .sql("select fetchq.doc_append('q', '{}'); select fetchq.doc_pick('q', 0, 1, '1h')")
                .await;
            let late = "select bool_or(status = 1) from fetchq_data.q__docs";
            self.observer.text(late).await == "t"
        })
        .await;
        self.observer
            .sql("update fetchq.jobs set next_iteration = 'infinity'")
            .await;
        let sql = format!(
            "select pid from pg_stat_activity where backend_type = '{WORKER}' and datname = current_database()"
        );
        let pid: u32 = self.observer.text(&sql).await.parse().expect("a process");
        self.writes_leases = Some(pid);
        wait_until(
            "the process stands still, and not in a transaction",
            async || {
                cluster.signal(pid, "STOP");
                let locks = format!("select count(*) from pg_locks where pid = {pid}");
                let is_idle = self.observer.text(&locks).await == "0";
                if !is_idle {
                    cluster.signal(pid, "CONT");
                }
                is_idle
            },
        )
        .await;
        self.observer.sql("select fetchq.queue_drop('q')").await;
    }

    /// Lets that process go on.
    pub fn let_leases_be_written(&mut self, cluster: Option<&Cluster>) {
        if let (Some(cluster), Some(pid)) = (cluster, self.writes_leases.take()) {
            cluster.signal(pid, "CONT");
        }
    }

    pub fn has_late_leases(&self) -> bool {
        self.writes_leases.is_some()
    }

    /// Has the rows say which documents are leased. No transaction is open.
    pub async fn write_leases(&self) {
        if self.has_late_leases() {
            self.observer
                .sql("select fetchq.queue_configure('q', '{\"lease_write_delay\": \"10 ms\"}')")
                .await;
        }
    }

    async fn observer(db: &Database) -> Session {
        let observer = db.connect().await;
        observer.sql(SETTINGS).await;
        observer
            .sql(
                "set lock_timeout = '10s'; set enable_indexscan = off;
                 set enable_bitmapscan = off; set enable_indexonlyscan = off",
            )
            .await;
        observer
    }

    pub fn has(&self, function: &str) -> bool {
        self.functions.iter().any(|f| f == function)
    }

    /// None without ready floors: an older version, or the library is not preloaded.
    pub async fn read_engine(&self) -> Option<Engine> {
        if !self.has("ready_stats") {
            return None;
        }
        let row = self
            .observer
            .query_one(
                "select slots, advances, floor_misses from fetchq.ready_stats()",
                &[],
            )
            .await
            .expect("ready_stats");
        (row.get::<_, i32>(0) > 0).then(|| Engine {
            advances: row.get(1),
            floor_misses: row.get(2),
        })
    }

    /// New sessions and a new queue; nothing of the last history is left.
    pub async fn reset(&mut self) {
        for who in 0..SESSIONS {
            self.workers[who] = Worker::new(&self.db, who).await;
        }
        self.finish_prepared(|_| false).await;
        self.observer = Self::observer(&self.db).await;
        // A session that was just closed may still have its locks.
        wait_until("the queue is new", async || {
            self.observer
                .batch_execute(&format!(
                    "select fetchq.queue_drop('q') from fetchq.queues where name = 'q';
                     {CREATE}; alter sequence subjects restart"
                ))
                .await
                .is_ok()
        })
        .await;
        self.raw = false;
        self.altered = false;
        self.dropped = false;
        self.engine = self.read_engine().await;
    }

    /// Commits the prepared transactions for which `commit` returns true; rolls back the others.
    pub async fn finish_prepared(&self, mut commit: impl FnMut(&str) -> bool) {
        let gids = self
            .observer
            .column("select gid from pg_prepared_xacts where database = current_database() order by gid")
            .await;
        for gid in gids {
            let how = if commit(&gid) { "commit" } else { "rollback" };
            self.observer.sql(&format!("{how} prepared '{gid}'")).await;
        }
    }

    /// A name for a prepared transaction, unique in the whole server.
    pub fn gid(&self, number: usize) -> String {
        format!("{}_{number}", self.db.name)
    }

    pub fn is_idle(&self, who: usize) -> bool {
        self.workers[who].block == Block::Closed
    }

    pub async fn run(&mut self, step: &Step) -> Result<()> {
        self.statements += 1;
        let who = step.who;
        match &step.what {
            What::Sql(sql) => self.sql(who, sql).await.map(|_| ()),
            What::Pick {
                version,
                limit,
                lease,
                watched,
            } => self.pick(who, *version, *limit, lease, *watched).await,
            What::Copy { with_seq, rows } => self.copy(who, *with_seq, rows).await,
            What::Kill => self.kill(who).await,
            What::KillDuring(sql) => self.kill_during(who, sql).await,
            What::Storm(all) => self.storm(all).await,
            What::Sleep(ms) => {
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                Ok(())
            }
            What::End(seed) => self.end(*seed).await,
        }
    }

    /// Runs a statement; None when it failed with an error that a history may cause.
    pub async fn sql(&mut self, who: usize, sql: &str) -> Result<Option<Vec<SimpleQueryMessage>>> {
        self.note(sql);
        match self.workers[who].session.simple_query(sql).await {
            Ok(messages) => {
                let worker = &mut self.workers[who];
                worker.block = block_after(sql, worker.block);
                Ok(Some(messages))
            }
            Err(e) => self.failed(who, sql, &e).await.map(|()| None),
        }
    }

    /// Runs statements while no other step has locked anything. A process of the server, such as
    /// autovacuum or a backend that was terminated, may have a lock for a moment; then they are
    /// run again.
    pub async fn idle_sql(&mut self, who: usize, sql: &str) -> Result<Vec<SimpleQueryMessage>> {
        for _ in 0..20 {
            if let Some(messages) = self.sql(who, sql).await? {
                return Ok(messages);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        Err(Wrong(format!(
            "s{who}: {sql} failed in an idle queue: {}",
            self.last_error
        )))
    }

    /// Records what a statement may do to the queue and the counters.
    fn note(&mut self, sql: &str) {
        self.raw |= sql != CREATE && (sql.contains("fetchq_data.") || sql.contains("churn("));
        self.altered |= sql.contains("disable trigger") || sql.contains("drop_indexes");
        self.dropped |= sql.contains("queue_drop");
    }

    pub fn queue_is_back(&mut self) {
        self.dropped = false;
    }

    fn is_expected(&self, e: &tokio_postgres::Error) -> bool {
        let state = state_of(e);
        EXPECTED.contains(&state.as_str())
            || self.has_late_leases()
                && e.as_db_error()
                    .is_some_and(|e| e.message() == "prepared transactions are disabled")
            || self.dropped && WITHOUT_QUEUE.contains(&state.as_str())
    }

    /// After an error, rolls back to the savepoint or ends the transaction.
    async fn failed(&mut self, who: usize, sql: &str, e: &tokio_postgres::Error) -> Result<()> {
        if !self.is_expected(e) {
            return Err(Wrong(format!("s{who}: {sql}: {e:?}")));
        }
        self.last_error = format!("{e:?}");
        let worker = &mut self.workers[who];
        // The server sends an error before it ends the transaction, whose locks other sessions would
        // still meet. It answers the next message, here an empty one, when that is done.
        if let Err(e) = worker.session.simple_query("").await {
            return Err(Wrong(format!("s{who} after {sql}: {e:?}")));
        }
        // A COMMIT that fails has ended the block.
        // What begins a block and fails in its second statement, because autovacuum truncated a catalog,
        // has left the block open.
        let back = match worker.block {
            Block::Closed if !sql.starts_with("begin") => return Ok(()),
            Block::Open { savepoint: true } if block_after(sql, worker.block) != Block::Closed => {
                "rollback to savepoint s"
            }
            Block::Closed | Block::Open { .. } => "rollback",
        };
        if let Err(e) = worker.session.batch_execute(back).await {
            return Err(Wrong(format!("s{who}: {back} after {sql}: {e:?}")));
        }
        worker.block = block_after(back, worker.block);
        Ok(())
    }

    async fn copy(&mut self, who: usize, with_seq: bool, rows: &str) -> Result<()> {
        let sql = copy_sql(with_seq);
        self.note(&sql);
        let client = &self.workers[who].session;
        let copied = async {
            let sink = client.copy_in(&sql).await?;
            let mut sink = std::pin::pin!(sink);
            sink.send(std::io::Cursor::new(rows.as_bytes().to_vec()))
                .await?;
            sink.finish().await
        };
        match copied.await {
            Ok(_) => Ok(()),
            // The driver loses track of the answers when a COPY fails at its start.
            Err(e) => match self.is_expected(&e) {
                true => self.kill(who).await,
                false => Err(Wrong(format!("s{who}: {sql}: {e:?}"))),
            },
        }
    }

    async fn kill(&mut self, who: usize) -> Result<()> {
        self.terminate(who).await;
        self.workers[who] = Worker::new(&self.db, who).await;
        Ok(())
    }

    async fn kill_during(&mut self, who: usize, sql: &str) -> Result<()> {
        self.note(sql);
        let running = self.workers[who].session.simple_query(sql);
        let (result, ()) = tokio::join!(running, self.terminate(who));
        if let Err(e) = result
            && !e.is_closed()
            && state_of(&e) != "57P01"
            && !self.is_expected(&e)
        {
            return Err(Wrong(format!("s{who}, terminated in {sql}: {e:?}")));
        }
        self.workers[who] = Worker::new(&self.db, who).await;
        Ok(())
    }

    async fn terminate(&self, who: usize) {
        let pid = &self.workers[who].pid;
        let kill = format!("select pg_terminate_backend({pid})");
        let left = format!("select count(*) from pg_stat_activity where pid = {pid}");
        self.observer.sql(&kill).await;
        while self.observer.text(&left).await != "0" {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    async fn storm(&mut self, all: &[String]) -> Result<()> {
        all.iter().for_each(|sql| self.note(sql));
        let idle: Vec<usize> = (0..WORKERS).filter(|who| self.is_idle(*who)).collect();
        let running = idle
            .iter()
            .zip(all)
            .map(|(who, sql)| self.workers[*who].session.batch_execute(sql));
        let results = join_all(running).await;
        for ((who, sql), result) in idle.iter().zip(all).zip(results) {
            if let Err(e) = result {
                self.failed(*who, sql, &e).await?;
            }
        }
        Ok(())
    }
}

impl Worker {
    /// The first worker uses statements only; the others may change documents directly. Both ways
    /// must work together.
    async fn new(db: &Database, number: usize) -> Self {
        let session = db.connect().await;
        session.sql(SETTINGS).await;
        if number == 0 {
            session.sql("set fetchq.direct = off").await;
        }
        let pid = session.text("select pg_backend_pid()").await;
        Self {
            session,
            pid,
            block: Block::Closed,
        }
    }
}

/// Whether a transaction block is open after a statement that succeeded.
fn block_after(sql: &str, before: Block) -> Block {
    let open = before != Block::Closed;
    let starts = |with: &str| sql.starts_with(with);
    if starts("begin") && !open {
        Block::Open { savepoint: false }
    } else if starts("commit prepared") || starts("rollback prepared") || starts("rollback to") {
        before
    } else if starts("commit") || starts("rollback") || starts("prepare transaction") {
        Block::Closed
    } else if starts("savepoint") && open {
        Block::Open { savepoint: true }
    } else if starts("release") && open {
        // An outer savepoint of the same name may be left; then only this record of it is lost.
        Block::Open { savepoint: false }
    } else {
        before
    }
}
