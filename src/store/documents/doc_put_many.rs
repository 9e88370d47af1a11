//! Puts the documents of a JSON array, each with its own values and mode.

use serde_json::Value;

use crate::domain::names;
use crate::domain::put_mode::{Action, Mode};
use crate::domain::wording::{shorten, shorten_message};
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::passing_error;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::store::documents::doc_options;
use crate::store::documents::doc_push::NewDoc;
use crate::store::documents::doc_put::{Put, put_many};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::plans;
use crate::store::queues::statement::Statement;

/// The keys of a document. The first one is that of a list whose documents are for several queues.
const KEYS: [&str; 12] = [
    "queue",
    "subject",
    "payload",
    "version",
    "priority",
    "next_iteration",
    "ordering_key",
    "max_attempts",
    "mode",
    "delay",
    "headers",
    "expires_in",
];

// Returns the first element that is no document: no object, without a subject, with a subject
// that is empty or too long, or with another key than those of $2.
static FIRST_BAD: Statement = Statement::new(
    "select e.n as position,
         pg_catalog.jsonb_typeof(e.doc) as type,
         e.doc {->>} 'subject' as subject,
         pg_catalog.jsonb_typeof(e.doc {->} 'subject') as subject_type,
         (select k.key
          from pg_catalog.jsonb_object_keys(
              case when pg_catalog.jsonb_typeof(e.doc) {=} 'object' then e.doc else '{}' end) k (key)
          where k.key {<>} all ($2)
          limit 1) as unknown_key
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     where case when pg_catalog.jsonb_typeof(e.doc) {<>} 'object' then true
         else coalesce(pg_catalog.jsonb_typeof(e.doc {->} 'subject'), 'null') {<>} 'string'
             or (e.doc {->>} 'subject') {=} ''
             or pg_catalog.char_length(e.doc {->>} 'subject') {>} {subject_max}
             or (e.doc {-} $2) {<>} '{}'::pg_catalog.jsonb
         end
     limit 1",
);

static IS_ARRAY: Statement = Statement::new("select pg_catalog.jsonb_typeof($1) {=} 'array'");

/// Checks the list of documents, which may have these keys.
///
/// Fails with `Error::NoList` if `docs` is no JSON array, with `Error::BadDocument` for the
/// first element that is no document, and with `Error::InList` for a subject that is empty or too long.
fn check(spi: &Spi, docs: Arg, keys: &[&str]) -> Result<()> {
    let bad = |at: i64, reason: String| Err(Error::BadDocument { at, reason });
    if plans::run_latest(spi, &IS_ARRAY, &[docs]).get(0, 1) != Some(true) {
        return Err(Error::NoList);
    }
    let rows = plans::run_latest(spi, &FIRST_BAD, &[docs, Arg::from(keys.to_vec())]);
    if rows.is_empty() {
        return Ok(());
    }
    let position = rows.get(0, 1).unwrap_or(0);
    let kind: String = rows.get(0, 2).unwrap_or_default();
    let subject: Option<String> = rows.get(0, 3);
    let subject_type: String = rows.get(0, 4).unwrap_or_default();
    let unknown_key: Option<String> = rows.get(0, 5);
    if kind != "object" {
        return bad(position, format!("it is a JSON {kind}, not an object"));
    }
    match subject {
        None => bad(position, "it has no subject".into()),
        Some(_) if subject_type != "string" => bad(
            position,
            format!("its subject is a JSON {subject_type}, not a text"),
        ),
        Some(subject) => {
            names::check_put_subject(&subject)
                .map_err(|e| Error::from(e).in_list(position as usize - 1))?;
            let key = shorten(&unknown_key.unwrap_or_default());
            bad(position, format!("it has an unknown key {key:?}"))
        }
    }
}

// The values are read as JSON: an error of the server would not say which document has one that is
// not valid.
static READ: Statement = Statement::new(
    "select i.subject, coalesce(i.payload, '{}') as payload, i.version, i.priority, i.next_iteration,
         i.ordering_key, i.max_attempts, i.mode, i.delay, i.headers, i.queue, i.expires_in
     from rows from (pg_catalog.jsonb_to_recordset($1) as (
         subject pg_catalog.text, payload pg_catalog.jsonb, version pg_catalog.jsonb, priority pg_catalog.jsonb,
         next_iteration pg_catalog.jsonb, ordering_key pg_catalog.jsonb, max_attempts pg_catalog.jsonb,
         mode pg_catalog.jsonb, delay pg_catalog.jsonb, headers pg_catalog.jsonb, queue pg_catalog.jsonb,
         expires_in pg_catalog.jsonb)) with ordinality
         as i (subject, payload, version, priority, next_iteration, ordering_key, max_attempts, mode, delay, headers, queue, expires_in, n)
     order by i.n",
);

/// A document of a JSON array, with the values that it names. The JSON is in the memory of the SPI
/// connection.
pub struct ListedDoc {
    /// The queue that it names.
    pub queue: Option<String>,
    subject: String,
    payload: Jsonb,
    version: i32,
    priority: i32,
    next_iteration: i64,
    ordering_key: Option<String>,
    max_attempts: Option<i32>,
    headers: Option<Jsonb>,
    expires_in: Option<(i32, i32, i64)>,
    mode: Mode,
}

/// An element of the array, as a row of `READ`.
struct Element<'s> {
    rows: &'s Rows<'s>,
    row: usize,
}

