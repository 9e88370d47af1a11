//! Adds many documents at once, with one statement for the list and one counter row for each
//! kind of event. Lists keep their order: of two documents of one moment, the earlier one in
//! the list is picked first.

use std::collections::HashSet;

use crate::domain::counter_events::Event;
use crate::domain::push_list::Item;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::documents::Documents;
use crate::pg::documents_check::Access;
use crate::pg::json::{self, Jsonb};
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::ready::key::PickKey;
use crate::store::bookkeeping::{PlannedEntries, documents_ready, note_entry, planned_entries};
use crate::store::counter_log;
use crate::store::doc_list;
use crate::store::doc_push::{NewDoc, new_row};
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;

// Index: primary key, as the arbiter of the conflict, as for all statements of this file. Of
// equal subjects the first is added.
static PUSH_ITEMS: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, i.priority, $2, $3, pg_catalog.now(), i.payload::pg_catalog.jsonb
     from rows from (pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6))
          as i (subject, priority, payload)
     on conflict (subject) do nothing
     returning priority, seq",
);

/// Adds documents that share version and time. `next_iteration` is in microseconds since
/// 2000. Returns how many were new.
pub fn push_value_list(queue: &Queue, version: i32, next_iteration: i64, items: &[Item]) -> i32 {
    let status = Status::planned_or_pending(next_iteration <= time::now());
    let subjects: Vec<&str> = items.iter().map(|i| i.subject.as_str()).collect();
    let priorities: Vec<i32> = items.iter().map(|i| i.priority).collect();
    let payloads: Vec<&str> = items.iter().map(|i| i.payload.as_str()).collect();
    spi::connect(|spi| {
        let args = [
            Arg::from(version),
            Arg::from(status.code()),
            Arg::timestamp(next_iteration),
            Arg::from(subjects),
            Arg::from(priorities),
            Arg::from(payloads),
        ];
        let rows = queue.run_noting(spi, &PUSH_ITEMS, &args);
        let mut planned = PlannedEntries::default();
        for row in 0..rows.len() {
            let seq = rows.get(row, 2).unwrap_or(i64::MIN);
            let key = PickKey::new(next_iteration, 0, seq);
            planned.add(version, rows.get(row, 1).unwrap_or(0), status, key);
        }
        planned.signal(queue);
        planned.count(queue, Event::push);
        rows.affected()
    })
}

/// Documents that share version, priority and time.
pub struct Batch {
    pub version: i32,
    pub priority: i32,
    /// In microseconds since 2000.
    pub next_iteration: i64,
    /// A `text[]`.
    pub subjects: Arg,
    /// A `jsonb[]` of the same length. NULL, or a NULL element: the payload is `{}`.
    pub payloads: Arg,
}

static PUSH_BATCH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(i.payload, '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($6)) as i (subject, payload)
     on conflict (subject) do nothing
     returning seq",
);

static APPEND_BATCH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(i.payload, '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($6)) as i (subject, payload)
     on conflict (subject) do nothing
     returning seq, subject::pg_catalog.text",
);

// Some documents of a list. $5 are their subjects, $7 their positions in the array of payloads
// $6, counted from 1. To look a payload up by its position takes time in proportion to those
// before it, so this statement is not for whole lists.
static PUSH_REST: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(($6)[i.n], '{}')
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($7)) as i (subject, n)
     on conflict (subject) do nothing
     returning seq, subject::pg_catalog.text",
);

/// Up to this number of documents that are left of a list, their payloads are looked up by
/// position. Not measured: each look-up reads the array from its start, which is cheap for few.
const MAX_REST: usize = 16;

/// Adds the documents whose subjects are new, and returns their number. `subjects` are those
/// of the batch.
pub fn push(queue: &Queue, batch: &mut Batch, subjects: &[String]) -> i32 {
    let (added, rest) = push_rows(queue, batch, subjects);
    if rest.is_empty() {
        return added;
    }
    let pushed = spi::connect(|spi| {
        if rest.len() <= MAX_REST {
            let few: Vec<&str> = rest.iter().map(|at| subjects[*at].as_str()).collect();
            batch.subjects = Arg::from(few);
            let positions = Arg::from(sql_positions(&rest));
            insert(spi, queue, batch, &PUSH_REST, Some(positions)).affected()
        } else {
            // The documents that were added above are not new to this statement.
            batch.subjects = Arg::from(subjects.to_vec());
            insert(spi, queue, batch, &PUSH_BATCH, None).affected()
        }
    });
    added + pushed
}

/// The positions of elements in an array of SQL, which counts from 1.
fn sql_positions(positions: &[usize]) -> Vec<i32> {
    positions.iter().map(|at| *at as i32 + 1).collect()
}

