//! Puts the documents of a JSON array, each with its own values and mode.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::domain::names::{self, QueueName};
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
use crate::store::queues::rights::Right;
use crate::store::queues::statement::Statement;

/// The keys of a document.
const KEYS: [&str; 14] = [
    "queue",
    "subject",
    "payload",
    "version",
    "priority",
    "due_at",
    "ordering_key",
    "max_attempts",
    "mode",
    "delay",
    "headers",
    "expires_in",
    "unique_by",
    "unique_per",
];

// Returns the first element that is no document: no object, with a subject that is no text, empty or too
// long, or with another key than those of $2.
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
         else coalesce(pg_catalog.jsonb_typeof(e.doc {->} 'subject'), 'null') {<>} all ('{string,\"null\"}'::pg_catalog.text[])
             or (e.doc {->>} 'subject') {=} ''
             or pg_catalog.char_length(e.doc {->>} 'subject') {>} {subject_max}
             or (e.doc {-} $2) {<>} '{}'::pg_catalog.jsonb
         end
     limit 1",
);

static IS_ARRAY: Statement = Statement::new("select pg_catalog.jsonb_typeof($1) {=} 'array'");

/// Checks the list of documents.
///
/// Fails with `Error::NoList` if `docs` is no JSON array, with `Error::BadDocument` for the
/// first element that is no document, and with `Error::InList` for a subject that is empty or too long.
fn check(spi: &Spi, docs: Arg) -> Result<()> {
    let bad = |at: i64, reason: String| Err(Error::BadDocument { at, reason });
    if plans::run_latest(spi, &IS_ARRAY, &[docs]).get(0, 1) != Some(true) {
        return Err(Error::NoList);
    }
    let rows = plans::run_latest(spi, &FIRST_BAD, &[docs, Arg::from(KEYS.to_vec())]);
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
    if let Some(subject) = subject {
        if subject_type != "string" {
            let reason = format!("its subject is a JSON {subject_type}, not a text");
            return bad(position, reason);
        }
        names::check_put_subject(&subject)
            .map_err(|e| Error::from(e).in_list(position as usize - 1))?;
    }
    let key = shorten(&unknown_key.unwrap_or_default());
    bad(position, format!("it has an unknown key {key:?}"))
}

// The values are read as JSON: an error of the server would not say which document has one that is
// not valid.
static READ: Statement = Statement::new(
    "select i.subject, coalesce(i.payload, '{}') as payload, i.version, i.priority, i.due_at,
         i.ordering_key, i.max_attempts, i.mode, i.delay, i.headers, i.queue, i.expires_in,
         i.unique_by, i.unique_per
     from rows from (pg_catalog.jsonb_to_recordset($1) as (
         subject pg_catalog.text, payload pg_catalog.jsonb, version pg_catalog.jsonb, priority pg_catalog.jsonb,
         due_at pg_catalog.jsonb, ordering_key pg_catalog.jsonb, max_attempts pg_catalog.jsonb,
         mode pg_catalog.jsonb, delay pg_catalog.jsonb, headers pg_catalog.jsonb, queue pg_catalog.jsonb,
         expires_in pg_catalog.jsonb, unique_by pg_catalog.jsonb, unique_per pg_catalog.jsonb)) with ordinality
         as i (subject, payload, version, priority, due_at, ordering_key, max_attempts, mode, delay, headers, queue, expires_in,
             unique_by, unique_per, n)
     order by i.n",
);

/// A document of a JSON array, with the values that it names. The JSON is in the memory of the SPI
/// connection.
pub struct ListedDoc {
    /// The queue that it names.
    pub queue: Option<QueueName>,
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

impl ListedDoc {
    fn put(&self) -> Put<'_> {
        Put {
            doc: NewDoc {
                subject: &self.subject,
                version: self.version,
                priority: self.priority,
                next_iteration: self.next_iteration,
                payload: self.payload,
                ordering_key: self.ordering_key.as_deref(),
                max_attempts: self.max_attempts,
                headers: self.headers,
                expires: self.expires_in.into(),
            },
            mode: self.mode,
        }
    }
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

    /// The queue that the document names.
    fn queue(&self) -> Result<Option<QueueName>> {
        let name = self.text(11, "queue")?;
        let parsed = name.as_deref().map(QueueName::parse).transpose();
        self.option(parsed.map_err(Error::from))
    }

    /// The fields of the payload by which the document is unique.
    fn unique_by(&self) -> Result<Option<Vec<String>>> {
        let Some(json) = self.rows.json(self.row, 13) else {
            return Ok(None);
        };
        let text = json.to_text();
        let fields = serde_json::from_str(&text).map_err(|_| Error::BadValue {
            argument: "unique_by",
            value: text,
            rule: r#"a list of fields of the payload, such as ["customer", "month"]"#,
        });
        self.option(fields).map(Some)
    }

