//! Texts that are passed to the server.

use pgrx::pg_sys::{self, AsPgCStr};
use pgrx::varlena;

/// Copies a text into a C string in the current memory context.
pub(super) fn c_string(text: &str) -> *const std::ffi::c_char {
    text.as_pg_cstr()
}

/// The bytes of a text that a row has. One that is stored compressed or apart is copied into the current
/// memory context.
///
/// # Safety
///
/// The value is a text that lives as long as it is used.
pub(super) unsafe fn text_bytes<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    let text: *mut pg_sys::varlena = datum.cast_mut_ptr();
    // SAFETY: See above.
    unsafe {
        let is_plain = !varlena::varatt_is_4b_c(text) && !varlena::varatt_is_1b_e(text);
        varlena::varlena_to_byte_slice(match is_plain {
            true => text,
            false => pg_sys::pg_detoast_datum_packed(text),
        })
    }
}

/// The number of letters in which two short texts differ, None when there are more than `max`. The texts
/// may have 255 characters.
pub fn distance(one: &str, other: &str, max: i32) -> Option<i32> {
    let length = |text: &str| i32::try_from(text.len()).ok();
    let (n, of_other) = (length(one)?, length(other)?);
    // SAFETY: Both texts have the lengths that are passed. Of trusted ones the length is not checked, so it
    // raises no ERROR.
    let distance = unsafe {
        pg_sys::varstr_levenshtein_less_equal(
            one.as_ptr().cast(),
            n,
            other.as_ptr().cast(),
            of_other,
            1,
            1,
            1,
            max,
            true,
        )
    };
    (distance <= max).then_some(distance)
}
