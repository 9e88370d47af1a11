//! The databases of the server, and the extension in this one.

use pgrx::{FromDatum, pg_sys};

use crate::pg::scan;
use crate::pg::text::c_string;

/// The value of `datconnlimit` of a database whose DROP DATABASE was interrupted, in
/// PostgreSQL 15 and newer (`DATCONNLIMIT_INVALID_DB`).
const INVALID_DATABASE: i32 = -2;

/// Lists the databases that accept connections, each with its OID and name.
///
/// Must be called in a transaction.
pub fn databases() -> Vec<(u32, String)> {
    let mut found = Vec::new();
    scan::each(pg_sys::DatabaseRelationId, |tuple, _| {
        // SAFETY: A row of this catalog begins with these columns. The name is copied.
        unsafe {
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(tuple);
            if row.datallowconn && row.datconnlimit != INVALID_DATABASE {
                let name = std::ffi::CStr::from_ptr(row.datname.data.as_ptr());
                found.push((row.oid.to_u32(), name.to_string_lossy().into_owned()));
            }
        }
    });
    found
}

/// Looks up the current name of this database, which may have been renamed.
///
/// Must be called in a transaction. Returns None when the database no longer exists.
pub fn database_name() -> Option<String> {
    // SAFETY: This looks the name up in the system cache. It returns NULL or a C string.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        (!name.is_null()).then(|| {
            std::ffi::CStr::from_ptr(name)
                .to_string_lossy()
                .into_owned()
        })
    }
}

/// Returns the name of a type, as a statement would write it.
pub(super) fn type_name(oid: pg_sys::Oid) -> String {
    // SAFETY: format_type_be returns a palloc'ed C string for any OID.
    unsafe {
        std::ffi::CStr::from_ptr(pg_sys::format_type_be(oid))
            .to_string_lossy()
            .into_owned()
    }
}

/// A column of a table.
pub struct TableColumn {
    /// Its number.
    pub number: i16,
    /// Its name.
    pub name: String,
    /// Its type. Invalid: the column was dropped.
    pub oid: pg_sys::Oid,
    /// The length or precision of its type, or -1.
    pub modifier: i32,
    /// It may not be NULL.
    pub not_null: bool,
    /// It is computed from others.
    pub is_generated: bool,
}

impl TableColumn {
    /// Returns the name of its type.
    pub fn type_name(&self) -> String {
        type_name(self.oid)
    }

    /// Returns whether the column was dropped.
    pub fn is_dropped(&self) -> bool {
        self.oid == pg_sys::InvalidOid
    }
}

/// Lists the columns of a table, in their order, those that were dropped as well. Takes no lock, and
/// needs no rights on the table.
///
/// Must be called in a transaction.
pub fn columns(table: pg_sys::Oid) -> Vec<TableColumn> {
    let mut found = Vec::new();
    let key = scan::Key {
        index: pg_sys::AttributeRelidNumIndexId,
        column: pg_sys::Anum_pg_attribute_attrelid,
        value: table,
    };
    scan::each_of_catalog_with(pg_sys::AttributeRelationId, key, |tuple| {
        // SAFETY: A row of this catalog begins with these columns. The name is copied.
        unsafe {
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_attribute>(tuple);
            if row.attnum > 0 {
                let name = std::ffi::CStr::from_ptr(row.attname.data.as_ptr());
                found.push(TableColumn {
                    number: row.attnum,
                    name: name.to_string_lossy().into_owned(),
                    oid: row.atttypid,
                    modifier: row.atttypmod,
                    not_null: row.attnotnull,
                    is_generated: row.attgenerated != 0,
                });
            }
        }
    });
    found
}

/// Locks the extension until the end of the transaction, if this database has it.
///
/// DROP EXTENSION asks for the same lock first. It waits there, and holds no lock meanwhile
/// that this transaction could wait for. Must be called first in a transaction.
pub(super) fn lock_extension() {
    // SAFETY: A look-up, and a lock that is released at the end of the transaction.
    unsafe {
        let extension = pg_sys::get_extension_oid(c_string("fetchq"), true);
        if extension != pg_sys::InvalidOid {
            let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, mode);
        }
    }
}

/// Returns whether this database has the extension, in a version that this library can serve. fetchq 4
/// could be an extension of the same name. Nothing may run in its tables before the upgrade.
///
/// Must be called in a transaction.
pub fn has_extension() -> bool {
    // SAFETY: This looks the names up in the catalog.
    unsafe {
        if pg_sys::get_extension_oid(c_string("fetchq"), true) == pg_sys::InvalidOid {
            return false;
        }
        let schema = pg_sys::get_namespace_oid(c_string("fetchq"), true);
        // fetchq 4 has no such table.
        pg_sys::get_relname_relid(c_string("counter_log"), schema) != pg_sys::InvalidOid
    }
}

/// Returns the version of the extension in this database, which is that of its SQL objects. None
/// without the extension.
///
/// Must be called in a transaction.
pub fn extension_version() -> Option<String> {
    let mut version = None;
    scan::each_of_catalog(pg_sys::ExtensionRelationId, |tuple, desc| {
        // SAFETY: A row of this catalog begins with these columns. The version, a text, is copied.
        unsafe {
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_extension>(tuple);
            if std::ffi::CStr::from_ptr(row.extname.data.as_ptr()) == c"fetchq" {
                let number = pg_sys::Anum_pg_extension_extversion as i32;
                let mut is_null = false;
                let value = pg_sys::heap_getattr(tuple, number, desc, &mut is_null);
                version = String::from_datum(value, is_null);
            }
        }
    });
    version
}
