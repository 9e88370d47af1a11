//! Memory of the server that lasts for a part of a call.

use pgrx::PgMemoryContexts;

/// Runs `work`, and frees what it has allocated in the memory of the server. The result must not be
/// there. Loops use it, so that they take the memory of one round.
pub fn freed_after<R>(work: impl FnOnce() -> R) -> R {
    // It is deleted when it is dropped.
    let mut memory = PgMemoryContexts::new("fetchq round");
    // SAFETY: `work` gets no reference to the memory, and by contract its result is not in it.
    unsafe { memory.switch_to(|_| work()) }
}
