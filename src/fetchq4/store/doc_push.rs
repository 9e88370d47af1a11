//! Pushes the list of documents that clients of fetchq 4 write as text.

use crate::domain::counter_events::Event;
use crate::domain::push_list::Item;
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::value::Arg;
use crate::pg::{spi, time};
use crate::ready::key::PickKey;
use crate::store::documents::bookkeeping::{PlannedEntries, note_expiry};
use crate::store::documents::doc_push::{MAX_LOOKS, not_added};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

// Index: primary key, as the arbiter of the conflict. Of equal subjects the first is added.
static PUSH_ITEMS: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload, expires_at)
     select i.subject, $1, i.priority, $2, $3, pg_catalog.now(), i.payload::pg_catalog.jsonb, $7
     from rows from (pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6))
          as i (subject, priority, payload)
     on conflict (subject) do nothing
     returning priority, seq",
);

/// Adds documents that share version and time. `next_iteration` is in microseconds since
/// 2000. Returns how many were new.
pub fn push_value_list(queue: &Queue, version: i32, next_iteration: i64, items: &[Item]) -> i32 {
    let status = Status::planned_or_pending(next_iteration <= time::now());
    let expires_at = queue.expires_at(next_iteration, None);
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
            Arg::opt_timestamp(expires_at),
        ];
        let rows = queue.run_noting(spi, &PUSH_ITEMS, &args);
        let mut planned = PlannedEntries::default();
        for row in 0..rows.len() {
            let seq = rows.get(row, 2).unwrap_or(i64::MIN);
            let key = PickKey::new(next_iteration, 0, seq);
            planned.add(version, rows.get(row, 1).unwrap_or(0), status, key);
        }
        planned.signal(queue);
        if !rows.is_empty() {
            note_expiry(queue, expires_at);
        }
        planned.count(queue, Event::push);
        rows.affected()
    })
}

// Index: primary key, once for each subject.
static COUNT_MISSING: Statement = Statement::new(
    "select pg_catalog.count(*) from pg_catalog.unnest($1) as i (subject)
     where not exists (select from {docs} d where d.subject {=} i.subject)",
);

/// Adds documents as [`push_value_list`] does, for a caller who relies on it that all of them exist
/// then.
///
/// Fails with `Error::NotAdded` when some can neither be added nor found.
pub fn push_or_find_value_list(
    queue: &Queue,
    version: i32,
    next_iteration: i64,
    items: &[Item],
) -> Result<i32> {
    let mut added = 0;
    let mut missing = 0;
    for _ in 0..MAX_LOOKS {
        added += push_value_list(queue, version, next_iteration, items);
        if added as usize == items.len() || !queue.may_suppress() {
            return Ok(added);
        }
        let subjects: Vec<&str> = items.iter().map(|i| i.subject.as_str()).collect();
        missing = spi::connect(|spi| {
            let rows = queue.run(spi, &COUNT_MISSING, &[Arg::from(subjects)]);
            rows.get::<i64>(0, 1).unwrap_or(0) as usize
        });
        if missing == 0 {
            return Ok(added);
        }
    }
    Err(not_added(queue, missing, items.len()))
}
