//! Arguments that are arrays.

use pgrx::pg_sys;

/// An array, detoasted.
pub(super) struct List {
    pub datum: pg_sys::Datum,
    /// The number of its elements.
    pub n: usize,
    /// Its size.
    pub bytes: usize,
}

/// Returns an array as a list. None: it has more than one dimension, so that its elements are no
/// list.
///
/// The datum is of an array type. The detoasted copy lives as long as the call.
pub(super) fn list(datum: pg_sys::Datum) -> Option<List> {
    // SAFETY: The caller passes the datum of an array. The sizes of the dimensions follow the
    // header.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()) as *mut pg_sys::ArrayType;
        let sizes = (array as *mut u8).add(size_of::<pg_sys::ArrayType>()) as *const i32;
        let n = match (*array).ndim {
            0 => 0,
            1 => *sizes as usize,
            _ => return None,
        };
        Some(List {
            datum: pg_sys::Datum::from(array),
            n,
            bytes: pgrx::varsize_any(array.cast()),
        })
    }
}