/// Adds the documents of a list whose subjects are new, without a statement. Returns how many
/// were added, and the positions of those that a statement has to decide.
fn push_rows(queue: &Queue, batch: &Batch, subjects: &[String]) -> (i32, Vec<usize>) {
    let mut rest: Vec<usize> = Vec::new();
    let added = add_rows(queue, batch, subjects.len(), |documents, at, doc| {
        let subject = subjects[at].as_str();
        // A failed attempt to add leaves a dead row. After the first failure, each subject is
        // looked up before.
        let exists = !rest.is_empty() && documents.find(subject).is_some();
        let mut added = None;
        if !exists {
            let (mut row, seq) = new_row(queue, &NewDoc { subject, ..doc })?;
            added = documents.add_if_new(&mut row).then_some(seq);
        }
        if added.is_none() {
            rest.push(at);
        }
        added
    });
    match added {
        Some(added) => (added, rest),
        None => (0, (0..subjects.len()).collect()),
    }
}

/// Calls `add` for each position of a list of `n` documents. `add` fills in the subject of
/// the document, and returns the `seq` of what it added. Returns the number of documents that
/// were added, or None if only a statement can add documents.
fn add_rows(
    queue: &Queue,
    batch: &Batch,
    n: usize,
    mut add: impl FnMut(&mut Documents, usize, NewDoc) -> Option<i64>,
) -> Option<i32> {
    if !queue.has_next_seq() {
        return None;
    }
    let mut documents = queue.documents(Access::Insert)?;
    let payloads = json::elements(&batch.payloads);
    let empty = Jsonb::parse("{}");
    let doc = NewDoc {
        subject: "",
        version: batch.version,
        priority: batch.priority,
        next_iteration: batch.next_iteration,
        payload: empty,
        ordering_key: None,
        max_attempts: None,
        headers: None,
    };
    let mut first = None;
    let mut added = 0;
    for at in 0..n {
        let payload = payloads.get(at).copied().flatten().unwrap_or(empty);
        if let Some(seq) = add(&mut documents, at, NewDoc { payload, ..doc }) {
            first.get_or_insert(seq);
            added += 1;
        }
    }
    if let Some(seq) = first {
        record_batch(queue, batch, doc.status(), seq, added);
    }
    Some(added)
}

/// Notes, signals and counts `n` documents of a batch. `first_seq` is the least `seq`.
fn record_batch(queue: &Queue, batch: &Batch, status: Status, first_seq: i64, n: i32) {
    let key = PickKey::new(batch.next_iteration, 0, first_seq);
    note_entry(queue, batch.version, batch.priority, status, key);
    documents_ready(queue, batch.version, status, n);
    counter_log::record_event(queue, batch.version, n, Event::push(status));
}

/// How many subjects are generated for a document that is appended.
const MAX_RETRIES: usize = 10;

/// Adds documents whose subjects were generated. If a subject exists all the same, another
/// one is generated and replaces it in `subjects`.
pub fn append(
    queue: &Queue,
    batch: &mut Batch,
    subjects: &mut [String],
    generate: impl Fn() -> String,
) {
    let added = add_rows(queue, batch, subjects.len(), |documents, at, doc| {
        for _ in 0..MAX_RETRIES {
            let subject = subjects[at].as_str();
            let (mut row, seq) = new_row(queue, &NewDoc { subject, ..doc })?;
            if documents.add(&mut row) {
                return Some(seq);
            }
            subjects[at] = generate();
        }
        None
    });
    if added.is_none() {
        append_by_statement(queue, batch, subjects, generate);
    }
}

fn append_by_statement(
    queue: &Queue,
    batch: &mut Batch,
    subjects: &mut [String],
    generate: impl Fn() -> String,
) {
    spi::connect(|spi| {
        batch.subjects = Arg::from(subjects.to_vec());
        let mut added = insert(spi, queue, batch, &APPEND_BATCH, None);
        let mut rest: Vec<usize> = (0..subjects.len()).collect();
        for _ in 1..MAX_RETRIES {
            if added.len() == rest.len() {
                return;
            }
            let found: HashSet<String> = (0..added.len())
                .filter_map(|row| added.get(row, 2))
                .collect();
            rest.retain(|at| !found.contains(&subjects[*at]));
            for at in &rest {
                subjects[*at] = generate();
            }
            let generated: Vec<&str> = rest.iter().map(|at| subjects[*at].as_str()).collect();
            batch.subjects = Arg::from(generated);
            let positions = Arg::from(sql_positions(&rest));
            added = insert(spi, queue, batch, &PUSH_REST, Some(positions));
        }
    });
}

/// Runs one of the statements for a batch. `positions` is the last parameter of `PUSH_REST`.
fn insert<'s>(
    spi: &'s Spi,
    queue: &Queue,
    batch: &Batch,
    statement: &'static Statement,
    positions: Option<Arg>,
) -> Rows<'s> {
    let status = Status::planned_or_pending(batch.next_iteration <= time::now());
    let mut args = vec![
        Arg::from(batch.version),
        Arg::from(batch.priority),
        Arg::from(status.code()),
        Arg::timestamp(batch.next_iteration),
        batch.subjects,
        batch.payloads,
    ];
    args.extend(positions);
    let rows = queue.run_noting(spi, statement, &args);
    if !rows.is_empty() {
        // The documents are numbered in the order of insertion, so the first `seq` is the
        // least.
        let first_seq = rows.get(0, 1).unwrap_or(i64::MIN);
        record_batch(queue, batch, status, first_seq, rows.affected());
    }
    rows
}

