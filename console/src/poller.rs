//! One task for each database reads its numbers, for all pages that are open.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fetchq_connect::DbError;
use tokio::sync::{Notify, watch};
use tracing::warn;

use crate::calls::{self, Component, Info, QueueStat};
use crate::db::{Database, Databases};
use crate::ring::Ring;

/// The pause between two reads while a page is open.
const FAST: Duration = Duration::from_secs(1);

/// The pause between two reads while no page is open.
const SLOW: Duration = Duration::from_secs(15);

/// No two reads begin within that time, whoever waits for them.
const HASTE: Duration = Duration::from_millis(200);

/// For how long a page that was loaded counts as open, although it listens to no events.
const TOUCH: Duration = Duration::from_secs(10);

/// The numbers of a database at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Seconds since 1970.
    pub at: f64,
    /// How long the server took for them.
    pub took: Duration,
    pub info: Info,
    /// In the order of their names.
    pub queues: Vec<QueueStat>,
    pub status: Vec<Component>,
}

impl Snapshot {
    /// The queue of that name.
    pub fn queue(&self, name: &str) -> Option<&QueueStat> {
        let position = self
            .queues
            .binary_search_by(|queue| queue.queue.as_str().cmp(name))
            .ok()?;
        self.queues.get(position)
    }
}

/// What the poller has read last: numbers, or why there are none.
pub type Latest = Option<Result<Arc<Snapshot>, DbError>>;

/// The numbers of a database, kept by its poller.
pub struct Live {
    sender: watch::Sender<Latest>,
    ring: RwLock<Ring>,
    viewers: AtomicUsize,
    touched: Mutex<Option<Instant>>,
    /// Reads that began, the last one that ended, and the one that somebody waits for.
    began: AtomicU64,
    ended: AtomicU64,
    wanted: AtomicU64,
    wake: Notify,
}

/// A page that is open. It counts until it is dropped.
pub struct Viewer(Arc<Live>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Live {
    fn default() -> Self {
        Self {
            sender: watch::Sender::new(None),
            ring: RwLock::default(),
            viewers: AtomicUsize::new(0),
            touched: Mutex::new(None),
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            wake: Notify::new(),
        }
    }
}

impl Live {
    /// Counts a page that listens to events.
    pub fn open(self: &Arc<Self>) -> (Viewer, watch::Receiver<Latest>) {
        self.viewers.fetch_add(1, Ordering::Relaxed);
        self.wake.notify_one();
        (Viewer(self.clone()), self.sender.subscribe())
    }

    /// The numbers, no older than a few seconds unless the server takes longer.
    ///
    /// # Errors
    /// Why the numbers could not be read.
    pub async fn fresh(&self) -> Result<Arc<Snapshot>, DbError> {
        let was_open = {
            let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            let was_open = touched.is_some_and(|at| at.elapsed() < TOUCH);
            *touched = Some(Instant::now());
            was_open || self.viewers.load(Ordering::Relaxed) > 0
        };
        let mut receiver = self.sender.subscribe();
        let is_fine = matches!(&*receiver.borrow(), Some(Ok(_)));
        if !was_open || !is_fine {
            self.refresh();
        }
        // The pool gives up before that.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(8);
        while self.ended.load(Ordering::Acquire) < self.wanted.load(Ordering::Acquire) {
            if !matches!(
                tokio::time::timeout_at(deadline, receiver.changed()).await,
                Ok(Ok(()))
            ) {
                break;
            }
        }
        let latest = receiver.borrow().clone();
        latest.unwrap_or_else(|| {
            Err(DbError::unreachable(
                "the server has not answered yet".to_owned(),
            ))
        })
    }

    /// Reads the ring.
    pub fn ring<T>(&self, read: impl FnOnce(&Ring) -> T) -> T {
        read(&self.ring.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the poller read the numbers anew, after something was changed; pages wait for that.
    pub fn refresh(&self) {
        self.wanted
            .fetch_max(self.began.load(Ordering::Acquire) + 1, Ordering::AcqRel);
        self.wake.notify_one();
    }

    fn is_watched(&self) -> bool {
        let touched = *self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        self.viewers.load(Ordering::Relaxed) > 0 || touched.is_some_and(|at| at.elapsed() < TOUCH)
    }
}

/// Starts the poller of each database. Returns their numbers, in the order of the databases.
pub fn start(databases: &Arc<Databases>) -> Vec<Arc<Live>> {
    let started = (0..databases.all().len()).map(|index| {
        let live = Arc::new(Live::default());
        tokio::spawn(poll(databases.clone(), index, live.clone()));
        live
    });
    started.collect()
}

async fn poll(databases: Arc<Databases>, index: usize, live: Arc<Live>) {
    let Some(database) = databases.all().get(index) else {
        return;
    };
    let mut last: Option<Arc<Snapshot>> = None;
    let mut rounds = 0_u64;
    loop {
        let number = live.began.fetch_add(1, Ordering::AcqRel) + 1;
        let began = Instant::now();
        // Only the first of the three is asked for each second, unless somebody waits for the news.
        let is_wanted = live.wanted.load(Ordering::Acquire) == number;
        let known = last.as_deref().filter(|_| !rounds.is_multiple_of(60));
        let status = if is_wanted || rounds.is_multiple_of(5) {
            None
        } else {
            known
        };
        let read = read(database, known.map(|s| &s.info), status.map(|s| &s.status))
            .await
            .map(Arc::new);
        let took = began.elapsed();
        match &read {
            Ok(snapshot) => {
                live.ring
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .record(snapshot.at, &snapshot.queues);
            }
            Err(error) if last.is_some() || rounds == 0 => {
                warn!("database {}: {error}", database.name)
            }
            Err(_) => (),
        }
        last = read.as_ref().ok().cloned();
        rounds += 1;
        live.ended.store(number, Ordering::Release);
        live.sender.send_replace(Some(read));
        // A server that needs long for an answer is not asked more often than a fifth of the time.
        let rest = FAST.saturating_sub(took).max(took * 4).min(SLOW);
        let rest = if live.is_watched() { rest } else { SLOW };
        if tokio::time::timeout(rest, live.wake.notified())
            .await
            .is_ok()
        {
            tokio::time::sleep(HASTE.saturating_sub(began.elapsed())).await;
        }
    }
}

async fn read(
    database: &Database,
    info: Option<&Info>,
    status: Option<&Vec<Component>>,
) -> Result<Snapshot, DbError> {
    let began = Instant::now();
    let info = match info {
        Some(info) => info.clone(),
        None => database
            .first::<Info>(calls::INFO, &[])
            .await?
            .ok_or_else(|| DbError::unreachable("fetchq.info() gives no row".to_owned()))?,
    };
    let mut queues: Vec<QueueStat> = database.rows(calls::QUEUE_STATS, &[]).await?;
    queues.sort_by(|a, b| a.queue.cmp(&b.queue));
    let status = match status {
        Some(status) => status.clone(),
        None => database.rows(calls::STATUS, &[]).await?,
    };
    Ok(Snapshot {
        at: now(),
        took: began.elapsed(),
        info,
        queues,
        status,
    })
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|age| age.as_secs_f64())
        .unwrap_or_default()
}
