//! Settles many leased documents: complete, reschedule, drop. Each takes one statement for the
//! list and one counter row for each kind of event.

use std::collections::{HashMap, HashSet};

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::domain::timing::Tally;
use crate::pg::documents::{Change, Column, Documents, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Rows};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::bounds::keys::lock_keys;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{planned_entries, subjects_settled};
use crate::store::documents::history::{self, Columns, Outcome};
use crate::store::documents::lease_check::holds_lease;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::statement::Statement;
use crate::store::settle::doc_settle::end_iteration;

// Index of all four: primary key, once for each subject.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = {completed}, attempts = 0,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(), next_iteration = $3, result = null,
         last_error = null
     where d.subject {=} any ($1)
         and {is_leased}
     returning d.subject::pg_catalog.text, d.picked_at",
);

static COMPLETE_WITH: Statement = Statement::new(
    "update only {docs} d set
         status = {completed}, attempts = 0,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce(i.payload, d.payload), result = i.result,
         last_error = null
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($4), pg_catalog.unnest($5))
         as i (subject, payload, result)
     where d.subject {=} i.subject
         and {is_leased}
     returning d.subject::pg_catalog.text, d.picked_at",
);

static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = {next_iterations},
         last_iteration = pg_catalog.now(), next_iteration = $4,
         payload = coalesce(i.payload, d.payload), result = null,
         last_error = null
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($5)) as i (subject, payload)
     where d.subject {=} i.subject
         and {is_leased}
     returning d.subject::pg_catalog.text, d.version, d.priority, d.status, d.next_iteration, d.seq,
         d.picked_at",
);

static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject {=} any ($1)
         and {is_leased}
     returning d.subject::pg_catalog.text, d.picked_at, d.version",
);

/// The documents that were settled without a statement.
struct Settled<'a> {
    subjects: HashSet<String>,
    /// The runs of the documents of each version.
    versions: HashMap<i32, Tally>,
    /// The subjects that a statement has to decide.
    rest: Vec<&'a str>,
}

/// Settles leased documents without a statement, in the order of their subjects, so that two
/// sessions with some of the same subjects do not deadlock.
fn settle_rows<'a>(
    queue: &Queue,
    subjects: &'a [String],
    lease: Option<i64>,
    access: Access,
    settle: impl Fn(&mut Documents, &mut Row) -> Change,
) -> Settled<'a> {
    let mut settled = Settled {
        subjects: HashSet::with_capacity(subjects.len()),
        versions: HashMap::new(),
        rest: subjects.iter().map(String::as_str).collect(),
    };
    let Some(mut documents) = queue.documents(access) else {
        return settled;
    };
    let mut sorted = std::mem::take(&mut settled.rest);
    sorted.sort_unstable();
    sorted.dedup();
    let now = time::clock();
    for (at, subject) in sorted.iter().enumerate() {
        let row = documents.find(subject);
        let Some(mut row) = row.filter(|row| holds_lease(row, lease)) else {
            settled.rest.push(subject);
            continue;
        };
        if settle(&mut documents, &mut row) != Change::Done {
            // The statement goes on from here, because the order of the locks must be kept.
            settled.rest.extend(&sorted[at..]);
            break;
        }
        settled
            .versions
            .entry(row.int4(Column::Version))
            .or_default()
            .add(counter_log::run_bucket(
                now,
                row.timestamp(Column::PickedAt),
            ));
        settled.subjects.insert((*subject).to_owned());
    }
    settled
}

/// The subjects that a settling statement returned in its first column.
fn subjects_of(rows: &Rows) -> HashSet<String> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// The runs of documents that a settling statement returned. `column` is `picked_at`.
fn runs_of(rows: &Rows, column: i32) -> Tally {
    let mut runs = Tally::new();
    let now = time::clock();
    for row in 0..rows.len() {
        runs.add(counter_log::run_bucket(now, rows.timestamp(row, column)));
    }
    runs
}

/// Completes leased documents as `doc_settle::complete` does. `lease`: None for any lease;
/// `payloads`: a `jsonb[]` as long as `subjects`, None to keep the payloads; `results`: one of the
/// same length, None for no results. Returns the subjects of the documents that were leased.
pub fn complete(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    payloads: Option<Arg>,
    results: Option<Arg>,
) -> HashSet<String> {
    lock_keys(queue, || Arg::from(subjects.to_vec()));
    complete_locked(queue, subjects, lease, payloads, results)
}

