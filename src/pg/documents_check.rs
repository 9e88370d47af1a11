//! Checks whether a table of documents can be read and written without the executor.
//!
//! See `documents.rs` for the reason of this way and for its conditions.

use std::sync::OnceLock;

use pgrx::pg_sys;

use crate::domain::document::{COLUMNS, Type};
use crate::pg::scan;

/// The types of the columns of the documents, in their order.
pub const TYPES: [pg_sys::Oid; COLUMNS.len()] = {
    let mut types = [pg_sys::InvalidOid; COLUMNS.len()];
    let mut at = 0;
    while at < types.len() {
        types[at] = type_oid(COLUMNS[at].type_);
        at += 1;
    }
    types
};

/// Returns the OID of the type of a column.
pub const fn type_oid(type_: Type) -> pg_sys::Oid {
    match type_ {
        Type::Int => pg_sys::INT4OID,
        Type::Bigint => pg_sys::INT8OID,
        Type::Text => pg_sys::TEXTOID,
        Type::Varchar(_) => pg_sys::VARCHAROID,
        Type::Timestamptz => pg_sys::TIMESTAMPTZOID,
        Type::Interval => pg_sys::INTERVALOID,
        Type::Jsonb => pg_sys::JSONBOID,
    }
}

/// The indexes of a table of documents. A table with other indexes needs the executor.
#[derive(Debug, Clone, Copy)]
pub struct Indexes {
    /// The primary key, on the subject.
    pub key: pg_sys::Oid,
    /// The index of pending documents.
    pub pick: pg_sys::Oid,
    /// The index of planned and active documents.
    pub due: pg_sys::Oid,
    /// The index of documents that expire.
    pub expiry: pg_sys::Oid,
}

/// What the caller will do with the documents.
///
/// It decides which indexes are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Documents are inserted.
    Insert,
    /// Documents are read and updated.
    Update,
    /// Documents are found by their subject and deleted.
    Delete,
    /// Documents that are ready are read in order and deleted.
    DeleteReady,
}

/// Returns whether a table has exactly the columns and the indexes that fetchq created, and
/// nothing else that needs the executor.
///
/// Triggers, rules, policies and constraints were checked when the queue was opened.
///
/// # Safety
///
/// `table` is open.
pub unsafe fn is_as_created(table: pg_sys::Relation, indexes: &Indexes) -> bool {
    // SAFETY: The relation is open. The list of its indexes is a copy that belongs to the
    // caller and is freed here.
    unsafe {
        let class = &*(*table).rd_rel;
        let desc = (*table).rd_att;
        if class.relkind != pg_sys::RELKIND_RELATION as std::ffi::c_char
            || class.relam != pg_sys::HEAP_TABLE_AM_OID
            || class.relispartition
            || class.relhassubclass
            || ((*desc).natts as usize) < TYPES.len()
        {
            return false;
        }
        if !(1..)
            .zip(TYPES)
            .all(|(number, oid)| pg_sys::SPI_gettypeid(desc, number) == oid)
        {
            return false;
        }
        let list = pg_sys::RelationGetIndexList(table);
        if list.is_null() {
            return false;
        }
        let cells = std::slice::from_raw_parts((*list).elements, (*list).length as usize);
        let expected = [indexes.key, indexes.pick, indexes.due, indexes.expiry];
        let is_as_expected = cells.len() == expected.len()
            && cells.iter().all(|cell| expected.contains(&cell.oid_value));
        pg_sys::list_free(list);
        is_as_expected
    }
}

/// Returns whether an index is a B-tree with an entry for every visible row.
///
/// # Safety
///
/// `index` is open.
pub unsafe fn is_usable(index: pg_sys::Relation) -> bool {
    // SAFETY: The index is open.
    unsafe {
        let form = &*(*index).rd_index;
        (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indisvalid
            && form.indisready
            && (!form.indcheckxmin || is_older_than_snapshots(index))
    }
}

/// Returns whether every snapshot of this session is younger than an index.
///
/// An index with `indcheckxmin` may have no entries for rows that only older snapshots show.
unsafe fn is_older_than_snapshots(index: pg_sys::Relation) -> bool {
    // SAFETY: The index is open. Its row of pg_index is kept with it.
    unsafe {
        scan::writer((*index).rd_indextuple)
            .is_none_or(|writer| pg_sys::TransactionIdPrecedes(writer, pg_sys::TransactionXmin))
    }
}

/// Returns whether the server was built with assertions.
pub fn has_assertions() -> bool {
    static ASSERTIONS: OnceLock<bool> = OnceLock::new();
    *ASSERTIONS.get_or_init(|| {
        // SAFETY: This setting always exists. Its value is a C string or NULL.
        unsafe {
            let value = pg_sys::GetConfigOption(c"debug_assertions".as_ptr(), true, false);
            !value.is_null() && std::ffi::CStr::from_ptr(value) == c"on"
        }
    })
}
