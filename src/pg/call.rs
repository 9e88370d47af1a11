//! One call of one of our functions: its arguments, its result.

use pgrx::callconv::{CallCx, RetAbi};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::spi::Rows;
use crate::pg::value::Arg;

/// The arguments of the running call. Positions count from 0.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
}

impl Call {
    pub fn new(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self { fcinfo }
    }

    fn datum(&self, at: usize) -> Option<pg_sys::Datum> {
        // SAFETY: fcinfo is the server's, valid for the whole call; every entry
        // point reads only positions below the number of its declared arguments,
        // and PostgreSQL fills in the defaults, so nargs is that number.
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
        // SAFETY: the SQL declaration of the function (src/sql/functions.sql) gives
        // this position the SQL type that T stands for; the contract golden and the
        // driver tests call every one of them.
        self.datum(at)
            .and_then(|d| unsafe { T::from_datum(d, false) })
    }

    /// The error of an argument that must not be NULL.
    pub fn missing(&self, name: &'static str) -> Error {
        Error::NullArgument {
            function: self.function_name(),
            argument: name,
        }
    }

    /// Name of the called function, for messages.
    pub fn function_name(&self) -> String {
        // SAFETY: flinfo is set for every call that comes through fmgr; get_func_name
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

    pub fn opt_text(&self, at: usize) -> Option<&str> {
        self.read(at)
    }

    pub fn text(&self, at: usize, name: &'static str) -> Result<&str> {
        self.opt_text(at).ok_or_else(|| self.missing(name))
    }

    pub fn int(&self, at: usize, name: &'static str) -> Result<i32> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    pub fn opt_bigint(&self, at: usize) -> Option<i64> {
        self.read(at)
    }

    pub fn opt_int(&self, at: usize) -> Option<i32> {
        self.read(at)
    }

    pub fn opt_float(&self, at: usize) -> Option<f64> {
        self.read(at)
    }

    pub fn opt_interval(&self, at: usize) -> Option<super::time::Interval> {
        self.datum(at).map(super::time::Interval::from_datum)
    }

    pub fn is_null(&self, at: usize) -> bool {
        self.datum(at).is_none()
    }

    /// An array of texts, with its NULLs.
    pub fn texts(&self, at: usize, name: &'static str) -> Result<Vec<Option<String>>> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    /// An array of numbers, with its NULLs; None where there is none.
    pub fn opt_ints(&self, at: usize) -> Option<Vec<Option<i32>>> {
        self.read(at)
    }

    /// An array of jsonb as it is, and how many elements it has.
    pub fn json_array(&self, at: usize) -> Result<Option<(Arg, usize)>> {
        let Some(datum) = self.datum(at) else {
            return Ok(None);
        };
        // SAFETY: the declaration gives this position the type jsonb[]; the detoasted
        // copy lives as long as the call.
        let (array, n, dimensions) = unsafe {
            let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()) as *mut pg_sys::ArrayType;
            let dimensions = (*array).ndim;
            let sizes = (array as *mut u8).add(size_of::<pg_sys::ArrayType>()) as *const i32;
            let n = if dimensions == 0 { 0 } else { *sizes as usize };
            (array, n, dimensions)
        };
        if dimensions > 1 {
            return Err(Error::ManyDimensions {
                function: self.function_name(),
            });
        }
        Ok(Some((
            Arg::new(pg_sys::JSONBARRAYOID, Some(pg_sys::Datum::from(array))),
            n,
        )))
    }

    pub fn bool(&self, at: usize, name: &'static str) -> Result<bool> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    /// A point in time, as the server keeps it: microseconds since 2000.
    pub fn timestamp(&self, at: usize, name: &'static str) -> Result<i64> {
        self.read(at).ok_or_else(|| self.missing(name))
    }

    pub fn opt_timestamp(&self, at: usize) -> Option<i64> {
        self.read(at)
    }

    pub fn interval(&self, at: usize, name: &'static str) -> Result<super::time::Interval> {
        self.datum(at)
            .map(super::time::Interval::from_datum)
            .ok_or_else(|| self.missing(name))
    }

    pub fn opt_json(&self, at: usize) -> Option<Jsonb> {
        self.datum(at).map(Jsonb::from_datum)
    }

    pub fn json(&self, at: usize, name: &'static str) -> Result<Jsonb> {
        self.opt_json(at).ok_or_else(|| self.missing(name))
    }

    /// A limit of rows: 0 or more.
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

    pub fn fcinfo(&self) -> pg_sys::FunctionCallInfo {
        self.fcinfo
    }

    /// A result of several columns, in the order of the declaration.
    pub fn record(&self, values: &[Arg]) -> Reply {
        let mut datums: Vec<pg_sys::Datum> = values.iter().map(Arg::datum).collect();
        let mut nulls: Vec<bool> = values.iter().map(Arg::is_null).collect();
        // SAFETY: the function is declared with OUT columns, so the server can tell
        // its row type; the caller passes one value for each, of the declared types.
        unsafe {
            let desc = self.result_desc();
            assert_eq!(
                (*desc).natts as usize,
                values.len(),
                "columns of the result"
            );
            let tuple = pg_sys::heap_form_tuple(desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
            Reply(Some(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)))
        }
    }

    /// The declared row type, blessed so that a composite datum can refer to it.
    unsafe fn result_desc(&self) -> pg_sys::TupleDesc {
        let mut desc: pg_sys::TupleDesc = std::ptr::null_mut();
        let mut scalar = pg_sys::InvalidOid;
        // SAFETY: fcinfo is valid, the other two are out parameters.
        unsafe {
            let kind = pg_sys::get_call_result_type(self.fcinfo, &mut scalar, &mut desc);
            if kind == pg_sys::TypeFuncClass::TYPEFUNC_SCALAR {
                // A set of plain values: rows of one column.
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

    /// A set of rows, collected into a tuplestore that the caller reads.
    pub fn rows(&self) -> RowSink {
        // SAFETY: resultinfo of a set-returning call is a ReturnSetInfo.
        unsafe {
            let info = (*self.fcinfo).resultinfo as *mut pg_sys::ReturnSetInfo;
            let usable = !info.is_null()
                && (*info).type_ == pg_sys::NodeTag::T_ReturnSetInfo
                && ((*info).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize as i32)
                    != 0;
            if !usable {
                pgrx::ereport!(
                    ERROR,
                    pgrx::PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
                    "set-valued function called in context that cannot accept a set"
                );
            }
            RowSink {
                fcinfo: self.fcinfo,
                info,
                open: None,
                first: None,
            }
        }
    }
}

/// Where the rows of a set-returning function go. Made with the first of them: most
/// polls find none.
pub struct RowSink {
    fcinfo: pg_sys::FunctionCallInfo,
    info: *mut pg_sys::ReturnSetInfo,
    open: Option<Open>,
    /// The first column of the rows that come, where they do not have it.
    first: Option<Arg>,
}

#[derive(Clone, Copy)]
struct Open {
    store: *mut pg_sys::Tuplestorestate,
    desc: pg_sys::TupleDesc,
}

impl RowSink {
    /// From now on rows begin with this value.
    pub fn begin_with(&mut self, value: Arg) {
        self.first = Some(value);
    }

    /// Makes room for rows now. It belongs to the (sub)transaction that does that.
    pub fn prepare(&mut self) {
        self.open();
    }

    fn open(&mut self) -> Open {
        let (fcinfo, info) = (self.fcinfo, self.info);
        *self.open.get_or_insert_with(|| {
            // SAFETY: the tuplestore and its descriptor must outlive this call, so both
            // are made in the per-query memory, as PostgreSQL's own materialized
            // functions do. The server knows what it expects, except in odd places.
            unsafe {
                let per_query = (*(*info).econtext).ecxt_per_query_memory;
                let previous = pg_sys::MemoryContextSwitchTo(per_query);
                let expected = (*info).expectedDesc;
                let desc = if !expected.is_null() && (*expected).natts > 0 {
                    expected
                } else {
                    Call::new(fcinfo).result_desc()
                };
                let desc = pg_sys::CreateTupleDescCopy(desc);
                let store = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
                pg_sys::MemoryContextSwitchTo(previous);
                (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
                (*info).setResult = store;
                (*info).setDesc = desc;
                Open { store, desc }
            }
        })
    }

    /// Takes rows of a query as they are: their first columns are those of the
    /// declaration, further ones are left out. An ERROR when a type differs.
    pub fn extend(&mut self, rows: &Rows) {
        if rows.is_empty() {
            return;
        }
        let Open { store, desc } = self.open();
        let types = rows.column_types();
        let skipped = i32::from(self.first.is_some());
        // SAFETY: desc is alive and has natts attributes.
        let declared: Vec<pg_sys::Oid> = unsafe {
            (skipped..(*desc).natts)
                .map(|at| pg_sys::SPI_gettypeid(desc, at + 1))
                .collect()
        };
        assert!(types.len() >= declared.len(), "columns of the result");
        for ((column, found), expected) in (1..).zip(&types).zip(&declared) {
            if found != expected {
                super::spi::wrong_type(column, *found, *expected);
            }
        }
        if self.first.is_some() {
            for row in 0..rows.len() {
                let columns = (1..).zip(&declared);
                let values: Vec<Arg> = columns
                    .map(|(column, oid)| Arg::new(*oid, rows.datum(row, column)))
                    .collect();
                self.push(&values);
            }
            return;
        }
        for row in 0..rows.len() {
            // SAFETY: store is alive (per-query memory), the tuple belongs to the
            // SPI result that `rows` borrows; tuplestore_puttuple copies it.
            unsafe { pg_sys::tuplestore_puttuple(store, rows.tuple(row)) };
        }
    }

    /// Adds one row made of values.
    pub fn push(&mut self, values: &[Arg]) {
        let Open { store, desc } = self.open();
        let values = || self.first.iter().chain(values);
        let mut datums: Vec<pg_sys::Datum> = values().map(Arg::datum).collect();
        let mut nulls: Vec<bool> = values().map(Arg::is_null).collect();
        // SAFETY: desc describes exactly the declared columns; putvalues copies.
        unsafe {
            assert_eq!(
                (*desc).natts as usize,
                datums.len(),
                "columns of the result"
            );
            pg_sys::tuplestore_putvalues(store, desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }

    pub fn done(self) -> Reply {
        if self.open.is_none() {
            // SAFETY: the server asks for one row after the other, unless told
            // otherwise: there is none.
            unsafe { (*self.info).isDone = pg_sys::ExprDoneCond::ExprEndResult };
        }
        Reply(None)
    }
}

/// What an entry point gives back: a datum, or NULL.
pub struct Reply(Option<pg_sys::Datum>);

impl Reply {
    pub fn null() -> Self {
        Self(None)
    }

    /// What a trigger that runs after the row gives back: ignored, but not NULL.
    pub fn trigger() -> Self {
        Self(Some(pg_sys::Datum::from(0)))
    }

    /// The row that a trigger gives back.
    pub(super) fn tuple(tuple: pg_sys::HeapTuple) -> Self {
        Self(Some(pg_sys::Datum::from(tuple)))
    }

    pub fn int(value: i32) -> Self {
        Self(value.into_datum())
    }

    pub fn bigint(value: Option<i64>) -> Self {
        Self(value.into_datum())
    }

    pub fn bool(value: bool) -> Self {
        Self(value.into_datum())
    }

    pub fn text(value: &str) -> Self {
        Self(value.into_datum())
    }
}

// SAFETY: a Reply is either NULL or a datum of the declared result type, allocated
// in the memory context of the call.
unsafe impl RetAbi for Reply {
    type Item = Self;
    type Ret = Self;

    unsafe fn check_fcinfo_and_prepare(_: pg_sys::FunctionCallInfo) -> CallCx {
        // SAFETY: reading the current context is always allowed.
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

// SAFETY: the SQL of every function is written by hand (src/sql/functions.sql), so
// this mapping is never used to generate any.
unsafe impl SqlTranslatable for Reply {
    const TYPE_IDENT: &'static str = "fetchq::pg::call::Reply";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: std::result::Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: std::result::Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::Skip));
}
