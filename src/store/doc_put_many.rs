//! Puts the documents of a JSON array, each with its own values and mode.

use crate::domain::put_mode::{Action, MODES, Mode};
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::doc_push::NewDoc;
use crate::store::doc_put::{Put, put_many};
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;
use crate::store::{doc_list, plans};

static READ: Statement = Statement::new(
    "select i.subject, coalesce(i.payload, '{}') as payload, i.version, i.priority, i.next_iteration,
         i.ordering_key, i.max_attempts, i.mode
     from rows from (pg_catalog.jsonb_to_recordset($1) as (
         subject pg_catalog.text, payload pg_catalog.jsonb, version pg_catalog.int4, priority pg_catalog.int4,
         next_iteration pg_catalog.timestamptz, ordering_key pg_catalog.text, max_attempts pg_catalog.int4,
         mode pg_catalog.text)) with ordinality
         as i (subject, payload, version, priority, next_iteration, ordering_key, max_attempts, mode, n)
     order by i.n",
);

/// A document of a JSON array, with the values that it names.
struct ListedDoc {
    subject: String,
    payload: Option<Jsonb>,
    version: Option<i32>,
    priority: Option<i32>,
    next_iteration: Option<i64>,
    ordering_key: Option<String>,
    max_attempts: Option<i32>,
    mode: Option<String>,
}

/// Reads the documents of a JSON array that was checked. The payloads are in the memory of
/// the SPI connection.
fn read_docs(spi: &Spi, docs: Arg) -> Vec<ListedDoc> {
    let rows = plans::run_latest(spi, &READ, &[docs]);
    (0..rows.len())
        .map(|row| ListedDoc {
            subject: rows.get(row, 1).unwrap_or_default(),
            payload: rows.json(row, 2),
            version: rows.get(row, 3),
            priority: rows.get(row, 4),
            next_iteration: rows.timestamp(row, 5),
            ordering_key: rows.get(row, 6),
            max_attempts: rows.get(row, 7),
            mode: rows.get(row, 8),
        })
        .collect()
}

/// Puts the documents of a JSON array; `mode` is for those that name no mode of their own.
/// Returns the subject of each, and what was done with it.
///
/// Fails as `doc_list::check_put` and `doc_put::put` do, and with `Error::BadDocument` for an
/// unknown mode and for `max_attempts` below 1.
pub fn put_docs(queue: &Queue, docs: Jsonb, mode: Mode) -> Result<Vec<(String, Action)>> {
    spi::connect(|spi| {
        let docs = Jsonb::arg(Some(docs));
        doc_list::check_put(spi, docs)?;
        let listed = read_docs(spi, docs);
        let mut puts = Vec::with_capacity(listed.len());
        for (at, doc) in listed.iter().enumerate() {
            let bad = |reason: String| Error::BadDocument {
                at: at as i64 + 1,
                reason,
            };
            let mode = match &doc.mode {
                None => mode,
                Some(text) => Mode::parse(text)
                    .ok_or_else(|| bad(format!("its mode is {text:?}, not one of {MODES}")))?,
            };
            if doc.max_attempts.is_some_and(|n| n < 1) {
                return Err(bad("its max_attempts is less than 1".into()));
            }
            let Some(payload) = doc.payload else {
                continue;
            };
            puts.push(Put {
                doc: NewDoc {
                    subject: &doc.subject,
                    version: doc.version.unwrap_or(0),
                    priority: doc.priority.unwrap_or(0),
                    next_iteration: doc.next_iteration.unwrap_or_else(time::now),
                    payload,
                    ordering_key: doc.ordering_key.as_deref(),
                    max_attempts: doc.max_attempts,
                    headers: None,
                },
                mode,
            });
        }
        let actions = put_many(queue, &puts)?;
        let subjects = listed.into_iter().map(|doc| doc.subject);
        Ok(subjects.zip(actions).collect())
    })
}
