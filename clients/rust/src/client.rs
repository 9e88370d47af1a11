//! The client of producers: put, cancel, get, wait, sync.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::LEAST_VERSION;
use crate::driver::{Driver, Executor, Query, Row, Tx};
use crate::error::{Error, Kind};
use crate::postgres::TokioPostgres;
use crate::sql::{self, q};
use crate::task::{Doc, NextPut, Plugin, Task, options};
use crate::testing::Recorded;
use crate::text::{Interval, encode};

/// Puts documents, and asks about them. It is cheap to clone.
pub struct Client<D: Driver = TokioPostgres> {
    pub(crate) driver: Arc<D>,
    pub(crate) plugins: Arc<Vec<Arc<dyn Plugin>>>,
    /// For tests: puts end here.
    pub(crate) recorded: Option<Recorded>,
}

impl<D: Driver> Clone for Client<D> {
    fn clone(&self) -> Self {
        Self {
            driver: Arc::clone(&self.driver),
            plugins: Arc::clone(&self.plugins),
            recorded: self.recorded.clone(),
        }
    }
}

impl<D: Driver> fmt::Debug for Client<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("plugins", &self.plugins.len())
            .finish_non_exhaustive()
    }
}

/// What a put has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutResult {
    /// The subject, also where the server has made it.
    pub subject: String,
    /// `created`, `updated`, `queued` (it runs once more) or `ignored`.
    pub action: String,
}

/// What a cancel has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Whether the document was cancelled.
    pub was_cancelled: bool,
    /// The status that it had.
    pub status: Option<String>,
}

/// What became of a document: `completed`, `killed` or `dropped`. If the time is over, its status.
#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// The status.
    pub status: String,
    /// What its handler has returned.
    pub result: Option<Value>,
    /// Why it was killed.
    pub message: Option<String>,
}

/// A document as it is now, or as the history has it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Document {
    /// Its subject.
    pub subject: String,
    /// Its status.
    pub status: String,
    /// Its payload.
    pub payload: Value,
    /// Its headers.
    #[serde(default)]
    pub headers: Value,
    /// The version of its payload.
    pub version: u32,
    /// Its priority.
    pub priority: i32,
    /// The number of attempts.
    pub attempts: i32,
    /// After how many attempts it is killed.
    #[serde(default)]
    pub max_attempts: Option<i32>,
    /// What its handler has returned.
    #[serde(default)]
    pub result: Value,
    /// The progress of its handler.
    #[serde(default)]
    pub progress: Value,
    /// Why the last attempt has failed.
    #[serde(default)]
    pub last_error: Option<String>,
    /// The worker that has it.
    #[serde(default)]
    pub worker: Option<String>,
    /// All other columns of `fetchq.doc_get`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

pub(crate) fn text(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

fn put_results(rows: Vec<Row>) -> Vec<PutResult> {
    let read = |row: Row| PutResult {
        subject: text(row.first()).unwrap_or_default(),
        action: text(row.get(1)).unwrap_or_default(),
    };
    rows.into_iter().map(read).collect()
}

/// A put that is being made. Await it to send it.
#[must_use = "a put is sent when it is awaited"]
pub struct Put<'a, D: Driver = TokioPostgres> {
    client: &'a Client<D>,
    doc: Doc,
    tx: Option<Tx<'a>>,
}

impl<D: Driver> fmt::Debug for Put<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("doc", &self.doc)
            .finish_non_exhaustive()
    }
}

impl<'a, D: Driver> Put<'a, D> {
    options!(self => self.doc);

    /// Puts it in a transaction of the application.
    pub fn tx(mut self, tx: impl Into<Tx<'a>>) -> Self {
        self.tx = Some(tx.into());
        self
    }
}

impl<'a, D: Driver> IntoFuture for Put<'a, D> {
    type Output = Result<PutResult, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let mut puts = self.client.put_list(vec![self.doc], self.tx).await?;
            puts.pop()
                .ok_or_else(|| Error::Invalid("the server has put nothing".into()))
        }
        .boxed()
    }
}

impl<D: Driver> Client<D> {
    /// A client on a driver. Nothing connects before it is needed.
    pub fn new(driver: D) -> Self {
        Self {
            driver: Arc::new(driver),
            plugins: Arc::default(),
            recorded: None,
        }
    }

