//! What the caller may do with a queue.
//!
//! The rights on a queue are the privileges on its docs table, so that they are kept by a dump,
//! follow the membership of roles, and can also be given with GRANT. The registry has no rights
//! of its own: every function that reads or writes it asks here first.

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::wording::Writer;
use crate::error::{self, Error, Result};
use crate::pg::acl::{self, Privileges};
use crate::pg::relation;
use crate::pg::role::{self, Privilege, as_role};
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::queue_places;

/// A right on a queue. A superuser, and the role that owns the extension, have all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// To see that the queue exists, its settings and its metrics: any privilege on its docs
    /// table, or on a column of it.
    Any,
    /// To read its documents: SELECT.
    Read,
    /// To add documents: INSERT.
    Push,
    /// To work on its documents: UPDATE of whole documents.
    Work,
    /// To change its settings: TRUNCATE, which is the mark of a manager.
    Manage,
    /// To drop it, and to grant rights on it: the owner of its docs table.
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
    fn kind(self) -> Option<&'static str> {
        match self {
            Self::Any | Self::Read => Some("reader"),
            Self::Push => Some("producer"),
            Self::Work => Some("worker"),
            Self::Manage => Some("manager"),
            Self::Own => None,
        }
    }

    /// Returns whether the caller has all that a grant of the right gives on the docs table. A
    /// producer has privileges on some of the columns.
    fn is_complete_on(self, table: Oid) -> bool {
        let needed = [Privileges::SELECT, Privileges::INSERT, Privileges::UPDATE];
        match self {
            Self::Push => {
                acl::has(table, Privileges::INSERT)
                    && needed.iter().all(|one| acl::has_any(table, *one))
            }
            Self::Work => {
                acl::has(table, Privileges::DELETE)
                    && needed.iter().all(|one| acl::has(table, *one))
            }
            _ => self.is_held_on(table),
        }
    }

    /// Returns whether the caller has the right on the queue with this docs table.
    fn is_held_on(self, table: Oid) -> bool {
        let is_held = match self {
            Self::Any => acl::has_any(table, Privileges::ANY),
            Self::Read => acl::has(table, Privileges::SELECT),
            Self::Push => acl::has(table, Privileges::INSERT),
            Self::Work => acl::has(table, Privileges::UPDATE),
            Self::Manage => acl::has(table, Privileges::TRUNCATE),
            Self::Own => acl::owns(table),
        };
        is_held || acl::owns_extension()
    }
}

/// Returns the docs table of a queue.
fn docs_table(name: &QueueName) -> Option<Oid> {
    relation::lookup_data_table(&name.relation("docs"))
}

const IS_REGISTERED: &str = "select from fetchq.queues where name {=} $1";

fn is_registered(name: &QueueName) -> bool {
    spi::connect(|spi| {
        !spi.once(IS_REGISTERED, &[Arg::from(name.as_str())])
            .is_empty()
    })
}

/// Returns whether the caller has a right on a queue. Only the owner of the extension has rights on
/// a queue that does not exist, or that has lost its docs table.
pub fn has(name: &QueueName, right: Right) -> bool {
    match docs_table(name) {
        Some(table) => right.is_held_on(table),
        None => acl::owns_extension(),
    }
}

/// Returns whether the caller has a right on the queue with this docs table.
pub fn has_on(table: Oid, right: Right) -> bool {
    right.is_held_on(table)
}

/// Fails with `Error::NoRight` when the caller lacks a right on a queue that exists. What follows
/// has to find out whether it does.
///
/// Fails with `Error::QueueElsewhere` for a queue that lives on another server.
pub fn require(name: &QueueName, right: Right) -> Result<()> {
    match docs_table(name) {
        Some(table) if right.is_held_on(table) => Ok(()),
        // An older snapshot may still show a queue in the registry that has moved away.
        None => {
            queue_places::require_here(name)?;
            match !is_registered(name) || acl::owns_extension() {
                true => Ok(()),
                false => Err(no_right(name, role::current(), right)),
            }
        }
        Some(_) => Err(no_right(name, role::current(), right)),
    }
}