impl Element<'_> {
    /// The error of a value that is not valid.
    fn bad(&self, reason: String) -> Error {
        Error::BadDocument {
            at: self.row as i64 + 1,
            reason,
        }
    }

    /// A value as `read` reads it, None where there is none. Fails with `Error::BadDocument` when
    /// `read` returns None.
    fn value<T>(
        &self,
        column: i32,
        key: &str,
        rule: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(json) = self.rows.json(self.row, column) else {
            return Ok(None);
        };
        let text = json.to_text();
        let value: Option<Value> = serde_json::from_str(&text).ok();
        match value.as_ref().and_then(read) {
            Some(value) => Ok(Some(value)),
            None => Err(self.bad(format!("its {key} is {}, not {rule}", shorten(&text)))),
        }
    }

    fn integer(&self, column: i32, key: &str) -> Result<Option<i32>> {
        self.value(
            column,
            key,
            "a whole number from -2147483648 to 2147483647",
            |value| i32::try_from(value.as_i64()?).ok(),
        )
    }

    fn text(&self, column: i32, key: &str) -> Result<Option<String>> {
        self.value(column, key, "a text", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    /// A text that `parse`, an input function of the server, reads.
    fn parsed<T>(&self, column: i32, key: &str, parse: fn(&str) -> T) -> Result<Option<T>> {
        let Some(text) = self.text(column, key)? else {
            return Ok(None);
        };
        let parsed = passing_error::refusal(|| parse(&text));
        parsed.map(Some).map_err(|message| {
            let message = shorten_message(&message);
            self.bad(format!("its {key} cannot be read: {message}"))
        })
    }

    /// The document. `mode` is for one that names no mode of its own.
    fn read(&self, mode: Mode) -> Result<ListedDoc> {
        let next_iteration = self.parsed(5, "next_iteration", time::parse_timestamp)?;
        let delay = self.parsed(9, "delay", Interval::parse)?;
        let expires_in = self.parsed(12, "expires_in", Interval::parse)?;
        let own_mode = self.text(8, "mode")?;
        let max_attempts = self.integer(7, "max_attempts")?;
        let ordering_key = self.text(6, "ordering_key")?;
        self.option(doc_options::ordering_key(ordering_key.as_deref()))?;
        let doc = ListedDoc {
            queue: self.text(11, "queue")?,
            subject: self.rows.get(self.row, 1).unwrap_or_default(),
            payload: match self.rows.json(self.row, 2) {
                Some(payload) => payload,
                None => Jsonb::parse("{}"),
            },
            version: self.integer(3, "version")?.unwrap_or(0),
            priority: self.integer(4, "priority")?.unwrap_or(0),
            next_iteration: self.option(doc_options::due(next_iteration, delay))?,
            ordering_key,
            max_attempts: self.option(doc_options::max_attempts(max_attempts))?,
            headers: self.option(doc_options::headers(self.rows.json(self.row, 10)))?,
            expires_in: self.option(doc_options::expires_in(expires_in))?,
            mode: match own_mode {
                None => mode,
                Some(text) => self.option(doc_options::mode(Some(&text)))?,
            },
        };
        Ok(doc)
    }

    /// The value of an option, or its error with the position of the document.
    fn option<T>(&self, value: Result<T>) -> Result<T> {
        value.map_err(|e| e.in_list(self.row))
    }
}

/// Reads the documents of a JSON array; `mode` is for those that name no mode of their own.
/// `for_queues`: each may name a queue.
///
/// Fails with `Invalid::LongList`, as `check` does, with `Error::BadDocument` for a value of the wrong type,
/// and with `Error::InList` where an option of `doc_put` would fail.
pub fn read_docs(spi: &Spi, docs: Jsonb, mode: Mode, for_queues: bool) -> Result<Vec<ListedDoc>> {
    docs.value().checked_len("docs")?;
    let docs = Jsonb::arg(Some(docs));
    check(spi, docs, if for_queues { &KEYS } else { &KEYS[1..] })?;
    let rows = plans::run_latest(spi, &READ, &[docs]);
    (0..rows.len())
        .map(|row| Element { rows: &rows, row }.read(mode))
        .collect()
}

/// Puts documents of a list. Fails as [`put_many`] does.
pub fn put_listed(queue: &Queue, listed: &[&ListedDoc]) -> Result<Vec<Action>> {
    let puts: Vec<Put> = listed
        .iter()
        .map(|doc| Put {
            doc: NewDoc {
                subject: &doc.subject,
                version: doc.version,
                priority: doc.priority,
                next_iteration: doc.next_iteration,
                payload: doc.payload,
                ordering_key: doc.ordering_key.as_deref(),
                max_attempts: doc.max_attempts,
                headers: doc.headers,
                expires: doc.expires_in.into(),
            },
            mode: doc.mode,
        })
        .collect();
    put_many(queue, &puts)
}

/// Puts the documents of a JSON array. Returns the subject of each, and what was done with it.
///
/// Fails as [`read_docs`] and [`put_many`] do.
pub fn put_docs(queue: &Queue, docs: Jsonb, mode: Mode) -> Result<Vec<(String, Action)>> {
    spi::connect(|spi| {
        let listed = read_docs(spi, docs, mode, false)?;
        let actions = put_listed(queue, &listed.iter().collect::<Vec<_>>())?;
        let subjects = listed.into_iter().map(|doc| doc.subject);
        Ok(subjects.zip(actions).collect())
    })
}
