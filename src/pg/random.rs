//! Random numbers.

use pgrx::pg_sys;

/// Returns a random number from 0 to 1 that cannot be predicted.
///
/// Raises an ERROR when the server has no source of random numbers.
pub fn fraction() -> f64 {
    let mut bits: u32 = 0;
    // SAFETY: The function writes exactly the bytes of the variable.
    let done = unsafe { pg_sys::pg_strong_random((&raw mut bits).cast(), size_of::<u32>()) };
    if !done {
        pgrx::error!("the server could not get random numbers");
    }
    f64::from(bits) / f64::from(u32::MAX)
}
