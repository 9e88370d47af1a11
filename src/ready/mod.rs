//! The ready floors: shared memory remembers, for each priority of each version of a queue,
//! where the index entries of living documents begin. See `floors.rs`.

pub mod bucket;
pub mod floors;
pub mod group;
pub mod key;
