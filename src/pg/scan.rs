//! Reads small tables as a whole without a query, which needs no privilege on them.

use pgrx::pg_sys;

use crate::pg::relation;
use crate::pg::snapshot::Snapshot;
use crate::pg::text::c_string;

/// The OID of `int4eq`. Built-in functions have the same OID in every version of PostgreSQL.
const EQUAL_INT4: u32 = 65;

/// The OID of `texteq`.
const EQUAL_TEXT: u32 = 67;

/// Calls `visit` with each row as it is now, including the changes of this transaction.
///
/// The page of a row is pinned only until the next row. Must be called in a transaction.
pub(super) fn each(table: pg_sys::Oid, visit: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc)) {
    // SAFETY: The snapshot is registered while the table is scanned. After an ERROR the resource
    // owner releases it.
    unsafe {
        pg_sys::CommandCounterIncrement();
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        scan(table, snapshot, visit);
        pg_sys::UnregisterSnapshot(snapshot);
    }
}

/// Calls `visit` with each row that a snapshot shows.
///
/// The page of a row is pinned only until the next row.
pub(super) fn each_in(
    table: pg_sys::Oid,
    snapshot: &Snapshot,
    visit: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: The snapshot is registered while it is borrowed.
    unsafe { scan(table, snapshot.ptr(), visit) };
}

/// Calls `visit` with each row of a system catalog as the server itself sees it: with what other
/// transactions have committed, and the commands of this transaction that have ended.
///
/// The page of a row is pinned only until the next row. Must be called in a transaction.
pub(super) fn each_of_catalog(
    catalog: pg_sys::Oid,
    visit: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: Without a snapshot, the scan of a catalog takes one itself.
    unsafe { scan(catalog, std::ptr::null_mut(), visit) };
}

/// A condition on the rows of a system catalog: a column of type `oid`, the first one of an index, has
/// this value.
pub(super) struct Key {
    pub index: u32,
    pub column: u32,
    pub value: pg_sys::Oid,
}

/// Calls `visit` with the rows of a system catalog that satisfy a condition, as [`each_of_catalog`]
/// does.
pub(super) fn each_of_catalog_with(
    catalog: pg_sys::Oid,
    key: Key,
    mut visit: impl FnMut(pg_sys::HeapTuple),
) {
    // SAFETY: The key is initialized before the scan begins, and lives until it has ended. After an
    // ERROR the resource owner closes the catalog.
    unsafe {
        let mut condition = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &mut condition,
            key.column as pg_sys::AttrNumber,
            pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
            pg_sys::Oid::from(pg_sys::F_OIDEQ),
            pg_sys::Datum::from(key.value),
        );
        let relation = pg_sys::table_open(catalog, pg_sys::AccessShareLock as i32);
        let index = pg_sys::Oid::from(key.index);
        let snapshot = std::ptr::null_mut();
        let scan = pg_sys::systable_beginscan(relation, index, true, snapshot, 1, &mut condition);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            visit(tuple);
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
}

/// Returns whether another transaction, which has not ended, has added the entry of an index of a table
/// with these two columns. Whoever adds the same entry would wait for that transaction.
pub fn is_being_added(table: (&str, &str), index: &str, first: i32, second: &str) -> bool {
    let (schema, name) = table;
    let (Some(table), Some(index)) = (
        relation::lookup(schema, name),
        relation::lookup(schema, index),
    ) else {
        return false;
    };
    // It shows rows that are not committed. `xmin` is then the transaction that adds the row.
    let mut snapshot = pg_sys::SnapshotData {
        snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
        ..Default::default()
    };
    // SAFETY: Both are open while they are read. The index is one of the table, and its first columns are
    // those of the table, an integer and a text. The snapshot needs no registration, because it has no
    // horizon. After an ERROR the resource owner closes them.
    unsafe {
        let mode = pg_sys::AccessShareLock as i32;
        let relation = pg_sys::table_open(table, mode);
        let of_index = pg_sys::index_open(index, mode);
        let collation = *(*of_index).rd_indcollation.add(1);
        pg_sys::index_close(of_index, mode);
        let mut keys = [pg_sys::ScanKeyData::default(); 2];
        let mut equal = |at: usize, collation, function: u32, value| {
            pg_sys::ScanKeyEntryInitialize(
                &mut keys[at],
                0,
                (at + 1) as pg_sys::AttrNumber,
                pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                pg_sys::InvalidOid,
                collation,
                pg_sys::Oid::from(function),
                value,
            );
        };
        equal(
            0,
            pg_sys::InvalidOid,
            EQUAL_INT4,
            pg_sys::Datum::from(first),
        );
        let text = pg_sys::cstring_to_text(c_string(second));
        equal(1, collation, EQUAL_TEXT, pg_sys::Datum::from(text));
        let scan =
            pg_sys::systable_beginscan(relation, index, true, &mut snapshot, 2, keys.as_mut_ptr());
        let is_found = !pg_sys::systable_getnext(scan).is_null();
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, mode);
        is_found && snapshot.xmin != pg_sys::InvalidTransactionId
    }
}