    /// The document. `mode` is for one that names no mode of its own.
    fn read(&self, mode: Option<Mode>) -> Result<ListedDoc> {
        let due_at = self.parsed(5, "due_at", time::parse_timestamp)?;
        let delay = self.parsed(9, "delay", Interval::parse)?;
        let expires_in = self.parsed(12, "expires_in", Interval::parse)?;
        let own_mode = self.text(8, "mode")?;
        let max_attempts = self.integer(7, "max_attempts")?;
        let ordering_key = self.text(6, "ordering_key")?;
        self.option(doc_options::ordering_key(ordering_key.as_deref()))?;
        let payload = match self.rows.json(self.row, 2) {
            Some(payload) => payload,
            None => Jsonb::parse("{}"),
        };
        let given: Option<String> = self.rows.get(self.row, 1);
        let unique_by = self.unique_by()?;
        let unique_per = self.parsed(14, "unique_per", Interval::parse)?;
        let unique = doc_options::unique_subject(
            given.as_deref(),
            unique_by.as_deref(),
            unique_per,
            payload,
        );
        let unique = self.option(unique)?;
        let mode = mode.unwrap_or_else(|| doc_options::default_mode(unique.is_some()));
        let doc = ListedDoc {
            queue: self.queue()?,
            subject: given.or(unique).unwrap_or_else(generated_subject),
            payload,
            version: self.integer(3, "version")?.unwrap_or(0),
            priority: self.integer(4, "priority")?.unwrap_or(0),
            next_iteration: self.option(doc_options::due(due_at, delay))?,
            ordering_key,
            max_attempts: self.option(doc_options::max_attempts(max_attempts))?,
            headers: self.option(doc_options::headers(self.rows.json(self.row, 10)))?,
            expires_in: self.option(doc_options::expires_in(expires_in))?,
            mode: self
                .option(doc_options::mode(own_mode.as_deref()))?
                .unwrap_or(mode),
        };
        Ok(doc)
    }

    /// The value of an option, or its error with the position of the document.
    fn option<T>(&self, value: Result<T>) -> Result<T> {
        value.map_err(|e| e.in_list(self.row))
    }
}

/// Generates a subject that is unique among all servers, so that documents with such subjects can move to
/// another one. Subjects sort in the order in which they were generated, to the millisecond.
fn generated_subject() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Reads the documents of a JSON array; `mode` is for those that name no mode of their own, with None for
/// the default. One without a subject gets one: of its content if it is unique by that, else one that is unique.
///
/// Fails with `Invalid::LongList`, as `check` does, with `Error::BadDocument` for a value of the wrong type,
/// and with `Error::InList` where an option of `doc_put` would fail.
pub fn read_docs(spi: &Spi, docs: Jsonb, mode: Option<Mode>) -> Result<Vec<ListedDoc>> {
    docs.value().checked_len("docs")?;
    let docs = Jsonb::arg(Some(docs));
    check(spi, docs)?;
    let rows = plans::run_latest(spi, &READ, &[docs]);
    (0..rows.len())
        .map(|row| Element { rows: &rows, row }.read(mode))
        .collect()
}

/// Puts documents of a list. Fails as [`put_many`] does.
pub fn put_listed(queue: &Queue, listed: &[&ListedDoc]) -> Result<Vec<Action>> {
    let puts: Vec<Put> = listed.iter().map(|doc| doc.put()).collect();
    put_many(queue, &puts)
}

/// Puts the documents of a JSON array into `queue`, or each into the queue that it names; `mode` is for
/// those that name no mode of their own. Returns the subject of each, and what was done with it.
///
/// Fails as [`read_docs`] and [`put_many`] do, with `Error::BadDocument` for a document without a queue, and
/// as `Queue::open_for` does.
pub fn put_docs(
    queue: Option<&QueueName>,
    docs: Jsonb,
    mode: Option<Mode>,
) -> Result<Vec<(String, Action)>> {
    if let Some(queue) = queue {
        Queue::open_for(queue, Right::Push)?;
    }
    spi::connect(|spi| {
        let listed = read_docs(spi, docs, mode)?;
        // In the order of the queues, so that two sessions do not deadlock.
        let mut queues: BTreeMap<&QueueName, Vec<usize>> = BTreeMap::new();
        for (at, doc) in listed.iter().enumerate() {
            let Some(name) = doc.queue.as_ref().or(queue) else {
                let (at, reason) = (at as i64 + 1, "it has no queue, and the call names none");
                let reason = reason.to_owned();
                return Err(Error::BadDocument { at, reason });
            };
            queues.entry(name).or_default().push(at);
        }
        let mut actions = vec![None; listed.len()];
        for (name, ats) in queues {
            let docs: Vec<&ListedDoc> = ats.iter().map(|at| &listed[*at]).collect();
            let of_list = |error| match error {
                Error::InList { at, error } => error.in_list(ats[at as usize - 1]),
                other => other,
            };
            let done = Queue::with(name, Right::Push, |queue| put_listed(queue, &docs));
            for (at, action) in ats.iter().zip(done.map_err(of_list)?) {
                actions[*at] = Some(action);
            }
        }
        let subjects = listed.into_iter().map(|doc| doc.subject);
        let done = subjects.zip(actions);
        Ok(done
            .filter_map(|(subject, action)| Some((subject, action?)))
            .collect())
    })
}
