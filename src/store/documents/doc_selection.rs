//! Choosing documents for a bulk action (`docs_*`, `queue_redrive`): the documents that a
//! filter matches, the oldest first, up to a limit. A selection reads the whole table: the
//! indexes serve the workers, and one more would cost every push.
//!
//! Each action is two statements. The first one locks the rows, so that they can no longer
//! change, and skips those that other transactions have locked. The second one changes them by
//! their subjects. The counters therefore get what each row really was.

use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::counter_events::Event;
use crate::domain::filter::{self, Filter};
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{Rows, Spi};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::pg::{passing_error, relation};
use crate::store::counters::counter_log;
use crate::store::documents::queued::queued_of;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::{Scope, Statement, render};

/// What a caller asks of a bulk action.
pub struct BulkRequest<'a> {
    /// The conditions on the documents.
    pub filter: &'a Filter,
    /// The same conditions as the caller wrote them.
    pub json: Jsonb,
    /// How many documents at most.
    pub limit: i32,
    /// Nothing is changed: the action only counts the documents.
    pub dry_run: bool,
}

/// Which of the documents that match the filter an action applies to.
pub struct Selection<'a> {
    /// The codes of their statuses.
    pub statuses: Vec<i32>,
    /// One more condition, which may use `{other}` and the parameters from $21 on.
    pub condition: &'static str,
    /// The parameters from $21 on.
    pub args: &'a [Arg],
    /// The queue that `{other}` stands for.
    pub other: Option<&'a QueueName>,
}

// A parameter that is NULL was not asked for. The statement is planned with the values at
// hand, so that such a condition costs nothing. An infinite lock_upgrade: the document is
// blocked by another one of its ordering key.
const SELECTED: &str = "from only {docs} d
    where {conditions}
        {condition}";

