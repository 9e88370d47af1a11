//! Index keys, and the names of groups of ready floors.

/// The position of a document in the pick index, below its version and priority.
///
/// In the due index it is the position below the status; `attempts` is 0 there, because that
/// index does not have this column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Key {
    /// Microseconds since 2000.
    pub next_iteration: i64,
    pub attempts: i32,
    pub seq: i64,
}

impl Key {
    /// Below the key of every document.
    pub const FIRST: Self = Self::new(i64::MIN, i32::MIN, i64::MIN);
    /// Above the key of every document. A floor with this key says that no document exists.
    pub const LAST: Self = Self::new(i64::MAX, i32::MAX, i64::MAX);

    /// Makes a key of its columns. `next_iteration` is in microseconds since 2000.
    pub const fn new(next_iteration: i64, attempts: i32, seq: i64) -> Self {
        Self {
            next_iteration,
            attempts,
            seq,
        }
    }

    /// Returns the key below every document of a point in time, in microseconds since 2000.
    pub const fn at(next_iteration: i64) -> Self {
        Self::new(next_iteration, i32::MIN, i64::MIN)
    }

    /// Returns the key above every document of a point in time, in microseconds since 2000.
    pub const fn until(next_iteration: i64) -> Self {
        Self::new(next_iteration, i32::MAX, i64::MAX)
    }
}

/// The index that the floors of a group belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Index {
    /// The levels are the priorities of one version.
    Pick,
    /// The levels are the statuses planned and active.
    Due,
}

/// Identifies a group: a version of a queue in the pick index, or the due index of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Name {
    /// The OID of the database.
    pub database: u32,
    /// The OID of the documents table.
    pub table: u32,
    /// The version of the documents; 0 in the due index, which holds all versions.
    pub version: i32,
    pub index: Index,
}