    /// Registers middleware, after that which is registered.
    pub fn with(mut self, plugin: impl Plugin) -> Self {
        let mut plugins = Vec::clone(&self.plugins);
        plugins.push(Arc::new(plugin));
        self.plugins = Arc::new(plugins);
        self
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Puts a document of a task.
    pub fn put<T: Task>(&self, payload: T) -> Put<'_, D> {
        self.put_doc(Doc::new(&payload))
    }

    /// Puts a document that was made before, or that belongs to no task of this program.
    pub fn put_doc(&self, doc: Doc) -> Put<'_, D> {
        Put {
            client: self,
            doc,
            tx: None,
        }
    }

    /// Puts documents of any tasks. All are put, or none.
    pub async fn put_many(&self, docs: Vec<Doc>) -> Result<Vec<PutResult>, Error> {
        self.put_list(docs, None).await
    }

    /// As [`Client::put_many`], in a transaction of the application.
    pub async fn put_many_tx(
        &self,
        tx: impl Into<Tx<'_>>,
        docs: Vec<Doc>,
    ) -> Result<Vec<PutResult>, Error> {
        self.put_list(docs, Some(tx.into())).await
    }

    async fn put_list(&self, docs: Vec<Doc>, tx: Option<Tx<'_>>) -> Result<Vec<PutResult>, Error> {
        if docs.is_empty() {
            return Ok(Vec::new());
        }
        let mut next: NextPut<'_> = Box::new(|docs| {
            async move {
                if let Some(recorded) = &self.recorded {
                    return recorded.put(docs);
                }
                let list: Vec<Value> = docs.iter().map(Doc::json).collect::<Result<_, _>>()?;
                let query = q!(sql::PUT, Value::Array(list));
                Ok(put_results(match &tx {
                    Some(tx) => tx.0.run(&query).await?,
                    None => self.run(&query).await?,
                }))
            }
            .boxed()
        });
        for plugin in self.plugins.iter().rev() {
            let inner = next;
            next = Box::new(move |docs| plugin.put(docs, inner));
        }
        next(docs).await
    }

    pub(crate) async fn run(&self, query: &Query) -> Result<Vec<Row>, Error> {
        if self.recorded.is_some() {
            return Err(Error::Invalid("a fake client can only put".into()));
        }
        self.driver.lend().await?.run(query).await
    }

    /// A document as it is now, or as the history has it.
    pub async fn get(&self, queue: &str, subject: &str) -> Result<Option<Document>, Error> {
        let rows = self.run(&q!(sql::GET, queue, subject)).await?;
        let Some(json) = rows.first().and_then(|row| text(row.first())) else {
            return Ok(None);
        };
        serde_json::from_str(&json)
            .map(Some)
            .map_err(|e| Error::Invalid(format!("doc_get has answered {json}: {e}")))
    }

    /// Cancels a document that is planned, pending or active; its worker stops.
    pub async fn cancel(&self, queue: &str, subject: &str) -> Result<Cancelled, Error> {
        let rows = self.run(&q!(sql::CANCEL, queue, subject)).await?;
        let row = rows.into_iter().next().unwrap_or_default();
        let was_cancelled = row.first().and_then(Value::as_bool).unwrap_or(false);
        Ok(Cancelled {
            was_cancelled,
            status: text(row.get(1)),
        })
    }

    /// Waits until a document is settled. It needs a connection of the pool for as long as it waits.
    pub async fn wait(
        &self,
        queue: &str,
        subject: &str,
        timeout: impl Into<Interval>,
    ) -> Result<Waited, Error> {
        let rows = self
            .run(&q!(sql::AWAIT, queue, subject, timeout.into().0))
            .await?;
        let row = rows.into_iter().next().unwrap_or_default();
        let result = row.get(1).cloned().filter(|value| !value.is_null());
        Ok(Waited {
            status: text(row.first()).unwrap_or_default(),
            result,
            message: text(row.get(2)),
        })
    }

    /// Whether the extension is there and new enough; gives whether its library is preloaded.
    pub async fn check(&self) -> Result<bool, Error> {
        let rows = self.run(&q!(sql::INFO)).await.map_err(missing_extension)?;
        Ok(check_info(&rows)?.0)
    }

    /// Creates queues, writes the settings that are declared, and makes the schedules of the owner those that are
    /// declared. It is for a deployment, with the rights to do that. All or nothing.
    pub async fn sync(&self, declare: &Declare) -> Result<(), Error> {
        if let Some(invalid) = &declare.invalid {
            return Err(Error::Config(invalid.clone()));
        }
        self.check().await?;
        let lent = self.driver.lend().await?;
        self.driver.control(&lent, "begin").await?;
        let done = declare.write(&*lent).await;
        let end = self
            .driver
            .control(&lent, if done.is_ok() { "commit" } else { "rollback" })
            .await;
        if end.is_err() {
            self.driver.discard(lent);
        }
        done.and(end)
    }
}

