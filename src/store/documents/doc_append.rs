//! Appends documents with generated subjects: one, or many at once. Both are hot. A list takes one
//! statement, if any, and one counter row, and is picked in its order.

use std::collections::HashSet;

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::pg::documents::{Column, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::{self, Jsonb};
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::value::Arg;
use crate::ready::key::PickKey;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{documents_ready, note_entry, note_expiry};
use crate::store::documents::doc_push::{NewDoc, new_row, push, record_push};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

/// How many subjects are generated before a document is given up. One is enough, unless a
/// client has pushed exactly that subject, or the server's clock was set back. A trigger of the
/// user that suppresses every insert rejects all of them.
const MAX_RETRIES: usize = 10;

/// Adds a document with a subject that `generate` returns, in place of its own, and returns the
/// subject. None when the subjects of `MAX_RETRIES` calls exist, or a trigger of the user
/// suppresses the insert.
pub fn append(queue: &Queue, doc: &NewDoc, generate: impl Fn() -> String) -> Option<String> {
    for _ in 0..MAX_RETRIES {
        let subject = generate();
        let doc = NewDoc {
            subject: &subject,
            ..*doc
        };
        if append_once(queue, &doc) {
            return Some(subject);
        }
    }
    None
}

/// Adds a document whose subject was generated. Returns false if the subject exists all the
/// same.
fn append_once(queue: &Queue, doc: &NewDoc) -> bool {
    match append_row(queue, doc) {
        Some(Some(seq)) => {
            record_push(queue, doc, seq);
            true
        }
        Some(None) => false,
        None => push(queue, doc) > 0,
    }
}

/// Adds a document with a generated subject without a statement, and returns its `seq`; no
/// look-up is needed. Some(None): the subject exists. None: a statement has to decide.
fn append_row(queue: &Queue, doc: &NewDoc) -> Option<Option<i64>> {
    let mut documents = queue.documents(Access::Insert)?;
    let (mut row, seq) = new_row(queue, doc)?;
    Some(documents.add(&mut row).then_some(seq))
}

/// Documents that share all but subject and payload.
pub struct Batch<'a> {
    /// What they share.
    pub doc: NewDoc<'a>,
    /// A `text[]`.
    pub subjects: Arg,
    /// A `jsonb[]` of the same length. NULL, or a NULL element: the payload is `{}`.
    pub payloads: Arg,
}

// Index: primary key, as the arbiter of the conflict, as for both statements of this file.
static APPEND_BATCH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload,
         ordering_key, max_attempts, headers, expires_at)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(i.payload, '{}'), $7, $8, $9, $10
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($6)) as i (subject, payload)
     on conflict (subject) do nothing
     returning seq, subject::pg_catalog.text",
);

// Some documents of a list. $5 are their subjects, $11 their positions in the array of payloads
// $6, counted from 1. To look a payload up by its position takes time in proportion to those
// before it, so this statement is not for whole lists.
static APPEND_REST: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload,
         ordering_key, max_attempts, headers, expires_at)
     select i.subject, $1, $2, $3, $4, pg_catalog.now(), coalesce(($6)[i.n], '{}'), $7, $8, $9, $10
     from rows from (pg_catalog.unnest($5), pg_catalog.unnest($11)) as i (subject, n)
     on conflict (subject) do nothing
     returning seq, subject::pg_catalog.text",
);

/// The positions of elements in an array of SQL, which counts from 1.
fn sql_positions(positions: &[usize]) -> Vec<i32> {
    positions.iter().map(|at| *at as i32 + 1).collect()
}

/// Notes, signals and counts `n` documents of a batch. `first_seq` is the least `seq`.
fn record_batch(queue: &Queue, batch: &Batch, status: Status, first_seq: i64, n: i32) {
    let doc = &batch.doc;
    let key = PickKey::new(doc.next_iteration, 0, first_seq);
    note_entry(queue, doc.version, doc.priority, status, key);
    note_expiry(queue, doc.expires_at(queue));
    documents_ready(queue, doc.version, status, n);
    counter_log::record_event(queue, doc.version, n, Event::push(status));
}

/// How many rows are written to the table before their index entries. With more, their pages are
/// no longer at hand; not measured.
const ROWS_AT_A_TIME: usize = 256;

/// The bytes of payloads after which no further row joins those that are written together. Each row is
/// a copy of its payload until all of them are written. And where the log is decoded, as for logical
/// replication, the process that decodes it keeps what is stored out of line of all of them. Rows share
/// pages and records of the log only while they are small: above 8 kB a payload is mostly stored out of
/// line, so that more bytes at a time would save nothing.
const BYTES_AT_A_TIME: usize = 1 << 20;

