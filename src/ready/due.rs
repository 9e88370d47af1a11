//! When something is due in a queue, as its ready floors say.

use crate::pg::session;
use crate::ready::floors::{Memory, bucket_of, is_available};
use crate::ready::key::{Index, Name};

/// Returns when something is due in a table of this database at the earliest, planned or leased,
/// in microseconds since 2000. None when the floors of its due index say nothing.
pub fn known_due(table: u32) -> Option<i64> {
    let name = Name {
        database: session::database(),
        table,
        version: 0,
        index: Index::Due,
    };
    let mut first = None;
    if is_available() {
        Memory::read(bucket_of(&name), |b| {
            b.visit_table(name.database, table, |found, view| {
                let floor = view.floor.next_iteration();
                first = first
                    .into_iter()
                    .chain((found == name).then_some(floor))
                    .min();
            });
        });
    }
    // A floor before all keys says nothing. There are always both, planned and leased.
    first.filter(|first| *first > i64::MIN)
}
