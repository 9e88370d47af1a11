//! A call of a function of fetchq: its arguments and its result.

use pgrx::callconv::{CallCx, RetAbi};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::domain::list_length;
use crate::error::{Error, Result};
use crate::pg::array;
use crate::pg::json::Jsonb;
use crate::pg::memory;
use crate::pg::spi;
use crate::pg::value::Arg;

/// A running call. Its arguments are numbered from 0.
///
/// The readers of arguments come in two forms. One takes the name of the argument and returns
/// `Error::NullArgument` when the argument is NULL. The other, `opt_…`, returns None instead.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
}

impl Call {
    /// Wraps what the server passes to an entry point. `fcinfo` is valid for the whole call.
    pub fn new(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self { fcinfo }
    }

    fn datum(&self, at: usize) -> Option<pg_sys::Datum> {
        // SAFETY: fcinfo comes from the server and is valid for the whole call. Every entry
        // point reads only positions below the number of its declared arguments.
        // PostgreSQL fills in the defaults, so nargs is that number.
        unsafe {
            let nargs = (*self.fcinfo).nargs as usize;
            if at >= nargs {
                return None;
            }
            let arg = (*self.fcinfo).args.as_slice(nargs)[at];
            (!arg.isnull).then_some(arg.value)
        }
    }

    fn read<T: FromDatum>(&self, at: usize) -> Option<T> {
        // SAFETY: The SQL declaration of the function in src/sql/functions/ gives this
        // position the SQL type that T stands for. The contract test and the driver tests
        // call every function.
        self.datum(at)
            .and_then(|d| unsafe { T::from_datum(d, false) })
    }

    /// Makes the error of the argument `name`, which must not be NULL: `Error::NullArgument`.
    pub fn missing(&self, name: &'static str) -> Error {
        Error::NullArgument {
            function: self.function_name(),
            argument: name,
        }
    }

    /// Returns the name of the called function for messages, such as `fetchq.doc_pick`.
    pub fn function_name(&self) -> String {
        // SAFETY: flinfo is set for every call that comes through fmgr. get_func_name
        // returns a palloc'ed C string or NULL.
        unsafe {
            let flinfo = (*self.fcinfo).flinfo;
            if flinfo.is_null() {
                return "fetchq".into();
            }
            let name = pg_sys::get_func_name((*flinfo).fn_oid);
            if name.is_null() {
                "fetchq".into()
            } else {
                format!(
                    "fetchq.{}",
                    std::ffi::CStr::from_ptr(name).to_string_lossy()
                )
            }
        }
    }

    /// Reads a `text` or `varchar` argument, or None when it is NULL.
    pub fn opt_text(&self, at: usize) -> Option<&str> {
        self.read(at)
    }

    /// Reads a `text` or `varchar` argument that must not be NULL.
    pub fn text(&self, at: usize, name: &'static str) -> Result<&str> {
        self.opt_text(at).ok_or_else(|| self.missing(name))
    }

