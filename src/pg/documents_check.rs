//! Reads and writes single documents through the heap and the indexes of their table,
//! without the executor: looking a plan up, locking, starting and ending it costs more
//! than the work itself.
//!
//! Only for a table that is just as fetchq made it (`Queue::documents` knows), in READ
//! COMMITTED. What the executor would check is checked in `open`; where more is asked
//! than that, it gives None, and the caller runs a statement instead. What can not be
//! decided here (a row that changed meanwhile) is left to the statement too.

use std::sync::OnceLock;

use pgrx::pg_sys;

pub const COLUMNS: usize = 18;

pub const TYPES: [pg_sys::Oid; COLUMNS] = [
    pg_sys::VARCHAROID,
    pg_sys::INT4OID,
    pg_sys::INT4OID,
    pg_sys::INT4OID,
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::JSONBOID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::TEXTOID,
    pg_sys::INT4OID,
    pg_sys::TEXTOID,
    pg_sys::JSONBOID,
];

/// The indexes of a table of documents: all that it has, or `open` gives None.
#[derive(Debug, Clone, Copy)]
pub struct Indexes {
    pub key: pg_sys::Oid,
    pub pick: pg_sys::Oid,
    pub due: pg_sys::Oid,
}

/// What will be done, as far as rights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Insert,
    Update,
    Delete,
    /// Delete what can be picked.
    PickMode,
}

/// Whether the caller may do that to all columns.
pub unsafe fn has_rights(table: pg_sys::Oid, access: Access) -> bool {
    let modes = match access {
        Access::Insert => [pg_sys::ACL_INSERT, pg_sys::ACL_SELECT],
        Access::Update => [pg_sys::ACL_UPDATE, pg_sys::ACL_SELECT],
        Access::Delete | Access::PickMode => [pg_sys::ACL_DELETE, pg_sys::ACL_SELECT],
    };
    // SAFETY: asks the system cache; each mode by itself, because the function is
    // content with any of several.
    unsafe {
        let role = pg_sys::GetUserId();
        modes.iter().all(|mode| {
            pg_sys::pg_class_aclcheck(table, role, pg_sys::AclMode::from(*mode))
                == pg_sys::AclResult::ACLCHECK_OK
        })
    }
}

/// Whether the caller may look into the schema of a table.
pub unsafe fn may_use_schema(table: pg_sys::Relation) -> bool {
    // SAFETY: the relation is open; asks the system cache.
    unsafe {
        let schema = (*(*table).rd_rel).relnamespace;
        let role = pg_sys::GetUserId();
        let usage = pg_sys::AclMode::from(pg_sys::ACL_USAGE);
        #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15"))]
        let result = pg_sys::pg_namespace_aclcheck(schema, role, usage);
        #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
        let result = pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, role, usage);
        result == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Whether a table has the columns and the indexes that fetchq made, and nothing that
/// only the executor knows how to obey. Triggers, rules, policies and constraints were
/// looked for when the queue was opened.
pub unsafe fn is_as_made(table: pg_sys::Relation, indexes: &Indexes) -> bool {
    // SAFETY: the relation is open; its index list is a copy of ours.
    unsafe {
        let class = &*(*table).rd_rel;
        let desc = (*table).rd_att;
        if class.relkind != pg_sys::RELKIND_RELATION as std::ffi::c_char
            || class.relam != pg_sys::HEAP_TABLE_AM_OID
            || class.relrowsecurity
            || class.relispartition
            || class.relhassubclass
            || ((*desc).natts as usize) < COLUMNS
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
        let wanted = [indexes.key, indexes.pick, indexes.due];
        let is_ours = cells.len() == wanted.len()
            && cells.iter().all(|cell| wanted.contains(&cell.oid_value));
        pg_sys::list_free(list);
        is_ours
    }
}

/// Whether an index has an entry for every row that can be seen.
pub unsafe fn is_usable(index: pg_sys::Relation) -> bool {
    // SAFETY: the index is open.
    unsafe {
        let form = &*(*index).rd_index;
        (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && form.indisvalid
            && form.indisready
            && (!form.indcheckxmin || is_old(index))
    }
}

/// Whether every snapshot of this session is younger than an index that has no entries
/// for what older ones see.
unsafe fn is_old(index: pg_sys::Relation) -> bool {
    // SAFETY: the index is open; its row of pg_index is kept with it.
    unsafe {
        let header = &*(*(*index).rd_indextuple).t_data;
        let frozen = pg_sys::HEAP_XMIN_FROZEN as u16;
        header.t_infomask & frozen == frozen
            || pg_sys::TransactionIdPrecedes(header.t_choice.t_heap.t_xmin, pg_sys::TransactionXmin)
    }
}

/// Whether the server was built with assertions.
pub fn has_assertions() -> bool {
    static ASSERTIONS: OnceLock<bool> = OnceLock::new();
    *ASSERTIONS.get_or_init(|| {
        // SAFETY: the value of a setting that always exists.
        unsafe {
            let value = pg_sys::GetConfigOption(c"debug_assertions".as_ptr(), true, false);
            !value.is_null() && std::ffi::CStr::from_ptr(value) == c"on"
        }
    })
}
