//! Roles: whose rights the code of this process runs with, and which rights a role has.

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::pg::planner::PlainSearchPath;
use crate::pg::relation;
use crate::pg::text::c_string;

/// The library acts as the role that owns the tables of all queues while this lives. Where that is not
/// the role of the caller, only the system catalogs are in the search path.
///
/// This is the one place where fetchq gets other rights than its caller has, and every statement of
/// the library goes through it (`pg/spi.rs`). The caller's rights on the queue were checked before
/// (`store/queues/rights.rs`). A name in a statement can therefore never be one of the caller's, and code
/// that a superuser has attached to a table runs under a search_path that no caller has chosen.
pub(super) struct ActingAsOwner {
    saved: Option<Saved>,
}

/// What the end of [`ActingAsOwner`] restores: the search path after the role.
struct Saved {
    role: pg_sys::Oid,
    context: i32,
    _search_path: PlainSearchPath,
}

impl ActingAsOwner {
    pub(super) fn begin() -> Self {
        Self::begin_as(data_owner())
    }

    /// As `begin`, but for what only the owner of the extension may do.
    pub(super) fn begin_as_extension_owner() -> Self {
        Self::begin_as(extension_owner())
    }

    fn begin_as(owner: Option<pg_sys::Oid>) -> Self {
        let owner = owner.filter(|owner| *owner != current());
        let saved = owner.map(|owner| {
            let _search_path = PlainSearchPath::begin();
            let (mut role, mut context) = (pg_sys::InvalidOid, 0);
            // SAFETY: This reads and sets variables of this process. `drop` restores them, and so does
            // the end of the (sub)transaction after an ERROR.
            unsafe {
                pg_sys::GetUserIdAndSecContext(&mut role, &mut context);
                let local = pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32;
                pg_sys::SetUserIdAndSecContext(owner, context | local);
            }
            Saved {
                role,
                context,
                _search_path,
            }
        });
        Self { saved }
    }
}

impl Drop for ActingAsOwner {
    fn drop(&mut self) {
        if let Some(saved) = &self.saved {
            // SAFETY: These are the values from before.
            unsafe { pg_sys::SetUserIdAndSecContext(saved.role, saved.context) };
        }
    }
}

/// Returns the role whose privileges this process has at the moment.
pub fn current() -> pg_sys::Oid {
    // SAFETY: This reads a variable of this process.
    unsafe { pg_sys::GetUserId() }
}

/// Returns the name of a role; its OID in digits when it does not exist.
pub fn name(role: pg_sys::Oid) -> String {
    // SAFETY: This looks the role up in the system cache. It returns NULL or a C string.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() {
            return role.to_u32().to_string();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

/// Returns the role of this name. None when it does not exist.
pub fn of_name(name: &str) -> Option<pg_sys::Oid> {
    // SAFETY: This looks the name up in the system cache.
    let role = unsafe { pg_sys::get_role_oid(c_string(name), true) };
    (role != pg_sys::InvalidOid).then_some(role)
}

/// Returns whether a role exists.
pub fn exists(role: pg_sys::Oid) -> bool {
    // SAFETY: This looks the role up in the system cache.
    unsafe { !pg_sys::GetUserNameFromId(role, true).is_null() }
}

/// Returns whether a role has the privileges of another one: it is that role, a member of it that
/// inherits its privileges, or a superuser. False for `InvalidOid`, which stands for everybody.
pub fn has_privileges_of(member: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: This reads the system caches.
    member != pg_sys::InvalidOid && unsafe { pg_sys::has_privs_of_role(member, role) }
}

/// Returns the role that owns the registry, which is the role that created the extension. None
/// when the database has no registry.
pub fn extension_owner() -> Option<pg_sys::Oid> {
    relation::lookup("fetchq", "queues").and_then(relation::owner_of)
}

/// Returns the role that owns the tables of all queues, which is the role that owns their schema.
/// None when the database has no such schema.
pub fn data_owner() -> Option<pg_sys::Oid> {
    relation::owner_of_schema("fetchq_data")
}