    /// Reads an `integer` argument that must not be NULL.
    pub fn int(&self, at: usize, name: &'static str) -> Result<i32> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    /// Reads a `bigint` argument, or None when it is NULL.
    pub fn opt_bigint(&self, at: usize) -> Option<i64> {
        self.read(at)
    }

    /// Reads an `integer` argument, or None when it is NULL.
    pub fn opt_int(&self, at: usize) -> Option<i32> {
        self.read(at)
    }

    /// Reads an `interval` argument, or None when it is NULL.
    pub fn opt_interval(&self, at: usize) -> Option<super::time::Interval> {
        self.datum(at).map(super::time::Interval::from_datum)
    }

    /// Returns whether an argument is NULL.
    pub fn is_null(&self, at: usize) -> bool {
        self.datum(at).is_none()
    }

    /// Reads a `text[]` argument that must not be NULL. Its elements may be NULL.
    ///
    /// Fails with `Error::ManyDimensions` when the array has more than one dimension.
    pub fn texts(&self, at: usize, name: &'static str) -> Result<Vec<Option<String>>> {
        self.list(at, name)?;
        self.read(at).ok_or_else(|| self.missing(name))
    }

    /// Reads a `text[]` argument without NULL elements, or None when it is NULL.
    ///
    /// Fails with `Error::ManyDimensions` when the array has more than one dimension, and with
    /// `Error::NullElement`.
    pub fn opt_texts(&self, at: usize, name: &'static str) -> Result<Option<Vec<String>>> {
        if self.is_null(at) {
            return Ok(None);
        }
        let texts: Option<Vec<String>> = self.texts(at, name)?.into_iter().collect();
        texts.map(Some).ok_or_else(|| Error::NullElement {
            function: self.function_name(),
            argument: name,
        })
    }

    /// Reads an `integer[]` argument, or None when it is NULL. Its elements may be NULL.
    ///
    /// Fails with `Error::ManyDimensions` when the array has more than one dimension.
    pub fn opt_ints(&self, at: usize, name: &'static str) -> Result<Option<Vec<Option<i32>>>> {
        self.list(at, name)?;
        Ok(self.read(at))
    }

    /// Reads a `bigint[]` argument, or None when it is NULL. Its elements may be NULL.
    ///
    /// Fails with `Error::ManyDimensions` when the array has more than one dimension.
    pub fn opt_bigints(&self, at: usize, name: &'static str) -> Result<Option<Vec<Option<i64>>>> {
        self.list(at, name)?;
        Ok(self.read(at))
    }

    /// Reads a `jsonb[]` argument, or None when it is NULL.
    ///
    /// Returns the array as it is, and the number of its elements. Fails with
    /// `Error::ManyDimensions` when the array has more than one dimension.
    pub fn json_array(&self, at: usize, name: &'static str) -> Result<Option<(Arg, usize)>> {
        let list = self.list(at, name)?;
        Ok(list.map(|(array, n)| (Arg::new(pg_sys::JSONBARRAYOID, Some(array)), n)))
    }

    /// An array argument, detoasted, and the number of its elements; None when it is NULL. From now on
    /// there is memory for a call that handles it.
    ///
    /// Fails with `Error::ManyDimensions` when the array has more than one dimension: its elements
    /// would be taken for a list. Fails with `Invalid::LongList` and `Error::OutOfMemory`.
    fn list(&self, at: usize, name: &'static str) -> Result<Option<(pg_sys::Datum, usize)>> {
        let wrong = || Error::ManyDimensions {
            function: self.function_name(),
            argument: name,
        };
        let Some(datum) = self.datum(at) else {
            return Ok(None);
        };
        let list = array::list(datum).ok_or_else(wrong)?;
        list_length::check(name, list.n)?;
        memory::provide(list.n, list.bytes)?;
        Ok(Some((list.datum, list.n)))
    }

    /// Reads a `boolean` argument that must not be NULL.
    pub fn bool(&self, at: usize, name: &'static str) -> Result<bool> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    /// Reads a `boolean` argument, or None when it is NULL.
    pub fn opt_bool(&self, at: usize) -> Option<bool> {
        self.read(at)
    }

    /// Reads a `timestamptz` argument that must not be NULL, in microseconds since 2000.
    pub fn timestamp(&self, at: usize, name: &'static str) -> Result<i64> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    /// Reads a `timestamptz` argument in microseconds since 2000, or None when it is NULL.
    pub fn opt_timestamp(&self, at: usize) -> Option<i64> {
        self.read(at)
    }

    /// Reads an `interval` argument that must not be NULL.
    pub fn interval(&self, at: usize, name: &'static str) -> Result<super::time::Interval> {
        self.datum(at)
            .map(super::time::Interval::from_datum)
            .ok_or_else(|| self.missing(name))
    }

    /// Reads a `jsonb` argument, or None when it is NULL.
    pub fn opt_json(&self, at: usize) -> Option<Jsonb> {
        self.datum(at).map(Jsonb::from_datum)
    }

    /// Reads a `jsonb` argument that must not be NULL.
    pub fn json(&self, at: usize, name: &'static str) -> Result<Jsonb> {
        self.opt_json(at).ok_or_else(|| self.missing(name))
    }

    /// Reads an `integer` argument that limits a number of rows and must not be NULL.
    ///
    /// Fails with `Error::NegativeLimit` when it is less than 0.
    pub fn limit(&self, at: usize, name: &'static str) -> Result<i32> {
        let n = self.int(at, name)?;
        if n < 0 {
            return Err(Error::NegativeLimit {
                argument: name,
                got: n,
            });
        }
        Ok(n)
    }

    /// Returns what the server passed to the entry point.
    pub fn fcinfo(&self) -> pg_sys::FunctionCallInfo {
        self.fcinfo
    }

    /// Makes a result of several columns.
    ///
    /// `values` has one value for each OUT column of the declaration, in its order and of its
    /// type. Raises an ERROR (`Error::ColumnType`) when a type differs.
    pub fn record(&self, values: &[Arg]) -> Reply {
        let mut datums: Vec<pg_sys::Datum> = values.iter().map(Arg::datum).collect();
        let mut nulls: Vec<bool> = values.iter().map(Arg::is_null).collect();
        // SAFETY: The function is declared with OUT columns, so the server can tell its row
        // type. The number of the values and their types are checked.
        unsafe {
            let desc = self.result_descriptor();
            assert_eq!(
                (*desc).natts as usize,
                values.len(),
                "columns of the result"
            );
            for (column, value) in (1..).zip(values) {
                let declared = pg_sys::SPI_gettypeid(desc, column);
                if !value.fits(declared) {
                    spi::wrong_type(column, value.oid, declared);
                }
            }
            let tuple = pg_sys::heap_form_tuple(desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
            Reply(Some(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)))
        }
    }

    /// Returns the declared row type, blessed so that a composite datum can refer to it.
    pub(super) unsafe fn result_descriptor(&self) -> pg_sys::TupleDesc {
        let mut desc: pg_sys::TupleDesc = std::ptr::null_mut();
        let mut scalar = pg_sys::InvalidOid;
        // SAFETY: fcinfo is valid. The other two arguments are output parameters.
        unsafe {
            let kind = pg_sys::get_call_result_type(self.fcinfo, &mut scalar, &mut desc);
            if kind == pg_sys::TypeFuncClass::TYPEFUNC_SCALAR {
                // A set of plain values is a set of rows of one column.
                desc = pg_sys::CreateTemplateTupleDesc(1);
                pg_sys::TupleDescInitEntry(desc, 1, c"value".as_ptr(), scalar, -1, 0);
                return pg_sys::BlessTupleDesc(desc);
            }
            assert!(
                kind == pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE && !desc.is_null(),
                "the function is declared with result columns"
            );
            pg_sys::BlessTupleDesc(desc)
        }
    }
}

/// The result of an entry point: a datum, or NULL.
pub struct Reply(Option<pg_sys::Datum>);

impl Reply {
    /// Makes a result that is NULL.
    pub fn null() -> Self {
        Self(None)
    }

    /// Makes the result of a trigger that returns no row.
    ///
    /// The server ignores it after the event. Before the event it skips the operation. It must
    /// not be marked as NULL.
    pub fn trigger() -> Self {
        Self(Some(pg_sys::Datum::from(0)))
    }

    /// Makes the result of a trigger that returns a row.
    pub(super) fn tuple(tuple: pg_sys::HeapTuple) -> Self {
        Self(Some(pg_sys::Datum::from(tuple)))
    }

    /// Makes a result of type `integer`.
    pub fn int(value: i32) -> Self {
        Self(value.into_datum())
    }

    /// Makes a result of type `bigint`, which is NULL for None.
    pub fn bigint(value: Option<i64>) -> Self {
        Self(value.into_datum())
    }

    /// Makes a number of rows, which is of type `bigint` in results.
    pub fn count(rows: i32) -> Self {
        Self(i64::from(rows).into_datum())
    }

    /// Makes a result of type `boolean`.
    pub fn bool(value: bool) -> Self {
        Self(value.into_datum())
    }

    /// Makes a result of type `jsonb`.
    pub fn json(value: Jsonb) -> Self {
        Self(Some(Jsonb::arg(Some(value)).datum()))
    }

    /// Makes a result of type `text` or `varchar`.
    pub fn text(value: &str) -> Self {
        Self(value.into_datum())
    }
}

// SAFETY: A Reply is either NULL or a datum of the declared result type, allocated
// in the memory context of the call.
unsafe impl RetAbi for Reply {
    type Item = Self;
    type Ret = Self;

    unsafe fn check_fcinfo_and_prepare(_: pg_sys::FunctionCallInfo) -> CallCx {
        // SAFETY: Reading the current context is always allowed.
        CallCx::WrappedFn(unsafe { pg_sys::CurrentMemoryContext })
    }

    fn to_ret(self) -> Self {
        self
    }

    unsafe fn box_ret_in_fcinfo(fcinfo: pg_sys::FunctionCallInfo, ret: Self) -> pg_sys::Datum {
        // SAFETY: fcinfo is the one of the running call.
        unsafe { (*fcinfo).isnull = ret.0.is_none() };
        ret.0.unwrap_or(pg_sys::Datum::from(0))
    }

    unsafe fn move_into_fcinfo_fcx(self, _: pg_sys::FunctionCallInfo) {}
    unsafe fn fill_fcinfo_fcx(&self, _: pg_sys::FunctionCallInfo) {}
}

// SAFETY: The SQL of every function is written by hand in src/sql/functions/, so this mapping
// is never used to generate any.
unsafe impl SqlTranslatable for Reply {
    const TYPE_IDENT: &'static str = "fetchq::pg::call::Reply";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::Skip));
}