/// The conditions of $2 to $19, which entries of a history can satisfy, too. `settled_at`, `ran`:
/// expressions for when it was settled, and how long its run took.
macro_rules! conditions {
    ($settled_at:literal, $ran:literal) => {
        concat!(
            "($2 is null or d.version {=} any ($2))
        and ($3 is null or d.priority {=} any ($3))
        and ($4 is null or d.priority {>=} $4)
        and ($5 is null or d.priority {<=} $5)
        and ($6 is null or d.attempts {>=} $6)
        and ($7 is null or d.created_at {<} (pg_catalog.now() {-} $7))
        and ($8 is null or d.created_at {>=} (pg_catalog.now() {-} $8))
        and ($9 is null or d.payload {@>} $9)
        and ($10 is null or d.subject::pg_catalog.text {~~} $10)
        and ($11 is null or d.last_error {~~} $11)
        and ($12 is null or d.ordering_key {=} $12)
        and ($13 is null or d.subject {=} any ($13))
        and ($14 is null or d.created_at {>=} $14)
        and ($15 is null or d.created_at {<} $15)
        and ($16 is null or ",
            $settled_at,
            " {>=} $16)
        and ($17 is null or ",
            $settled_at,
            " {<} $17)
        and ($18 is null or ",
            $ran,
            " {>=} $18)
        and ($19 is null or ",
            $ran,
            " {<=} $19)"
        )
    };
}
pub(in crate::store) use conditions;

/// The conditions of a filter on a document `d`. The parameters $1 to $20 are those of
/// `BulkRequest::args`. A dead letter was settled when it was moved, unless it has failed again since. An
/// active document has run until now.
pub(in crate::store) const CONDITIONS: &str = concat!(
    "d.status {=} any ($1)
        and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')
        and ",
    conditions!(
        "(case when d.status {=} any (array[{completed}, {killed}]) or d.origin is not null
            then d.last_iteration end)",
        "(case when d.status {=} {completed} then d.last_iteration {-} d.picked_at
            when d.status {=} {active} then pg_catalog.now() {-} d.picked_at end)"
    )
);

const LOCK_SELECTED: &str = "select d.subject::pg_catalog.text, d.status, d.version, d.queued
    {selected}
        {not_late d}
    order by d.seq
    limit $20
    for update of d skip locked";

const COUNT_SELECTED: &str = "select pg_catalog.count(*) from (select {selected} limit $20) c";

const LIST_ORIGINS: &str = "select d.seq, d.origin {->>} 'subject'::pg_catalog.text
    {selected}
    order by d.seq
    limit $20";

const GET_PAYLOAD: &str = "select $1 {->} 'payload'::pg_catalog.text";

/// A document that was selected and locked, as it was before the action.
#[derive(Debug, Clone)]
pub struct Selected {
    /// Its subject.
    pub subject: String,
    /// Its status.
    pub status: Status,
    /// Its version.
    pub version: i32,
    /// What was put on it while it was leased, as JSON text.
    pub queued: Option<String>,
}

/// A document of a dead-letter queue.
pub struct Origin {
    /// Its number in that queue.
    pub seq: i64,
    /// The subject that it had where it came from.
    pub subject: String,
}

/// The ages of a filter, in microseconds: up to 1000 years. A point in time that is that long ago can
/// still be computed.
const AGES: std::ops::RangeInclusive<i128> = 0..=1000 * 12 * 30 * 86_400_000_000;

impl BulkRequest<'_> {
    /// The parameters of a statement with `CONDITIONS`. $20 is the limit. Fails with
    /// `Invalid::Filter` when an age of the filter is not an interval from 0 to 1000 years, and when a
    /// time is not one.
    pub(in crate::store) fn args(
        &self,
        spi: &Spi,
        selection: &Selection,
        limit: Option<i64>,
    ) -> Result<Vec<Arg>> {
        let filter = self.filter;
        let age = |text: &Option<String>, key| match text {
            None => Ok::<Arg, Error>(Interval::none()),
            Some(text) => {
                let age = passing_error::refusal(|| Interval::parse(text)).ok();
                let age = age.filter(|age| age.length().is_some_and(|n| AGES.contains(&n)));
                Ok(age.ok_or_else(|| filter::wrong_age(key, text))?.arg())
            }
        };
        let time = |text: &Option<String>, key| match text {
            None => Ok::<Arg, Error>(Arg::no_timestamp()),
            Some(text) => {
                let time = passing_error::refusal(|| time::parse_timestamp(text));
                let time = time.map_err(|_| filter::wrong_time(key, text))?;
                Ok(Arg::timestamp(time))
            }
        };
        let payload = if filter.has_payload {
            let rows = spi.once(GET_PAYLOAD, &[Jsonb::arg(Some(self.json))]);
            rows.json(0, 1)
        } else {
            None
        };
        let mut args = vec![
            Arg::from(selection.statuses.clone()),
            Arg::from(filter.versions.clone()),
            Arg::from(filter.priorities.clone()),
            Arg::from(filter.min_priority),
            Arg::from(filter.max_priority),
            Arg::from(filter.min_attempts),
            age(&filter.older_than, "older_than")?,
            age(&filter.newer_than, "newer_than")?,
            Jsonb::arg(payload),
            Arg::from(filter.subject_like.as_deref()),
            Arg::from(filter.error_like.as_deref()),
            Arg::from(filter.ordering_key.as_deref()),
            Arg::from(filter.subjects.clone()),
            time(&filter.created_since, "created_since")?,
            time(&filter.created_before, "created_before")?,
            time(&filter.settled_since, "settled_since")?,
            time(&filter.settled_before, "settled_before")?,
            age(&filter.min_ran, "min_ran")?,
            age(&filter.max_ran, "max_ran")?,
            Arg::from(limit),
        ];
        args.extend(selection.args);
        Ok(args)
    }

    fn sql(&self, sql: &str, queue: &Queue, selection: &Selection) -> String {
        let sql = sql
            .replace("{selected}", SELECTED)
            .replace("{conditions}", CONDITIONS)
            .replace("{condition}", selection.condition);
        let sql = render(&sql, &queue.name);
        match selection.other {
            Some(other) => sql.replace("{other}", &other.qualified("docs")),
            None => sql,
        }
    }

    /// Counts the documents of a selection, with a limit at most as many. Fails with
    /// `Error::BadDuration` when an age of the filter is not a duration.
    pub fn count(
        &self,
        spi: &Spi,
        queue: &Queue,
        selection: &Selection,
        limit: Option<i32>,
    ) -> Result<i32> {
        if selection.statuses.is_empty() {
            return Ok(0);
        }
        queue.before_scope(Scope::Reading);
        let args = self.args(spi, selection, limit.map(i64::from))?;
        let n: Option<i64> = spi
            .once(&self.sql(COUNT_SELECTED, queue, selection), &args)
            .get(0, 1);
        Ok(i32::try_from(n.unwrap_or(0)).unwrap_or(i32::MAX))
    }

    /// Lists where the documents of a selection came from, the oldest first, at most `limit` of them.
    /// Fails with `Error::BadDuration` when an age of the filter is not a duration.
    pub fn list_origins(
        &self,
        spi: &Spi,
        queue: &Queue,
        selection: &Selection,
        limit: usize,
    ) -> Result<Vec<Origin>> {
        if selection.statuses.is_empty() {
            return Ok(Vec::new());
        }
        queue.before_scope(Scope::Reading);
        let args = self.args(spi, selection, Some(limit as i64))?;
        let rows = spi.once(&self.sql(LIST_ORIGINS, queue, selection), &args);
        let origin = |row| {
            Some(Origin {
                seq: rows.get(row, 1)?,
                subject: rows.get(row, 2)?,
            })
        };
        Ok((0..rows.len()).filter_map(origin).collect())
    }

    /// Locks the documents of a selection, the oldest first, at most `limit` of them. Documents
    /// that other transactions have locked are skipped. Fails with `Error::BadDuration` when
    /// an age of the filter is not a duration.
    pub fn lock(
        &self,
        spi: &Spi,
        queue: &Queue,
        selection: &Selection,
        limit: i32,
    ) -> Result<Vec<Selected>> {
        if selection.statuses.is_empty() || limit <= 0 {
            return Ok(Vec::new());
        }
        queue.before_scope(Scope::Unlocked);
        serialize_bulk_actions(&[queue]);
        let args = self.args(spi, selection, Some(i64::from(limit)))?;
        let rows = spi.once(&self.sql(LOCK_SELECTED, queue, selection), &args);
        Ok((0..rows.len())
            .filter_map(|row| {
                Some(Selected {
                    subject: rows.get(row, 1)?,
                    status: rows.get(row, 2).and_then(Status::from_code)?,
                    version: rows.get(row, 3)?,
                    queued: queued_of(&rows, row, 4),
                })
            })
            .collect())
    }
}

/// Lets one bulk action at a time run on each queue of a list whose documents wait for others of
/// their key, until the transaction ends. An action that settles a document of a key waits for the next document of that key,
/// which another action might have locked: the two would wait for each other.
///
/// An advisory lock would not do: any role could take it.
pub fn serialize_bulk_actions(queues: &[&Queue]) {
    let ordered = queues
        .iter()
        .filter(|queue| queue.policy.key_order.blocks());
    let mut tables: Vec<Oid> = ordered.map(|queue| queue.table).collect();
    tables.sort_unstable_by_key(|table| table.to_u32());
    tables.into_iter().for_each(relation::serialize);
}

/// Replaces `{order}` in a statement that writes documents into a queue. They are written in
/// the order of their subjects, so that two transactions that write the same ones do not wait
/// for each other in a circle. A queue with an order of its keys gets them in that order: by
/// `next_iteration`, the fourth column, and number.
pub fn render_order(sql: &str, target: &Queue) -> String {
    let order = match target.policy.key_order.blocks() {
        true => "4, i.seq",
        false => "1",
    };
    sql.replace("{order}", order)
}

/// How many documents there are of each status, by its code, and version.
pub type Groups = HashMap<(i32, i32), i32>;

/// Groups those of the selected documents whose subjects are in the first column of `rows`.
pub fn group_returned(selected: &[Selected], rows: &Rows) -> Groups {
    let by_subject: HashMap<&str, &Selected> = selected
        .iter()
        .map(|doc| (doc.subject.as_str(), doc))
        .collect();
    let returned = (0..rows.len()).filter_map(|row| rows.get::<String>(row, 1));
    group(returned.filter_map(|subject| by_subject.get(subject.as_str()).copied()))
}

/// Groups documents by status and version.
pub fn group<'a>(docs: impl Iterator<Item = &'a Selected>) -> Groups {
    let mut groups = Groups::new();
    for doc in docs {
        *groups.entry((doc.status.code(), doc.version)).or_default() += 1;
    }
    groups
}

