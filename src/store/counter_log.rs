//! The one narrow row that a call writes for all its counters.

use pgrx::pg_sys::Oid;

use crate::domain::counter_events::Event;
use crate::pg::relation::{self, LockMode};
use crate::pg::value::Arg;
use crate::pg::{append, invalidation};
use crate::store::counter_segments;
use crate::store::open_queue::Queue;

/// Notes an event that happened to `n` documents of a queue, and announces it where
/// that is wanted; nothing when there were none.
/// The usual values are left out, which makes the row eight bytes shorter.
/// `version` matters to events that add or remove documents, 0 for the others.
pub fn record_event(queue: &Queue, version: i32, n: i32, event: Event) {
    if n > 0 {
        if let Some(status) = event.enters() {
            queue.announce(status);
        }
        let values = [
            Arg::from(queue.id),
            Arg::from((version != 0).then_some(version)),
            Arg::from((n != 1).then_some(n)),
            Arg::from(event.code()),
        ];
        append::row(segment(), &values);
    }
}

/// The segment to write to, locked: the current one, or another while that is being
/// packed. A segment that is locked and not packed stays so until we are done.
fn segment() -> Oid {
    if let Some(table) = invalidation::watched()
        && relation::try_lock(table, LockMode::Rows)
        // Locking has told us of what was packed before.
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
                // Now that it is locked: it may have been packed since we looked.
                && counter_segments::writable().contains(&number)
            {
                // Only the preferred one is taken again without looking.
                if table == preferred {
                    invalidation::remember(table);
                }
                return table;
            }
        }
        // All of them are being packed or truncated: wait for the first.
        relation::lock_rows(preferred, true);
    }
}
