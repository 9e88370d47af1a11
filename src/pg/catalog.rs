//! The databases of the server, and the extension in this one.

use pgrx::pg_sys;

use super::call::c_string;

/// A database that was not dropped completely (PostgreSQL 15 and newer).
const INVALID: i32 = -2;

/// The databases that can be connected to: number and name. In a transaction.
pub fn databases() -> Vec<(u32, String)> {
    let mut found = Vec::new();
    // SAFETY: a catalog that all databases share is read with a registered snapshot;
    // after an ERROR the resource owner gives all of it back. A name is copied while
    // its page is pinned.
    unsafe {
        let relation =
            pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
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
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(tuple);
            if row.datallowconn && row.datconnlimit != INVALID {
                let name = std::ffi::CStr::from_ptr(row.datname.data.as_ptr());
                found.push((row.oid.to_u32(), name.to_string_lossy().into_owned()));
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::UnregisterSnapshot(snapshot);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
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

/// Whether this database has the extension. In a transaction.
pub fn has_extension() -> bool {
    // SAFETY: looks the name up in the catalog.
    unsafe { pg_sys::get_extension_oid(c_string("fetchq"), true) != pg_sys::InvalidOid }
}
