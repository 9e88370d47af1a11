//! The worker: its declarations, its loops, and how handlers run.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tracing::Instrument;
use tracing::instrument::WithSubscriber;

use crate::client::{Client, check_info, missing_extension};
use crate::context::{Context, TxContext};
use crate::driver::{Driver, Executor, Session};
use crate::engine::{After, Engine, Health, Job, Leased, Metrics, Next, Phase, Settings, TaskDef};
use crate::error::{Aborted, BoxError, Error, InvalidPayload, Kind, told, was_aborted};
use crate::outcome::Outcome;
use crate::postgres::TokioPostgres;
use crate::sql::{self, q};
use crate::task::{Handling, Plugin, Task, decode};
use crate::text::{Interval, between, random};

type Reply = BoxFuture<'static, Result<Outcome, BoxError>>;
type Plain = Arc<dyn Fn(Context) -> Result<Reply, InvalidPayload> + Send + Sync>;
type Batch = Arc<
    dyn Fn(&[Context], &mut [Option<Result<Outcome, BoxError>>]) -> Option<Replies> + Send + Sync,
>;
type Replies = BoxFuture<'static, Result<Vec<Outcome>, BoxError>>;
type InTx<D> = Arc<dyn Fn(TxContext<D>) -> Result<Reply, InvalidPayload> + Send + Sync>;

enum Handler<D: Driver> {
    Plain(Plain),
    InTx(InTx<D>),
    Batch(Batch),
}

/// Options of a handler. What is not said is as its task declares, or as the queue is set.
#[derive(Clone, Default)]
pub struct On {
    pub(crate) def: TaskDef,
    queue: Option<String>,
    name: Option<String>,
    version: Option<u32>,
    oldest: Option<u32>,
}

impl fmt::Debug for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("On")
            .field("queue", &self.queue)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl On {
    /// No options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another queue than that of the task.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// The name of the task, where several share the queue.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Another version than that of the task, and the oldest one that [`Task::upcast`] converts.
    pub fn versions(mut self, oldest: u32, version: u32) -> Self {
        (self.oldest, self.version) = (Some(oldest), Some(version));
        self
    }

    /// How many of these handlers run at once.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.def.concurrency = Some(concurrency);
        self
    }

    /// The share of the process where queues compete for it, 1 by default.
    pub fn weight(mut self, weight: usize) -> Self {
        self.def.weight = weight;
        self
    }

    /// How long a lease lasts between two heartbeats.
    pub fn lease(mut self, lease: impl Into<Interval>) -> Self {
        self.def.lease = Some(lease.into());
        self
    }

    /// How long a handler may run. Then it is asked to stop, and the attempt has failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.def.timeout = Some(timeout.as_secs_f64());
        self
    }

    /// What becomes of a document by the error of its handler. None leaves it to the policy of the queue.
    pub fn retry(
        mut self,
        rule: impl Fn(&BoxError, &Context) -> Option<Outcome> + Send + Sync + 'static,
    ) -> Self {
        self.def.retry = Some(Arc::new(rule));
        self
    }

    /// How often a transactional handler runs anew after a serialization failure or a deadlock.
    pub fn conflicts(mut self, times: u32) -> Self {
        self.def.conflicts = times;
        self
    }

    /// Documents whose payload does not decode are killed, and not rejected.
    pub fn kill_invalid(mut self) -> Self {
        self.def.kill_invalid = true;
        self
    }

    pub(crate) fn define<T: Task>(self) -> TaskDef {
        let mut def = self.def;
        def.queue = self.queue.unwrap_or_else(|| T::QUEUE.to_owned());
        def.name = self.name.or_else(|| T::NAME.map(str::to_owned));
        def.version = self.version.unwrap_or(T::VERSION);
        def.oldest = self.oldest.unwrap_or(T::OLDEST);
        def.weight = def.weight.max(1);
        def.lease = def.lease.or_else(|| T::LEASE.map(Interval::from));
        def.timeout = def
            .timeout
            .or_else(|| T::TIMEOUT.map(|timeout| timeout.as_secs_f64()));
        def
    }
}

/// A worker that is being declared.
pub struct Worker<D: Driver = TokioPostgres> {
    client: Client<D>,
    settings: Settings,
    tasks: Vec<TaskDef>,
    handlers: Vec<Handler<D>>,
}

