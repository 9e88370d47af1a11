//! Bulk administration: retry, kill, remove, move or prioritise the documents that a
//! filter chooses, the oldest first, up to a limit. Whoever chooses walks over the whole
//! table: the indexes are those of the workers, and one more would cost every push.
//!
//! Each action is two statements. The first locks the rows, so that what they are can
//! not change any more, and skips those that somebody else has locked; the second
//! changes them by their subjects. So the counters are told of what each row really was.

use std::collections::HashMap;

use crate::domain::counter_events::Event;
use crate::domain::filter::Filter;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::{Rows, Spi};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::counter_log;
use crate::store::open_queue::Queue;
use crate::store::statement::{Statement, render};

/// What a caller asks for.
pub struct Request<'a> {
    pub filter: &'a Filter,
    /// The same as it came.
    pub json: Jsonb,
    pub limit: i32,
    /// Only says how many it would be.
    pub dry_run: bool,
}

/// Which documents an action takes of those that fit the filter.
pub struct Choice<'a> {
    /// The codes of their states.
    pub statuses: Vec<i32>,
    /// One more condition, which may use `{other}` and the parameters from $14 on.
    pub also: &'static str,
    pub own: &'a [Arg],
    pub other: Option<&'a QueueName>,
}

// (infinity: it waits for another document of its ordering key)
// A parameter that is NULL was not asked for. Planned with the values at hand, so that
// nothing of it is left where they are NULL.
const CHOSEN: &str = "from only {docs} d
    where d.status {=} any ($1)
        and (d.lock_upgrade is null or d.lock_upgrade {=} 'infinity')
        and ($2 is null or d.version {=} any ($2))
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
        {also}";

const LOCK: &str = "select d.subject::pg_catalog.text, d.status, d.version, d.priority
    {chosen}
    order by d.seq
    limit $13
    for update of d skip locked";

const COUNT: &str = "select pg_catalog.count(*) from (select {chosen} limit $13) c";

const PAYLOAD: &str = "select $1 {->} 'payload'::pg_catalog.text";

/// A document that was chosen, as it is.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub subject: String,
    pub status: Status,
    pub version: i32,
}

impl Request<'_> {
    fn args(&self, spi: &Spi, choice: &Choice, limit: Option<i64>) -> Result<Vec<Arg>> {
        let filter = self.filter;
        let age = |text: &Option<String>, key| match text {
            None => Ok::<Arg, Error>(Interval::none()),
            Some(text) => Ok(Interval::parse(text).as_duration(key)?.arg()),
        };
        let payload = if filter.has_payload {
            let rows = spi.once(PAYLOAD, &[Jsonb::arg(Some(self.json))]);
            rows.json(0, 1)
        } else {
            None
        };
        let mut args = vec![
            Arg::from(choice.statuses.clone()),
            Arg::from(filter.versions.clone()),
            Arg::from(filter.priorities.clone()),
            Arg::from(filter.min_priority),
            Arg::from(filter.max_priority),
            Arg::from(filter.min_attempts),
            age(&filter.older_than, "older_than")?,
            age(&filter.newer_than, "newer_than")?,
            Jsonb::arg(payload),
            Arg::from(filter.subject.as_deref()),
            Arg::from(filter.error.as_deref()),
            Arg::from(filter.ordering_key.as_deref()),
            Arg::from(limit),
        ];
        args.extend(choice.own);
        Ok(args)
    }

    fn sql(&self, sql: &str, queue: &Queue, choice: &Choice) -> String {
        let sql = sql
            .replace("{chosen}", CHOSEN)
            .replace("{also}", choice.also);
        let sql = render(&sql, &queue.name);
        match choice.other {
            Some(other) => sql.replace("{other}", &other.qualified("docs")),
            None => sql,
        }
    }

    /// How many documents fit; with a limit, at most so many.
    pub fn count(
        &self,
        spi: &Spi,
        queue: &Queue,
        choice: &Choice,
        limit: Option<i32>,
    ) -> Result<i32> {
        if choice.statuses.is_empty() {
            return Ok(0);
        }
        let args = self.args(spi, choice, limit.map(i64::from))?;
        let n: Option<i64> = spi.once(&self.sql(COUNT, queue, choice), &args).get(0, 1);
        Ok(i32::try_from(n.unwrap_or(0)).unwrap_or(i32::MAX))
    }

    /// Locks the documents that fit, the oldest first, and not more than so many.
    pub fn lock(
        &self,
        spi: &Spi,
        queue: &Queue,
        choice: &Choice,
        limit: i32,
    ) -> Result<Vec<Chosen>> {
        if choice.statuses.is_empty() || limit <= 0 {
            return Ok(Vec::new());
        }
        serialize_bulk_actions(spi, &[queue]);
        let args = self.args(spi, choice, Some(i64::from(limit)))?;
        let rows = spi.once(&self.sql(LOCK, queue, choice), &args);
        Ok((0..rows.len())
            .filter_map(|row| {
                Some(Chosen {
                    subject: rows.get(row, 1)?,
                    status: rows.get(row, 2).and_then(Status::from_code)?,
                    version: rows.get(row, 3)?,
                })
            })
            .collect())
    }
}

