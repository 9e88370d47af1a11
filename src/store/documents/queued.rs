//! What was put on a document while it was leased: the column `queued`. It waits there until the document
//! is settled, and then it is put as `doc_put` puts (`doc_put::put_all_queued`).
//!
//! One column keeps the puts of any number of calls: they are put together by their modes, as they would
//! change a planned document.

use crate::domain::names;
use crate::domain::put_mode::{Mode, OnDuplicate, parse_queued_modes, queued_modes};
use crate::pg::documents::Column;
use crate::pg::json::{Jsonb, Value};
use crate::pg::spi::Rows;
use crate::pg::value::Arg;
use crate::pg::{subtransaction, time};
use crate::store::documents::doc_push::{Expires, NEW, NewDoc};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

/// Keeps a document with the active one that has its subject. The parameters are those of
/// `NewDoc::args`, and the modes. Index: the primary key.
pub(in crate::store) static KEEP: Statement = Statement::made(keep_sql);

fn keep_sql() -> String {
    let mut members = format!("'mode', ${}", NEW.len() + 1);
    for (number, column) in (1..).zip(NEW) {
        if !matches!(column, Column::Subject | Column::Status) {
            members += &format!(", '{}', ${number}", column.name());
        }
    }
    format!(
        "update only {{docs}} d set queued = pg_catalog.jsonb_build_object({members})
     where d.subject {{=}} $1"
    )
}

/// That column in a row that a statement returned, as JSON text. None: it is NULL.
pub fn queued_of(rows: &Rows, row: usize, column: i32) -> Option<String> {
    rows.json(row, column).map(Jsonb::to_text)
}

/// The documents of rows that have something there: their subjects, and that column.
pub fn all_queued(rows: &Rows, subject: i32, column: i32) -> Vec<(String, String)> {
    let queued = |row| Some((rows.get(row, subject)?, queued_of(rows, row, column)?));
    (0..rows.len()).filter_map(queued).collect()
}

/// What a document has in that column.
pub struct Queued {
    /// The words of its modes.
    modes: String,
    version: i32,
    priority: i32,
    /// In microseconds since 2000.
    next_iteration: i64,
    payload: Jsonb,
    ordering_key: Option<String>,
    max_attempts: Option<i32>,
    headers: Option<Jsonb>,
    /// In microseconds since 2000.
    expires_at: Option<i64>,
}

impl Queued {
    /// Reads the column. The managers of the queue may have written anything into it, and that must not
    /// keep a document from being settled: what no call would take is as if it was left out.
    pub fn read(column: Jsonb) -> Self {
        let mut queued = Self {
            modes: String::new(),
            version: 0,
            priority: 0,
            next_iteration: time::now(),
            payload: Jsonb::parse("{}"),
            ordering_key: None,
            max_attempts: None,
            headers: None,
            expires_at: None,
        };
        for (key, value) in column.value().members().unwrap_or_default() {
            queued.read_member(&key, value);
        }
        queued
    }

    fn read_member(&mut self, key: &str, value: Value) {
        let integer = || value.number().and_then(|digits| digits.parse().ok());
        let time = || {
            let text = value.text()?;
            subtransaction::attempt(|| time::parse_timestamp(&text)).ok()
        };
        match key {
            "mode" => self.modes = value.text().unwrap_or_default(),
            "version" => self.version = integer().unwrap_or(0),
            "priority" => self.priority = integer().unwrap_or(0),
            "next_iteration" => self.next_iteration = time().unwrap_or(self.next_iteration),
            "expires_at" => self.expires_at = time(),
            "payload" => self.payload = value.to_jsonb(),
            "ordering_key" => {
                let key = value.text();
                self.ordering_key = key.filter(|key| names::check_ordering_key(key).is_ok());
            }
            "max_attempts" => self.max_attempts = integer().filter(|n| *n > 0),
            "headers" => self.headers = Some(value.to_jsonb()).filter(|json| json.is_object()),
            _ => {}
        }
    }

    /// The document.
    pub fn doc<'a>(&'a self, subject: &'a str) -> NewDoc<'a> {
        NewDoc {
            subject,
            version: self.version,
            priority: self.priority,
            next_iteration: self.next_iteration,
            payload: self.payload,
            ordering_key: self.ordering_key.as_deref(),
            max_attempts: self.max_attempts,
            headers: self.headers,
            expires: Expires::At(self.expires_at),
        }
    }

    /// The modes in which it is put, one after the other.
    pub fn modes(&self) -> Vec<Mode> {
        parse_queued_modes(&self.modes)
    }
}

/// The parameters of [`KEEP`] for one more put, where a document has `before` already. None: the
/// payloads cannot be merged.
pub(in crate::store) fn keep_args(
    queue: &Queue,
    before: Option<&Queued>,
    how: OnDuplicate,
    put: &NewDoc,
) -> Option<Vec<Arg>> {
    let doc = match (how, before) {
        (OnDuplicate::Replace | OnDuplicate::Ignore, _) | (_, None) => *put,
        (OnDuplicate::Merge, Some(before)) if !before.payload.is_object() => return None,
        (OnDuplicate::Merge, Some(before)) => NewDoc {
            payload: before.payload.concat(put.payload),
            headers: match (before.headers, put.headers) {
                (Some(before), Some(headers)) => Some(before.concat(headers)),
                (before, headers) => headers.or(before),
            },
            ..before.doc(put.subject)
        },
        (OnDuplicate::Earliest, Some(before)) => NewDoc {
            next_iteration: before.next_iteration.min(put.next_iteration),
            expires: match put.next_iteration < before.next_iteration {
                true => put.expires,
                false => Expires::At(before.expires_at),
            },
            ..before.doc(put.subject)
        },
        (OnDuplicate::Debounce, Some(before)) => NewDoc {
            next_iteration: put.next_iteration,
            payload: put.payload,
            headers: put.headers,
            expires: put.expires,
            ..before.doc(put.subject)
        },
    };
    let modes = queued_modes(before.map(|before| before.modes.as_str()), how);
    let mut args = doc.args(queue).to_vec();
    args.push(Arg::from(modes));
    Some(args)
}