impl<D: Driver> fmt::Debug for Worker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.settings.name)
            .finish_non_exhaustive()
    }
}

/// Host, process and a random number, so that no two are alike.
fn worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok());
    let host: String = host
        .as_deref()
        .map_or("host", str::trim)
        .chars()
        .take(100)
        .collect();
    format!(
        "{host}-{}-{:06x}",
        std::process::id(),
        (random() * f64::from(1 << 24)) as u32
    )
}

impl<D: Driver> Worker<D> {
    /// A worker with the connections and the middleware of a client.
    pub fn new(client: Client<D>) -> Self {
        let settings = Settings {
            name: worker_name(),
            exclusive: true,
            concurrency: 10,
            grace: 25.0,
            abort_grace: 5.0,
            stuck_after: 10.0,
            free_stuck: false,
            polling: false,
            poll: 1.0,
            max_bytes: 64 << 20,
            redact: None,
        };
        Self {
            client,
            settings,
            tasks: Vec::new(),
            handlers: Vec::new(),
        }
    }

    /// Its name in the database. Processes may share it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self.settings.exclusive = false;
        self
    }

    /// The name that it has: that which was given, or one that is made of host, process and a random number.
    pub fn given_name(&self) -> &str {
        &self.settings.name
    }

    /// How many handlers run at once in this process, 10 by default.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// How long handlers may finish after a request to stop, 25 seconds by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace.as_secs_f64();
        self
    }

    /// After how long a handler that ignores a request to stop is reported as stuck, 10 seconds by default.
    pub fn stuck_after(mut self, time: Duration) -> Self {
        self.settings.stuck_after = time.as_secs_f64();
        self
    }

    /// A stuck handler gives its slot to another one.
    pub fn free_stuck(mut self) -> Self {
        self.settings.free_stuck = true;
        self
    }

    /// Asks queues without documents again and again, in place of a session that waits.
    pub fn polling(mut self, every: Duration) -> Self {
        (self.settings.polling, self.settings.poll) = (true, every.as_secs_f64());
        self
    }

    /// The cap on bytes of payloads in memory, 64 MiB by default.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// Changes messages and details of errors before they are sent.
    pub fn redact(mut self, hook: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.settings.redact = Some(Arc::new(hook));
        self
    }

    /// Registers a handler. It holds no connection; its outcome is sent with the next call that leases.
    pub fn handle<T, F, Fut>(mut self, handler: F, on: On) -> Self
    where
        T: Task,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, BoxError>> + Send + 'static,
    {
        let def = on.define::<T>();
        let version = def.version;
        self.tasks.push(def);
        self.handlers.push(Handler::Plain(Arc::new(
            move |context: Context| -> Result<Reply, InvalidPayload> {
                let payload = decode::<T>(
                    context.leased.payload.as_deref(),
                    context.leased.version,
                    version,
                )?;
                Ok(handler(payload, context).boxed())
            },
        )));
        self
    }

    /// Registers a transactional handler: the runtime begins a transaction, hands it over, settles in it, and commits.
    pub fn handle_tx<T, F, Fut>(mut self, handler: F, on: On) -> Self
    where
        T: Task,
        F: Fn(T, TxContext<D>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, BoxError>> + Send + 'static,
    {
        let def = TaskDef {
            transactional: true,
            ..on.define::<T>()
        };
        let version = def.version;
        self.tasks.push(def);
        self.handlers.push(Handler::InTx(Arc::new(
            move |context: TxContext<D>| -> Result<Reply, InvalidPayload> {
                let payload = decode::<T>(
                    context.leased.payload.as_deref(),
                    context.leased.version,
                    version,
                )?;
                Ok(handler(payload, context).boxed())
            },
        )));
        self
    }

    /// Registers a handler of many documents at once: those that one call has leased, at most [`On::concurrency`]. It
    /// returns an outcome for each, in order; an error is that of all of them.
    pub fn handle_batch<T, F, Fut>(mut self, handler: F, on: On) -> Self
    where
        T: Task,
        F: Fn(Vec<(T, Context)>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Outcome>, BoxError>> + Send + 'static,
    {
        let def = on.define::<T>();
        let version = def.version;
        self.tasks.push(def);
        self.handlers
            .push(Handler::Batch(Arc::new(move |contexts, results| {
                let mut batch = Vec::new();
                for (context, result) in contexts.iter().zip(results) {
                    let leased = &context.leased;
                    match decode::<T>(leased.payload.as_deref(), leased.version, version) {
                        Ok(payload) => batch.push((payload, context.clone())),
                        // It is rejected alone.
                        Err(error) => *result = Some(Err(error.into())),
                    }
                }
                (!batch.is_empty()).then(|| handler(batch).boxed())
            })));
        self
    }

    fn check_pool(&self) -> Result<(), Error> {
        let most = self.settings.concurrency;
        let transactional = self.tasks.iter().filter(|task| task.transactional);
        let wanted = transactional
            .map(|task| task.concurrency.unwrap_or(most).min(most))
            .sum::<usize>()
            .min(most);
        let size = self.client.driver.largest();
        if size < 2 {
            // A wait for a result would keep every put of this process waiting.
            return Err(Error::Config(format!(
                "the pool has at most {size} connection: give it 2 or more"
            )));
        }
        if size < wanted {
            return Err(Error::Config(format!(
                "the pool has at most {size} connections, and {wanted} transactional handlers may run at once: give it \
                 {wanted} or more, or the handlers or the worker a smaller concurrency"
            )));
        }
        Ok(())
    }

    /// Checks the server and the declarations, and starts to work. Handlers run in the runtime of the caller; the
    /// loops have a thread of their own, so that a handler that computes loses no lease.
    pub async fn start(self) -> Result<Running, Error> {
        self.check_pool()?;
        let engine = Arc::new(Engine::new(self.settings, self.tasks)?);
        let (ended, end) = watch::channel(None);
        let (ready, checked) = oneshot::channel();
        let shared = Arc::new(Shared {
            engine: Arc::clone(&engine),
            driver: Arc::clone(&self.client.driver),
            plugins: Arc::clone(&self.client.plugins),
            handlers: self.handlers,
            runtime: Handle::current(),
            name: engine.settings.name.as_str().into(),
            running: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|e| Error::Config(format!("no runtime for the worker: {e}")))?;
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        let work = move || {
            let _guard = tracing::dispatcher::set_default(&dispatch);
            runtime.block_on(run(shared, ready, ended));
            // A connection that hangs must not keep the thread.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("fetchq".into())
            .spawn(work);
        thread.map_err(|e| Error::Config(format!("no thread for the worker: {e}")))?;
        match checked.await {
            Ok(result) => result?,
            Err(_) => return Err(Error::Config("the worker has ended at its start".into())),
        }
        Ok(Running { engine, end })
    }
}

/// A worker that works. Dropping it does not stop it.
#[derive(Clone)]
pub struct Running {
    engine: Arc<Engine>,
    end: watch::Receiver<Option<Result<(), Error>>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Its name in the database.
    pub fn name(&self) -> &str {
        &self.engine.settings.name
    }

    /// Leases no more documents. Handlers have the grace of the worker to finish; then they are asked to stop, and
    /// their documents go back without counting the attempt. Returns at once: see [`Running::join`].
    pub fn stop(&self) {
        self.engine.ask_stop(None);
    }

    /// As [`Running::stop`], with another grace.
    pub fn stop_within(&self, grace: Duration) {
        self.engine.ask_stop(Some(grace.as_secs_f64()));
    }

    /// Stops at once: nobody is waited for, and all documents go back.
    pub fn stop_now(&self) {
        self.engine.abandon(self.engine.now());
    }

    /// Waits until the worker has stopped; gives the error that has ended it, if it was one.
    pub async fn join(&self) -> Result<(), Error> {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Ok(())),
            Err(_) => Err(Error::Config("the worker has ended unexpectedly".into())),
        }
    }

    /// Works until a future ends, then stops, and returns when all is settled.
    pub async fn stop_on(&self, signal: impl Future<Output = ()>) -> Result<(), Error> {
        tokio::select! {
            ended = self.join() => return ended,
            () = signal => self.stop(),
        }
        self.join().await
    }

    /// Works until SIGTERM or SIGINT. A second one stops the worker at once, a third one ends the process.
    #[cfg(unix)]
    pub async fn stop_on_signals(&self) -> Result<(), Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind).map_err(|e| Error::Config(format!("signals are not available: {e}")))
        };
        let (mut term, mut int) = (
            listen(SignalKind::terminate())?,
            listen(SignalKind::interrupt())?,
        );
        let mut seen = 0;
        loop {
            tokio::select! {
                ended = self.join() => return ended,
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            seen += 1;
            match seen {
                1 => self.stop(),
                2 => self.stop_now(),
                _ => std::process::exit(143),
            }
        }
    }

    /// For probes.
    pub fn health(&self) -> Health {
        let mut health = self.engine.health(self.engine.now());
        if self.end.borrow().is_some() {
            (health.ok, health.loops) = (false, false);
        }
        health
    }

    /// Sums since the start.
    pub fn metrics(&self) -> Metrics {
        self.engine.metrics()
    }
}