/// As [`require`], for what does not find out whether the queue exists.
///
/// Fails with `Error::UnknownQueue` when it does not, unless the caller owns the extension, and with
/// `Error::QueueElsewhere`.
pub fn require_existing(name: &QueueName, right: Right) -> Result<()> {
    require(name, right)?;
    if has(name, right) {
        Ok(())
    } else {
        Err(queue_places::unknown(name))
    }
}

/// Fails with `Error::NoRight` when the caller has no privilege at all on the documents that would
/// let it do something for which it needs this right. A role without rights must not lock a table,
/// because that holds up others.
pub(super) fn require_to_lock(name: &QueueName, table: Oid, right: Right) -> Result<()> {
    let privileges = match right {
        Right::Any => Privileges::ANY,
        _ => Privileges::CHANGE,
    };
    // The common case comes first: it takes one look-up.
    if acl::has(table, privileges) || acl::has_any(table, privileges) || acl::owns_extension() {
        Ok(())
    } else {
        Err(no_right(name, role::current(), right))
    }
}

/// Finds out why the server has denied the caller, with this message, something for which it needs
/// at least this right on a queue.
///
/// Fails with `Error::NoRight` when the caller lacks a privilege on a table of the queue that a grant
/// would give.
pub(super) fn explain_denial(
    name: &QueueName,
    docs: Oid,
    right: Right,
    message: &str,
) -> Result<()> {
    let is_denied = |suffix: &str| message.contains(&name.relation(suffix));
    let missing = if is_denied("docs") {
        // Some calls of a producer need more, such as a put that merges.
        [right, Right::Work]
            .into_iter()
            .find(|right| !right.is_complete_on(docs))
    } else {
        let is_missing = |suffix: &&&str| {
            let table = relation::lookup_data_table(&name.relation(suffix));
            let needed = [Privileges::SELECT, Privileges::INSERT];
            is_denied(suffix)
                && table.is_some_and(|table| !needed.iter().all(|one| acl::has(table, *one)))
        };
        ["logs", "history"]
            .iter()
            .find(is_missing)
            .map(|_| Right::Work)
    };
    match missing {
        Some(right) => Err(no_right(name, role::current(), right)),
        None => Ok(()),
    }
}

/// Returns whether a role may push into the queue with this docs table, any document: it has the
/// rights of the owner, or INSERT and no policy that restricts it. `Oid::INVALID`: everybody.
pub fn may_push(pusher: Oid, table: Oid) -> bool {
    relation::accept_invalidations();
    let is_owner =
        relation::owner_of(table).is_some_and(|owner| role::has_privileges_of(pusher, owner));
    is_owner
        || role::has_privilege(pusher, table, Privilege::Insert)
            && !role::is_restricted_by_policies(pusher, table)
}

/// A role that can write into one queue, and may not push into another one.
pub struct Stranger {
    /// The name of the role.
    pub name: String,
    /// How it can write.
    pub kind: Writer,
}

impl Stranger {
    /// The error for documents of the first queue that do not go to the second one.
    pub fn keeps_documents(&self, from: &QueueName, to: &QueueName) -> Error {
        Error::MayNotCarry {
            queue: from.to_string(),
            target: to.to_string(),
            role: self.name.clone(),
            kind: self.kind,
        }
    }
}

// With TRIGGER, a role can have others write what it wants. The others who can write are members
// of these roles, superusers, and members of pg_write_all_data, who can write into every queue.
const LIST_WRITERS: &str = "select c.relowner, true from pg_catalog.pg_class c where c.oid {=} $1
    union all
    select a.grantee, false from pg_catalog.pg_class c
    cross join pg_catalog.aclexplode(c.relacl) a
    where c.oid {=} $1 and a.privilege_type {=} any (array['INSERT', 'UPDATE', 'TRIGGER'])
    union all
    select a.grantee, false from pg_catalog.pg_attribute t
    cross join pg_catalog.aclexplode(t.attacl) a
    where t.attrelid {=} $1 and a.privilege_type {=} any (array['INSERT', 'UPDATE'])";