/// Reads the answer of `info()`: whether the library is preloaded, and the process of the server.
pub(crate) fn check_info(rows: &[Row]) -> Result<(bool, i64), Error> {
    let row = rows.first().map(Vec::as_slice).unwrap_or_default();
    let version = text(row.first()).unwrap_or_default();
    let number = |part: &str| {
        part.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .unwrap_or(0)
    };
    let numbers: Vec<u32> = version.split('.').take(3).map(number).collect();
    if numbers.as_slice() < LEAST_VERSION.as_slice() {
        let [major, minor, patch] = LEAST_VERSION;
        return Err(Error::Config(format!(
            "the extension fetchq of this database is version {version}, and this client needs {major}.{minor}.{patch}: \
             run ALTER EXTENSION fetchq UPDATE"
        )));
    }
    let preloaded = row.get(1).and_then(Value::as_bool).unwrap_or(false);
    Ok((preloaded, row.get(2).and_then(Value::as_i64).unwrap_or(0)))
}

/// The clear error for a database without the extension.
pub(crate) fn missing_extension(error: Error) -> Error {
    match error.sqlstate() {
        Some("3F000" | "42883" | "42P01") if error.kind() == Kind::Config => Error::Config(
            "this database has no extension fetchq 5: run CREATE EXTENSION fetchq".into(),
        ),
        _ => error,
    }
}

/// What [`Client::sync`] writes: queues with their settings, and schedules.
#[derive(Clone, Debug, Default)]
pub struct Declare {
    owner: Option<String>,
    queues: BTreeMap<String, Value>,
    schedules: Vec<Value>,
    invalid: Option<String>,
}

impl Declare {
    /// Declarations without schedules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declarations of an application, which owns its schedules: those that it does not declare any more are dropped.
    pub fn owner(name: impl Into<String>) -> Self {
        Self {
            owner: Some(name.into()),
            ..Self::default()
        }
    }

    /// A queue with settings of `queue_configure`.
    pub fn queue(mut self, name: &str, settings: Value) -> Self {
        self.queues.insert(name.to_owned(), settings);
        self
    }

    /// A schedule. `cron` may also be an interval; `doc` is what it puts, and `options` are those of
    /// `schedule_create`, such as `catch_up`, or null.
    pub fn schedule(
        mut self,
        name: &str,
        cron: &str,
        timezone: &str,
        doc: &Doc,
        options: Value,
    ) -> Self {
        let mut body = json!({"name": name, "schedule": cron, "timezone": timezone});
        for key in ["queue", "payload", "headers", "version", "priority"] {
            if let Some(value) = doc.body.get(key) {
                body[key] = value.clone();
            }
        }
        for (key, value) in options.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        match encode(&body).and(doc.json()) {
            Ok(_) if self.owner.is_some() => self.schedules.push(body),
            Ok(_) => self.invalid = Some("schedules need an owner: Declare::owner(name)".into()),
            Err(error) => self.invalid = Some(format!("the schedule {name}: {error}")),
        }
        self
    }

    async fn write(&self, on: &dyn Executor) -> Result<(), Error> {
        for (queue, settings) in &self.queues {
            let settings = if settings.is_null() {
                json!({})
            } else {
                settings.clone()
            };
            let rows = on.run(&q!(sql::CREATE, queue, settings)).await?;
            let was_created = rows
                .first()
                .and_then(|row| row.first())
                .and_then(Value::as_bool)
                .unwrap_or(false);
            if !was_created && settings.as_object().is_some_and(|s| !s.is_empty()) {
                on.run(&q!(sql::CONFIGURE, queue, settings)).await?;
            }
        }
        if let Some(owner) = &self.owner {
            on.run(&q!(
                sql::SCHEDULES,
                owner,
                Value::Array(self.schedules.clone())
            ))
            .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_extension_is_refused() {
        assert!(check_info(&[vec!["4.2.0".into(), true.into(), 7.into()]]).is_err());
        assert_eq!(
            check_info(&[vec!["5.0.0".into(), true.into(), 7.into()]]).ok(),
            Some((true, 7))
        );
        assert!(check_info(&[vec!["5.1".into(), false.into(), 7.into()]]).is_ok());
    }
}