struct Shared<D: Driver> {
    engine: Arc<Engine>,
    driver: Arc<D>,
    plugins: Arc<Vec<Arc<dyn Plugin>>>,
    handlers: Vec<Handler<D>>,
    runtime: Handle,
    name: Arc<str>,
    running: Mutex<JoinSet<()>>,
}

type Ended = watch::Sender<Option<Result<(), Error>>>;

/// The thread of a worker.
async fn run<D: Driver>(
    shared: Arc<Shared<D>>,
    ready: oneshot::Sender<Result<(), Error>>,
    ended: Ended,
) {
    let engine = Arc::clone(&shared.engine);
    let (first, heart) = match shared.check().await {
        Ok(sessions) => sessions,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    let mut loops = JoinSet::new();
    let interrupts: Arc<Vec<Notify>> =
        Arc::new(engine.topics.waits.iter().map(|_| Notify::new()).collect());
    loops.spawn(Arc::clone(&shared).call(0, Some(first)));
    loops.spawn(Arc::clone(&shared).call(1, None));
    for group in 0..interrupts.len() {
        loops.spawn(Arc::clone(&shared).wait(group, Arc::clone(&interrupts)));
    }
    let heart = tokio::spawn(Arc::clone(&shared).beat(heart));
    while !engine.finished() {
        let (due, outdated) = engine.tick(engine.now());
        outdated
            .into_iter()
            .for_each(|group| interrupts[group].notify_one());
        pause(&engine, &engine.topics.tick, due).await;
    }
    // Whoever waits in a session is interrupted once more; a server that does not answer is not waited for.
    engine
        .topics
        .calls
        .iter()
        .chain(&engine.topics.waits)
        .for_each(Notify::notify_one);
    interrupts.iter().for_each(Notify::notify_one);
    let _ = tokio::time::timeout(Duration::from_secs(2), async {
        while loops.join_next().await.is_some() {}
    })
    .await;
    loops.abort_all();
    heart.abort();
    shared
        .running
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .abort_all();
    let _ = ended.send(Some(engine.fatal().map_or(Ok(()), Err)));
}

/// Waits for a notice, or until a time.
async fn pause(engine: &Engine, notify: &Notify, until: f64) {
    let left = (until - engine.now()).clamp(0.0, 3600.0);
    let _ = tokio::time::timeout(Duration::from_secs_f64(left), notify.notified()).await;
}

async fn backend(session: &dyn Session) -> Result<i64, Error> {
    let rows = session.run(&q!(sql::PID)).await?;
    Ok(rows
        .first()
        .and_then(|row| row.first())
        .and_then(serde_json::Value::as_i64)
        .unwrap_or(0))
}

impl<D: Driver> Shared<D> {
    /// Checks at the start that the extension is there and new enough, and that the queues can be worked on.
    async fn check(&self) -> Result<(Box<dyn Session>, Box<dyn Session>), Error> {
        let engine = &self.engine;
        let session = self.driver.connect().await?;
        let rows = session
            .run(&q!(sql::INFO))
            .await
            .map_err(missing_extension)?;
        let (preloaded, first) = check_info(&rows)?;
        for queue in engine.queues() {
            // It settles nothing, and fails where the worker could settle nothing.
            let settled = session.run(&q!(sql::SETTLE, queue, "[]", "report")).await;
            settled.map_err(|error| match error.sqlstate() {
                Some("42704") => {
                    Error::Config(format!("{error}: run Client::sync to create the queues"))
                }
                Some("42501") => Error::Config(format!(
                    "{error}: run fetchq.queue_grant(queue, role, 'worker')"
                )),
                _ => missing_extension(error),
            })?;
        }
        // Two connections with one process of the server: a pooler has lent them the same one.
        let heart = self.driver.connect().await?;
        engine.set_pooled(backend(&*heart).await? == first);
        if engine.settings.polling {
            tracing::info!(target: "fetchq", worker = %self.name, "the worker polls every {} s, as its options say", engine.settings.poll);
        } else if !preloaded {
            engine.poll_from_now_on("the library fetchq is not in shared_preload_libraries");
        } else {
            for (group, look) in engine.first_looks().into_iter().enumerate() {
                let rows = session.run(&look).await?;
                engine.marked(group, rows.first());
            }
        }
        Ok((session, heart))
    }

    /// Makes the calls that settle and lease.
    async fn call(self: Arc<Self>, number: usize, session: Option<Box<dyn Session>>) {
        let engine = &self.engine;
        let mut mine = None;
        if let Some(session) = session {
            let pid = backend(&*session).await.unwrap_or(0);
            mine = Some((session, pid));
        }
        loop {
            let mut call = match engine.take_call(engine.now()) {
                Ok(call) => call,
                Err(_) if engine.finished() => break,
                Err(due) => {
                    pause(engine, &engine.topics.calls[number], due).await;
                    continue;
                }
            };
            if mine
                .as_ref()
                .is_some_and(|(session, _)| session.is_closed())
            {
                mine = None;
            }
            let work = async {
                if mine.is_none() {
                    let session = self
                        .driver
                        .connect()
                        .await
                        .map_err(|error| (error, 0_i64))?;
                    let pid = backend(&*session).await.map_err(|error| (error, 0_i64))?;
                    mine = Some((session, pid));
                }
                let no_session = (Error::Connection("no connection".into()), 0_i64);
                let (session, pid) = mine.as_ref().ok_or(no_session)?;
                call.sent = engine.now();
                let rows = session
                    .run(&call.query)
                    .await
                    .map_err(|error| (error, *pid))?;
                Ok::<_, (Error, i64)>((rows, session.notices()))
            };
            let done = tokio::select! {
                done = work => done,
                () = engine.abandoned.cancelled() => Err((Error::Connection("the worker stops".into()), 0)),
            };
            match done {
                Ok((rows, notices)) => {
                    self.spawn_all(engine.answered(call, &rows, &notices, engine.now()));
                }
                Err((error, pid)) => {
                    if error.kind() == Kind::Connection {
                        mine = None;
                    }
                    engine.failed(call, &error, pid, engine.now());
                }
            }
        }
    }

    /// The connection of a loop, which is opened where there is none that works.
    async fn session<'a>(
        &self,
        mine: &'a mut Option<Box<dyn Session>>,
    ) -> Result<&'a dyn Session, Error> {
        if mine.as_ref().is_none_or(|session| session.is_closed()) {
            *mine = Some(self.driver.connect().await?);
        }
        mine.as_deref()
            .ok_or_else(|| Error::Connection("no connection".into()))
    }

    /// Extends leases, on a connection of its own.
    async fn beat(self: Arc<Self>, session: Box<dyn Session>) {
        let engine = &self.engine;
        let mut mine = Some(session);
        loop {
            let beat = match engine.take_beat(engine.now()) {
                Ok(beat) => beat,
                Err(due) => {
                    pause(engine, &engine.topics.beat, due).await;
                    continue;
                }
            };
            let done = async { self.session(&mut mine).await?.run(&beat.query).await };
            match done.await {
                Ok(rows) => engine.beaten(beat, &rows, engine.now()),
                Err(error) => {
                    let pause = engine.beat_failed(beat, &error, engine.now());
                    if error.kind() == Kind::Connection {
                        mine = None;
                    }
                    tokio::time::sleep(Duration::from_secs_f64(pause)).await;
                }
            }
        }
    }

    /// Waits for documents, for a request to stop, and for leases that are lost.
    async fn wait(self: Arc<Self>, group: usize, interrupts: Arc<Vec<Notify>>) {
        let engine = &self.engine;
        let mut mine: Option<Box<dyn Session>> = None;
        while !engine.finished() {
            let query = match engine.take_wait(group, engine.now()) {
                Next::Wait(query) => query,
                Next::Pause(due) => {
                    pause(engine, &engine.topics.waits[group], due).await;
                    continue;
                }
            };
            let done = async {
                let session = self.session(&mut mine).await?;
                let mut waiting = session.run(&query);
                loop {
                    tokio::select! {
                        done = &mut waiting => break done,
                        () = interrupts[group].notified() => session.cancel().await,
                    }
                }
            };
            match done.await {
                Ok(rows) => engine.waited(
                    group,
                    &rows.into_iter().next().unwrap_or_default(),
                    engine.now(),
                ),
                Err(error) => {
                    let pause = engine.wait_failed(group, &error, engine.now());
                    if error.kind() == Kind::Connection {
                        mine = None;
                    }
                    let pause = Duration::from_secs_f64(pause);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = engine.abandoned.cancelled() => {}
                    }
                }
            }
        }
    }

    // ---------------------------------------------------------------------------------------------- handlers

    fn spawn_all(self: &Arc<Self>, jobs: Vec<Job>) {
        let (batches, single): (Vec<Job>, Vec<Job>) = jobs
            .into_iter()
            .partition(|job| matches!(self.handlers[job.task], Handler::Batch(_)));
        let mut by_task: BTreeMap<usize, Vec<Job>> = BTreeMap::new();
        for job in batches {
            by_task.entry(job.task).or_default().push(job);
        }
        for (task, jobs) in by_task {
            let me = Arc::clone(self);
            self.spawn(async move { me.work_on_batch(task, jobs).await });
        }
        for job in single {
            let me = Arc::clone(self);
            self.spawn(async move { me.work(job).await });
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.try_join_next().is_some() {}
        running.spawn_on(work.with_current_subscriber(), &self.runtime);
    }

    fn context(&self, leased: &Arc<Leased>) -> Context {
        Context {
            leased: Arc::clone(leased),
            engine: Some(Arc::clone(&self.engine)),
            worker: Arc::clone(&self.name),
        }
    }

    async fn work(&self, job: Job) {
        let engine = &self.engine;
        if !engine.begin(job.leased.id, job.task, engine.now()) {
            return;
        }
        let context = self.context(&job.leased);
        match &self.handlers[job.task] {
            Handler::Plain(handler) => {
                let result = self.around(&context, || handler(context.clone())).await;
                engine.ended(&context, job.task, result, engine.now());
            }
            Handler::InTx(handler) => self.work_in_tx(&job, &context, handler).await,
            Handler::Batch(_) => {}
        }
    }

    async fn work_on_batch(&self, task: usize, jobs: Vec<Job>) {
        let engine = &self.engine;
        let Handler::Batch(handler) = &self.handlers[task] else {
            return;
        };
        let begin = |job: &Job| engine.begin(job.leased.id, task, engine.now());
        let contexts: Vec<Context> = jobs
            .iter()
            .filter(|job| begin(job))
            .map(|job| self.context(&job.leased))
            .collect();
        let Some(first) = contexts.first() else {
            return;
        };
        let mut results: Vec<Option<Result<Outcome, BoxError>>> = Vec::new();
        results.resize_with(contexts.len(), || None);
        let mut outcomes = Vec::new();
        let whole = self
            .around(first, || {
                let open = handler(&contexts, &mut results);
                let wanted = results.iter().filter(|result| result.is_none()).count();
                let outcomes = &mut outcomes;
                Ok(async move {
                    if let Some(replies) = open {
                        *outcomes = replies.await?;
                    }
                    if outcomes.len() != wanted {
                        let given = outcomes.len();
                        return Err(
                            format!("a batch of {wanted} has given {given} outcomes").into()
                        );
                    }
                    Ok(Outcome::done())
                }
                .boxed())
            })
            .await;
        let failed = whole.err();
        let was_stopped = failed.as_ref().is_some_and(|error| was_aborted(&**error));
        let text = failed.as_ref().map(|error| told(&**error));
        let mut outcomes = outcomes.into_iter();
        for (context, result) in contexts.iter().zip(results) {
            let result = result.unwrap_or_else(|| match (&text, context.reason()) {
                (Some(_), Some(reason)) if was_stopped => Err(Aborted(reason).into()),
                (Some(text), _) => Err(text.as_str().into()),
                (None, _) => outcomes.next().ok_or_else(|| "no outcome".into()),
            });
            engine.ended(context, task, result, engine.now());
        }
    }

    /// Calls a handler with its middleware. A panic is an error of the handler.
    async fn around<'a>(
        &'a self,
        context: &'a Context,
        call: impl FnOnce() -> Result<Handling<'a>, InvalidPayload> + Send + 'a,
    ) -> Result<Outcome, BoxError> {
        let span = tracing::info_span!(
            target: "fetchq", "process", queue = context.queue(), subject = context.subject(),
            attempt = context.attempt(), worker = context.worker()
        );
        let work = async {
            let result = async { call()?.await };
            let result = AssertUnwindSafe(result).catch_unwind().await;
            result.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                Err(format!("the handler has panicked: {text}").into())
            })
        };
        let mut next: Handling<'a> = work.boxed();
        for plugin in self.plugins.iter().rev() {
            next = plugin.handle(context, next);
        }
        next.instrument(span).await
    }

    async fn work_in_tx(&self, job: &Job, context: &Context, handler: &InTx<D>) {
        let (engine, leased) = (&self.engine, &job.leased);
        let mut reruns = 0;
        loop {
            leased
                .follow_ups
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
            let (error, phase, broken) = match self.transact(context, handler).await {
                Ok(outcome) => return engine.committed(leased, &outcome, engine.now()),
                Err(failed) => failed,
            };
            let database = self.driver.error(&*error);
            let text = told(&*error);
            match engine.after_rollback(job, error, database.as_ref(), phase, broken, reruns) {
                After::Settle(error) => {
                    return engine.ended(context, job.task, Err(error), engine.now());
                }
                After::Drop => return engine.dropped(leased, Some(&text), engine.now()),
                After::Again => {
                    tokio::time::sleep(Duration::from_secs_f64(
                        between(0.01, 0.1) * f64::from(reruns + 1),
                    ))
                    .await;
                }
                After::Confirm => {
                    let delay = if reruns > 0 {
                        (0.05 * 2f64.powi(reruns as i32)).min(2.0)
                    } else {
                        0.0
                    };
                    let _ = context.sleep(Duration::from_secs_f64(delay)).await;
                    // After a commit without an answer, the document is not leased any more.
                    let (done, answer) = oneshot::channel();
                    engine.confirm(leased, done);
                    if !matches!(answer.await, Ok(Ok(()))) {
                        return engine.dropped(leased, None, engine.now());
                    }
                }
            }
            reruns += 1;
        }
    }

    /// One transaction of a handler: its writes and its settlement, or neither.
    async fn transact(
        &self,
        context: &Context,
        handler: &InTx<D>,
    ) -> Result<Outcome, (BoxError, Phase, bool)> {
        let (engine, driver) = (&self.engine, &self.driver);
        let failed = |error: BoxError, broken: bool| (error, Phase::Handler, broken);
        let lent = tokio::select! {
            lent = driver.lend() => Arc::new(lent.map_err(|error| failed(error.into(), true))?),
            why = context.stopped() => return Err(failed(why.into(), false)),
        };
        let mut open = Open {
            driver: &**driver,
            lent: Some(Arc::clone(&lent)),
            is_clean: false,
        };
        // Declared after it, so that it is dropped before it, also where this task is aborted.
        let lent = lent;
        let mut phase = Phase::Handler;
        let work = async {
            driver.control(&lent, "begin").await?;
            let tx = TxContext {
                context: context.clone(),
                lent: Arc::clone(&lent),
            };
            let mut outcome = self.around(context, || handler(tx)).await?;
            engine.settles(context.leased.id)?;
            phase = Phase::Settle;
            let query = engine.settlement(&context.leased, &mut outcome)?;
            Executor::run(&**lent, &query).await?;
            phase = Phase::Commit;
            driver.control(&lent, "commit").await?;
            Ok::<Outcome, BoxError>(outcome)
        };
        let done = work.await;
        open.is_clean = done.is_ok()
            || (driver.control(&lent, "rollback").await.is_ok() && !driver.is_closed(&lent));
        let broken = !open.is_clean;
        drop(lent);
        drop(open);
        done.map_err(|error| (error, phase, broken))
    }
}

/// A connection in a transaction. If it is dropped before the transaction has ended, it does not go back to the pool.
struct Open<'a, D: Driver> {
    driver: &'a D,
    lent: Option<Arc<D::Lent>>,
    is_clean: bool,
}

impl<D: Driver> Drop for Open<'_, D> {
    fn drop(&mut self) {
        // A handler that has kept its context keeps the connection, too.
        if let (false, Some(lent)) = (self.is_clean, self.lent.take().and_then(Arc::into_inner)) {
            self.driver.discard(lent);
        }
    }
}
