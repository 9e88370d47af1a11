//! Texts that are passed to the server.

use pgrx::pg_sys::AsPgCStr;

/// Copies a text into a C string in the current memory context.
pub(super) fn c_string(text: &str) -> *const std::ffi::c_char {
    text.as_pg_cstr()
}
