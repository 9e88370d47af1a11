//! Random numbers.

use pgrx::pg_sys;

/// Returns a random number that cannot be predicted.
///
/// Raises an ERROR when the server has no source of random numbers.
fn bits() -> u32 {
    let mut bits: u32 = 0;
    // SAFETY: The function writes exactly the bytes of the variable.
    let done = unsafe { pg_sys::pg_strong_random((&raw mut bits).cast(), size_of::<u32>()) };
    if !done {
        pgrx::error!("the server could not get random numbers");
    }
    bits
}

/// Returns a random number from 0 to 1 that cannot be predicted. Raises an ERROR as [`bits`] does.
pub fn fraction() -> f64 {
    f64::from(bits()) / f64::from(u32::MAX)
}

/// Returns a random number from 1 to `most`, a power of two up to 2^32, that cannot be predicted.
/// Raises an ERROR as [`bits`] does.
pub fn up_to(most: i64) -> i64 {
    1 + i64::from(bits()) % most
}
