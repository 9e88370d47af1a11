//! What the tests share: sessions, new databases, throwaway clusters, load, and counter checks.

mod calls;
mod catalog;
mod cluster;
mod contrib;
mod counters;
mod load;
mod pooler;
mod session;
mod value;
mod worker;

pub use calls::{
    Call, NullIs, accepting, calls, is_accepted, is_layer5, is_of_both, needs, null_is,
    prepare_calls,
};
pub use catalog::{Argument, Function, functions, prepare_queue};
pub use cluster::{Cluster, bin, program, run, run_with_input};
pub use contrib::{leaves_out, skips_test};
pub use counters::{all_of, compare_counters, counters_are_exact, in_snapshot, metrics, timed};
pub use load::Load;
pub use pooler::Pooler;
pub use session::{Database, Server, Session, error_of, state_of, wait_for_rows, wait_until};
pub use value::{Value, text_of};
pub use worker::{
    LAUNCHER, WORKER, has_worker, one_of_each, process_id, processes, with_worker, worker_comes,
    worker_goes,
};
