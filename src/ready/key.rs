//! Index keys, and the names of groups of ready floors.

/// The position of a document in the pick index, below its version and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PickKey {
    /// Microseconds since 2000.
    pub next_iteration: i64,
    pub attempts: i32,
    pub seq: i64,
}

impl PickKey {
    /// Above the key of every document.
    pub const LAST: Self = Self::new(i64::MAX, i32::MAX, i64::MAX);

    /// Makes a key of its columns. `next_iteration` is in microseconds since 2000.
    pub const fn new(next_iteration: i64, attempts: i32, seq: i64) -> Self {
        Self {
            next_iteration,
            attempts,
            seq,
        }
    }

    /// Returns the position that the document has in the due index while it is planned or active.
    pub const fn due(self) -> DueKey {
        DueKey::new(self.next_iteration, self.seq)
    }
}

/// The position of a document in the due index, below its status. That index does not have the
/// attempts: documents of the same moment are ordered by `seq` there, whatever their attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueKey {
    /// Microseconds since 2000.
    pub next_iteration: i64,
    pub seq: i64,
}

impl DueKey {
    /// Below the key of every document.
    pub const FIRST: Self = Self::new(i64::MIN, i64::MIN);

    /// Makes a key of its columns. `next_iteration` is in microseconds since 2000.
    pub const fn new(next_iteration: i64, seq: i64) -> Self {
        Self {
            next_iteration,
            seq,
        }
    }

    /// Returns the key below every document of a point in time, in microseconds since 2000.
    pub const fn at(next_iteration: i64) -> Self {
        Self::new(next_iteration, i64::MIN)
    }

    /// Returns the key above every document of a point in time, in microseconds since 2000.
    pub const fn until(next_iteration: i64) -> Self {
        Self::new(next_iteration, i64::MAX)
    }
}

/// A position in one of the two indexes, as a floor is kept in shared memory.
///
/// It can be made only from the key of an index, so that positions of the due index never contain
/// attempts: with them, a document would seem to be above another one that is below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Key {
    next_iteration: i64,
    /// 0 in the due index.
    attempts: i32,
    seq: i64,
}

impl Key {
    /// Below the key of every document.
    pub const FIRST: Self = Self {
        next_iteration: i64::MIN,
        attempts: i32::MIN,
        seq: i64::MIN,
    };
    /// Above the key of every document. A floor with this key says that no document exists.
    pub const LAST: Self = Self {
        next_iteration: i64::MAX,
        attempts: i32::MAX,
        seq: i64::MAX,
    };

    /// Returns the point in time of the position, in microseconds since 2000.
    pub const fn next_iteration(self) -> i64 {
        self.next_iteration
    }

    /// Returns the position in the pick index, of a floor of that index.
    pub const fn pick(self) -> PickKey {
        PickKey::new(self.next_iteration, self.attempts, self.seq)
    }

    /// Returns the position in the due index, of a floor of that index.
    pub const fn due(self) -> DueKey {
        DueKey::new(self.next_iteration, self.seq)
    }
}

impl From<PickKey> for Key {
    fn from(key: PickKey) -> Self {
        Self {
            next_iteration: key.next_iteration,
            attempts: key.attempts,
            seq: key.seq,
        }
    }
}

impl From<DueKey> for Key {
    fn from(key: DueKey) -> Self {
        Self {
            next_iteration: key.next_iteration,
            attempts: 0,
            seq: key.seq,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_do_not_order_the_due_index() {
        let (first, second) = (PickKey::new(5, 1, 10), PickKey::new(5, 0, 20));
        assert!(Key::from(first) > Key::from(second));
        assert!(Key::from(first.due()) < Key::from(second.due()));
    }

    #[test]
    fn the_first_and_the_last_position_are_outside_of_both_indexes() {
        for key in [DueKey::FIRST, DueKey::until(i64::MAX)] {
            assert!(Key::FIRST < key.into() && Key::LAST > key.into());
        }
        assert_eq!(Key::from(PickKey::LAST), Key::LAST);
    }
}
