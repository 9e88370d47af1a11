//! Appends rows to tables without the executor.
//!
//! This is only for tables of fetchq itself that have no index, no trigger and no constraint.

use pgrx::pg_sys;

use crate::pg::value::Arg;

/// Appends a row to a table.
///
/// The caller holds a lock on `table` that allows writing until the end of the transaction.
/// `values` has one value for each column, of the type of the column. Raises an ERROR when
/// the table has another number of columns.
pub fn row(table: pg_sys::Oid, values: &[Arg]) {
    let mut datums: Vec<pg_sys::Datum> = values.iter().map(Arg::datum).collect();
    let mut nulls: Vec<bool> = values.iter().map(Arg::is_null).collect();
    // SAFETY: The relation is open while it is written. The tuple is formed by the
    // descriptor of the relation, which was checked to have as many columns as there are
    // values. heap_insert copies the tuple into the page.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let desc = (*relation).rd_att;
        if (*desc).natts as usize != values.len() {
            pgrx::error!("a table of counter events was altered: reinstall the extension");
        }
        let tuple = pg_sys::heap_form_tuple(desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
        let command = pg_sys::GetCurrentCommandId(true);
        pg_sys::heap_insert(relation, tuple, command, 0, std::ptr::null_mut());
        pg_sys::heap_freetuple(tuple);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
    }
}
