//! Statements through SPI, the server programming interface.
//!
//! Unlike the client of pgrx, this one makes generic plans on demand and assigns no transaction
//! ID to reads. Results stay in the memory of SPI and are freed with it, and rows can be passed
//! on without being decoded.

use std::ffi::CStr;
use std::marker::PhantomData;

use pgrx::{FromDatum, IntoDatum, pg_sys};

use crate::pg::memory;
use crate::pg::role::ActingAsOwner;
use crate::pg::snapshot::Snapshot;
use crate::pg::text::c_string;
use crate::pg::value::Arg;
use crate::pg::{catalog, operators, planner, session};

/// A prepared statement, which is freed when this is dropped.
pub struct Plan {
    ptr: pg_sys::SPIPlanPtr,
    /// The types of its parameters.
    types: Vec<pg_sys::Oid>,
    /// The statement reads the server's list of sessions.
    reads_activity: bool,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: It came from SPI_keepplan, and nothing else frees it. Plans are dropped only
        // between calls, because code that runs one has an Rc to its owner.
        unsafe { pg_sys::SPI_freeplan(self.ptr) };
    }
}

/// Returns whether a statement reads the server's list of sessions.
unsafe fn reads_activity(text: *const std::ffi::c_char) -> bool {
    // SAFETY: The caller passes a C string.
    session::reads_activity(&unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

/// Returns the values and the NULL marks of parameters in the form that SPI expects.
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

/// Opens an SPI connection for `work`. After an ERROR the server closes it.
pub fn connect<R>(work: impl FnOnce(&Spi) -> R) -> R {
    let spi = Spi {
        _not_send: PhantomData,
    };
    // SAFETY: SPI connections can be nested. Each is closed below. After an ERROR the end of
    // the (sub)transaction closes it.
    unsafe {
        check("SPI_connect", pg_sys::SPI_connect());
        let result = work(&spi);
        check("SPI_finish", pg_sys::SPI_finish());
        result
    }
}

/// Raises an ERROR for a negative code of SPI.
///
/// Such a code means that SPI was used in a wrong way. That is a bug, and never depends on what
/// a user passes.
fn check(what: &str, code: i32) {
    if code < 0 {
        pgrx::error!("{what} failed with code {code}");
    }
}

impl Spi {
    /// Prepares a statement with a generic plan for parameters of these types.
    ///
    /// Markers of operators in `sql` are expanded, see [`operators::expand`].
    pub fn prepare(&self, sql: &str, args: &[Arg]) -> Plan {
        let mut oids: Vec<pg_sys::Oid> = args.iter().map(|a| a.oid).collect();
        // SAFETY: The connection is open, because self exists. SPI copies the text and the
        // types.
        unsafe {
            let text = c_string(&operators::expand(sql));
            let _acting = ActingAsOwner::begin();
            let ptr = pg_sys::SPI_prepare_cursor(
                text,
                oids.len() as i32,
                oids.as_mut_ptr(),
                pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
            );
            if ptr.is_null() {
                check("SPI_prepare_cursor", pg_sys::SPI_result.min(-1));
            }
            check("SPI_keepplan", pg_sys::SPI_keepplan(ptr));
            Plan {
                ptr,
                types: oids,
                reads_activity: reads_activity(text),
            }
        }
    }

    /// Runs a prepared statement, which is planned under the settings of the hot statements.
    ///
    /// `args` has a value for each parameter of the statement, of the type for which it was
    /// prepared.
    pub fn run(&self, plan: &Plan, args: &[Arg]) -> Rows<'_> {
        let _acting = ActingAsOwner::begin();
        planner::plan(plan.ptr);
        planner::with_generic_plans(|| self.execute(plan, args))
    }

    /// Runs a prepared read with a new snapshot, also in a transaction that keeps one snapshot
    /// for all its statements.
    ///
    /// This is for data that must agree with the catalog, which the server always reads with a
    /// new snapshot.
    pub fn run_latest(&self, plan: &Plan, args: &[Arg]) -> Rows<'_> {
        let _acting = ActingAsOwner::begin();
        planner::plan(plan.ptr);
        planner::with_generic_plans(|| {
            // SAFETY: The snapshot is popped below. After an ERROR the end of the
            // (sub)transaction pops it. With read_only, SPI uses this snapshot.
            unsafe {
                pg_sys::CommandCounterIncrement();
                pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
                let rows = self.execute_with(plan, args, true);
                pg_sys::PopActiveSnapshot();
                rows
            }
        })
    }

    /// Runs a prepared read with this snapshot, so that several reads see the same.
    pub fn run_in(&self, plan: &Plan, args: &[Arg], snapshot: &Snapshot) -> Rows<'_> {
        let _acting = ActingAsOwner::begin();
        planner::plan(plan.ptr);
        planner::with_generic_plans(|| {
            // SAFETY: As in `run_latest`. The snapshot is registered while it is borrowed.
            unsafe {
                pg_sys::PushActiveSnapshot(snapshot.ptr());
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
        let has_types = plan.types.len() == args.len()
            && args
                .iter()
                .zip(&plan.types)
                .all(|(arg, oid)| arg.fits(*oid));
        if !has_types {
            pgrx::error!("a statement was prepared for parameters of other types");
        }
        if plan.reads_activity {
            session::refresh_activity();
        }
        let (mut datums, nulls) = split(args);
        // SAFETY: The plan is alive, because it is borrowed. It was prepared for parameters of these
        // types. Without read_only SPI takes a new snapshot, so that a statement sees the changes of
        // the statement before it. That assigns no transaction ID.
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

    /// Plans and runs a statement once, under the settings of the session.
    ///
    /// Markers of operators in `sql` are expanded, see [`operators::expand`].
    ///
    /// It acts as the owner of the tables, as every statement of the library does, see
    /// [`ActingAsOwner`]. The caller has checked the rights of the session.
    pub fn once(&self, sql: &str, args: &[Arg]) -> Rows<'_> {
        let text = c_string(&operators::expand(sql));
        let _acting = ActingAsOwner::begin();
        self.execute_text(text, args, false)
    }

    /// Like [`Self::once`], for a read with a new snapshot, also in a transaction that keeps one
    /// snapshot for all its statements.
    pub fn once_latest(&self, sql: &str, args: &[Arg]) -> Rows<'_> {
        let text = c_string(&operators::expand(sql));
        let _acting = ActingAsOwner::begin();
        // SAFETY: The snapshot is popped below. After an ERROR the end of the (sub)transaction
        // pops it. With read_only, SPI uses this snapshot.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
            let rows = self.execute_text(text, args, true);
            pg_sys::PopActiveSnapshot();
            rows
        }
    }

    /// As [`Self::once`], but the server gets `sql` as it is.
    ///
    /// This is for a statement with identifiers of users, which the server has quoted. Such an
    /// identifier may contain the text of a marker, which must stay as it is. Operators in `sql`
    /// must be qualified.
    pub fn once_verbatim(&self, sql: &str, args: &[Arg]) -> Rows<'_> {
        let _acting = ActingAsOwner::begin();
        self.execute_text(c_string(sql), args, false)
    }

    /// As [`Self::once_verbatim`], for what only the owner of the extension may do.
    pub fn once_as_extension_owner(&self, sql: &str, args: &[Arg]) -> Rows<'_> {
        let _acting = ActingAsOwner::begin_as_extension_owner();
        self.execute_text(c_string(sql), args, false)
    }

    /// As [`Self::once_verbatim`], for a statement on tables of the caller: all rights are those of
    /// the session, also where an identifier names a table of fetchq, and so is the search path.
    pub fn once_as_caller(&self, sql: &str, args: &[Arg]) -> Rows<'_> {
        self.execute_text(c_string(sql), args, false)
    }

    fn execute_text(
        &self,
        text: *const std::ffi::c_char,
        args: &[Arg],
        read_only: bool,
    ) -> Rows<'_> {
        let mut oids: Vec<pg_sys::Oid> = args.iter().map(|a| a.oid).collect();
        let (mut datums, nulls) = split(args);
        // SAFETY: The connection is open, because self exists. There are as many types as
        // values, because both come from `args`.
        unsafe {
            if reads_activity(text) {
                session::refresh_activity();
            }
            let code = pg_sys::SPI_execute_with_args(
                text,
                oids.len() as i32,
                oids.as_mut_ptr(),
                datums.as_mut_ptr(),
                nulls.as_ptr(),
                read_only,
                0,
            );
            check("SPI_execute_with_args", code);
            Rows::take()
        }
    }
}

