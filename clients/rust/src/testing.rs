//! For tests: one call of a handler without a server, and working until queues are empty.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, PutResult};
use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Leased;
use crate::error::{BoxError, Error, Reason};
use crate::outcome::Outcome;
use crate::postgres::TokioPostgres;
use crate::sql::{self, q};
use crate::task::{Doc, Task, decode};
use crate::text::encode;
use crate::worker::Worker;

/// What a fake client was given to put.
#[derive(Clone, Debug, Default)]
pub struct Recorded(Arc<Mutex<Vec<Doc>>>);

impl Recorded {
    /// The documents, in order.
    pub fn docs(&self) -> Vec<Doc> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The payloads of a task, in order.
    pub fn puts<T: Task>(&self) -> Result<Vec<T>, Error> {
        let docs = self.docs();
        let mine = docs
            .iter()
            .filter(|doc| doc.queue() == T::QUEUE && doc.given_task() == T::NAME);
        mine.map(Doc::payload).collect()
    }
}

impl Recorded {
    pub(crate) fn put(&self, docs: Vec<Doc>) -> Result<Vec<PutResult>, Error> {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut results = Vec::new();
        for doc in docs {
            doc.json()?; // What a real client would refuse.
            let subject = doc.given_subject().map(str::to_owned);
            results.push(PutResult {
                subject: subject.unwrap_or_else(|| format!("fake-{}", recorded.len() + 1)),
                action: "created".to_owned(),
            });
            recorded.push(doc);
        }
        Ok(results)
    }
}

/// A client that records puts, and what it has recorded. It has no server: all other calls fail.
pub fn fake() -> Result<(Client, Recorded), Error> {
    let recorded = Recorded::default();
    let mut client = Client::new(TokioPostgres::connect("host=/nonexistent user=fake", 2)?);
    client.recorded = Some(recorded.clone());
    Ok((client, recorded))
}

/// The document of a handler that is called by [`run_handler`].
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The number of the attempt.
    pub attempt: i64,
    /// Its headers.
    pub headers: Map<String, Value>,
    /// The progress that an attempt before has stored.
    pub progress: Value,
    /// Asks it to stop from the beginning.
    pub reason: Option<Reason>,
}

impl Default for Attempt {
    fn default() -> Self {
        Self {
            attempt: 1,
            headers: Map::new(),
            progress: Value::Null,
            reason: None,
        }
    }
}

/// Calls a plain handler once: the payload goes through JSON, progress and steps stay in memory.
pub async fn run_handler<T, F, Fut>(
    handler: F,
    payload: T,
    attempt: Attempt,
) -> Result<Outcome, BoxError>
where
    T: Task,
    F: Fn(T, Context) -> Fut,
    Fut: Future<Output = Result<Outcome, BoxError>>,
{
    let text = encode(&payload)?.to_string();
    let leased = Leased {
        id: 0,
        queue: T::QUEUE.to_owned(),
        subject: "test".to_owned(),
        payload: Some(text.clone()),
        headers: attempt.headers,
        attempts: attempt.attempt,
        max_attempts: None,
        lease: 1,
        priority: 0,
        last_error: None,
        version: T::VERSION,
        token: CancellationToken::new(),
        reason: OnceLock::new(),
        progress: Mutex::new(attempt.progress),
        follow_ups: Mutex::default(),
    };
    if let Some(reason) = attempt.reason {
        let _ = leased.reason.set(reason);
        leased.token.cancel();
    }
    let context = Context {
        leased: Arc::new(leased),
        engine: None,
        worker: "test".into(),
    };
    let mut outcome = handler(
        decode(Some(&text), T::VERSION, T::VERSION)?,
        context.clone(),
    )
    .await?;
    if outcome.succeeds() {
        outcome.then.append(
            &mut context
                .leased
                .follow_ups
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
    Ok(outcome)
}

/// Works on queues until nothing is due any more; gives how many documents were settled, by outcome. Documents that
/// wait for a retry stay.
pub async fn drain<D: Driver>(
    client: &Client<D>,
    worker: Worker<D>,
    queues: &[&str],
    timeout: Duration,
) -> Result<BTreeMap<&'static str, u64>, Error> {
    let until = Instant::now() + timeout;
    let running = worker.start().await?;
    // Counts are not of one moment: nothing must be there several times in a row.
    let mut still = 0;
    let mut result = Ok(());
    while still < 3 && result.is_ok() {
        let mut open = 0;
        for queue in queues {
            let rows = client.run(&q!(sql::OPEN, queue)).await?;
            open += rows
                .first()
                .and_then(|row| row.first())
                .and_then(Value::as_i64)
                .unwrap_or(0);
        }
        still = if open > 0 || running.metrics().slots_used > 0 {
            0
        } else {
            still + 1
        };
        if Instant::now() > until {
            result = Err(Error::Invalid(format!(
                "the queues {} were not empty in time",
                queues.join(", ")
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.stop();
    running.join().await?;
    result.map(|()| running.metrics().settled)
}

/// Makes planned documents of a queue due now.
pub async fn due_now<D: Driver>(client: &Client<D>, queue: &str) -> Result<(), Error> {
    client.run(&q!(sql::DUE_NOW, queue)).await.map(|_| ())
}