/// How many of the first documents are written to the table together: at least one, if there is one.
/// `sizes`: the bytes of their payloads.
fn n_at_a_time(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fit = sizes
        .take(ROWS_AT_A_TIME)
        .enumerate()
        .take_while(|(at, size)| {
            bytes += size;
            *at == 0 || bytes <= BYTES_AT_A_TIME
        });
    fit.count()
}

/// The documents of a list that were not added under a subject that was generated.
#[derive(Default)]
pub struct Missing {
    /// Their positions. A trigger of the user may have added some of them under another subject:
    /// which of them is not known.
    pub positions: HashSet<usize>,
    /// How many were not added at all.
    pub n: usize,
}

impl Missing {
    fn all(positions: HashSet<usize>) -> Self {
        let n = positions.len();
        Self { positions, n }
    }
}

/// Adds documents whose subjects were generated. If a subject exists all the same, another
/// one is generated and replaces it in `subjects`. Returns the documents that were not added, as
/// [`append`] returns None.
pub fn append_many(
    queue: &Queue,
    batch: &mut Batch,
    subjects: &mut [String],
    generate: impl Fn() -> String,
) -> Missing {
    append_rows(queue, batch, subjects, &generate)
        .map(Missing::all)
        .unwrap_or_else(|| append_by_statement(queue, batch, subjects, generate))
}

/// As [`append_many`], without a statement. Returns None if only a statement can add documents.
fn append_rows(
    queue: &Queue,
    batch: &Batch,
    subjects: &mut [String],
    generate: &impl Fn() -> String,
) -> Option<HashSet<usize>> {
    if !queue.has_next_seq() {
        return None;
    }
    let mut documents = queue.documents(Access::Insert)?;
    let payloads = json::elements(&batch.payloads);
    let (doc, empty) = (batch.doc, Jsonb::parse("{}"));
    let mut first = None;
    let mut added = 0;
    let mut missing = HashSet::new();
    let payload_at = |at: usize| payloads.get(at).copied().flatten().unwrap_or(empty);
    let mut begin = 0;
    let mut rest = subjects;
    while !rest.is_empty() {
        let n = n_at_a_time((begin..begin + rest.len()).map(|at| payload_at(at).stored_size()));
        let (subjects, after) = rest.split_at_mut(n);
        let rows = subjects.iter().enumerate().map_while(|(at, subject)| {
            let doc = NewDoc {
                subject: subject.as_str(),
                payload: payload_at(begin + at),
                ..doc
            };
            new_row(queue, &doc)
        });
        let (mut rows, seqs): (Vec<Row>, Vec<i64>) = rows.unzip();
        missing.extend(begin + rows.len()..begin + subjects.len());
        let are_new = documents.add_all(&mut rows);
        for (at, is_new) in are_new.into_iter().enumerate() {
            let is_added = is_new
                || (1..MAX_RETRIES).any(|_| {
                    subjects[at] = generate();
                    let subject = Arg::from(subjects[at].as_str());
                    rows[at].set(Column::Subject, &subject);
                    documents.add(&mut rows[at])
                });
            if is_added {
                first = Some(first.map_or(seqs[at], |first: i64| first.min(seqs[at])));
                added += 1;
            } else {
                missing.insert(begin + at);
            }
        }
        begin += n;
        rest = after;
    }
    if let Some(seq) = first {
        record_batch(queue, batch, doc.status(), seq, added);
    }
    Some(missing)
}

fn append_by_statement(
    queue: &Queue,
    batch: &mut Batch,
    subjects: &mut [String],
    generate: impl Fn() -> String,
) -> Missing {
    spi::connect(|spi| {
        batch.subjects = Arg::from(subjects.to_vec());
        let mut added = insert(spi, queue, batch, &APPEND_BATCH, None);
        let mut rest: Vec<usize> = (0..subjects.len()).collect();
        let mut attempt = 1;
        loop {
            if added.len() == rest.len() {
                // The rows come in the order of the list. A trigger of the user may have changed
                // the subjects.
                for (row, at) in rest.iter().enumerate() {
                    if let Some(subject) = added.get(row, 2) {
                        subjects[*at] = subject;
                    }
                }
                return Missing::default();
            }
            let n = rest.len().saturating_sub(added.len());
            let found: HashSet<String> = (0..added.len())
                .filter_map(|row| added.get(row, 2))
                .collect();
            rest.retain(|at| !found.contains(&subjects[*at]));
            // A trigger of the user has changed subjects. So which documents were added is not known,
            // and to add the rest again would add some of them twice.
            let is_known = rest.len() == n;
            if !is_known || attempt >= MAX_RETRIES {
                let positions = rest.into_iter().collect();
                return Missing { positions, n };
            }
            attempt += 1;
            for at in &rest {
                subjects[*at] = generate();
            }
            let generated: Vec<&str> = rest.iter().map(|at| subjects[*at].as_str()).collect();
            batch.subjects = Arg::from(generated);
            let positions = Arg::from(sql_positions(&rest));
            added = insert(spi, queue, batch, &APPEND_REST, Some(positions));
        }
    })
}

