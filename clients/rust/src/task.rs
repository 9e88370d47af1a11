//! Tasks: what a queue holds; documents that are to be put; middleware.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::client::PutResult;
use crate::context::Context;
use crate::error::{BoxError, Error, InvalidPayload};
use crate::outcome::Outcome;
use crate::text::{Interval, encode};

/// The header that names the task of a document where several share a queue.
pub const TASK_HEADER: &str = "fetchq-task";

/// The type of a payload, and what its documents have in common.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The queue.
    const QUEUE: &'static str;
    /// The name of the task, where several share the queue.
    const NAME: Option<&'static str> = None;
    /// The version of the payload. Workers lease no others, but those from [`Task::OLDEST`] on.
    const VERSION: u32 = 0;
    /// The oldest version that [`Task::upcast`] converts.
    const OLDEST: u32 = Self::VERSION;
    /// How long a lease lasts between two heartbeats; by default as the queue is set.
    const LEASE: Option<Duration> = None;
    /// How long a handler may run.
    const TIMEOUT: Option<Duration> = None;

    /// Makes of a payload of a version one of the next version.
    fn upcast(_from: u32, payload: Value) -> Value {
        payload
    }
}

/// Reads the payload of a document of a version, for a task whose own version is `to`.
pub(crate) fn decode<T: Task>(
    payload: Option<&str>,
    from: u32,
    to: u32,
) -> Result<T, InvalidPayload> {
    let wrong = |error: serde_json::Error| InvalidPayload(error.to_string());
    let text = payload.unwrap_or("null");
    if from >= to {
        return serde_json::from_str(text).map_err(wrong);
    }
    let value = serde_json::from_str(text).map_err(wrong)?;
    serde_json::from_value((from..to).fold(value, |value, version| T::upcast(version, value)))
        .map_err(wrong)
}

/// At most one document with these values of its payload in each period. The server makes the subject.
#[derive(Clone, Debug)]
pub struct Unique {
    by: Vec<String>,
    per: Option<Interval>,
}

impl Unique {
    /// Unique by these keys of the payload; without any, by the whole of it.
    pub fn by<S: Into<String>>(keys: impl IntoIterator<Item = S>) -> Self {
        Self {
            by: keys.into_iter().map(Into::into).collect(),
            per: None,
        }
    }

    /// Unique in each period, in place of for ever.
    pub fn per(mut self, period: impl Into<Interval>) -> Self {
        self.per = Some(period.into());
        self
    }
}

/// A document that is to be put.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Doc {
    pub(crate) body: Map<String, Value>,
    invalid: Option<String>,
}

impl Doc {
    /// A document of a task.
    pub fn new<T: Task>(payload: &T) -> Self {
        let doc = Self::of(T::QUEUE, payload).version(T::VERSION);
        match T::NAME {
            Some(name) => doc.task(name),
            None => doc,
        }
    }

    /// A document of any queue, whose payload is any JSON. A payload of `null` is that of the server's default.
    pub fn of(queue: &str, payload: impl Serialize) -> Self {
        let mut doc = Self::default();
        doc.set("queue", queue);
        doc.set("payload", payload);
        doc
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Serialize) {
        match encode(&value) {
            Ok(Value::Null) => {}
            Ok(value) => {
                self.body.insert(key.to_owned(), value);
            }
            Err(error) => self.invalid = Some(format!("{key}: {error}")),
        }
    }

    pub(crate) fn json(&self) -> Result<Value, Error> {
        match &self.invalid {
            Some(invalid) => Err(Error::Invalid(invalid.clone())),
            None => Ok(Value::Object(self.body.clone())),
        }
    }

    pub(crate) fn add_headers(&mut self, given: Map<String, Value>) {
        let headers = self.body.entry("headers").or_insert_with(|| json!({}));
        if let Value::Object(headers) = headers {
            // The name of the task is reserved.
            headers.extend(given.into_iter().filter(|(key, _)| key != TASK_HEADER));
        }
    }

    /// The payload.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let payload = self.body.get("payload").unwrap_or(&Value::Null);
        T::deserialize(payload).map_err(|e| Error::Invalid(format!("another payload: {e}")))
    }

    /// The queue.
    pub fn queue(&self) -> &str {
        self.body
            .get("queue")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The subject, if it was given.
    pub fn given_subject(&self) -> Option<&str> {
        self.body.get("subject").and_then(Value::as_str)
    }

    /// The name of its task, where several share the queue.
    pub fn given_task(&self) -> Option<&str> {
        self.body.get("headers")?.get(TASK_HEADER)?.as_str()
    }

    /// The headers.
    pub fn headers(&self) -> Map<String, Value> {
        self.body
            .get("headers")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    }
}

