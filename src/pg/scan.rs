//! Reads small tables from end to end without a query, and so without rights on them.

use pgrx::pg_sys;

use crate::pg::text::c_string;

/// Calls `visit` with each row as it is now, the changes of this transaction included:
/// its page is pinned only until the next one. In a transaction.
pub(super) fn each(
    table: pg_sys::Oid,
    mut visit: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: the table is open, and the snapshot registered, while it is scanned; after
    // an ERROR the resource owner gives both back.
    unsafe {
        pg_sys::CommandCounterIncrement();
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            snapshot,
            0,
            std::ptr::null_mut(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            visit(tuple, (*relation).rd_att);
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
}

/// The named columns, by value, of all rows of a table of fetchq's own; None for NULL.
pub fn rows<const N: usize>(
    table: pg_sys::Oid,
    columns: [&str; N],
) -> Vec<[Option<pg_sys::Datum>; N]> {
    let mut rows = Vec::new();
    each(table, |tuple, desc| {
        rows.push(columns.map(|column| {
            let mut is_null = false;
            // SAFETY: the row belongs to the descriptor. Only columns by value are read,
            // so nothing points into a page that is not pinned any more.
            let value = unsafe {
                let number = pg_sys::SPI_fnumber(desc, c_string(column));
                if number <= 0 {
                    pgrx::error!("a table of fetchq was altered: reinstall the extension");
                }
                pg_sys::heap_getattr(tuple, number, desc, &mut is_null)
            };
            (!is_null).then_some(value)
        }));
    });
    rows
}
