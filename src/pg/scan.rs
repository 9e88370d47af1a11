//! Reads a small table of fetchq's own without a query, and so without rights on it.

use pgrx::pg_sys;

use super::call::c_string;

/// The named columns of all rows as they are now, the changes of this transaction
/// included; None for NULL.
pub fn rows<const N: usize>(
    table: pg_sys::Oid,
    columns: [&str; N],
) -> Vec<[Option<pg_sys::Datum>; N]> {
    let mut rows = Vec::new();
    // SAFETY: the table is open, and the snapshot registered, while it is scanned; after
    // an ERROR the resource owner gives both back. Only columns by value are read, so
    // nothing points into a page that is not pinned any more.
    unsafe {
        pg_sys::CommandCounterIncrement();
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let desc = (*relation).rd_att;
        let numbers = columns.map(|column| {
            let number = pg_sys::SPI_fnumber(desc, c_string(column));
            if number <= 0 {
                pgrx::error!("a table of fetchq was altered: reinstall the extension");
            }
            number
        });
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
            rows.push(numbers.map(|number| {
                let mut is_null = false;
                let value = pg_sys::heap_getattr(tuple, number, desc, &mut is_null);
                (!is_null).then_some(value)
            }));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
    rows
}
