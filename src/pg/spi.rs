//! Statements through SPI. The difference to pgrx's own client: generic plans on
//! demand, no transaction id for reads, results that stay in SPI's memory and go
//! with it, and rows that can be handed on without being taken apart.

use std::marker::PhantomData;

use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::pg::text::c_string;
use crate::pg::value::Arg;
use crate::pg::{operators, planner};

/// A prepared and kept plan. Freed when dropped.
pub struct Plan {
    ptr: pg_sys::SPIPlanPtr,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: ptr came from SPI_keepplan and nothing else frees it. Plans are
        // dropped between calls only: whoever runs one holds an Rc to its owner.
        unsafe { pg_sys::SPI_freeplan(self.ptr) };
    }
}

/// Values and NULL marks in the form that SPI takes.
fn split(args: &[Arg]) -> (Vec<pg_sys::Datum>, Vec<std::ffi::c_char>) {
    args.iter()
        .map(|arg| {
            let mark = if arg.is_null() { b'n' } else { b' ' };
            (arg.datum(), mark as std::ffi::c_char)
        })
        .unzip()
}

/// An open SPI connection.
pub struct Spi {
    _not_send: PhantomData<*mut ()>,
}

/// Opens an SPI connection for `work`. On an ERROR the server closes it.
pub fn connect<R>(work: impl FnOnce(&Spi) -> R) -> R {
    let spi = Spi {
        _not_send: PhantomData,
    };
    // SAFETY: SPI nests; every connect is paired with one finish, and after an ERROR
    // the end of the (sub)transaction closes what is open.
    unsafe {
        check("SPI_connect", pg_sys::SPI_connect());
        let result = work(&spi);
        check("SPI_finish", pg_sys::SPI_finish());
        result
    }
}

/// A negative code of SPI means that it was misused: a bug here, never user input.
fn check(what: &str, code: i32) {
    if code < 0 {
        pgrx::error!("{what} failed with code {code}");
    }
}

impl Spi {
    /// Prepares a statement that is planned once, for parameters of these types,
    /// and kept until it is dropped.
    pub fn prepare(&self, sql: &str, args: &[Arg]) -> Plan {
        let mut oids: Vec<pg_sys::Oid> = args.iter().map(|a| a.oid).collect();
        // SAFETY: the connection is open (self exists); SPI copies text and types.
        unsafe {
            let ptr = pg_sys::SPI_prepare_cursor(
                c_string(&operators::expand(sql)),
                oids.len() as i32,
                oids.as_mut_ptr(),
                pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
            );
            if ptr.is_null() {
                check("SPI_prepare_cursor", pg_sys::SPI_result.min(-1));
            }
            check("SPI_keepplan", pg_sys::SPI_keepplan(ptr));
            Plan { ptr }
        }
    }

    /// Runs a kept plan, planned under the settings of the hot statements.
    pub fn run(&self, plan: &Plan, args: &[Arg]) -> Rows<'_> {
        planner::plan(plan.ptr);
        planner::with_generic_plans(|| self.execute(plan, args))
    }

    /// Runs a kept read as of this instant, even in a transaction that keeps one
    /// snapshot for all its statements: for what must agree with the catalog, which is
    /// always read as of now.
    pub fn run_latest(&self, plan: &Plan, args: &[Arg]) -> Rows<'_> {
        planner::plan(plan.ptr);
        planner::with_generic_plans(|| {
            // SAFETY: the snapshot is popped again; after an ERROR the end of the
            // (sub)transaction pops it. read_only makes SPI use it.
            unsafe {
                pg_sys::CommandCounterIncrement();
                pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
                let rows = self.execute_with(plan, args, true);
                pg_sys::PopActiveSnapshot();
                rows
            }
        })
    }

    fn execute(&self, plan: &Plan, args: &[Arg]) -> Rows<'_> {
        self.execute_with(plan, args, false)
    }

    fn execute_with(&self, plan: &Plan, args: &[Arg], read_only: bool) -> Rows<'_> {
        let (mut datums, nulls) = split(args);
        // SAFETY: the plan is alive (borrowed) and was prepared for as many
        // parameters of the same types: every caller builds both lists in one place.
        // Without read_only it takes a fresh snapshot, so that a statement sees what the
        // one before it did; it assigns no transaction id.
        unsafe {
            let code = pg_sys::SPI_execute_plan(
                plan.ptr,
                datums.as_mut_ptr(),
                nulls.as_ptr(),
                read_only,
                0,
            );
            check("SPI_execute_plan", code);
            Rows::take()
        }
    }

    /// Runs a statement once, with parameters, under the settings of the session.
    pub fn once(&self, sql: &str, args: &[Arg]) -> Rows<'_> {
        let mut oids: Vec<pg_sys::Oid> = args.iter().map(|a| a.oid).collect();
        let (mut datums, nulls) = split(args);
        // SAFETY: as in `execute`.
        unsafe {
            let code = pg_sys::SPI_execute_with_args(
                c_string(&operators::expand(sql)),
                oids.len() as i32,
                oids.as_mut_ptr(),
                datums.as_mut_ptr(),
                nulls.as_ptr(),
                false,
                0,
            );
            check("SPI_execute_with_args", code);
            Rows::take()
        }
    }
}

/// The result of a statement, in SPI's memory while the connection is open.
pub struct Rows<'spi> {
    table: *mut pg_sys::SPITupleTable,
    affected: u64,
    _spi: PhantomData<&'spi Spi>,
}