/// Calls `visit` with each row that a snapshot sees.
///
/// # Safety
///
/// The snapshot is registered, or NULL for a system catalog.
unsafe fn scan(
    table: pg_sys::Oid,
    snapshot: pg_sys::Snapshot,
    mut visit: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: The table is open while it is scanned. After an ERROR the resource owner closes it.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
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
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
}

/// Reads the named columns of all rows of a table of fetchq, with None for NULL.
///
/// The columns must be of types that are passed by value. Raises an ERROR when a column does not
/// exist. Must be called in a transaction.
pub fn rows<const N: usize>(
    table: pg_sys::Oid,
    columns: [&str; N],
) -> Vec<[Option<pg_sys::Datum>; N]> {
    let mut rows = Vec::new();
    each(table, |tuple, desc| {
        rows.push(self::columns(tuple, desc, numbers(desc, columns)));
    });
    rows
}

/// Calls `visit` with the named columns of each row of a table that a snapshot shows. They are integers of
/// at most four bytes.
///
/// Raises an ERROR when a column does not exist.
pub fn integers_in<const N: usize>(
    table: pg_sys::Oid,
    names: [&str; N],
    snapshot: &Snapshot,
    mut visit: impl FnMut([Option<i32>; N]),
) {
    let mut numbers = [0; N];
    let (mut values, mut nulls) = (Vec::new(), Vec::new());
    each_in(table, snapshot, |tuple, desc| {
        if values.is_empty() {
            numbers = self::numbers(desc, names);
            // SAFETY: The descriptor is that of an open table.
            let columns = unsafe { (*desc).natts } as usize;
            values = vec![pg_sys::Datum::null(); columns];
            nulls = vec![false; columns];
        }
        // SAFETY: The row belongs to the descriptor, and there is room for all of its columns. To read them
        // together takes a third of the time that they take one by one.
        unsafe {
            pg_sys::heap_deform_tuple(tuple, desc, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        visit(numbers.map(|number| {
            let at = number as usize - 1;
            (!nulls[at]).then(|| values[at].value() as i32)
        }));
    });
}

/// Returns the transaction that wrote a row. None for a row that is frozen: every snapshot shows it,
/// whatever its ID looks like after 2^31 further transactions.
///
/// # Safety
///
/// The row is in memory.
pub(super) unsafe fn writer(tuple: pg_sys::HeapTuple) -> Option<pg_sys::TransactionId> {
    // SAFETY: The caller vouches for the row. Its header says who wrote it.
    unsafe {
        let header = &*(*tuple).t_data;
        let frozen = pg_sys::HEAP_XMIN_FROZEN as u16;
        (header.t_infomask & frozen != frozen).then_some(header.t_choice.t_heap.t_xmin)
    }
}

/// Reads a column of all rows of a table of fetchq as [`rows`] does, each with its [`writer`].
pub fn writers(
    table: pg_sys::Oid,
    column: &str,
) -> Vec<(Option<pg_sys::Datum>, Option<pg_sys::TransactionId>)> {
    let mut rows = Vec::new();
    each(table, |tuple, desc| {
        let [value] = self::columns(tuple, desc, numbers(desc, [column]));
        // SAFETY: The scan keeps the row in memory.
        rows.push((value, unsafe { writer(tuple) }));
    });
    rows
}

/// Returns the numbers of the columns of a table with these names.
///
/// Raises an ERROR when a column does not exist.
pub(super) fn numbers<const N: usize>(desc: pg_sys::TupleDesc, names: [&str; N]) -> [i32; N] {
    names.map(|name| {
        // SAFETY: The descriptor is that of an open table.
        let number = unsafe { pg_sys::SPI_fnumber(desc, c_string(name)) };
        if number <= 0 {
            pgrx::error!("a table of fetchq was altered: reinstall the extension");
        }
        number
    })
}

/// Reads columns of a row, with None for NULL, as [`rows`] does.
pub(super) fn columns<const N: usize>(
    tuple: pg_sys::HeapTuple,
    desc: pg_sys::TupleDesc,
    numbers: [i32; N],
) -> [Option<pg_sys::Datum>; N] {
    numbers.map(|number| {
        let mut is_null = false;
        // SAFETY: The row belongs to the descriptor. Only columns that are passed by value are
        // read, so nothing points into a page that is no longer pinned.
        let value = unsafe { pg_sys::heap_getattr(tuple, number, desc, &mut is_null) };
        (!is_null).then_some(value)
    })
}
