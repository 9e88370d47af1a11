//! Many documents at once: one statement for the list, one counter row for each kind
//! of event. Lists keep their order: of two documents of one moment, the earlier one in
//! the list is picked first.

use std::collections::{HashMap, HashSet};

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::pg::documents::{Change, Column, Documents, Row};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Rows};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::bookkeeping::planned_entries;
use crate::store::counter_log;
use crate::store::doc_settle::end_iteration;
use crate::store::history::{self, Outcome};
use crate::store::lease_check::holds_lease;
use crate::store::open_queue::Queue;
use crate::store::policy::Keep;
use crate::store::statement::Statement;

// Index of the four: primary key, once for each subject.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = {completed}, attempts = 0,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         lease = null, worker_session = null, last_error = null
     where d.subject {=} any ($1)
         and {is_leased}
     returning d.subject::pg_catalog.text",
);

static COMPLETE_WITH: Statement = Statement::new(
    "update only {docs} d set
         status = {completed}, attempts = 0,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce(i.payload, d.payload),
         lease = null, worker_session = null, last_error = null
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($4)) as i (subject, payload)
     where d.subject {=} i.subject
         and {is_leased}
     returning d.subject::pg_catalog.text",
);

static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $3, attempts = 0,
         iterations = d.iterations {+} 1,
         last_iteration = pg_catalog.now(), next_iteration = $4,
         payload = coalesce(i.payload, d.payload),
         lease = null, worker_session = null, last_error = null
     from rows from (pg_catalog.unnest($1), pg_catalog.unnest($5)) as i (subject, payload)
     where d.subject {=} i.subject
         and {is_leased}
     returning d.subject::pg_catalog.text, d.version, d.priority, d.status, d.next_iteration, d.seq",
);

static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject {=} any ($1)
         and {is_leased}
     returning d.subject::pg_catalog.text, d.version",
);

/// What was settled without a statement, and what is left for one to decide.
struct Rowwise<'a> {
    settled: HashSet<String>,
    /// How many of each version.
    versions: HashMap<i32, i32>,
    rest: Vec<&'a str>,
}

/// Settles active documents without a statement, in the order of their subjects: two
/// sessions with some of the same do not wait for each other in a circle.
fn settle_rows<'a>(
    queue: &Queue,
    subjects: &'a [String],
    lease: Option<i64>,
    access: Access,
    settle: impl Fn(&mut Documents, &mut Row) -> Change,
) -> Rowwise<'a> {
    let mut done = Rowwise {
        settled: HashSet::with_capacity(subjects.len()),
        versions: HashMap::new(),
        rest: subjects.iter().map(String::as_str).collect(),
    };
    let Some(mut documents) = queue.documents(access) else {
        return done;
    };
    let mut sorted = std::mem::take(&mut done.rest);
    sorted.sort_unstable();
    sorted.dedup();
    for (at, subject) in sorted.iter().enumerate() {
        let row = documents.find(subject);
        let Some(mut row) = row.filter(|row| holds_lease(row, lease)) else {
            done.rest.push(subject);
            continue;
        };
        if settle(&mut documents, &mut row) != Change::Done {
            // The statement has to take it now, and not behind those that follow.
            done.rest.extend(&sorted[at..]);
            break;
        }
        *done.versions.entry(row.int4(Column::Version)).or_default() += 1;
        done.settled.insert((*subject).to_owned());
    }
    done
}

/// The subjects that a settling statement returned in its first column.
fn settled(rows: &Rows) -> HashSet<String> {
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Settles active documents as done; gives the subjects that were active.
pub fn complete(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    payloads: Option<Arg>,
) -> HashSet<String> {
    match queue.policy.completed {
        Keep::InTable => {}
        Keep::Nowhere => return remove(queue, subjects, lease),
        Keep::InHistory => {
            return into_history(queue, subjects, lease, payloads, Outcome::Completed);
        }
    }
    let at = Arg::timestamp(time::COMPLETED_AT);
    let Some(payloads) = payloads else {
        return complete_as_they_are(queue, subjects, lease, at);
    };
    spi::connect(|spi| {
        let args = [Arg::from(subjects.to_vec()), Arg::from(lease), at, payloads];
        let rows = queue.run_noting(spi, &COMPLETE_WITH, &args);
        counter_log::record_event(queue, 0, rows.affected(), Event::Complete);
        settled(&rows)
    })
}

fn complete_as_they_are(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    at: Arg,
) -> HashSet<String> {
    let no_payload = Jsonb::arg(None);
    let mut done = settle_rows(queue, subjects, lease, Access::Update, |documents, row| {
        end_iteration(row, Status::Completed, &no_payload);
        row.set(Column::NextIteration, &at);
        documents.replace(row, true)
    });
    if !done.rest.is_empty() {
        spi::connect(|spi| {
            let args = [Arg::from(done.rest), Arg::from(lease), at];
            let rows = queue.run_noting(spi, &COMPLETE, &args);
            done.settled.extend(settled(&rows));
        });
    }
    let n = i32::try_from(done.settled.len()).unwrap_or(i32::MAX);
    counter_log::record_event(queue, 0, n, Event::Complete);
    done.settled
}

/// Plans the next iteration of active documents; gives those that were active.
pub fn reschedule(
    queue: &Queue,
    subjects: Arg,
    lease: Option<i64>,
    next_iteration: i64,
    payloads: Arg,
) -> HashSet<String> {
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
        counter_log::record_event(queue, 0, rows.affected(), Event::reschedule(to));
        settled(&rows)
    })
}

/// Settles active documents by removing them; gives those that were active.
pub fn drop(queue: &Queue, subjects: &[String], lease: Option<i64>) -> HashSet<String> {
    match queue.policy.dropped {
        Keep::InTable | Keep::Nowhere => remove(queue, subjects, lease),
        Keep::InHistory => into_history(queue, subjects, lease, None, Outcome::Dropped),
    }
}

fn into_history(
    queue: &Queue,
    subjects: &[String],
    lease: Option<i64>,
    payloads: Option<Arg>,
    outcome: Outcome,
) -> HashSet<String> {
    let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    history::settle(queue, &subjects, lease, payloads, outcome)
}

fn remove(queue: &Queue, subjects: &[String], lease: Option<i64>) -> HashSet<String> {
    let mut done = settle_rows(queue, subjects, lease, Access::Delete, |documents, row| {
        documents.remove(row, true)
    });
    if !done.rest.is_empty() {
        spi::connect(|spi| {
            let args = [Arg::from(done.rest), Arg::from(lease)];
            let rows = queue.run_noting(spi, &DROP, &args);
            for row in 0..rows.len() {
                let version = rows.get(row, 2).unwrap_or(0);
                *done.versions.entry(version).or_default() += 1;
            }
            done.settled.extend(settled(&rows));
        });
    }
    for (version, n) in done.versions {
        counter_log::record_event(queue, version, n, Event::Drop);
    }
    done.settled
}