/// The result of a statement. It is in the memory of SPI while the connection is open.
pub struct Rows<'spi> {
    table: *mut pg_sys::SPITupleTable,
    affected: u64,
    _spi: PhantomData<&'spi Spi>,
}

impl Rows<'_> {
    unsafe fn take() -> Self {
        // SAFETY: The SPI call before this one has set both variables.
        let rows = unsafe {
            Self {
                table: pg_sys::SPI_tuptable,
                affected: pg_sys::SPI_processed,
                _spi: PhantomData,
            }
        };
        // The callers make lists of what they read.
        memory::provide_for_rows(rows.len());
        rows
    }

    /// Returns the number of rows that the statement inserted, updated, deleted or returned.
    pub fn affected(&self) -> i32 {
        i32::try_from(self.affected).unwrap_or(i32::MAX)
    }

    /// Returns the number of rows in the result.
    pub fn len(&self) -> usize {
        if self.table.is_null() {
            0
        } else {
            self.affected as usize
        }
    }

    /// Returns whether the result has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn tuple(&self, row: usize) -> pg_sys::HeapTuple {
        assert!(row < self.len(), "row of the result");
        // SAFETY: The table is not NULL and has len() tuples.
        unsafe { *(*self.table).vals.add(row) }
    }

    /// Returns a column of a row as the server passes it, or None for NULL. What it is depends on the
    /// type of the column, which the caller compares.
    ///
    /// Here and below, rows are counted from 0 and columns from 1.
    pub(super) fn datum(&self, row: usize, column: i32) -> Option<pg_sys::Datum> {
        let mut is_null = false;
        // SAFETY: The tuple belongs to the descriptor of this table.
        let datum = unsafe {
            pg_sys::SPI_getbinval(self.tuple(row), (*self.table).tupdesc, column, &mut is_null)
        };
        (!is_null).then_some(datum)
    }

    /// Returns a column of a row, or None for NULL.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type than T, which
    /// happens when a table of fetchq was altered.
    pub fn get<T: FromDatum + IntoDatum>(&self, row: usize, column: i32) -> Option<T> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if !T::is_compatible_with(oid) {
            wrong_type(column, oid, T::type_oid());
        }
        // SAFETY: The type was checked. The types that are used here are passed by value, or
        // copy the value into memory of Rust as String and Vec do.
        unsafe { T::from_datum(datum, false) }
    }

    /// Returns whether a column of a row is NULL.
    pub fn is_null(&self, row: usize, column: i32) -> bool {
        self.datum(row, column).is_none()
    }

    /// Returns the number of an object (`oid`) or of a transaction (`xid`), or None for NULL.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn number(&self, row: usize, column: i32) -> Option<u32> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if !matches!(oid, pg_sys::OIDOID | pg_sys::XIDOID) {
            wrong_type(column, oid, pg_sys::OIDOID);
        }
        Some(datum.value() as u32)
    }

    /// Returns a `text` as it is in the memory of SPI, or None for NULL and for what is no UTF-8.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn text(&self, row: usize, column: i32) -> Option<&str> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::TEXTOID {
            wrong_type(column, oid, pg_sys::TEXTOID);
        }
        // SAFETY: The value is a text in the memory of SPI, or in that of the transaction if it had
        // to be decompressed. Both last as long as the result.
        unsafe { <&str>::from_datum(datum, false) }
    }

    /// Returns a `timestamptz` in microseconds since 2000, or None for NULL.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn timestamp(&self, row: usize, column: i32) -> Option<i64> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::TIMESTAMPTZOID {
            wrong_type(column, oid, pg_sys::TIMESTAMPTZOID);
        }
        // SAFETY: A timestamptz is an int64 that is passed by value.
        unsafe { i64::from_datum(datum, false) }
    }

    /// Returns the months, days and microseconds of an `interval`, or None for NULL.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn interval(&self, row: usize, column: i32) -> Option<(i32, i32, i64)> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::INTERVALOID {
            wrong_type(column, oid, pg_sys::INTERVALOID);
        }
        Some(super::time::Interval::from_datum(datum).parts())
    }

    /// Returns an `interval` as a parameter for another statement.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn interval_arg(&self, row: usize, column: i32) -> Arg {
        let datum = self.interval(row, column).and(self.datum(row, column));
        Arg::new(pg_sys::INTERVALOID, datum)
    }

    /// Returns all columns of a row as parameters for another statement, each of its own type. They
    /// are in the memory of SPI.
    pub fn args(&self, row: usize) -> Vec<Arg> {
        let types = self.column_types();
        types
            .into_iter()
            .zip(1..)
            .map(|(oid, column)| Arg::new(oid, self.datum(row, column)))
            .collect()
    }

    /// Returns all columns of a row as [`Self::args`] does, copied into the memory in which the connection
    /// was opened. So they outlive the connection, and a subtransaction that is rolled back.
    pub fn kept_args(&self, row: usize) -> Vec<Arg> {
        let types = self.column_types();
        let keep = |oid: pg_sys::Oid, datum: pg_sys::Datum| {
            let (mut length, mut by_value) = (0, false);
            // SAFETY: The type is that of a column of the result, so it exists. SPI copies the value
            // as its type says, while the connection is open.
            unsafe {
                pg_sys::get_typlenbyval(oid, &mut length, &mut by_value);
                pg_sys::SPI_datumTransfer(datum, by_value, i32::from(length))
            }
        };
        (1..)
            .zip(types)
            .map(|(column, oid)| {
                Arg::new(oid, self.datum(row, column).map(|datum| keep(oid, datum)))
            })
            .collect()
    }

    fn type_of(&self, column: i32) -> pg_sys::Oid {
        // SAFETY: This is called only for results with rows, so there is a descriptor. SPI
        // checks the number of the column.
        unsafe { pg_sys::SPI_gettypeid((*self.table).tupdesc, column) }
    }

    /// Returns the types of the columns of a result that has rows.
    pub(super) fn column_types(&self) -> Vec<pg_sys::Oid> {
        if self.is_empty() {
            return Vec::new();
        }
        // SAFETY: as above.
        let columns = unsafe { (*(*self.table).tupdesc).natts };
        (1..=columns).map(|c| self.type_of(c)).collect()
    }

    /// Returns a `jsonb` value in the memory of SPI, or None for NULL.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn json(&self, row: usize, column: i32) -> Option<super::json::Jsonb> {
        let datum = self.datum(row, column)?;
        let oid = self.type_of(column);
        if oid != pg_sys::JSONBOID {
            wrong_type(column, oid, pg_sys::JSONBOID);
        }
        Some(super::json::Jsonb::from_datum(datum))
    }

    /// Returns a `jsonb` column as JSON text. NULL becomes `null`.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn json_text(&self, row: usize, column: i32) -> String {
        self.json(row, column)
            .map_or_else(|| "null".to_owned(), |json| json.to_text())
    }

    /// Returns a column of type `tid` of all rows as a `tid[]` parameter. NULLs are left out.
    ///
    /// Raises an ERROR (`Error::ColumnType`) when the column has another type.
    pub fn tids(&self, column: i32, rows: &[usize]) -> Arg {
        if !self.is_empty() && self.type_of(column) != pg_sys::TIDOID {
            wrong_type(column, self.type_of(column), pg_sys::TIDOID);
        }
        let mut datums: Vec<pg_sys::Datum> = rows
            .iter()
            .filter_map(|row| self.datum(*row, column))
            .collect();
        // SAFETY: The elements are tids, which have 6 bytes, are passed by reference, and are
        // aligned as a short.
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

/// Raises an ERROR (`Error::ColumnType`) for a column whose type is not the one that fetchq
/// created.
pub(super) fn wrong_type(column: i32, found: pg_sys::Oid, expected: pg_sys::Oid) -> ! {
    let error = crate::error::Error::ColumnType {
        column,
        found: catalog::type_name(found),
        expected: catalog::type_name(expected),
    };
    pgrx::pg_sys::panic::ErrorReport::from(error).report(pgrx::PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}
