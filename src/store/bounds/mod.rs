//! What may be picked: the bounds of calls, caps, rates, ordering keys, and what is ready but late.

pub mod cap;
pub mod keys;
pub mod keys_setup;
pub mod lateness;
pub mod limits;
pub mod rate;
pub mod readiness;