const ALONE: &str = "select pg_catalog.pg_advisory_xact_lock($1, $2)";

/// The kind of the locks on ordered queues: `fqad`.
const LOCKS: i32 = 0x6671_6164;

/// Bulk actions on an ordered queue take turns: who ends the open document of a key waits
/// for the next one of that key, which another of them might have locked.
pub fn serialize_bulk_actions(spi: &Spi, queues: &[&Queue]) {
    let ordered = queues.iter().filter(|queue| queue.policy.is_ordered);
    let mut ids: Vec<i32> = ordered.map(|queue| queue.id).collect();
    ids.sort_unstable();
    for id in ids {
        spi.once(ALONE, &[Arg::from(LOCKS), Arg::from(id)]);
    }
}

/// The order in which documents are written into a queue: that of their subjects, so that
/// two that write the same ones do not wait for each other in a circle. Into an ordered
/// one as they are to stand in line.
pub fn in_order(sql: &str, target: &Queue) -> String {
    let order = match target.policy.is_ordered {
        true => "4, i.seq",
        false => "1",
    };
    sql.replace("{order}", order)
}

/// Documents by their states and versions.
pub type Groups = HashMap<(i32, i32), i32>;

/// Those of the chosen documents whose subjects a statement gave back.
pub fn groups(chosen: &[Chosen], rows: &Rows) -> Groups {
    let by_subject: HashMap<&str, &Chosen> = chosen
        .iter()
        .map(|chosen| (chosen.subject.as_str(), chosen))
        .collect();
    let mut groups = Groups::new();
    for row in 0..rows.len() {
        let subject: Option<String> = rows.get(row, 1);
        if let Some(chosen) = subject.and_then(|subject| by_subject.get(subject.as_str()).copied())
        {
            let group = (chosen.status.code(), chosen.version);
            *groups.entry(group).or_default() += 1;
        }
    }
    groups
}

/// Counts what happened to documents, by what they were.
pub fn count(queue: &Queue, groups: &Groups, event: impl Fn(Status) -> Option<Event>) {
    for ((status, version), n) in groups {
        if let Some(event) = Status::from_code(*status).and_then(&event) {
            counter_log::record_event(queue, *version, *n, event);
        }
    }
}

/// Their subjects, in order: two lists never lock one another out.
pub fn subjects(chosen: &[Chosen]) -> Arg {
    let mut subjects: Vec<&str> = chosen.iter().map(|c| c.subject.as_str()).collect();
    subjects.sort_unstable();
    Arg::from(subjects)
}

static REMOVE: Statement = Statement::new(
    "delete from only {docs} d where d.subject {=} any ($1)
     returning d.subject::pg_catalog.text",
);

pub fn total(groups: &Groups) -> i32 {
    groups.values().sum()
}

/// Numbers for documents that come to a queue, in the order in which they come.
pub fn numbers(queue: &Queue, n: usize) -> Result<Vec<i64>> {
    (0..n)
        .map(|_| queue.next_number())
        .collect::<Option<_>>()
        .ok_or_else(|| Error::NoNumbers(queue.name.to_string()))
}

/// Removes documents that are locked and have their place elsewhere: all of them, or
/// none.
pub fn remove(spi: &Spi, queue: &Queue, mut subjects: Vec<String>) -> Result<()> {
    subjects.sort_unstable();
    let wanted = subjects.len();
    let removed = queue.run(spi, &REMOVE, &[Arg::from(subjects)]).len();
    if removed == wanted {
        return Ok(());
    }
    Err(Error::NotRemoved {
        queue: queue.name.to_string(),
        n: wanted - removed,
    })
}
