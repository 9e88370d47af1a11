//! The role whose rights the session uses now.

use pgrx::pg_sys;

use crate::pg::process::as_role;
use crate::pg::{planner, relation};

/// Returns the role that owns the registry, which is the role that created the extension. None
/// when the database has no registry.
pub fn extension_owner() -> Option<pg_sys::Oid> {
    relation::lookup("fetchq", "queues").and_then(relation::owner_of)
}

/// Returns the current role.
pub fn current() -> pg_sys::Oid {
    // SAFETY: This reads a variable of the process.
    unsafe { pg_sys::GetUserId() }
}

/// Runs `work` with the privileges of the role that owns the extension, as [`as_role`] does.
///
/// This is for the definition of tables in the schema `fetchq_data`, where nobody else can
/// create any. No expression, function or type of a user must be a part of it: `work` creates
/// objects that have only the types and operators of PostgreSQL, or names tables of fetchq. Only
/// the system catalogs are in the search path meanwhile.
pub fn as_extension_owner<R>(work: impl FnOnce() -> R) -> R {
    match extension_owner() {
        Some(owner) => as_role(owner, || planner::with_plain_search_path(work)),
        None => work(),
    }
}
