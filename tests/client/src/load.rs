//! Clients of a queue `q` that run no maintenance, and a record of the answers they received.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tokio_postgres::Error;

use crate::{Database, Session, counters_are_exact, state_of, wait_until};

#[derive(Default)]
struct Told {
    asked_to_push: BTreeSet<String>,
    pushed: BTreeSet<String>,
    asked_to_complete: BTreeSet<String>,
    completed: BTreeSet<String>,
}

#[derive(Default)]
struct Shared {
    told: Mutex<Told>,
    is_to_end: AtomicBool,
}

/// Clients that push documents, some due now and some planned, pick them, complete most of them,
/// and let the leases of the rest expire.
pub struct Load {
    db: Database,
    shared: Arc<Shared>,
    /// Number of calls of `run`; a part of each subject, to make it unique.
    runs: usize,
    clients: JoinSet<Result<(), Error>>,
}

impl Load {
    /// Creates the queue.
    pub async fn new(db: &Database) -> Self {
        let session = db.connect().await;
        // Leases expire many times; no document may reach its maximum number of attempts.
        session
            .sql("select fetchq.queue_create('q'); select fetchq.queue_set_max_attempts('q', 1000000)")
            .await;
        Self {
            db: db.clone(),
            shared: Arc::default(),
            runs: 0,
            clients: JoinSet::new(),
        }
    }

    /// Lets the clients work in another database, a copy of the first one.
    pub fn goes_on_in(&mut self, db: &Database) {
        self.db = db.clone();
    }

    /// Starts clients, and waits until they have completed a number of documents.
    pub async fn run(&mut self, clients: usize, documents: usize) {
        self.shared.is_to_end.store(false, Ordering::Relaxed);
        self.runs += 1;
        for number in 0..clients {
            let name = format!("{}-{number}", self.runs);
            let session = self.db.connect().await;
            // A lease may expire before its document is completed.
            session.sql("set fetchq.strict = off").await;
            self.clients
                .spawn(client(session, name, self.shared.clone()));
        }
        self.run_on(documents).await;
    }

    /// Waits until the clients have completed `documents` more.
    pub async fn run_on(&mut self, documents: usize) {
        let enough = self.completed() + documents;
        wait_until("the clients have completed enough documents", async || {
            if let Some(ended) = self.clients.try_join_next() {
                panic!("a client has ended: {ended:?}");
            }
            self.completed() >= enough
        })
        .await;
    }

    fn completed(&self) -> usize {
        self.shared.told.lock().unwrap().completed.len()
    }

    /// Stops the clients and waits for them.
    pub async fn stop(&mut self) {
        self.shared.is_to_end.store(true, Ordering::Relaxed);
        let errors = self.ended().await;
        assert!(errors.is_empty(), "{errors:?}");
    }

    /// Waits until all clients have ended because of an error; returns these errors.
    pub async fn ended(&mut self) -> Vec<String> {
        let mut errors = Vec::new();
        while let Some(ended) = self.clients.join_next().await {
            if let Err(e) = ended.expect("a client failed") {
                errors.push(state_of(&e));
            }
        }
        errors
    }

    /// Compares the answers that the clients received with the documents in the table.
    pub async fn compare(&self, session: &Session) {
        let there = subjects(session, "true").await;
        let done = subjects(session, "status = 3").await;
        let told = self.shared.told.lock().unwrap();
        let none = |what: &str, left: &BTreeSet<String>, right: &BTreeSet<String>| {
            let wrong: Vec<&String> = left.difference(right).take(10).collect();
            assert!(wrong.is_empty(), "{what}: {wrong:?}");
        };
        none("lost", &told.pushed, &there);
        none("not pushed by a client", &there, &told.asked_to_push);
        none("undone", &told.completed, &done);
        none("not completed by a client", &done, &told.asked_to_complete);
    }

    /// Without clients: waits until planned documents are due and leases have expired, and settles
    /// every document. Each must be picked exactly once.
    pub async fn finish(&self, session: &mut Session) {
        wait_until("no document is planned or leased", async || {
            subjects(session, "status in (0, 2)").await.is_empty()
        })
        .await;
        self.compare(session).await;
        counters_are_exact(session, "q").await;
        let mut left = subjects(session, "status <> 3").await;
        while !left.is_empty() {
            let picked = session
                .column("select subject from fetchq.doc_pick('q', 0, 1000, '1 hour')")
                .await;
            assert!(!picked.is_empty(), "never picked: {left:?}");
            for subject in &picked {
                assert!(
                    left.remove(subject),
                    "{subject} was picked, but was not left"
                );
            }
            self.shared
                .told
                .lock()
                .unwrap()
                .asked_to_complete
                .extend(picked.iter().cloned());
            session
                .query(
                    "select count(*) from fetchq.doc_complete_many('q', $1)",
                    &[&picked],
                )
                .await
                .expect("doc_complete_many");
        }
        counters_are_exact(session, "q").await;
        let misses = session.text("select floor_misses from fetchq.ready_stats()");
        assert_eq!(misses.await, "0");
    }
}

async fn subjects(session: &Session, condition: &str) -> BTreeSet<String> {
    let sql = format!("select subject from fetchq_data.q__docs where {condition}");
    session.column(&sql).await.into_iter().collect()
}

/// Works until the load is stopped or a call fails.
async fn client(session: Session, name: String, shared: Arc<Shared>) -> Result<(), Error> {
    let told = || shared.told.lock().unwrap();
    let mut turn = 0;
    while !shared.is_to_end.load(Ordering::Relaxed) {
        turn += 1;
        for (kind, delay) in [("now", 0.0), ("soon", 0.2 + 0.1 * f64::from(turn % 5))] {
            let subject = format!("{name}-{turn}-{kind}");
            told().asked_to_push.insert(subject.clone());
            session
                .query_one(
                    "select fetchq.doc_push('q', $1, 0, 0, clock_timestamp() + make_interval(secs => $2), '{}')",
                    &[&subject, &delay],
                )
                .await?;
            told().pushed.insert(subject);
        }
        session
            .query("call fetchq.queue_wait(array['q'], '1 s')", &[])
            .await?;
        let picked = session
            .query("select subject from fetchq.doc_pick('q', 0, 3, '2 s')", &[])
            .await?;
        for (at, row) in picked.iter().enumerate() {
            if at == 2 && turn % 3 == 0 {
                continue; // The lease expires.
            }
            let subject: String = row.get(0);
            told().asked_to_complete.insert(subject.clone());
            let n: i32 = session
                .query_one("select fetchq.doc_complete('q', $1)", &[&subject])
                .await?
                .get(0);
            // The call settles nothing when the lease has expired meanwhile.
            if n == 1 {
                assert!(
                    told().completed.insert(subject.clone()),
                    "{subject} was completed twice"
                );
            }
        }
    }
    Ok(())
}
