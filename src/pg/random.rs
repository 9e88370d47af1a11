//! Chance.

use pgrx::pg_sys;

/// A number from 0 to 1 that nobody can foresee.
pub fn fraction() -> f64 {
    let mut bits: u32 = 0;
    // SAFETY: writes as many bytes as the number has.
    let done = unsafe { pg_sys::pg_strong_random((&raw mut bits).cast(), size_of::<u32>()) };
    if !done {
        pgrx::error!("the server could not get random numbers");
    }
    f64::from(bits) / f64::from(u32::MAX)
}
