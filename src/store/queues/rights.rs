//! What the caller may do with a queue.
//!
//! The rights on a queue are privileges on its docs table, so that they are kept by a dump and
//! follow the membership of roles. All tables belong to one role, as which every statement of the
//! library acts (`pg/role.rs`): nothing but what is asked here decides what a caller may do, and each
//! call asks before it runs a statement.

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::error::{self, Error, Result};
use crate::pg::acl;
use crate::pg::relation;
use crate::pg::role;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::queues::queue_places;
pub use crate::store::queues::right::Right;

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
    has_on_found(docs_table(name), right)
}

/// As [`has`], for the docs table that a name has led to.
fn has_on_found(table: Option<Oid>, right: Right) -> bool {
    match table {
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
    require_on_found(name, docs_table(name), right)
}

/// As [`require`], for the docs table that the name has led to.
fn require_on_found(name: &QueueName, table: Option<Oid>, right: Right) -> Result<()> {
    match table {
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

/// As [`with`], where `work` does not find out whether the queue exists.
///
/// Fails with `Error::UnknownQueue` as [`require_existing`] does, too.
pub fn with_existing<R>(
    name: &QueueName,
    right: Right,
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    require_existing(name, right)?;
    with(name, right, work)
}

/// Fails with `Error::NoRight` when the caller lacks a right on the queue with this docs table.
pub(in crate::store) fn require_on(name: &QueueName, table: Oid, right: Right) -> Result<()> {
    match right.is_held_on(table) {
        true => Ok(()),
        false => Err(no_right(name, role::current(), right)),
    }
}

/// Returns whether a role, which need not be that of the caller, has a right now on the queue with
/// this docs table.
pub fn role_has(role: Oid, table: Oid, right: Right) -> bool {
    relation::accept_invalidations();
    let has_all =
        || role::extension_owner().is_some_and(|owner| role::has_privileges_of(role, owner));
    right.is_held_by(role, table) || has_all()
}

/// Runs `work`, which finds the queue by its name, for a caller who has a right on the queue.
///
/// The queue may be dropped and created again by another role after the look-up. `work` then reads
/// or changes the new queue, so the look-up is repeated, and the error undoes what `work` did.
///
/// Fails with `Error::NoRight`, and as `work` does.
pub fn with<R>(name: &QueueName, right: Right, work: impl FnOnce() -> Result<R>) -> Result<R> {
    let before = docs_table(name);
    require_on_found(name, before, right)?;
    let result = work()?;
    relation::accept_invalidations();
    if docs_table(name) != before {
        require_existing(name, right)?;
    }
    Ok(result)
}

/// The queues on which a caller has a right.
pub struct Scope {
    is_everything: bool,
    queues: Vec<QueueName>,
}

impl Scope {
    /// All queues, for a process of the server.
    pub fn everything() -> Self {
        Self {
            is_everything: true,
            queues: Vec::new(),
        }
    }

    fn of(queues: Vec<QueueName>) -> Self {
        Self {
            is_everything: false,
            queues,
        }
    }

    /// The names of the queues, in order.
    pub fn names(&self) -> Vec<QueueName> {
        match self.is_everything {
            true => list(Right::Any),
            false => self.queues.clone(),
        }
    }

    /// Returns whether these are all queues.
    pub fn is_everything(&self) -> bool {
        self.is_everything
    }

    /// The parameters of a condition such as `$1 or queue {=} any ($2)`.
    pub fn args(&self) -> [Arg; 2] {
        let names: Vec<&str> = self.queues.iter().map(QueueName::as_str).collect();
        [Arg::from(self.is_everything), Arg::from(names)]
    }
}

/// Runs `work` for one queue, or with None for all queues on which the caller has a right. For the
/// owner of the extension these are all, whatever the registry has.
///
/// A statement finds the queues by their names, and a name can be that of another role's queue by the
/// time that the statement runs. So the look-ups are repeated, and the error undoes what `work` did.
///
/// Fails with `Error::NoRight`, and as `work` does.
pub fn over<R>(
    name: Option<&QueueName>,
    right: Right,
    work: impl FnOnce(&Scope) -> Result<R>,
) -> Result<R> {
    if let Some(name) = name {
        return with(name, right, || work(&Scope::of(vec![name.clone()])));
    }
    if acl::owns_extension() {
        return work(&Scope::everything());
    }
    let (names, before): (Vec<QueueName>, Vec<Option<Oid>>) = list_tables(right).unzip();
    let scope = Scope::of(names);
    let result = work(&scope)?;
    relation::accept_invalidations();
    for (name, table) in scope.queues.iter().zip(before) {
        match docs_table(name) {
            now @ Some(found) if now != table => require_on(name, found, right)?,
            // A queue that was dropped meanwhile fails no call over all queues.
            _ => {}
        }
    }
    Ok(result)
}

const NAMES: &str = "select name::pg_catalog.text from fetchq.queues order by name";

/// The queues on which the caller has a right, in the order of their names. A row of the registry
/// whose name cannot be the name of a queue is left out with a warning: a client has inserted it.
///
/// Each name can be that of another role's queue by the time that it is used. Whoever opens the queue
/// asks for the right again: `queue::read_each`, `queue::change_each` and [`over`] do.
pub(in crate::store) fn list(right: Right) -> Vec<QueueName> {
    list_tables(right).map(|(name, _)| name).collect()
}

/// As [`list`], with the docs tables for which that was found.
fn list_tables(right: Right) -> impl Iterator<Item = (QueueName, Option<Oid>)> {
    let names: Vec<String> = spi::connect(|spi| {
        let rows = spi.once(NAMES, &[]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    });
    let parsed = names
        .into_iter()
        .filter_map(|name| match QueueName::parse(&name) {
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
    parsed
        .map(|name| (docs_table(&name), name))
        .filter(move |(table, _)| has_on_found(*table, right))
        .map(|(table, name)| (name, table))
}

/// The error for a role that lacks a right on a queue.
pub(in crate::store) fn no_right(name: &QueueName, role: Oid, right: Right) -> Error {
    Error::NoRight {
        role: role::name(role),
        queue: name.to_string(),
        kind: right.kind(),
    }
}
