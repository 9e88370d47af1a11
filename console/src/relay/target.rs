//! The queues, on the target.
use std::collections::BTreeMap;

use fetchq_connect::{DbError, DbErrorKind};
use serde_json::Value;

use super::batch::Batch;
use super::error::RelayError;
use super::mark::Mark;
use super::source::{Refused, Waiting};
use crate::commands::session::Session;

/// For how long a relay may be silent until one of another name takes its place, in seconds.
const SILENCE: f64 = 15.0;

/// A transaction of a relay that hangs must not keep its successor waiting.
const LIMITS: &str = "set local statement_timeout = '60s'; set local lock_timeout = '5s'; \
    set local idle_in_transaction_session_timeout = '30s'";

const READ: &str = "\
select d.payload, coalesce(extract(epoch from pg_catalog.clock_timestamp() - (d.payload ->> 'at')::timestamptz), 0)::float8 as silent \
from fetchq.doc_get($1, $2) as d where d.status = 'planned'";

const WRITE: &str = "\
select p.action from fetchq.doc_put($1, $2, \
    payload => $3::text::jsonb || pg_catalog.jsonb_build_object('at', pg_catalog.clock_timestamp()), \
    due_at => 'infinity', mode => 'replace') as p";

const PUT: &str = "select pg_catalog.count(*) as n from fetchq.doc_put_many(null, $1::text::jsonb)";

/// Those that have finished. One that is not known was dropped, and nothing was kept of it.
const RESULTS: &str = "\
select a.id, coalesce(d.status, 'missing') as status, d.result, d.last_error as message \
from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) as a (id, subject) left join lateral fetchq.doc_get($1, a.subject) as d on true \
where d.status is null or d.status not in ('planned', 'pending', 'active')";

/// What a transaction has carried.
#[derive(Debug, Default)]
pub struct Carried {
    pub ids: Vec<i64>,
    pub refused: Vec<Refused>,
    /// Queues that take nothing, and why.
    pub blocked: BTreeMap<String, String>,
}

/// The database of the queues.
pub struct Target {
    session: Session,
    queue: String,
    subject: String,
    pub mark: Mark,
}

/// Whether this relay carries.
pub enum Turn {
    Ours,
    /// Another one does, that was heard this many seconds ago.
    Theirs(String, f64),
}

impl Target {
    pub fn new(session: Session, queue: &str, source: &str) -> Self {
        Self {
            session,
            queue: queue.to_owned(),
            subject: source.to_owned(),
            mark: Mark::default(),
        }
    }

    /// Enters a new epoch, if no other relay carries. What the relay before has carried last is in the mark.
    ///
    /// # Errors
    /// The role lacks a right, or the connection is lost.
    pub async fn begin(&mut self, name: &str) -> Result<Turn, RelayError> {
        self.make_queue().await?;
        self.open().await?;
        let found = match self.read().await {
            Ok(found) => found,
            Err(error) => return self.give_up(error).await,
        };
        let other = found.as_ref().and_then(|mark| mark.name.clone());
        if let (Some(mark), Some(other)) = (&found, other)
            && other != name
            && mark.silent < SILENCE
        {
            self.session.end(false).await.map_err(failed)?;
            return Ok(Turn::Theirs(other, mark.silent));
        }
        self.mark = Mark {
            epoch: epoch(),
            name: Some(name.to_owned()),
            ..found.unwrap_or_default()
        };
        if let Err(error) = self.write(&self.mark).await {
            return self.give_up(error).await;
        }
        self.session.end(true).await.map_err(failed)?;
        Ok(Turn::Ours)
    }

    /// Makes the queue of the marks, if there is none.
    async fn make_queue(&self) -> Result<(), RelayError> {
        let there = "select pg_catalog.count(*) as n from fetchq.doc_get($1, $2)";
        match self
            .session
            .rows(there, &[&self.queue, &self.subject])
            .await
        {
            Err(error) if error.kind == DbErrorKind::Missing => {
                let make = "select q.was_created from fetchq.queue_create($1) as q";
                self.session
                    .change(make, &[&self.queue])
                    .await
                    .map(drop)
                    .map_err(failed)
            }
            done => done.map(drop).map_err(failed),
        }
    }