static PUSH_DOCS: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, coalesce(i.version, 0), coalesce(i.priority, 0),
         case when coalesce(i.next_iteration, pg_catalog.now()) {<=} pg_catalog.now() then {pending} else {planned} end,
         coalesce(i.next_iteration, pg_catalog.now()), pg_catalog.now(), coalesce(i.payload, '{}')
     from pg_catalog.jsonb_to_recordset($1) as i (
         subject pg_catalog.text, version pg_catalog.int4, priority pg_catalog.int4,
         next_iteration pg_catalog.timestamptz, payload pg_catalog.jsonb)
     on conflict (subject) do nothing
     returning version, priority, status, next_iteration, seq",
);

/// Adds the documents of a JSON array, each with its own version, priority, time and payload,
/// and returns how many were new. Fails as `doc_list::check_push` does.
pub fn push_docs(queue: &Queue, docs: Jsonb) -> Result<i32> {
    spi::connect(|spi| {
        let docs = Jsonb::arg(Some(docs));
        doc_list::check_push(spi, docs)?;
        let rows = queue.run_noting(spi, &PUSH_DOCS, &[docs]);
        let planned = planned_entries(&rows, 1);
        planned.signal(queue);
        planned.count(queue, Event::push);
        Ok(rows.affected())
    })
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::domain::names::QueueName;
    use crate::store::doc_push;
    use crate::store::queue;
    use pgrx::pg_test;
    use std::cell::Cell;

    fn queue(name: &str) -> std::rc::Rc<Queue> {
        let name = QueueName::parse(name).expect("a valid name");
        queue::create(&name).expect("created");
        Queue::open(&name).expect("open")
    }

    fn stored(queue: &Queue) -> String {
        spi::connect(|spi| {
            let all = "select string_agg(subject || ' ' || payload, ', ' order by seq) from {docs}";
            queue.once(spi, all, &[]).get(0, 1).unwrap_or_default()
        })
    }

    fn counted(queue: &Queue) -> Option<i64> {
        spi::connect(|spi| {
            let sum = "select value from fetchq.metrics_live where metric = 'cnt' and queue = $1";
            let rows = queue.once(spi, sum, &[Arg::from(queue.name.as_str())]);
            if rows.is_empty() {
                None
            } else {
                rows.get(0, 1)
            }
        })
    }

    fn doc(subject: &str) -> NewDoc<'_> {
        NewDoc {
            subject,
            version: 0,
            priority: 0,
            next_iteration: 0,
            payload: Jsonb::parse("{}"),
            ordering_key: None,
            max_attempts: None,
            headers: None,
        }
    }

    /// Appends to a queue that has some of the generated subjects, as after a clock was set
    /// back.
    fn append_to_others(name: &str, direct: &str) -> ([String; 4], String) {
        spi::connect(|spi| {
            spi.once(&format!("set local fetchq.direct = {direct}"), &[]);
        });
        let queue = queue(name);
        for subject in ["s2", "s4"] {
            assert!(doc_push::append_once(&queue, &doc(subject)));
        }
        assert!(!doc_push::append_once(&queue, &doc("s4")));
        assert_eq!(counted(&queue), Some(2));

        let mut subjects = ["s1", "s2", "s3", "s4"].map(String::from);
        spi::connect(|spi| {
            let rows = spi.once("select array['1', '2', '3', '4']::jsonb[]", &[]);
            let mut batch = Batch {
                version: 0,
                priority: 0,
                next_iteration: 0,
                subjects: Arg::from(Vec::<&str>::new()),
                payloads: Arg::new(pgrx::pg_sys::JSONBARRAYOID, rows.datum(0, 1)),
            };
            // The first subject that is generated exists as well.
            let next = Cell::new(3);
            append(&queue, &mut batch, &mut subjects, || {
                next.set(next.get() + 1);
                format!("s{}", next.get())
            });
        });
        assert_eq!(counted(&queue), Some(6));
        (subjects, stored(&queue))
    }

    #[pg_test]
    fn generated_subjects_that_exist_are_generated_anew() {
        let (subjects, stored) = append_to_others("bulk_direct", "on");
        assert_eq!(subjects, ["s1", "s5", "s3", "s6"]);
        assert_eq!(stored, "s2 {}, s4 {}, s1 1, s5 2, s3 3, s6 4");
    }

    #[pg_test]
    fn generated_subjects_that_exist_are_generated_anew_by_statement() {
        let (subjects, stored) = append_to_others("bulk_statement", "off");
        assert_eq!(subjects, ["s1", "s6", "s3", "s5"]);
        assert_eq!(stored, "s2 {}, s4 {}, s1 1, s3 3, s5 4, s6 2");
    }
}
