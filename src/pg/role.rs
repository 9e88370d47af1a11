//! Roles: whose rights the code of this process runs with, and which rights a role has.

use std::ffi::CStr;

use pgrx::pg_sys;

use crate::pg::{planner, relation};

/// Runs `work` with the privileges of a role, as the server runs the functions of an index.
///
/// `work` cannot return to the privileges of the session, and changes of settings in it do not
/// outlast it. PostgreSQL refuses within it what would outlast it: temporary tables, prepared
/// statements and cursors, and triggers that are deferred to the commit.
pub fn as_role<R>(role: pg_sys::Oid, work: impl FnOnce() -> R) -> R {
    struct SavedRole(pg_sys::Oid, i32);
    impl Drop for SavedRole {
        fn drop(&mut self) {
            // SAFETY: These are the values from before. After an ERROR the end of the
            // (sub)transaction restores them too.
            unsafe { pg_sys::SetUserIdAndSecContext(self.0, self.1) };
        }
    }
    // SAFETY: This reads and sets variables of this process.
    unsafe {
        let mut saved = SavedRole(pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut saved.0, &mut saved.1);
        let context = saved.1 | pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
        pg_sys::SetUserIdAndSecContext(role, context);
        // Settings are restored too. Otherwise the role could leave a search_path behind. After
        // an ERROR the end of the (sub)transaction restores them.
        let settings_level = pg_sys::NewGUCNestLevel();
        let _restored_on_drop = saved;
        let result = work();
        pg_sys::AtEOXact_GUC(false, settings_level);
        result
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

/// A privilege on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// SELECT.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
}

/// Returns whether a role has a privilege on a table, and not on some of its columns alone. For
/// `InvalidOid`: whether everybody has.
pub fn has_privilege(role: pg_sys::Oid, table: pg_sys::Oid, privilege: Privilege) -> bool {
    let mode = match privilege {
        Privilege::Select => pg_sys::ACL_SELECT,
        Privilege::Insert => pg_sys::ACL_INSERT,
        Privilege::Update => pg_sys::ACL_UPDATE,
        Privilege::Delete => pg_sys::ACL_DELETE,
    };
    // SAFETY: This reads the system cache.
    unsafe {
        relation::exists(table)
            && pg_sys::pg_class_aclcheck(table, role, pg_sys::AclMode::from(mode))
                == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Returns whether policies of a table restrict which of its rows a role may read and write. For
/// `InvalidOid`, which stands for everybody: whether they restrict anybody.
pub fn is_restricted_by_policies(role: pg_sys::Oid, table: pg_sys::Oid) -> bool {
    if role == pg_sys::InvalidOid {
        return relation::has_policies(table);
    }
    // SAFETY: This reads the system cache.
    let result = unsafe { pg_sys::check_enable_rls(table, role, true) };
    result == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
}

/// Makes all constraints of this transaction immediate. Triggers that are deferred otherwise then
/// run at the end of each statement, with the privileges that the statement has. Until
/// PostgreSQL 17 the commit would run them with the privileges of the session.
///
/// For a transaction of a process of fetchq alone: it also runs what is deferred already.
pub fn make_constraints_immediate() {
    // SAFETY: A statement without names stands for all constraints. It is as the parser makes
    // it for SET CONSTRAINTS ALL IMMEDIATE, and is not used after this call.
    unsafe {
        let mut statement = pg_sys::ConstraintsSetStmt {
            type_: pg_sys::NodeTag::T_ConstraintsSetStmt,
            constraints: std::ptr::null_mut(),
            deferred: false,
        };
        pg_sys::AfterTriggerSetState(&raw mut statement);
    }
}

/// Returns the role that owns the registry, which is the role that created the extension. None
/// when the database has no registry.
pub fn extension_owner() -> Option<pg_sys::Oid> {
    relation::lookup("fetchq", "queues").and_then(relation::owner_of)
}

/// Runs `work` with the privileges of the role that owns the extension, as [`as_role`] does.
///
/// This is for the definition of tables in the schema `fetchq_data`, where nobody else can
/// create any. No expression, function or type of a user must be a part of it: `work` creates
/// objects that have only the types and operators of PostgreSQL, or names tables of fetchq. Only
/// the system catalogs are in the search path meanwhile.
pub fn as_extension_owner<R>(work: impl FnOnce() -> R) -> R {
    match extension_owner() {
        Some(owner) => as_role(owner, || {
            planner::with_plain_search_path(|| planner::with_plain_storage(work))
        }),
        None => work(),
    }
}
