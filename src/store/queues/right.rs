//! A right on a queue, as privileges on its docs table.

use pgrx::pg_sys::Oid;

use crate::error::{Error, Result};
use crate::pg::acl::{self, Mark, Privileges};
use crate::pg::role;

/// A right on a queue. A superuser, and the role that owns the extension, have all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// To see that the queue exists, its settings and its metrics: any privilege on its docs
    /// table, or on a column of it.
    Any,
    /// To read its documents: SELECT.
    Read,
    /// To add documents: [`Mark::Produces`], or INSERT.
    Push,
    /// To work on its documents: [`Mark::Works`], or UPDATE of whole documents.
    Work,
    /// To change its settings: TRUNCATE, which is the mark of a manager.
    Manage,
    /// To drop it, and to grant rights on it: TRUNCATE with the grant option, which the role has that
    /// created the queue.
    Own,
}

impl Right {
    /// Parses the kind of a grant, or 'owner' or 'any'.
    ///
    /// Fails with `Error::BadValue`.
    pub fn parse(kind: &str) -> Result<Self> {
        Ok(match kind {
            "any" => Self::Any,
            "reader" => Self::Read,
            "producer" => Self::Push,
            "worker" => Self::Work,
            "manager" => Self::Manage,
            "owner" => Self::Own,
            _ => {
                return Err(Error::BadValue {
                    argument: "kind",
                    value: kind.to_owned(),
                    rule: "'reader', 'producer', 'worker', 'manager', 'owner' or 'any'",
                });
            }
        })
    }

    /// The kind of grant that gives the right. None: only the owner has it.
    pub(super) fn kind(self) -> Option<&'static str> {
        match self {
            Self::Any | Self::Read => Some("reader"),
            Self::Push => Some("producer"),
            Self::Work => Some("worker"),
            Self::Manage => Some("manager"),
            Self::Own => None,
        }
    }

    /// Returns whether a role has the right on the queue with this docs table.
    pub(super) fn is_held_by(self, role: Oid, table: Oid) -> bool {
        match self {
            Self::Any => {
                acl::has_any(role, table, Privileges::ANY)
                    || acl::has_mark(role, table, Mark::Produces)
                    || acl::has_mark(role, table, Mark::Works)
            }
            Self::Read => acl::has(role, table, Privileges::SELECT),
            Self::Push => {
                acl::has(role, table, Privileges::INSERT)
                    || acl::has_mark(role, table, Mark::Produces)
            }
            Self::Work => {
                acl::has(role, table, Privileges::UPDATE) || acl::has_mark(role, table, Mark::Works)
            }
            Self::Manage => acl::has(role, table, Privileges::TRUNCATE),
            Self::Own => acl::may_grant(role, table, Privileges::TRUNCATE),
        }
    }

    /// Returns whether the caller has the right on the queue with this docs table.
    pub(super) fn is_held_on(self, table: Oid) -> bool {
        self.is_held_by(role::current(), table) || acl::owns_extension()
    }
}
