//! Values of type `jsonb`, which are passed on without being converted.

use pgrx::pg_sys;

use crate::pg::text::c_string;
use crate::pg::value::Arg;

/// A `jsonb` value in the memory of the server.
#[derive(Clone, Copy)]
pub struct Jsonb {
    datum: pg_sys::Datum,
}

/// Returns the elements of a `jsonb[]`, with None for each NULL. A NULL array has no elements.
pub fn elements(array: &Arg) -> Vec<Option<Jsonb>> {
    if array.is_null() {
        return Vec::new();
    }
    let mut values: *mut pg_sys::Datum = std::ptr::null_mut();
    let mut nulls: *mut bool = std::ptr::null_mut();
    let mut n = 0;
    // SAFETY: The argument is a jsonb[]. A detoasted array lives as long as the call, and its
    // elements stay in it.
    unsafe {
        let array = pg_sys::pg_detoast_datum(array.datum().cast_mut_ptr());
        pg_sys::deconstruct_array(
            array as *mut pg_sys::ArrayType,
            pg_sys::JSONBOID,
            -1,
            false,
            pg_sys::TYPALIGN_INT as std::ffi::c_char,
            &mut values,
            &mut nulls,
            &mut n,
        );
        (0..n as usize)
            .map(|at| (!*nulls.add(at)).then(|| Jsonb::from_datum(*values.add(at))))
            .collect()
    }
}

impl Jsonb {
    pub(super) fn from_datum(datum: pg_sys::Datum) -> Self {
        Self { datum }
    }

    /// Parses a JSON text. Raises PostgreSQL's own ERROR (22P02) when it is not valid.
    pub fn parse(text: &str) -> Self {
        // SAFETY: jsonb_in takes one C string.
        let datum = unsafe {
            pgrx::direct_function_call_as_datum(
                pg_sys::jsonb_in,
                &[Some(pg_sys::Datum::from(c_string(text)))],
            )
        };
        match datum {
            Some(datum) => Self { datum },
            None => pgrx::error!("jsonb_in returned NULL"),
        }
    }

    /// Makes a `jsonb[]` with this value as its only element.
    pub fn array_of_one(self) -> Arg {
        let mut datum = self.datum;
        // SAFETY: The element is a jsonb, whose type has a variable length, is passed by
        // reference, and is aligned as an int.
        let array = unsafe {
            pg_sys::construct_array(
                &mut datum,
                1,
                pg_sys::JSONBOID,
                -1,
                false,
                pg_sys::TYPALIGN_INT as std::ffi::c_char,
            )
        };
        Arg::new(pg_sys::JSONBARRAYOID, Some(pg_sys::Datum::from(array)))
    }

    /// Returns the value as JSON text, as PostgreSQL writes it.
    pub fn to_text(self) -> String {
        // SAFETY: jsonb_out detoasts its argument and returns a C string.
        unsafe {
            match pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(self.datum)]) {
                Some(out) => std::ffi::CStr::from_ptr(out.cast_mut_ptr())
                    .to_string_lossy()
                    .into_owned(),
                None => pgrx::error!("jsonb_out returned NULL"),
            }
        }
    }

    /// Returns whether the value is an object, and not an array or a scalar.
    pub fn is_object(self) -> bool {
        const HEADER: usize = size_of::<i32>();
        // SAFETY: A detoasted jsonb begins with its length in four bytes, which the header of
        // its container follows.
        unsafe {
            let value = pg_sys::pg_detoast_datum(self.datum.cast_mut_ptr()) as *const u8;
            let header = value.add(HEADER).cast::<u32>().read_unaligned();
            header & pg_sys::JB_FOBJECT != 0
        }
    }

    /// Returns the type of the value as JSON calls it, such as `array`.
    pub fn type_name(self) -> String {
        // SAFETY: jsonb_typeof takes a jsonb and returns a text.
        unsafe { pgrx::direct_function_call(pg_sys::jsonb_typeof, &[Some(self.datum)]) }
            .unwrap_or_else(|| pgrx::error!("jsonb_typeof returned NULL"))
    }

    /// Makes a value of type `jsonb`, which is NULL for None.
    pub fn arg(value: Option<Self>) -> Arg {
        Arg::new(pg_sys::JSONBOID, value.map(|v| v.datum))
    }
}
