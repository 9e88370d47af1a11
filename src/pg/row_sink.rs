//! The rows that a set-returning function returns.

use pgrx::{PgMemoryContexts, pg_sys};

use crate::pg::call::{Call, Reply};
use crate::pg::json::Jsonb;
use crate::pg::memory;
use crate::pg::spi::{self, Rows};
use crate::pg::value::Arg;

/// The rows of a set-returning function, collected into a tuplestore that the server reads.
///
/// The tuplestore is created with the first row, because most polls find no document.
pub struct RowSink {
    fcinfo: pg_sys::FunctionCallInfo,
    info: *mut pg_sys::ReturnSetInfo,
    store: Option<RowStore>,
    /// The value of the first column, which the rows that are added do not contain.
    first_column: Option<Arg>,
    /// Memory that is used for one row at a time.
    row_memory: Option<PgMemoryContexts>,
}

/// A tuplestore, the descriptor of its rows, and the types of their columns.
struct RowStore {
    tuples: *mut pg_sys::Tuplestorestate,
    desc: pg_sys::TupleDesc,
    types: Vec<pg_sys::Oid>,
}

impl Call {
    /// Begins a result that is a set of rows.
    ///
    /// Raises an ERROR of PostgreSQL (0A000) when the caller does not accept a set.
    pub fn rows(&self) -> RowSink {
        RowSink::new(self.fcinfo())
    }
}

impl RowSink {
    /// The empty result of a running call. Raises an ERROR where the server accepts no rows.
    fn new(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        // SAFETY: resultinfo of a set-returning call is a ReturnSetInfo. Its node tag is
        // checked before it is read.
        unsafe {
            let info = (*fcinfo).resultinfo as *mut pg_sys::ReturnSetInfo;
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
            Self {
                fcinfo,
                info,
                store: None,
                first_column: None,
                row_memory: None,
            }
        }
    }

    /// Puts this value into the first column of the rows that are added from now on.
    pub fn begin_with(&mut self, value: Arg) {
        self.first_column = Some(value);
    }

    /// Creates the tuplestore now.
    ///
    /// The files of a tuplestore belong to the (sub)transaction that created it.
    pub fn prepare(&mut self) {
        self.store();
    }

    fn store(&mut self) -> &RowStore {
        let (fcinfo, info) = (self.fcinfo, self.info);
        self.store.get_or_insert_with(|| {
            // SAFETY: The tuplestore and its descriptor must outlive this call. Both are
            // made in the per-query memory, as PostgreSQL's own materialized functions do.
            // `info` was checked in `new`. The server says which columns it expects
            // except in unusual calls, for which the declaration is used.
            unsafe {
                let per_query = (*(*info).econtext).ecxt_per_query_memory;
                let previous = pg_sys::MemoryContextSwitchTo(per_query);
                let expected = (*info).expectedDesc;
                let desc = if !expected.is_null() && (*expected).natts > 0 {
                    expected
                } else {
                    Call::new(fcinfo).result_descriptor()
                };
                let desc = pg_sys::CreateTupleDescCopy(desc);
                let tuples = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
                pg_sys::MemoryContextSwitchTo(previous);
                (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
                (*info).setResult = tuples;
                (*info).setDesc = desc;
                let types = (1..=(*desc).natts).map(|at| pg_sys::SPI_gettypeid(desc, at));
                RowStore {
                    tuples,
                    desc,
                    types: types.collect(),
                }
            }
        })
    }

    /// Adds the rows of a query as they are.
    ///
    /// The first columns of the query are those of the declaration. Further columns are left
    /// out. Raises an ERROR (`Error::ColumnType`) when a type differs.
    pub fn extend(&mut self, rows: &Rows) {
        if rows.is_empty() {
            return;
        }
        let types = rows.column_types();
        let skipped = usize::from(self.first_column.is_some());
        let store = self.store();
        let (tuples, declared) = (store.tuples, store.types[skipped..].to_vec());
        assert!(types.len() >= declared.len(), "columns of the result");
        for ((column, found), expected) in (1..).zip(&types).zip(&declared) {
            if found != expected {
                spi::wrong_type(column, *found, *expected);
            }
        }
        // A tuple with further columns would be no value of the declared type: a call in a select
        // list shows the row as it is.
        if self.first_column.is_some() || types.len() > declared.len() {
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
            // SAFETY: The tuplestore is alive, because it is in the per-query memory. The
            // tuple belongs to the SPI result that `rows` borrows. tuplestore_puttuple
            // copies it.
            unsafe { pg_sys::tuplestore_puttuple(tuples, rows.tuple(row)) };
        }
    }

    /// Adds a row that is made of values.
    ///
    /// `values` has one value for each declared column that `begin_with` does not fill. Raises an ERROR
    /// (`Error::ColumnType`) when the type of one differs: it may be that of a column of a table that was
    /// altered, and the server would take its bytes for those of the declared type.
    pub fn push(&mut self, values: &[Arg]) {
        // A result may be long: a cancel, a timeout or a shutdown must end it.
        memory::check_for_interrupts();
        self.prepare();
        let Some(RowStore {
            tuples,
            desc,
            types,
        }) = &self.store
        else {
            return;
        };
        let values = || self.first_column.iter().chain(values);
        assert_eq!(types.len(), values().count(), "columns of the result");
        for ((column, value), declared) in (1..).zip(values()).zip(types) {
            if !value.fits(*declared) {
                spi::wrong_type(column, value.oid, *declared);
            }
        }
        let mut datums: Vec<pg_sys::Datum> = values().map(Arg::datum).collect();
        let mut nulls: Vec<bool> = values().map(Arg::is_null).collect();
        // SAFETY: The descriptor has exactly the declared columns. Their number and their types are
        // checked. tuplestore_putvalues copies the values.
        unsafe {
            pg_sys::tuplestore_putvalues(*tuples, *desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }

    /// Adds a row that has a `jsonb` between other values, made of a JSON text.
    ///
    /// What the parser of the server leaves behind is freed with each row, so that a long result
    /// takes the memory of its rows only. Raises PostgreSQL's own ERROR (22P02) for a text that is
    /// not valid.
    pub fn push_with_json(&mut self, before: &[Arg], json: &str, after: &[Arg]) {
        let mut memory = self.row_memory.take().unwrap_or_else(|| self.new_memory());
        // SAFETY: The row is copied into the tuplestore, which has memory of its own. So nothing
        // that was allocated meanwhile is used afterwards. An ERROR ends the call, and the memory.
        unsafe {
            memory.switch_to(|_| {
                let json = Jsonb::arg(Some(Jsonb::parse(json)));
                self.push(&[before, &[json], after].concat());
            });
            memory.reset();
        }
        self.row_memory = Some(memory);
    }

    /// Makes memory that lasts as long as the rows, also where a statement of the library runs, whose
    /// memory is freed when it ends.
    fn new_memory(&self) -> PgMemoryContexts {
        // SAFETY: `info` was checked in `new`, and its memory outlives this call.
        unsafe {
            let per_query = (*(*self.info).econtext).ecxt_per_query_memory;
            PgMemoryContexts::For(per_query).switch_to(|_| PgMemoryContexts::new("fetchq row"))
        }
    }

    /// Ends the result. The server reads the rows from the tuplestore, if there is one.
    pub fn done(self) -> Reply {
        if self.store.is_none() {
            // SAFETY: `info` was checked in `new`. Without a tuplestore the server
            // asks for one row after the other, so it must learn that there is none.
            unsafe { (*self.info).isDone = pg_sys::ExprDoneCond::ExprEndResult };
        }
        Reply::null()
    }
}
