//! Text for the server.

use pgrx::pg_sys::AsPgCStr;

/// A C string for the server, in the current memory context.
pub(super) fn c_string(text: &str) -> *const std::ffi::c_char {
    text.as_pg_cstr()
}
