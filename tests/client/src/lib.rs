//! What the tests share: sessions, fresh databases, throwaway clusters, counting.

mod catalog;
mod cluster;
mod counters;
mod session;
mod value;

pub use catalog::{Argument, Function, functions, prepare_queue};
pub use cluster::{Cluster, bin, run, run_with_input};
pub use counters::{compare_counters, counters_are_exact, in_snapshot, metrics};
pub use session::{Database, Server, Session, error_of, state_of, wait_until};
pub use value::{Value, text_of};
