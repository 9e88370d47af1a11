//! Arguments that are arrays.

use pgrx::pg_sys;

/// Returns an array, detoasted, and the number of its elements. None: it has more than one
/// dimension, so that its elements are no list.
///
/// The datum is of an array type. The detoasted copy lives as long as the call.
pub(super) fn list(datum: pg_sys::Datum) -> Option<(pg_sys::Datum, usize)> {
    // SAFETY: The caller passes the datum of an array. The sizes of the dimensions follow the
    // header.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()) as *mut pg_sys::ArrayType;
        let sizes = (array as *mut u8).add(size_of::<pg_sys::ArrayType>()) as *const i32;
        match (*array).ndim {
            0 => Some((pg_sys::Datum::from(array), 0)),
            1 => Some((pg_sys::Datum::from(array), *sizes as usize)),
            _ => None,
        }
    }
}
