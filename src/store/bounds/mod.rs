//! What may be picked: the bounds of calls, caps, rates and ordering keys.

pub mod cap;
pub mod keys;
pub mod keys_setup;
pub mod limits;
pub mod rate;
pub mod readiness;
