//! The scenarios. Those whose names begin with `p` and a number are for that point of what a runtime must do
//! right (README.md).

mod chaos;
mod connections;
mod failures;
mod handlers;
mod leases;
mod limits;
mod loops;
mod reporting;
mod several;
mod stopping;
mod vectors;
mod verbs;

use crate::Scenario;

/// Those that take long come first, so that all end at about the same time.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        chaos::ALL,
        several::ALL,
        connections::ALL,
        stopping::ALL,
        leases::ALL,
        failures::ALL,
        limits::ALL,
        loops::ALL,
        reporting::ALL,
        handlers::ALL,
        verbs::ALL,
        vectors::ALL,
    ]
    .into_iter()
    .flatten()
}
