//! What may be picked: the bounds of calls, caps, rates, ordering keys, and what is ready but late.

pub mod blocking;
pub mod cap;
pub mod key_places;
pub mod lateness;
pub mod limits;
pub mod ordering;
pub mod ordering_setup;
pub mod rate;
pub mod readiness;