/// Runs one of the statements for a batch. `positions` is the last parameter of `APPEND_REST`.
fn insert<'s>(
    spi: &'s Spi,
    queue: &Queue,
    batch: &Batch,
    statement: &'static Statement,
    positions: Option<Arg>,
) -> Rows<'s> {
    let (doc, status) = (&batch.doc, batch.doc.status());
    let mut args = vec![
        Arg::from(doc.version),
        Arg::from(doc.priority),
        Arg::from(status.code()),
        Arg::timestamp(doc.next_iteration),
        batch.subjects,
        batch.payloads,
        Arg::from(doc.ordering_key),
        Arg::from(doc.max_attempts),
        Jsonb::arg(doc.headers),
        Arg::opt_timestamp(doc.expires_at(queue)),
    ];
    args.extend(positions);
    let rows = queue.run_noting(spi, statement, &args);
    if !rows.is_empty() {
        // The first one is not the least where the owner has given the sequence a negative increment.
        let seqs = (0..rows.len()).map(|row| rows.get(row, 1).unwrap_or(i64::MIN));
        let first_seq = seqs.min().unwrap_or(i64::MIN);
        record_batch(queue, batch, status, first_seq, rows.affected());
    }
    rows
}

#[cfg(any(test, feature = "pg_test"))]
mod tests {
    use super::*;
    use crate::domain::names::QueueName;
    use crate::store::documents::doc_push::Expires;
    use crate::store::queues::queue;
    use pgrx::pg_extern;
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
            expires: Expires::AsQueue,
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
            assert!(append_once(&queue, &doc(subject)));
        }
        assert!(!append_once(&queue, &doc("s4")));
        assert_eq!(counted(&queue), Some(2));

        let mut subjects = ["s1", "s2", "s3", "s4"].map(String::from);
        spi::connect(|spi| {
            let rows = spi.once("select array['1', '2', '3', '4']::jsonb[]", &[]);
            let mut batch = Batch {
                doc: doc(""),
                subjects: Arg::from(Vec::<&str>::new()),
                payloads: rows.args(0)[0],
            };
            // The first subject that is generated exists as well.
            let next = Cell::new(3);
            append_many(&queue, &mut batch, &mut subjects, || {
                next.set(next.get() + 1);
                format!("s{}", next.get())
            });
        });
        assert_eq!(counted(&queue), Some(6));
        (subjects, stored(&queue))
    }

    #[pg_extern(sql = false)]
    fn rows_are_written_together_up_to_a_number_and_up_to_bytes() {
        let n = |sizes: &[usize]| n_at_a_time(sizes.iter().copied());
        assert_eq!(n(&[]), 0);
        assert_eq!(n(&[100; 1000]), ROWS_AT_A_TIME);
        let half = BYTES_AT_A_TIME / 2;
        assert_eq!(n(&[half, half, 1]), 2);
        assert_eq!(n(&[half, half + 1, 1]), 1);
        assert_eq!(n(&[half; 1000]), 2);
        // One that is larger is written alone.
        assert_eq!(n(&[BYTES_AT_A_TIME * 3, 1]), 1);
        assert_eq!(n(&[1, 1, BYTES_AT_A_TIME * 3, 1]), 2);
    }

    #[pg_extern(sql = false)]
    fn generated_subjects_that_exist_are_generated_anew() {
        let (subjects, stored) = append_to_others("bulk_direct", "on");
        assert_eq!(subjects, ["s1", "s5", "s3", "s6"]);
        assert_eq!(stored, "s2 {}, s4 {}, s1 1, s5 2, s3 3, s6 4");
    }

    #[pg_extern(sql = false)]
    fn generated_subjects_that_exist_are_generated_anew_by_statement() {
        let (subjects, stored) = append_to_others("bulk_statement", "off");
        assert_eq!(subjects, ["s1", "s6", "s3", "s5"]);
        assert_eq!(stored, "s2 {}, s4 {}, s1 1, s3 3, s5 4, s6 2");
    }
}
