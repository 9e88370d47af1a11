//! The one narrow row that a call writes for all its counters.

use pgrx::pg_sys::Oid;

use super::packing;
use crate::domain::counters::Event;
use crate::pg::append;
use crate::pg::invalidation;
use crate::pg::relation::{self, LockMode};
use crate::pg::spi::{Arg, Spi};

/// Notes an event that happened to `n` documents; nothing when there were none.
/// `version` matters to events that add or remove documents, 0 for the others.
pub fn note(spi: &Spi, queue_id: i32, version: i32, n: i32, event: Event) {
    if n > 0 {
        let values = [
            Arg::from(queue_id),
            Arg::from(version),
            Arg::from(n),
            Arg::from(event.code()),
        ];
        append::row(segment(spi), &values);
    }
}

/// The segment to write to, locked: the current one, or another while that is being
/// packed. A segment that is locked and not packed stays so until we are done.
fn segment(spi: &Spi) -> Oid {
    if let Some(table) = invalidation::watched()
        && relation::try_lock(table, LockMode::Rows)
        // Locking has told us of what was packed before.
        && invalidation::watched() == Some(table)
    {
        return table;
    }
    loop {
        let tables: Vec<Oid> = (1..=packing::SEGMENTS).filter_map(packing::table).collect();
        invalidation::watch(&tables);
        let order = packing::writable(spi);
        let mut free = order.iter().filter_map(|n| packing::table(*n));
        let found = free.find(|table| relation::try_lock(*table, LockMode::Rows));
        let table = found.or_else(|| {
            // All of them are being packed or truncated: wait for the first.
            let table = packing::table(*order.first()?)?;
            relation::lock_rows(table, true);
            Some(table)
        });
        let Some(table) = table else {
            pgrx::error!("fetchq has no segment to write counters to: reinstall the extension");
        };
        if invalidation::is_unchanged() {
            // Only the preferred one is taken again without looking.
            if order.first().and_then(|n| packing::table(*n)) == Some(table) {
                invalidation::remember(table);
            }
            return table;
        }
    }
}
