//! What shared memory knows, and the rules by which it changes. No PostgreSQL in
//! here: whoever calls holds the lock of the bucket. docs/engine.md has the argument
//! for each rule.

/// Place of a document in the pick index below version and priority, and, with
/// `attempts` 0, in the due index below status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Key {
    /// Microseconds since 2000.
    pub next_iteration: i64,
    pub attempts: i32,
    pub seq: i64,
}

impl Key {
    /// Before every document.
    pub const FIRST: Self = Self::new(i64::MIN, i32::MIN, i64::MIN);
    /// Behind every document: a floor here says that there is none.
    pub const LAST: Self = Self::new(i64::MAX, i32::MAX, i64::MAX);

    pub const fn new(next_iteration: i64, attempts: i32, seq: i64) -> Self {
        Self {
            next_iteration,
            attempts,
            seq,
        }
    }

    /// Before every document of a moment.
    pub const fn at(next_iteration: i64) -> Self {
        Self::new(next_iteration, i32::MIN, i64::MIN)
    }

    /// Behind every document of a moment.
    pub const fn until(next_iteration: i64) -> Self {
        Self::new(next_iteration, i32::MAX, i64::MAX)
    }
}

/// Which index a group is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Index {
    /// Levels are the priorities of one version.
    Pick,
    /// Levels are the states planned and active.
    Due,
}

/// Whose floors a group holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Name {
    pub database: u32,
    pub table: u32,
    /// 0 in the due index.
    pub version: i32,
    pub index: Index,
}
