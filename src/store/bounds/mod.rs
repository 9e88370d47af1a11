//! What may be picked: the bounds of calls, caps, rates and ordering keys.

pub mod blocking;
pub mod cap;
pub mod key_places;
pub mod limits;
pub mod ordering;
pub mod ordering_setup;
pub mod rate;
pub mod readiness;
