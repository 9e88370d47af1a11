//! What a handler knows about its document, and what it can say while it works.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::driver::Driver;
use crate::engine::{Engine, Leased};
use crate::error::{Aborted, BoxError, Error, Reason};
use crate::postgres::TokioPostgres;
use crate::task::{Doc, TASK_HEADER};
use crate::text::encode;

/// The key of the progress of a document under which results of steps are kept.
const STEPS: &str = "fetchq-steps";

/// What a handler knows about its document. It is cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub(crate) leased: Arc<Leased>,
    // None where a test calls the handler: progress stays in memory.
    pub(crate) engine: Option<Arc<Engine>>,
    pub(crate) worker: Arc<str>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("queue", &self.queue())
            .field("subject", &self.subject())
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The queue.
    pub fn queue(&self) -> &str {
        &self.leased.queue
    }

    /// The subject.
    pub fn subject(&self) -> &str {
        &self.leased.subject
    }

    /// The name of the task, where several share the queue.
    pub fn task(&self) -> Option<&str> {
        self.leased.headers.get(TASK_HEADER).and_then(Value::as_str)
    }

    /// The version of the payload, as it was put.
    pub fn version(&self) -> u32 {
        self.leased.version
    }

    /// The number of this attempt, from 1 on.
    pub fn attempt(&self) -> i64 {
        self.leased.attempts
    }

    /// After how many attempts the document is killed.
    pub fn max_attempts(&self) -> Option<i64> {
        self.leased.max_attempts
    }

    /// Whether there is no other attempt after this one.
    pub fn is_last_attempt(&self) -> bool {
        self.leased
            .max_attempts
            .is_some_and(|most| self.leased.attempts >= most)
    }

    /// The number of the lease.
    pub fn lease(&self) -> i64 {
        self.leased.lease
    }

    /// The priority.
    pub fn priority(&self) -> i64 {
        self.leased.priority
    }

    /// The headers.
    pub fn headers(&self) -> &Map<String, Value> {
        &self.leased.headers
    }

    /// Why the attempt before has failed.
    pub fn last_error(&self) -> Option<&str> {
        self.leased.last_error.as_deref()
    }

    /// The name of the worker.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// Cancelled when the handler has to stop. Give it to what knows such tokens; do not cancel it.
    pub fn token(&self) -> &CancellationToken {
        &self.leased.token
    }

    /// Why the handler has to stop, if it has to.
    pub fn reason(&self) -> Option<Reason> {
        self.leased.reason.get().copied()
    }

    /// Ends when the handler has to stop, with the error to return: for `tokio::select!`.
    pub async fn stopped(&self) -> Aborted {
        self.leased.token.cancelled().await;
        Aborted(self.reason().unwrap_or(Reason::Lost))
    }

    /// An error if the handler has to stop.
    pub fn check(&self) -> Result<(), Aborted> {
        self.reason().map_or(Ok(()), |reason| Err(Aborted(reason)))
    }

    /// Sleeps, or ends with an error as soon as the handler has to stop.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Aborted> {
        tokio::select! {
            () = tokio::time::sleep(duration) => Ok(()),
            why = self.stopped() => Err(why),
        }
    }

    /// Puts a document in the commit that settles this one, if it succeeds.
    pub fn then(&self, doc: Doc) {
        self.leased
            .follow_ups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(doc);
    }

    /// The progress that this attempt or one before has stored, without the results of steps.
    pub fn stored(&self) -> Value {
        let progress = self
            .leased
            .progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Value::Object(mut object) = progress else {
            return progress;
        };
        if object.remove(STEPS).is_none() {
            return Value::Object(object);
        }
        match object.len() {
            0 => Value::Null,
            1 if object.contains_key("value") => object.remove("value").unwrap_or_default(),
            _ => Value::Object(object),
        }
    }

    /// Says how far the work has come. The server stores it with the next heartbeat, at the latest after a second; the
    /// next attempt finds it in [`Context::stored`].
    pub fn progress(&self, value: impl Serialize) -> Result<(), Error> {
        let value = encode(&value)?;
        self.store(
            |progress| {
                let steps = progress
                    .as_object_mut()
                    .and_then(|object| object.remove(STEPS));
                *progress = value;
                if let Some(steps) = steps {
                    let mut object = wrap(progress.take());
                    object.insert(STEPS.to_owned(), steps);
                    *progress = Value::Object(object);
                }
            },
            None,
        );
        Ok(())
    }

    /// The result of a function, which is kept over retries: it is called only where no attempt before has kept it.
    /// The result is JSON, small, and stored before this returns.
    pub async fn step<T, F, Fut, E>(&self, name: &str, work: F) -> Result<T, BoxError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        self.check()?;
        let kept = {
            let progress = self
                .leased
                .progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            progress
                .get(STEPS)
                .and_then(|steps| steps.get(name))
                .cloned()
        };
        if let Some(kept) = kept {
            return Ok(serde_json::from_value(kept)?);
        }
        let value = encode(&work().await.map_err(Into::<BoxError>::into)?)?;
        let (done, stored) = oneshot::channel();
        let copy = value.clone();
        self.store(
            |progress| {
                let mut object = wrap(progress.take());
                object.entry(STEPS).or_insert_with(|| json!({}))[name] = copy;
                *progress = Value::Object(object);
            },
            Some(done),
        );
        match stored.await {
            Ok(stored) => stored?,
            Err(_) => return Err(Aborted(self.reason().unwrap_or(Reason::Lost)).into()),
        }
        Ok(serde_json::from_value(value)?)
    }

    fn store(
        &self,
        change: impl FnOnce(&mut Value),
        done: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        match &self.engine {
            Some(engine) => engine.store(&self.leased, change, done),
            None => {
                change(
                    &mut self
                        .leased
                        .progress
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner),
                );
                if let Some(done) = done {
                    let _ = done.send(Ok(()));
                }
            }
        }
    }
}

/// The progress as an object; what it was before is its `value`.
fn wrap(progress: Value) -> Map<String, Value> {
    match progress {
        Value::Object(object) => object,
        Value::Null => Map::new(),
        before => Map::from_iter([("value".to_owned(), before)]),
    }
}

/// The context of a transactional handler: [`Context`], and the transaction in which the document is settled, too.
pub struct TxContext<D: Driver = TokioPostgres> {
    pub(crate) context: Context,
    pub(crate) lent: Arc<D::Lent>,
}

impl<D: Driver> fmt::Debug for TxContext<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}

impl<D: Driver> TxContext<D> {
    /// The transaction. The runtime ends it: do neither commit nor roll back.
    pub fn tx(&self) -> &D::Conn {
        &self.lent
    }
}

impl<D: Driver> Deref for TxContext<D> {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}
