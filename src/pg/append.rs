//! Appends rows to tables without the executor.
//!
//! This is only for tables of fetchq itself that have no trigger and no constraint, and no index on
//! an expression or a part of the rows.

use pgrx::{FromDatum, pg_sys};

use crate::pg::value::Arg;

/// Appends a row to a table that has no index.
///
/// The caller holds a lock on `table` that allows writing until the end of the transaction.
/// `values` has one value for each column, of the type of the column. Raises an ERROR when
/// the table has another number of columns.
pub fn row(table: pg_sys::Oid, values: &[Arg]) {
    // SAFETY: The relation and the tuple are those of `insert`. heap_insert copies the tuple into
    // the page.
    insert(table, values, |relation, tuple| unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        pg_sys::heap_insert(relation, tuple, command, 0, std::ptr::null_mut());
    });
}

/// Appends a row as [`row`] does, and its entries to the indexes of the table. Returns its place.
pub fn indexed_row(table: pg_sys::Oid, values: &[Arg]) -> Place {
    let mut tid = pg_sys::ItemPointerData::default();
    // SAFETY: The relation and the tuple are those of `insert`. The function, which the server uses
    // for its catalogs, writes into every table whose indexes have neither expressions nor
    // predicates.
    insert(table, values, |relation, tuple| unsafe {
        pg_sys::CatalogTupleInsert(relation, tuple);
        tid = (*tuple).t_self;
    });
    Place { table, tid }
}

/// Where a row was written.
#[derive(Clone, Copy)]
pub struct Place {
    table: pg_sys::Oid,
    tid: pg_sys::ItemPointerData,
}

impl Place {
    /// Returns whether the table is still there.
    pub fn has_table(&self) -> bool {
        // SAFETY: A look-up in the system cache.
        unsafe { pg_sys::get_rel_relkind(self.table) != 0 }
    }

    /// Returns whether the row is still there: neither deleted nor changed, and not moved by a
    /// command that rewrites the table. `id` is the value of its first column, a `bigint`.
    ///
    /// This reads the row as of now, whatever the snapshot of the transaction is. A row that a
    /// transaction deletes that has not committed is not there.
    pub fn has(&self, id: i64) -> bool {
        // SAFETY: The relation is open, and locked, while it is read, so VACUUM does not truncate
        // it meanwhile.
        unsafe {
            let mode = pg_sys::AccessShareLock as i32;
            let relation = pg_sys::try_relation_open(self.table, mode);
            if relation.is_null() {
                return false;
            }
            let pages =
                pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
            let block = self.tid.ip_blkid;
            let page = u32::from(block.bi_hi) << 16 | u32::from(block.bi_lo);
            let found = page < pages && self.first_column(relation) == Some(id);
            pg_sys::relation_close(relation, mode);
            found
        }
    }

    unsafe fn first_column(&self, relation: pg_sys::Relation) -> Option<i64> {
        let mut tuple = pg_sys::HeapTupleData {
            t_self: self.tid,
            ..Default::default()
        };
        // It shows what is committed by now and what this transaction has written. `xmax` is then the
        // transaction that deletes the row.
        let mut snapshot = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..Default::default()
        };
        let mut buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
        // SAFETY: As in `has`. The snapshot needs no registration, because it has no horizon. The
        // buffer is pinned until the column was read. The arrays have an element for each column.
        unsafe {
            let is_found = pg_sys::heap_fetch(
                relation,
                &mut snapshot,
                &mut tuple,
                &mut buffer,
                #[cfg(not(any(feature = "pg13", feature = "pg14")))]
                false,
            );
            if !is_found {
                return None;
            }
            let desc = (*relation).rd_att;
            let columns = (*desc).natts as usize;
            let (mut values, mut nulls) =
                (vec![pg_sys::Datum::null(); columns], vec![true; columns]);
            pg_sys::heap_deform_tuple(&mut tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::ReleaseBuffer(buffer);
            match snapshot.xmax {
                pg_sys::InvalidTransactionId => i64::from_datum(*values.first()?, *nulls.first()?),
                _ => None,
            }
        }
    }
}

/// Forms a row and has `write` write it.
fn insert(
    table: pg_sys::Oid,
    values: &[Arg],
    write: impl FnOnce(pg_sys::Relation, pg_sys::HeapTuple),
) {
    let mut datums: Vec<pg_sys::Datum> = values.iter().map(Arg::datum).collect();
    let mut nulls: Vec<bool> = values.iter().map(Arg::is_null).collect();
    // SAFETY: The relation is open while it is written. The tuple is formed by the
    // descriptor of the relation, which was checked to have as many columns as there are
    // values.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let desc = (*relation).rd_att;
        if (*desc).natts as usize != values.len() {
            pgrx::error!(
                "a table that fetchq writes directly was altered: reinstall the extension"
            );
        }
        let tuple = pg_sys::heap_form_tuple(desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
        write(relation, tuple);
        pg_sys::heap_freetuple(tuple);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
    }
}