/// As [`complete`], for a caller that has locked the keys of the documents.
pub(in crate::store) fn complete_locked(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    payloads: Option<Arg>,
    results: Option<Arg>,
) -> HashSet<String> {
    match queue.policy.completed {
        Keep::InTable => {}
        Keep::Nowhere => return remove(queue, subjects, lease),
        Keep::InHistory => {
            let columns = Columns {
                payloads,
                results,
                error: None,
            };
            return move_to_history(queue, subjects, lease, columns, Outcome::Completed);
        }
    }
    let at = Arg::timestamp(time::COMPLETED_AT_US);
    if payloads.is_none() && results.is_none() {
        return complete_alone(queue, subjects, lease, at);
    }
    spi::connect(|spi| {
        let args = [
            Arg::from(subjects.to_vec()),
            Arg::from(lease),
            at,
            payloads.unwrap_or_else(Arg::no_json_array),
            results.unwrap_or_else(Arg::no_json_array),
        ];
        let rows = queue.run_noting(spi, &COMPLETE_WITH, &args);
        counter_log::record_timed(queue, 0, Event::Complete, &runs_of(&rows, 2));
        let settled = subjects_of(&rows);
        subjects_settled(queue, settled.iter().map(String::as_str));
        settled
    })
}

/// Completes documents that keep their payloads and have no results.
fn complete_alone(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    at: Arg,
) -> HashSet<String> {
    let no_payload = Jsonb::arg(None);
    let mut settled = settle_rows(queue, subjects, lease, Access::Update, |documents, row| {
        end_iteration(row, Status::Completed, &no_payload);
        row.set(Column::NextIteration, &at);
        documents.replace(row, true)
    });
    if !settled.rest.is_empty() {
        spi::connect(|spi| {
            let args = [Arg::from(settled.rest), Arg::from(lease), at];
            let rows = queue.run_noting(spi, &COMPLETE, &args);
            settled
                .versions
                .entry(0)
                .or_default()
                .merge(&runs_of(&rows, 2));
            settled.subjects.extend(subjects_of(&rows));
        });
    }
    let mut runs = Tally::new();
    settled
        .versions
        .values()
        .for_each(|of_version| runs.merge(of_version));
    counter_log::record_timed(queue, 0, Event::Complete, &runs);
    subjects_settled(queue, settled.subjects.iter().map(String::as_str));
    settled.subjects
}

/// Plans the next iteration of leased documents. `subjects` is a `text[]`, `next_iteration` is
/// in microseconds since 2000, and `payloads` is a `jsonb[]` of the same length or NULL.
/// Returns the subjects of the documents that were leased.
pub fn reschedule(
    queue: &Queue,
    subjects: Arg,
    lease: Option<i64>,
    next_iteration: i64,
    payloads: Arg,
) -> HashSet<String> {
    lock_keys(queue, || subjects);
    let to = Status::planned_or_pending(next_iteration <= time::now());
    spi::connect(|spi| {
        let args = [
            subjects,
            Arg::from(lease),
            Arg::from(to.code()),
            Arg::timestamp(next_iteration),
            payloads,
        ];
        let rows = queue.run_noting(spi, &RESCHEDULE, &args);
        planned_entries(&rows, 2).signal(queue);
        counter_log::record_timed(queue, 0, Event::reschedule(to), &runs_of(&rows, 7));
        subjects_of(&rows)
    })
}

/// Drops leased documents as `doc_settle::drop` does. Returns the subjects of the documents
/// that were leased.
pub fn drop(queue: &Queue, subjects: &[String], lease: Option<i64>) -> HashSet<String> {
    lock_keys(queue, || Arg::from(subjects.to_vec()));
    drop_locked(queue, subjects, lease)
}

/// As [`drop`], for a caller that has locked the keys of the documents.
pub(in crate::store) fn drop_locked(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
) -> HashSet<String> {
    match queue.policy.dropped {
        Keep::InTable | Keep::Nowhere => remove(queue, subjects, lease),
        Keep::InHistory => {
            move_to_history(queue, subjects, lease, Columns::default(), Outcome::Dropped)
        }
    }
}

fn move_to_history(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    columns: Columns,
    outcome: Outcome,
) -> HashSet<String> {
    let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    history::settle(queue, &subjects, lease, columns, outcome)
}

fn remove(queue: &Queue, subjects: &[String], lease: Option<i64>) -> HashSet<String> {
    let mut settled = settle_rows(queue, subjects, lease, Access::Delete, |documents, row| {
        documents.remove(row, true)
    });
    if !settled.rest.is_empty() {
        spi::connect(|spi| {
            let args = [Arg::from(settled.rest), Arg::from(lease)];
            let rows = queue.run_noting(spi, &DROP, &args);
            let now = time::clock();
            for row in 0..rows.len() {
                let version = rows.get(row, 3).unwrap_or(0);
                let run = counter_log::run_bucket(now, rows.timestamp(row, 2));
                settled.versions.entry(version).or_default().add(run);
            }
            settled.subjects.extend(subjects_of(&rows));
        });
    }
    for (version, runs) in settled.versions {
        counter_log::record_timed(queue, version, Event::Drop, &runs);
    }
    subjects_settled(queue, settled.subjects.iter().map(String::as_str));
    settled.subjects
}
