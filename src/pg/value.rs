//! Values with their types, for parameters and result columns.

use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::pg::memory;

/// A value that is bound to a parameter or put into a result column.
#[derive(Clone, Copy)]
pub struct Arg {
    /// The type.
    pub oid: pg_sys::Oid,
    datum: Option<pg_sys::Datum>,
}

impl Arg {
    /// Makes a value of a type. None is NULL.
    pub(super) fn new(oid: pg_sys::Oid, datum: Option<pg_sys::Datum>) -> Self {
        Self { oid, datum }
    }

    /// Makes a `timestamptz` from microseconds since 2000.
    pub fn timestamp(value: i64) -> Self {
        Self::new(pg_sys::TIMESTAMPTZOID, value.into_datum())
    }

    /// Makes a `timestamptz` from microseconds since 2000, or NULL.
    pub fn opt_timestamp(value: Option<i64>) -> Self {
        value.map_or_else(Self::no_timestamp, Self::timestamp)
    }

    /// Makes a `timestamptz` that is NULL.
    pub fn no_timestamp() -> Self {
        Self::new(pg_sys::TIMESTAMPTZOID, None)
    }

    /// Makes an array of values of one type.
    pub fn array(values: &[Self]) -> Self {
        let oid = values.first().map_or(pg_sys::TEXTOID, |value| value.oid);
        let (mut datums, mut nulls): (Vec<_>, Vec<_>) = values
            .iter()
            .map(|value| (value.datum(), value.is_null()))
            .unzip();
        let (mut size, mut lower) = (values.len() as i32, 1);
        let (mut length, mut is_by_value, mut align) = Default::default();
        // SAFETY: There is a datum and a NULL mark for each element of the only dimension, and what is
        // said of their type is read from the catalog.
        unsafe {
            pg_sys::get_typlenbyvalalign(oid, &mut length, &mut is_by_value, &mut align);
            let array = pg_sys::construct_md_array(
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
                1,
                &mut size,
                &mut lower,
                oid,
                length.into(),
                is_by_value,
                align,
            );
            let array = pg_sys::Datum::from(array);
            Self::new(pg_sys::get_array_type(oid), Some(array))
        }
    }

    /// Makes an `oid`.
    pub fn oid(value: pg_sys::Oid) -> Self {
        Self::new(pg_sys::OIDOID, value.into_datum())
    }

    pub(super) fn datum(&self) -> pg_sys::Datum {
        self.datum.unwrap_or(pg_sys::Datum::from(0))
    }

    /// Returns whether the value can be taken for one of this type: it is NULL, or the type is its own.
    /// `text` and `varchar` are the same in memory.
    pub(super) fn fits(&self, oid: pg_sys::Oid) -> bool {
        let is_text = |oid| matches!(oid, pg_sys::TEXTOID | pg_sys::VARCHAROID);
        self.oid == oid || self.is_null() || is_text(self.oid) && is_text(oid)
    }

    /// Returns the text of a `text` or a `varchar`. None for NULL and for another type. Raises an ERROR
    /// (`Error::OutOfMemory`).
    pub fn text(&self) -> Option<String> {
        let is_text = matches!(self.oid, pg_sys::TEXTOID | pg_sys::VARCHAROID);
        // SAFETY: A value of these types is a varlena with text in the encoding of the server.
        self.datum.filter(|_| is_text).and_then(|datum| unsafe {
            memory::provide_or_raise(0, pgrx::varsize_any(datum.cast_mut_ptr()));
            String::from_datum(datum, false)
        })
    }

    /// Returns the texts of a `text[]` that are not NULL. None of another type.
    pub fn texts(&self) -> Vec<String> {
        let datum = self.datum.filter(|_| self.oid == pg_sys::TEXTARRAYOID);
        // SAFETY: A value of this type is an array of texts in the encoding of the server.
        let texts: Option<Vec<Option<String>>> =
            datum.and_then(|datum| unsafe { Vec::from_datum(datum, false) });
        texts.into_iter().flatten().flatten().collect()
    }

    /// Returns whether the value is NULL.
    pub fn is_null(&self) -> bool {
        self.datum.is_none()
    }
}

macro_rules! arg_from {
    ($($rust:ty => $oid:ident),* $(,)?) => {$(
        impl From<$rust> for Arg {
            fn from(value: $rust) -> Self { Self::new(pg_sys::$oid, value.into_datum()) }
        }
        impl From<Option<$rust>> for Arg {
            fn from(value: Option<$rust>) -> Self { Self::new(pg_sys::$oid, value.and_then(|v| v.into_datum())) }
        }
    )*};
}

arg_from! {
    i16 => INT2OID,
    i32 => INT4OID,
    i64 => INT8OID,
    f64 => FLOAT8OID,
    bool => BOOLOID,
    &str => TEXTOID,
    Vec<i32> => INT4ARRAYOID,
    Vec<Option<i32>> => INT4ARRAYOID,
    Vec<String> => TEXTARRAYOID,
    Vec<&str> => TEXTARRAYOID,
    Vec<i64> => INT8ARRAYOID,
    Vec<bool> => BOOLARRAYOID,
}
