//! The rights of the current role on tables and functions.

use pgrx::pg_sys;

use crate::pg::{relation, role};

/// Privileges on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges(u32);

impl Privileges {
    /// To read rows.
    pub const SELECT: Self = Self(pg_sys::ACL_SELECT);
    /// To add rows.
    pub const INSERT: Self = Self(pg_sys::ACL_INSERT);
    /// To change rows.
    pub const UPDATE: Self = Self(pg_sys::ACL_UPDATE);
    /// To remove rows.
    pub const DELETE: Self = Self(pg_sys::ACL_DELETE);
    /// To empty the table.
    pub const TRUNCATE: Self = Self(pg_sys::ACL_TRUNCATE);
    /// Every privilege to change single rows.
    pub const CHANGE: Self = Self(pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE);
    /// Every privilege to read or change rows.
    pub const ANY: Self = Self(
        pg_sys::ACL_SELECT
            | pg_sys::ACL_INSERT
            | pg_sys::ACL_UPDATE
            | pg_sys::ACL_DELETE
            | pg_sys::ACL_TRUNCATE,
    );
}

/// Returns whether the current role has one of these privileges on a table, or on one of its
/// columns. Superusers and the owner have all. False when the table does not exist.
pub fn has_any(table: pg_sys::Oid, privileges: Privileges) -> bool {
    let mask = pg_sys::AclMode::from(privileges.0);
    // SAFETY: These functions read the system cache. The table exists.
    unsafe {
        let role = pg_sys::GetUserId();
        relation::exists(table)
            && (pg_sys::pg_class_aclcheck(table, role, mask) == pg_sys::AclResult::ACLCHECK_OK
                || pg_sys::pg_attribute_aclcheck_all(
                    table,
                    role,
                    mask,
                    pg_sys::AclMaskHow::ACLMASK_ANY,
                ) == pg_sys::AclResult::ACLCHECK_OK)
    }
}

/// Returns whether the current role has this privilege on the whole table. False when the table
/// does not exist.
pub fn has(table: pg_sys::Oid, privilege: Privileges) -> bool {
    // SAFETY: This function reads the system cache. The table exists.
    unsafe {
        relation::exists(table)
            && pg_sys::pg_class_aclcheck(
                table,
                pg_sys::GetUserId(),
                pg_sys::AclMode::from(privilege.0),
            ) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Returns whether the current role owns a table, by itself or as a member of its owner. False
/// when the table does not exist.
pub fn owns(table: pg_sys::Oid) -> bool {
    relation::owner_of(table).is_some_and(is_member_of)
}

/// Returns whether the current role owns the extension, or is a superuser.
pub fn owns_extension() -> bool {
    role::extension_owner().is_some_and(is_member_of)
}

fn is_member_of(owner: pg_sys::Oid) -> bool {
    // SAFETY: This function reads the system cache.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), owner) }
}
