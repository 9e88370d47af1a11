//! When something is due in a queue, as its ready floors say.

use crate::pg::session;
use crate::ready::floors::{Memory, bucket_of, is_available};
use crate::ready::key::{Index, Name};

/// Returns when something is due in a table of this database at the earliest, planned or leased,
/// in microseconds since 2000. `epoch` is that of the table, see [`epoch_of`]: what is known of
/// another one is void, because rows may have been loaded since without a note. None when the
/// floors of its due index say nothing.
///
/// [`epoch_of`]: crate::ready::floors::epoch_of
pub fn known_due(table: u32, epoch: u64) -> Option<i64> {
    let name = Name {
        database: session::database(),
        table,
        version: 0,
        index: Index::Due,
    };
    if !is_available() {
        return None;
    }
    let first = Memory::read(bucket_of(&name), |b| b.first_due(&name, epoch));
    // A floor before all keys says nothing.
    first.filter(|first| *first > i64::MIN)
}
