//! The rights of roles on tables and functions.

use pgrx::pg_sys;

use crate::pg::documents::Column;
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
    /// To empty the table.
    pub const TRUNCATE: Self = Self(pg_sys::ACL_TRUNCATE);
    /// Every privilege to read or change rows.
    pub const ANY: Self = Self(
        pg_sys::ACL_SELECT
            | pg_sys::ACL_INSERT
            | pg_sys::ACL_UPDATE
            | pg_sys::ACL_DELETE
            | pg_sys::ACL_TRUNCATE,
    );
}

/// A column of the documents on which REFERENCES marks a right of a role. No foreign key can refer
/// to it, because it has no unique index, so the privilege gives plain SQL nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// On `payload`: a producer.
    Produces,
    /// On `result`: a worker.
    Works,
}

impl Mark {
    fn column(self) -> i16 {
        match self {
            Self::Produces => Column::Payload.number(),
            Self::Works => Column::Result.number(),
        }
    }
}

fn check(role: pg_sys::Oid, table: pg_sys::Oid, mode: pg_sys::AclMode) -> bool {
    // SAFETY: This function reads the system cache. The table exists.
    unsafe {
        relation::exists(table)
            && pg_sys::pg_class_aclcheck(table, role, mode) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Returns whether a role has this privilege on the whole table. False when the table does not
/// exist.
pub fn has(role: pg_sys::Oid, table: pg_sys::Oid, privilege: Privileges) -> bool {
    check(role, table, pg_sys::AclMode::from(privilege.0))
}

/// Returns whether a role may grant this privilege on the table to others. Superusers and the
/// owner of the table may.
pub fn may_grant(role: pg_sys::Oid, table: pg_sys::Oid, privilege: Privileges) -> bool {
    // The upper half of the bits has the grant options: sixteen bits until PostgreSQL 15.
    let half = pg_sys::AclMode::BITS / 2;
    check(role, table, pg_sys::AclMode::from(privilege.0) << half)
}

/// Returns whether a role has one of these privileges on a table, or on one of its columns.
/// Superusers and the owner have all. False when the table does not exist.
pub fn has_any(role: pg_sys::Oid, table: pg_sys::Oid, privileges: Privileges) -> bool {
    let mode = pg_sys::AclMode::from(privileges.0);
    // SAFETY: The function reads the system cache. The table exists when it is called.
    check(role, table, mode)
        || relation::exists(table)
            && unsafe {
                pg_sys::pg_attribute_aclcheck_all(
                    table,
                    role,
                    mode,
                    pg_sys::AclMaskHow::ACLMASK_ANY,
                ) == pg_sys::AclResult::ACLCHECK_OK
            }
}

/// Returns whether a role has a mark on the documents of a queue. False when the column does not
/// exist.
pub fn has_mark(role: pg_sys::Oid, table: pg_sys::Oid, mark: Mark) -> bool {
    let mode = pg_sys::AclMode::from(pg_sys::ACL_REFERENCES);
    let column = mark.column();
    // SAFETY: These functions read the system cache. The check raises an ERROR for a column that
    // does not exist or was dropped, so its type is looked up first: that of such a column is 0.
    unsafe {
        pg_sys::get_atttype(table, column) != pg_sys::InvalidOid
            && pg_sys::pg_attribute_aclcheck(table, column, role, mode)
                == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Returns whether the current role owns the extension, or is a superuser.
pub fn owns_extension() -> bool {
    role::extension_owner().is_some_and(|owner| role::has_privileges_of(role::current(), owner))
}
