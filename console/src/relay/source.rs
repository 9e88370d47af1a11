//! The outbox, on the source.
use fetchq_connect::DbError;
use serde_json::Value;

use super::batch::Batch;
use super::error::RelayError;
use crate::commands::session::{Param, Session};

/// The most bytes of payload in a batch, as they are stored.
const BYTES: i64 = 8 << 20;

/// Numbers, times in microseconds, and the arguments of `doc_put` as text: a number in a payload may be larger than any
/// number here.
const READ: &str = "\
select d.id, (extract(epoch from d.put_at) * 1000000)::bigint as put_at, d.queue, d.found, \
    extract(epoch from pg_catalog.clock_timestamp() - d.put_at)::float8 as age, \
    (select pg_catalog.jsonb_object_agg(e.key, e.value) \
     from pg_catalog.jsonb_each(pg_catalog.to_jsonb(d) - '{id,put_at,wants_result,bytes,n,found}'::text[]) as e \
     where e.key = 'payload' or e.value <> 'null')::text as document \
from ( \
    select d.*, pg_catalog.sum(pg_catalog.pg_column_size(d.payload)) over (order by d.id) as bytes, \
        pg_catalog.row_number() over (order by d.id) as n, pg_catalog.count(*) over () as found \
    from ( \
        select * from fetchq_outbox.documents as d where d.id > $1 and d.queue <> all ($2) order by d.id limit $3 \
    ) as d \
) as d \
where d.bytes <= $4 or d.n = 1 \
order by d.id";

/// The documents that were carried go, and with them those that were refused; what has a result to come is noted. All
/// in one statement, so that a pooler in transaction mode may be between.
const REMOVE: &str = "\
with carried as ( \
    delete from fetchq_outbox.documents as d where d.id = any ($1) \
    returning d.id, d.queue, d.subject, d.wants_result \
), bad as ( \
    select * from pg_catalog.jsonb_to_recordset($2::text::jsonb) as b (id bigint, sqlstate text, message text) \
), refused as ( \
    delete from fetchq_outbox.documents as d using bad where d.id = bad.id \
    returning d.*, bad.sqlstate, bad.message \
), kept as ( \
    insert into fetchq_outbox.refused (id, put_at, wants_result, queue, subject, payload, due_at, version, priority, mode, \
        ordering_key, max_attempts, headers, expires_in, unique_by, unique_per, sqlstate, message) \
    select id, put_at, wants_result, queue, subject, payload, due_at, version, priority, mode, \
        ordering_key, max_attempts, headers, expires_in, unique_by, unique_per, sqlstate, message \
    from refused returning id \
), noted as ( \
    insert into fetchq_outbox.awaited (id, queue, subject) \
    select id, queue, subject from carried where wants_result \
    on conflict (id) do nothing returning id \
) \
select (select pg_catalog.count(*) from carried) as carried, (select pg_catalog.count(*) from kept) as refused, \
    (select pg_catalog.count(*) from noted) as noted";

/// What is there of a batch.
const THERE: &str = "\
select pg_catalog.count(*) as n, coalesce(pg_catalog.sum((extract(epoch from d.put_at) * 1000000)::bigint), 0)::text as sum \
from fetchq_outbox.documents as d where d.id = any ($1)";

const ARRIVED: &str = "\
with arrived as ( \
    select * from pg_catalog.jsonb_to_recordset($1::text::jsonb) as r (id bigint, status text, result jsonb, message text) \
), gone as ( \
    delete from fetchq_outbox.awaited as a using arrived as r where a.id = r.id \
    returning a.id, a.queue, a.subject, r.status, r.result, r.message \
), kept as ( \
    insert into fetchq_outbox.results (id, queue, subject, status, result, message) \
    select id, queue, subject, status, result, message from gone \
    on conflict (id) do nothing returning id \
) \
select pg_catalog.count(*) as n from kept";

/// A document that waits.
#[derive(Debug)]
pub struct Waiting {
    pub id: i64,
    /// When it was put, in microseconds.
    pub put_at: i64,
    pub queue: String,
    /// Seconds since it was put.
    pub age: f64,
    /// A JSON object for `doc_put_many`.
    pub document: String,
}

/// A document that the target has refused.
#[derive(Debug, serde::Serialize)]
pub struct Refused {
    pub id: i64,
    pub sqlstate: String,
    pub message: String,
}

/// The outbox of a database.
pub struct Source {
    session: Session,
    /// The name of this source.
    pub id: String,
}

impl Source {
    /// # Errors
    /// There is no outbox, or the role has no right on it.
    pub async fn open(session: Session) -> Result<Self, RelayError> {
        let sql = "select s.id::text as id from fetchq_outbox.source as s";
        let rows = session.rows(sql, &[]).await.map_err(failed)?;
        let id = rows.first().and_then(|row| row["id"].as_str());
        let id = id
            .ok_or_else(|| {
                failed(DbError::unusable(
                    "fetchq_outbox.source is empty: run the output of 'fetchq relay --sql' again"
                        .to_owned(),
                ))
            })?
            .to_owned();
        Ok(Self { session, id })
    }

