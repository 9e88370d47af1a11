//! Reads the numbers of one database again and again.
use std::sync::Arc;
use std::time::Duration;

use fetchq_connect::DbError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::calls::{self, Component, Info, Lease, QueueStat};
use crate::db::{Database, Databases};
use crate::poller::now;

/// The state of fetchq is read once in this number of reads.
const STATUS_ROUNDS: u32 = 3;

/// What one read has found.
pub struct Numbers {
    /// When it was: seconds since 1970.
    pub at: f64,
    pub info: Info,
    pub queues: Vec<QueueStat>,
    pub status: Vec<Component>,
    /// The leases of the queue that is open.
    pub leases: Vec<Lease>,
}

/// Numbers, or why there are none.
pub type News = Result<Numbers, DbError>;

/// A database of those that were named.
pub struct Position {
    pub databases: Arc<Databases>,
    pub at: usize,
}

/// The task that reads. It ends when this is dropped.
pub struct Feed {
    news: mpsc::Receiver<News>,
    opened: watch::Sender<Option<String>>,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    /// Begins to read a database, and the leases of a queue.
    pub fn start(database: Position, delay: Duration, opened: Option<String>) -> Self {
        let (sender, news) = mpsc::channel(1);
        let (opened, watched) = watch::channel(opened);
        let task = tokio::spawn(read_all(database, delay, watched, sender));
        Self { news, opened, task }
    }

    /// The news.
    pub async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }

    /// Reads at once, and the leases of this queue from now on.
    pub fn open(&self, queue: Option<String>) {
        self.opened.send_replace(queue);
    }
}

async fn read_all(
    database: Position,
    delay: Duration,
    mut opened: watch::Receiver<Option<String>>,
    news: mpsc::Sender<News>,
) {
    let mut known: Option<(Info, Vec<Component>)> = None;
    let mut round = 0;
    loop {
        let queue = opened.borrow_and_update().clone();
        let status = known
            .take()
            .filter(|_| !u32::is_multiple_of(round, STATUS_ROUNDS));
        let read = read(database.get(), status, queue).await;
        if let Ok(numbers) = &read {
            known = Some((numbers.info.clone(), numbers.status.clone()));
        }
        if news.send(read).await.is_err() {
            return;
        }
        round += 1;
        tokio::select! {
            () = tokio::time::sleep(delay) => (),
            changed = opened.changed() => if changed.is_err() { return },
        }
    }
}

async fn read(
    database: &Database,
    known: Option<(Info, Vec<Component>)>,
    queue: Option<String>,
) -> News {
    let (info, status) = match known {
        Some(known) => known,
        None => {
            let info = database.first::<Info>(calls::INFO, &[]).await?;
            let info =
                info.ok_or_else(|| DbError::unreachable("fetchq.info() gives no row".to_owned()))?;
            (info, database.rows(calls::STATUS, &[]).await?)
        }
    };
    let queues = database.rows(calls::QUEUE_STATS, &[]).await?;
    let leases = match queue {
        Some(queue) => {
            database
                .rows(calls::QUEUE_LEASES, &[&queue, &None::<&str>])
                .await?
        }
        None => Vec::new(),
    };
    Ok(Numbers {
        at: now(),
        info,
        queues,
        status,
        leases,
    })
}

impl Position {
    fn get(&self) -> &Database {
        let all = self.databases.all();
        all.get(self.at).unwrap_or(self.databases.first())
    }

    /// The next database, or the first one after the last.
    pub fn following(&self) -> Self {
        Self {
            databases: Arc::clone(&self.databases),
            at: (self.at + 1) % self.databases.all().len(),
        }
    }

    /// Its name, and where it is.
    pub fn label(&self) -> (&str, &str) {
        let database = self.get();
        (&database.name, &database.label)
    }
}
