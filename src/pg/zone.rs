//! Time zones, with the rules of the server.

use pgrx::pg_sys;

use crate::domain::local_time::Zone;
use crate::pg::text::c_string;

/// A time zone that the server knows.
pub struct ServerZone(*mut pg_sys::pg_tz);

impl ServerZone {
    /// Finds a zone by a name that `SET timezone` accepts. Returns None when there is none.
    pub fn find(name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('\0') {
            return None;
        }
        // SAFETY: This looks the name up in the files of the server, and keeps the result for
        // the life of the process. It returns NULL when there is none.
        let zone = unsafe { pg_sys::pg_tzset(c_string(name)) };
        (!zone.is_null()).then_some(Self(zone))
    }
}

impl Zone for ServerZone {
    fn offset_at(&self, time: i64) -> i64 {
        // SAFETY: The zone lives as long as the process. The result points to a variable of the
        // server and is read at once. It is NULL when the year does not fit.
        unsafe {
            let local = pg_sys::pg_localtime(&time, self.0);
            if local.is_null() {
                return 0;
            }
            (*local).tm_gmtoff
        }
    }
}