    /// Host, port and database.
    pub fn place(&self) -> &str {
        self.session.place()
    }

    async fn rows(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Value>, RelayError> {
        self.session.rows(sql, params).await.map_err(failed)
    }

    async fn run(&self, sql: &str, params: &[&dyn Param]) -> Result<(), RelayError> {
        self.session.run(sql, params).await.map_err(failed)
    }

    /// The next documents whose numbers are greater than `floor`, without those of some queues, and whether there may be
    /// more.
    pub async fn read(
        &self,
        floor: i64,
        without: &Vec<String>,
        most: i32,
    ) -> Result<(Vec<Waiting>, bool), RelayError> {
        let rows = self.rows(READ, &[&floor, without, &most, &BYTES]).await?;
        let found = rows.first().and_then(|row| row["found"].as_i64());
        let documents = rows
            .iter()
            .map(|row| {
                let waiting = || {
                    Some(Waiting {
                        id: row["id"].as_i64()?,
                        put_at: row["put_at"].as_i64()?,
                        queue: row["queue"].as_str()?.to_owned(),
                        age: row["age"].as_f64()?,
                        document: row["document"].as_str()?.to_owned(),
                    })
                };
                waiting().ok_or_else(|| {
                    failed(DbError::unusable(
                        "fetchq_outbox.documents is not as 'fetchq relay --sql' makes it"
                            .to_owned(),
                    ))
                })
            })
            .collect::<Result<_, RelayError>>()?;
        Ok((documents, found == Some(i64::from(most))))
    }

    /// Removes documents that were carried, and puts aside those that were refused.
    pub async fn remove(&self, ids: &Vec<i64>, refused: &[Refused]) -> Result<(), RelayError> {
        let refused = serde_json::to_string(refused).unwrap_or_default();
        self.run(REMOVE, &[ids, &refused]).await
    }

    /// Removes what an earlier relay has carried, if it has not removed it.
    ///
    /// Returns how many documents these were.
    pub async fn forget(&self, batch: &Batch) -> Result<usize, RelayError> {
        let ids = batch.ids();
        if ids.is_empty() {
            return Ok(0);
        }
        let rows = self.rows(THERE, &[&ids]).await?;
        let Some(row) = rows.first() else {
            return Ok(0);
        };
        let all = row["n"].as_u64() == u64::try_from(ids.len()).ok();
        if !all || row["sum"].as_str() != Some(&batch.sum()) {
            return Ok(0);
        }
        self.remove(&ids, &[]).await?;
        Ok(ids.len())
    }

    /// How many documents wait, up to 100,000, and how long the first of them has waited, in seconds.
    pub async fn count(&self) -> Result<(i64, f64), RelayError> {
        let sql = "\
select (select pg_catalog.count(*) from (select from fetchq_outbox.documents limit 100000) as d) as n, \
    (select extract(epoch from pg_catalog.clock_timestamp() - d.put_at)::float8 \
     from fetchq_outbox.documents as d order by d.id limit 1) as age";
        let rows = self.rows(sql, &[]).await?;
        let row = rows.first();
        Ok((
            row.and_then(|row| row["n"].as_i64()).unwrap_or(0),
            row.and_then(|row| row["age"].as_f64()).unwrap_or(0.0),
        ))
    }

    /// Some documents whose results are to come, those with numbers greater than `after` first: number, queue and
    /// subject.
    pub async fn awaited(&self, after: i64) -> Result<Vec<(i64, String, String)>, RelayError> {
        let sql = "select a.id, a.queue, a.subject from fetchq_outbox.awaited as a where a.id > $1 order by a.id limit 500";
        let rows = self.rows(sql, &[&after]).await?;
        Ok(rows
            .iter()
            .filter_map(|row| {
                Some((
                    row["id"].as_i64()?,
                    row["queue"].as_str()?.to_owned(),
                    row["subject"].as_str()?.to_owned(),
                ))
            })
            .collect())
    }

    /// Stores results: a JSON array, as text.
    pub async fn arrived(&self, results: &String) -> Result<(), RelayError> {
        self.run(ARRIVED, &[results]).await
    }

    /// Forgets results that are older than some days.
    pub async fn forget_results(&self, days: i32) -> Result<(), RelayError> {
        let sql = "\
delete from fetchq_outbox.results as r \
where r.arrived_at < pg_catalog.now() - pg_catalog.make_interval(days => $1)";
        self.run(sql, &[&days]).await
    }
}

/// An error of the source. Where the outbox is not there, or may not be used, it says what to do.
fn failed(mut error: DbError) -> RelayError {
    match error.code.as_deref() {
        Some("42P01" | "3F000") => {
            error.message = "the database has no outbox".to_owned();
            error.hint = Some("Make it: fetchq relay --sql | psql \"$FETCHQ_SOURCE\"".to_owned());
        }
        Some("42501") => {
            error.hint = Some(
                "As the owner of the outbox: select fetchq_outbox.allow_relay('the role')"
                    .to_owned(),
            );
        }
        _ => (),
    }
    RelayError::Source(error.into())
}
