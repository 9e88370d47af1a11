//! Writes counter events: one narrow row in `fetchq.counter_log` for all counters of a call.

use pgrx::pg_sys::Oid;

use crate::domain::counter_events::Event;
use crate::domain::timing::{self, Tally};
use crate::pg::relation::{self, LockMode};
use crate::pg::value::Arg;
use crate::pg::{append, invalidation, time};
use crate::signals::{commit, settlements};
use crate::store::counter_segments;
use crate::store::open_queue::Queue;

/// Records an event that happened to `n` documents of a queue, and announces the new status
/// of the documents if the queue has notifications. Does nothing if `n` is 0.
///
/// `version` matters to events that add or remove documents, and is 0 for the others. The
/// usual values, version 0 and one document, are left out, which makes the row eight bytes
/// shorter. A bucket makes it no longer.
pub fn record_event(queue: &Queue, version: i32, n: i32, event: Event) {
    append_row(queue, version, n, event, None);
}

/// Records an event as `record_event` does, for documents whose wait or run is known. It writes a
/// row for each bucket, so nearly always one.
pub fn record_timed(queue: &Queue, version: i32, event: Event, times: &Tally) {
    for (bucket, n) in times.entries() {
        append_row(queue, version, n, event, Some(bucket));
    }
    append_row(queue, version, times.n_untimed(), event, None);
}

/// Records an event that happened to one document. `bucket`: that of its wait or run.
pub fn record_one(queue: &Queue, version: i32, event: Event, bucket: Option<i16>) {
    append_row(queue, version, 1, event, bucket);
}

/// The bucket of the wait of a document that is picked at `now`. Times are in microseconds since
/// 2000.
pub fn wait_bucket(now: i64, due_at: Option<i64>) -> Option<i16> {
    due_at.map(|due_at| timing::bucket(now.saturating_sub(due_at)))
}

/// The bucket of the run of a document that this transaction settles. `picked_at`: in microseconds
/// since 2000.
pub fn run_bucket(picked_at: Option<i64>) -> Option<i16> {
    picked_at.map(|picked_at| timing::bucket(time::now().saturating_sub(picked_at)))
}

fn append_row(queue: &Queue, version: i32, n: i32, event: Event, bucket: Option<i16>) {
    if n > 0 {
        if let Some(status) = event.enters() {
            queue.announce(status);
        }
        if event.settles() {
            settlements::documents_settled(queue.table.to_u32(), n.unsigned_abs());
        }
        let values = [
            Arg::from(queue.id),
            Arg::from((version != 0).then_some(version)),
            Arg::from((n != 1).then_some(n)),
            Arg::from(event.code()),
            Arg::from(bucket),
        ];
        append::row(lock_segment(), &values);
        commit::event_recorded();
    }
}

/// Locks the segment to write to: the current one, or another while the current one is being
/// packed. A segment that is locked and not packed stays so until the transaction ends.
fn lock_segment() -> Oid {
    if let Some(table) = invalidation::watched()
        && relation::try_lock(table, LockMode::Rows)
        // Locking has processed the messages about segments that were packed before.
        && invalidation::watched() == Some(table)
    {
        return table;
    }
    loop {
        let tables: Vec<Oid> = (1..=counter_segments::SEGMENTS)
            .filter_map(counter_segments::table)
            .collect();
        invalidation::watch(&tables);
        let order = counter_segments::writable();
        let Some(preferred) = order.first().and_then(|n| counter_segments::table(*n)) else {
            pgrx::error!("fetchq has no segment to write counters to: reinstall the extension");
        };
        for number in order {
            if let Some(table) = counter_segments::table(number)
                && relation::try_lock(table, LockMode::Rows)
                // Read again under the lock: the segment may have been packed meanwhile.
                && counter_segments::writable().contains(&number)
            {
                // Only the preferred segment is locked the next time without these checks.
                if table == preferred {
                    invalidation::remember(table);
                }
                return table;
            }
        }
        // All segments are being packed or truncated. Wait for the first.
        relation::lock_rows(preferred);
    }
}
