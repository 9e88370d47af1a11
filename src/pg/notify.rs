//! NOTIFY.

use crate::pg::text::c_string;

unsafe extern "C-unwind" {
    // From src/backend/commands/async.c, for which pgrx has no binding.
    fn Async_Notify(channel: *const std::ffi::c_char, payload: *const std::ffi::c_char);
}

/// Sends a notification when the transaction commits.
///
/// Raises PostgreSQL's own ERROR (22023) when the name of the channel or the payload is too long.
pub fn notify(channel: &str, payload: &str) {
    let (channel, payload) = (c_string(channel), c_string(payload));
    // SAFETY: Both arguments are C strings. The boundary turns an ERROR into a panic.
    unsafe { pgrx::pg_sys::ffi::pg_guard_ffi_boundary(|| Async_Notify(channel, payload)) };
}