impl Rows<'_> {
    unsafe fn take() -> Self {
        // SAFETY: both globals were set by the SPI call just before.
        unsafe {
            Self {
                table: pg_sys::SPI_tuptable,
                affected: pg_sys::SPI_processed,
                _spi: PhantomData,
            }
        }
    }

    /// Rows inserted, updated, deleted or returned.
    pub fn affected(&self) -> i32 {
        i32::try_from(self.affected).unwrap_or(i32::MAX)
    }

    /// Rows in the result.
    pub fn len(&self) -> usize {
        if self.table.is_null() {
            0
        } else {
            self.affected as usize
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn tuple(&self, row: usize) -> pg_sys::HeapTuple {
        assert!(row < self.len(), "row of the result");
        // SAFETY: table is not null and holds len() tuples.
        unsafe { *(*self.table).vals.add(row) }
    }

    /// A raw datum; columns count from 1.
    pub fn datum(&self, row: usize, column: i32) -> Option<pg_sys::Datum> {
        let mut is_null = false;
        // SAFETY: the tuple belongs to this table's descriptor.
        let datum = unsafe {
            pg_sys::SPI_getbinval(self.tuple(row), (*self.table).tupdesc, column, &mut is_null)
        };
        (!is_null).then_some(datum)
    }

    /// A value; columns count from 1. An ERROR when the column has another type than
    /// T stands for, which happens when somebody altered a table of fetchq.
    pub fn get<T: FromDatum + IntoDatum>(&self, row: usize, column: i32) -> Option<T> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if !T::is_compatible_with(oid) {
            wrong_type(column, oid, T::type_oid());
        }
        // SAFETY: the type was checked; by-reference values are copied into Rust's
        // memory by the types used here (String, Vec) or passed by value.
        unsafe { T::from_datum(datum, false) }
    }

    /// A point in time: microseconds since 2000.
    pub fn timestamp(&self, row: usize, column: i32) -> Option<i64> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::TIMESTAMPTZOID {
            wrong_type(column, oid, pg_sys::TIMESTAMPTZOID);
        }
        // SAFETY: a timestamptz is an int64, by value.
        unsafe { i64::from_datum(datum, false) }
    }

    /// An interval: months, days and microseconds.
    pub fn interval(&self, row: usize, column: i32) -> Option<(i32, i32, i64)> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::INTERVALOID {
            wrong_type(column, oid, pg_sys::INTERVALOID);
        }
        Some(super::time::Interval::from_datum(datum).parts())
    }

    /// An interval as a parameter.
    pub fn interval_arg(&self, row: usize, column: i32) -> Arg {
        let datum = self.interval(row, column).and(self.datum(row, column));
        Arg::new(pg_sys::INTERVALOID, datum)
    }

    fn type_of(&self, column: i32) -> pg_sys::Oid {
        // SAFETY: called for results with rows only, so there is a descriptor; SPI
        // checks the column number.
        unsafe { pg_sys::SPI_gettypeid((*self.table).tupdesc, column) }
    }

    /// The types of the columns, when there are rows.
    pub(super) fn column_types(&self) -> Vec<pg_sys::Oid> {
        if self.is_empty() {
            return Vec::new();
        }
        // SAFETY: as above.
        let columns = unsafe { (*(*self.table).tupdesc).natts };
        (1..=columns).map(|c| self.type_of(c)).collect()
    }

    /// A jsonb value, in SPI's memory.
    pub fn json(&self, row: usize, column: i32) -> Option<super::json::Jsonb> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::JSONBOID {
            wrong_type(column, oid, pg_sys::JSONBOID);
        }
        Some(super::json::Jsonb::from_datum(datum))
    }

    /// A jsonb column as text; NULL reads as `null`.
    pub fn json_text(&self, row: usize, column: i32) -> String {
        self.datum(row, column).map_or_else(
            || "null".to_owned(),
            |d| super::json::Jsonb::from_datum(d).to_text(),
        )
    }

    /// One column of all rows as a `tid[]` parameter.
    pub fn tids(&self, column: i32) -> Arg {
        let mut datums: Vec<pg_sys::Datum> = (0..self.len())
            .filter_map(|row| self.datum(row, column))
            .collect();
        // SAFETY: the elements are tids: 6 bytes, by reference, short-aligned.
        let array = unsafe {
            pg_sys::construct_array(
                datums.as_mut_ptr(),
                datums.len() as i32,
                pg_sys::TIDOID,
                6,
                false,
                pg_sys::TYPALIGN_SHORT as std::ffi::c_char,
            )
        };
        Arg::new(pg_sys::TIDARRAYOID, Some(pg_sys::Datum::from(array)))
    }
}

/// A column is not what fetchq made it.
pub(super) fn wrong_type(column: i32, found: pg_sys::Oid, expected: pg_sys::Oid) -> ! {
    // SAFETY: format_type_be returns a palloc'ed C string for any oid.
    let name = |oid| unsafe {
        std::ffi::CStr::from_ptr(pg_sys::format_type_be(oid))
            .to_string_lossy()
            .into_owned()
    };
    let error = crate::error::Error::ColumnType {
        column,
        found: name(found),
        expected: name(expected),
    };
    pgrx::pg_sys::panic::ErrorReport::from(error).report(pgrx::PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}