/// Records what happened to documents for the counters. `event`: what it means for a document
/// of a status; None: nothing.
pub fn record_events(queue: &Queue, groups: &Groups, event: impl Fn(Status) -> Option<Event>) {
    for ((status, version), n) in groups {
        if let Some(event) = Status::from_code(*status).and_then(&event) {
            counter_log::record_event(queue, *version, *n, event);
        }
    }
}

/// The subjects of documents as a parameter. They are in order, so that two transactions that
/// lock the same ones do not wait for each other in a circle.
pub fn sorted_subjects(selected: &[Selected]) -> Arg {
    let mut subjects: Vec<&str> = selected.iter().map(|doc| doc.subject.as_str()).collect();
    subjects.sort_unstable();
    Arg::from(subjects)
}

// Index: the primary key, once for each subject.
static REMOVE: Statement = Statement::new(
    "delete from only {docs} d where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

/// How many documents there are in all groups.
pub fn total(groups: &Groups) -> i32 {
    groups.values().sum()
}

/// Numbers (`seq`) for `n` documents that are written into a queue, in ascending order. Fails
/// with `Error::NoNumbers` when the table of the queue has no sequence.
pub fn next_numbers(queue: &Queue, n: usize) -> Result<Vec<i64>> {
    (0..n)
        .map(|_| queue.next_number())
        .collect::<Option<_>>()
        .ok_or_else(|| Error::NoNumbers(queue.name.to_string()))
}

/// Removes documents that the caller has locked, and has written elsewhere. Fails with
/// `Error::NotRemoved` when a policy or a trigger keeps one of them.
pub fn remove_documents(spi: &Spi, queue: &Queue, mut subjects: Vec<String>) -> Result<()> {
    subjects.sort_unstable();
    let expected = subjects.len();
    let removed = queue.run(spi, &REMOVE, &[Arg::from(subjects)]).len();
    if removed == expected {
        return Ok(());
    }
    Err(Error::NotRemoved {
        queue: queue.name.to_string(),
        n: expected - removed,
    })
}