    /// Puts documents into their queues, all of them in one transaction. If one is refused, it is left out, and if a
    /// queue takes nothing, those of that queue are left out.
    ///
    /// # Errors
    /// Another relay has taken over, or the connection is lost: then it is not known whether they were carried, and the
    /// mark tells it.
    pub async fn carry(
        &mut self,
        documents: &[Waiting],
        about: Value,
    ) -> Result<Carried, RelayError> {
        let next = Mark {
            batch: batch(documents.iter()),
            carried: self.mark.carried + count(documents.len()),
            about,
            ..self.mark.clone()
        };
        self.enter().await?;
        let all = format!("[{}]", texts(documents).join(","));
        match self.put(&all, &next).await {
            Ok(()) => {
                self.session.end(true).await.map_err(failed)?;
                self.mark = next;
                Ok(Carried {
                    ids: documents.iter().map(|one| one.id).collect(),
                    ..Carried::default()
                })
            }
            Err(error) => {
                self.session.end(false).await.map_err(failed)?;
                match verdict(&error) {
                    Verdict::Again => Err(failed(error)),
                    _ => self.carry_each(documents, next).await,
                }
            }
        }
    }

    async fn put(&self, all: &String, next: &Mark) -> Result<(), DbError> {
        self.session.rows(PUT, &[all]).await?;
        self.write(next).await
    }

    /// The same, where some are refused.
    async fn carry_each(
        &mut self,
        documents: &[Waiting],
        mut next: Mark,
    ) -> Result<Carried, RelayError> {
        self.enter().await?;
        let mut carried = Carried::default();
        let mut good = Vec::new();
        for one in documents {
            if carried.blocked.contains_key(&one.queue) {
                continue;
            }
            self.savepoint("savepoint one").await?;
            match self
                .session
                .rows(PUT, &[&format!("[{}]", one.document)])
                .await
            {
                Ok(_) => {
                    self.savepoint("release savepoint one").await?;
                    good.push(one);
                    continue;
                }
                Err(error) => match verdict(&error) {
                    Verdict::Again => return self.give_up(error).await,
                    Verdict::Refused(sqlstate) => carried.refused.push(Refused {
                        id: one.id,
                        sqlstate,
                        message: error.message,
                    }),
                    Verdict::Blocked => {
                        carried.blocked.insert(one.queue.clone(), error.message);
                    }
                },
            }
            self.savepoint("rollback to savepoint one; release savepoint one")
                .await?;
        }
        carried.ids = good.iter().map(|one| one.id).collect();
        next.batch = batch(good.iter().copied());
        next.carried = self.mark.carried + count(good.len());
        if let Err(error) = self.write(&next).await {
            return self.give_up(error).await;
        }
        self.session.end(true).await.map_err(failed)?;
        self.mark = next;
        Ok(carried)
    }

    /// Says that this relay is there, or, with no name, that it has ended.
    ///
    /// # Errors
    /// Another relay has taken over, or the connection is lost.
    pub async fn touch(&mut self, about: Value, name: Option<String>) -> Result<(), RelayError> {
        self.mark.about = about;
        self.mark.name = name;
        self.enter().await?;
        if let Err(error) = self.write(&self.mark).await {
            return self.give_up(error).await;
        }
        self.session.end(true).await.map_err(failed)
    }

    /// What has become of documents of a queue: a JSON array, as text; None: nothing yet.
    ///
    /// # Errors
    /// The queue is gone or cannot be read, or the connection is lost.
    pub async fn results(
        &self,
        queue: &String,
        ids: &Vec<i64>,
        subjects: &Vec<String>,
    ) -> Result<Option<(usize, String)>, DbError> {
        // As text: a result may have numbers that are larger than any number here.
        let sql = format!(
            "select pg_catalog.count(*) as n, pg_catalog.jsonb_agg(pg_catalog.to_jsonb(r))::text as results from ({RESULTS}) as r"
        );
        let rows = self.session.rows(&sql, &[queue, ids, subjects]).await?;
        Ok(rows.first().and_then(|row| {
            let n = usize::try_from(row["n"].as_u64()?).ok()?;
            Some((n, row["results"].as_str()?.to_owned()))
        }))
    }

    /// Begins a transaction that no other relay of this source has at the same time.
    async fn open(&self) -> Result<(), RelayError> {
        // The name of the source is a uuid.
        let lock = format!(
            "{LIMITS}; select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('fetchq relay {}', 0))",
            self.subject
        );
        self.session.begin_with(&lock).await.map_err(failed)
    }