/// Finds a role that can write into the queue with one docs table, and may not push into the one
/// with the other. A superuser and the owner of the extension may do everything.
pub fn find_stranger(from: Oid, to: Oid) -> Option<Stranger> {
    let writers: Vec<(Oid, bool)> = spi::connect(|spi| {
        let rows = spi.once(LIST_WRITERS, &[Arg::oid(from)]);
        (0..rows.len())
            .filter_map(|row| Some((rows.get(row, 1)?, rows.get(row, 2)?)))
            .collect()
    });
    let extension_owner = role::extension_owner();
    writers.into_iter().find_map(|(writer, is_owner)| {
        let has_all = extension_owner.is_some_and(|owner| role::has_privileges_of(writer, owner));
        (!has_all && !may_push(writer, to)).then(|| Stranger {
            name: role::name(writer),
            kind: match (is_owner, writer == Oid::INVALID) {
                (true, _) => Writer::Owner,
                (false, false) => Writer::Grantee,
                (false, true) => Writer::Public,
            },
        })
    })
}

/// Runs `work`, which changes the registry, for a caller who has a right on the queue.
///
/// The queue may be dropped and created again by another role after the look-up. `work` then
/// changes the new queue, so the look-up is repeated, and the error undoes what `work` did.
///
/// Fails with `Error::NoRight`, and as `work` does.
pub fn with<R>(name: &QueueName, right: Right, work: impl FnOnce() -> Result<R>) -> Result<R> {
    require(name, right)?;
    let before = docs_table(name);
    let result = work()?;
    relation::accept_invalidations();
    if docs_table(name) != before {
        require_existing(name, right)?;
    }
    Ok(result)
}

/// Runs statements that define triggers and indexes of the docs table, for a caller who manages
/// the queue, with the rights of the owner of the table.
pub fn as_table_owner<R>(name: &QueueName, work: impl FnOnce() -> R) -> R {
    let table = docs_table(name);
    match table.and_then(relation::owner_of) {
        Some(owner) if !table.is_some_and(acl::owns) => as_role(owner, work),
        _ => work(),
    }
}

/// The queues on which a caller has a right.
pub struct Scope {
    is_everything: bool,
    queues: Vec<String>,
}

impl Scope {
    /// All queues.
    pub fn everything() -> Self {
        Self {
            is_everything: true,
            queues: Vec::new(),
        }
    }

    /// One queue.
    pub fn only(name: &QueueName) -> Self {
        Self {
            is_everything: false,
            queues: vec![name.as_str().to_owned()],
        }
    }

    /// The queues on which the caller has this right. For the owner of the extension these are
    /// all, whatever the registry has.
    pub fn of(right: Right) -> Self {
        if acl::owns_extension() {
            return Self::everything();
        }
        let names = list(right);
        Self {
            is_everything: false,
            queues: names.iter().map(|name| name.as_str().to_owned()).collect(),
        }
    }

    /// Returns whether these are all queues.
    pub fn is_everything(&self) -> bool {
        self.is_everything
    }

    /// The parameters of a condition such as `$1 or queue {=} any ($2)`.
    pub fn args(&self) -> [Arg; 2] {
        [
            Arg::from(self.is_everything),
            Arg::from(self.queues.clone()),
        ]
    }
}

const NAMES: &str = "select name::pg_catalog.text from fetchq.queues order by name";

/// The queues on which the caller has a right, in the order of their names. A row of the registry
/// whose name cannot be the name of a queue is left out with a warning: a client has inserted it.
pub fn list(right: Right) -> Vec<QueueName> {
    let names: Vec<String> = spi::connect(|spi| {
        let rows = spi.once(NAMES, &[]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    });
    let parsed = names
        .iter()
        .filter_map(|name| match QueueName::parse(name) {
            Ok(parsed) => Some(parsed),
            Err(e) => {
                error::warn(
                    PgSqlErrorCode::ERRCODE_INVALID_NAME,
                    format!("fetchq.queues has a row that is not a queue: {e}"),
                    "Delete the row; create queues with fetchq.queue_create().",
                );
                None
            }
        });
    parsed.filter(|name| has(name, right)).collect()
}

/// The error for a role that lacks a right on a queue.
pub(super) fn no_right(name: &QueueName, role: Oid, right: Right) -> Error {
    Error::NoRight {
        role: role::name(role),
        queue: name.to_string(),
        kind: right.kind(),
    }
}
