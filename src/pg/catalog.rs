//! The databases of the server, and the extension in this one.

use pgrx::pg_sys;

use crate::pg::scan;
use crate::pg::text::c_string;

/// A database that was not dropped completely (PostgreSQL 15 and newer).
const INVALID: i32 = -2;

/// The databases that can be connected to: number and name. In a transaction.
pub fn databases() -> Vec<(u32, String)> {
    let mut found = Vec::new();
    scan::each(pg_sys::DatabaseRelationId, |tuple, _| {
        // SAFETY: a row of this catalog begins with these columns; the name is copied.
        unsafe {
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(tuple);
            if row.datallowconn && row.datconnlimit != INVALID {
                let name = std::ffi::CStr::from_ptr(row.datname.data.as_ptr());
                found.push((row.oid.to_u32(), name.to_string_lossy().into_owned()));
            }
        }
    });
    found
}

/// The name of this database, which may have been renamed. In a transaction.
pub fn database_name() -> Option<String> {
    // SAFETY: a look-up in the system cache; NULL when there is none.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        (!name.is_null()).then(|| {
            std::ffi::CStr::from_ptr(name)
                .to_string_lossy()
                .into_owned()
        })
    }
}

/// Keeps the extension until the end of the transaction, if this database has it: who
/// drops it asks for it first, waits, and holds nothing meanwhile that this transaction
/// might wait for. First in a transaction.
pub(super) fn keep_extension() {
    // SAFETY: a look-up, and a lock that is released at the end of the transaction.
    unsafe {
        let extension = pg_sys::get_extension_oid(c_string("fetchq"), true);
        if extension != pg_sys::InvalidOid {
            let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, mode);
        }
    }
}

/// Whether this database has the extension. In a transaction.
pub fn has_extension() -> bool {
    // SAFETY: looks the name up in the catalog.
    unsafe { pg_sys::get_extension_oid(c_string("fetchq"), true) != pg_sys::InvalidOid }
}