    /// The same, in our epoch.
    async fn enter(&self) -> Result<(), RelayError> {
        self.open().await?;
        let found = match self.read().await {
            Ok(found) => found,
            Err(error) => return self.give_up(error).await,
        };
        if found.as_ref().map(|mark| &mark.epoch) == Some(&self.mark.epoch) {
            return Ok(());
        }
        self.session.end(false).await.map_err(failed)?;
        let ours = self.mark.name.as_deref().unwrap_or_default();
        match found.and_then(|mark| mark.name) {
            Some(name) if name == ours => Err(RelayError::Replaced(name)),
            _ => Err(RelayError::Fenced),
        }
    }

    async fn read(&self) -> Result<Option<Mark>, DbError> {
        let rows = self
            .session
            .rows(READ, &[&self.queue, &self.subject])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let silent = row["silent"].as_f64().unwrap_or(0.0);
        let mark = Mark::from_json(&row["payload"], silent).ok_or_else(|| {
            DbError::unusable(format!(
                "document {} of queue {} is not the mark of a relay: name another queue with --queue",
                self.subject, self.queue
            ))
        })?;
        Ok(Some(mark))
    }

    async fn write(&self, mark: &Mark) -> Result<(), DbError> {
        let text = mark.to_json().to_string();
        let rows = self
            .session
            .rows(WRITE, &[&self.queue, &self.subject, &text])
            .await?;
        match rows.first().and_then(|row| row["action"].as_str()) {
            Some("created" | "updated") => Ok(()),
            other => Err(DbError::unusable(format!(
                "the mark of the relay in queue {} was not written ({}): no worker may lease from that queue",
                self.queue,
                other.unwrap_or("no answer")
            ))),
        }
    }

    async fn savepoint(&self, sql: &str) -> Result<(), RelayError> {
        self.session.execute(sql).await.map_err(failed)
    }

    /// Ends the transaction after an error.
    async fn give_up<T>(&self, error: DbError) -> Result<T, RelayError> {
        self.session.end(false).await.map_err(failed)?;
        Err(failed(error))
    }
}

fn failed(error: DbError) -> RelayError {
    RelayError::Target(error.into())
}

fn batch<'a>(documents: impl Iterator<Item = &'a Waiting>) -> Batch {
    Batch::of(documents.map(|one| (one.id, one.put_at)))
}

fn texts(documents: &[Waiting]) -> Vec<&str> {
    documents.iter().map(|one| one.document.as_str()).collect()
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A name for a start of a relay, that no other start has.
fn epoch() -> String {
    let mut bytes = [0; 16];
    // Without random numbers, the time and the process are all that is there.
    if ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).is_err() {
        return format!(
            "{:x}-{:x}",
            crate::poller::now().to_bits(),
            std::process::id()
        );
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What an error of the target means for the documents.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The server is busy, restarts, or is out of reach: all of it again.
    Again,
    /// This document will never be taken as it is. The SQLSTATE.
    Refused(String),
    /// The queue is not there, or takes nothing from this role: those behind it wait.
    Blocked,
}

fn verdict(error: &DbError) -> Verdict {
    let Some(code) = error.code.as_deref() else {
        return Verdict::Again;
    };
    match code {
        "25006" => Verdict::Again,
        // Somebody holds a lock, or a trigger takes too long: documents of other queues must not wait for that.
        "57014" => Verdict::Blocked,
        "42602" | "42804" => Verdict::Refused(code.to_owned()),
        _ => match code.get(..2).unwrap_or_default() {
            "08" | "40" | "53" | "57" | "58" => Verdict::Again,
            "21" | "22" | "23" | "27" | "44" | "54" | "P0" => Verdict::Refused(code.to_owned()),
            _ => Verdict::Blocked,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_document_does_not_stop_others() {
        let with = |code: Option<&str>| {
            verdict(&DbError {
                code: code.map(str::to_owned),
                ..DbError::unreachable(String::new())
            })
        };
        assert_eq!(with(None), Verdict::Again);
        for code in ["40P01", "57P01", "53300", "25006", "08006"] {
            assert_eq!(with(Some(code)), Verdict::Again, "{code}");
        }
        for code in ["22001", "23514", "P0001", "54000", "42602"] {
            assert_eq!(with(Some(code)), Verdict::Refused(code.to_owned()));
        }
        for code in [
            "42704", "42501", "3D000", "55000", "55P03", "57014", "XX000",
        ] {
            assert_eq!(with(Some(code)), Verdict::Blocked, "{code}");
        }
    }
}
