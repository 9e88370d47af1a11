//! The ready floors. For each priority of each version of a queue, shared memory remembers
//! where the index entries of documents that can still be picked begin. `floors.rs` defines
//! the terms; `bucket.rs` and `group.rs` hold the rules by which the state changes.

pub mod bucket;
pub mod due;
pub mod floors;
pub mod full_scan;
pub mod group;
pub mod key;