/// The options of a put, for a document and for a put that is being made.
macro_rules! options {
    ($self:ident => $doc:expr) => {
        fn option(mut $self, key: &str, value: impl serde::Serialize) -> Self {
            $doc.set(key, value);
            $self
        }

        /// The subject, unique in the queue. Without it, one is made.
        pub fn subject($self, subject: impl Into<String>) -> Self {
            $self.option("subject", subject.into())
        }

        /// When it is due, from now on.
        pub fn delay($self, delay: impl Into<$crate::Interval>) -> Self {
            $self.option("delay", delay.into().0)
        }

        /// When it is due: a time in ISO 8601 with its zone.
        pub fn at($self, time: impl Into<String>) -> Self {
            $self.option("due_at", time.into())
        }

        /// After how long it is dropped if nobody has begun to work on it.
        pub fn expires_in($self, delay: impl Into<$crate::Interval>) -> Self {
            $self.option("expires_in", delay.into().0)
        }

        /// Its priority.
        pub fn priority($self, priority: i32) -> Self {
            $self.option("priority", priority)
        }

        /// What happens if the subject exists: `ignore`, `replace`, `merge`, `earliest`, `debounce`, `reset`, `once`.
        pub fn mode($self, mode: impl Into<String>) -> Self {
            $self.option("mode", mode.into())
        }

        /// Documents with the same key run one after the other.
        pub fn ordering_key($self, key: impl Into<String>) -> Self {
            $self.option("ordering_key", key.into())
        }

        /// After how many attempts it is killed.
        pub fn max_attempts($self, attempts: u32) -> Self {
            $self.option("max_attempts", attempts)
        }

        /// The version of the payload.
        pub fn version($self, version: u32) -> Self {
            $self.option("version", version)
        }

        /// Headers beside those that it has.
        pub fn with_headers(mut $self, headers: serde_json::Map<String, serde_json::Value>) -> Self {
            $doc.add_headers(headers);
            $self
        }

        /// The name of the task, where several share the queue.
        pub fn task(mut $self, name: &str) -> Self {
            $doc.set_task(name);
            $self
        }

        /// At most one document with these values of its payload.
        pub fn unique($self, unique: $crate::Unique) -> Self {
            let (by, per) = unique.parts();
            $self.option("unique_by", by).option("unique_per", per)
        }
    };
}
pub(crate) use options;

impl Unique {
    pub(crate) fn parts(self) -> (Vec<String>, Option<String>) {
        (self.by, self.per.map(|per| per.0))
    }
}

impl Doc {
    options!(self => self);

    pub(crate) fn set_task(&mut self, name: &str) {
        let headers = self.body.entry("headers").or_insert_with(|| json!({}));
        headers[TASK_HEADER] = name.into();
    }
}

/// A handler that runs, with the middleware inside.
pub type Handling<'a> = BoxFuture<'a, Result<Outcome, BoxError>>;
/// A put that is made, with the middleware inside.
pub type Putting<'a> = BoxFuture<'a, Result<Vec<PutResult>, Error>>;
/// Puts documents with the rest of the middleware.
pub type NextPut<'a> = Box<dyn FnOnce(Vec<Doc>) -> Putting<'a> + Send + 'a>;

/// Middleware around puts and handlers. The first that is registered is the outermost.
pub trait Plugin: Send + Sync + 'static {
    /// Documents are put. It may change them, and calls `next` to put them.
    fn put<'a>(&'a self, docs: Vec<Doc>, next: NextPut<'a>) -> Putting<'a> {
        next(docs)
    }

    /// A handler runs when `next` is awaited. Of a batch, the context is that of its first document.
    fn handle<'a>(&'a self, _context: &'a Context, next: Handling<'a>) -> Handling<'a> {
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_task_is_a_header_that_stays() {
        let given = json!({"fetchq-task": "other", "tenant": 7});
        let doc = Doc::of("q", json!({}))
            .task("mail")
            .with_headers(given.as_object().cloned().unwrap_or_default());
        assert_eq!(
            Value::Object(doc.headers()),
            json!({"fetchq-task": "mail", "tenant": 7})
        );
    }

    #[test]
    fn a_payload_that_postgres_refuses_is_an_error() {
        assert!(Doc::of("q", json!({"to": "\0"})).json().is_err());
    }
}
