//! A queue that is open for maintenance, which acts with the rights of the role that owns the
//! documents, whoever runs it.
//!
//! An owner can attach code to its tables: triggers, index expressions, policies, casts and more.
//! That code must not run with the rights of the background worker, which is a superuser, or with
//! those of an operator, and not with those of another owner either. So each table that
//! maintenance touches is found and locked by its OID, and its owner is read under that lock: it
//! cannot change until the transaction ends, and neither can the name of the table. A table beside
//! the documents that belongs to another role is refused.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use pgrx::pg_sys::Oid;
use pgrx::{PgSqlErrorCode, notice};

use crate::domain::names::QueueName;
use crate::error::{self, Error, Result, raise};
use crate::pg::relation::{self, LockMode, NamedLock};
use crate::pg::role::{self, Privilege};
use crate::pg::trigger::ImmediateTriggers;
use crate::pg::{lock_wait, planner, subtransaction};
use crate::signals::watchdog;
use crate::store::open_queue::Queue;
use crate::store::queue_places;
use crate::store::rights::{self, Right};

/// A queue that exists, and whose documents table is locked until the end of the transaction.
pub struct OwnedQueue {
    queue: Rc<Queue>,
    /// The role that owns the documents.
    pub owner: Oid,
    /// The role that asks for the maintenance.
    caller: Oid,
    waits: bool,
    /// The tables beside the documents that were opened.
    opened: RefCell<Vec<Oid>>,
}

/// The error for a dead-letter queue that could not be opened. It says whose it is where the queue
/// is not in this database.
pub(super) fn without_dead_letters(error: Error, source: &QueueName, target: &QueueName) -> Error {
    let (queue, target) = (source.to_string(), target.to_string());
    match error {
        Error::UnknownQueue(_) => Error::DeadLetterGone { queue, target },
        Error::QueueElsewhere { place, .. } => Error::DeadLetterElsewhere {
            queue,
            target,
            place,
        },
        other => other,
    }
}

/// Runs `work`, which reads a queue that the caller has not named, with the rights of the owner of
/// the documents: what the owner has attached to its tables gains no rights of the caller.
/// `tables` are those that it reads beside the documents. The caller may read all of them.
///
/// Waits for nobody, and keeps no lock, so that a caller can read all queues of a database one by one:
/// the locks of a subtransaction that is rolled back are released. So the result must not be in the
/// memory of a statement that ran in `work`, and a tuplestore must have been created before.
///
/// Returns None where a table is missing; and, with a notice, where another session has locked one,
/// where one belongs to another role than the documents, and where a policy restricts what the caller
/// may read.
pub fn read_as_owner<R>(name: &QueueName, tables: &[&str], work: impl FnOnce() -> R) -> Option<R> {
    subtransaction::roll_back_unless_kept(|| (read_locked(name, tables, work), false))
}

fn read_locked<R>(name: &QueueName, tables: &[&str], work: impl FnOnce() -> R) -> Option<R> {
    let caller = role::current();
    let mut owner = None;
    for table in std::iter::once(&"docs").chain(tables) {
        let relation_name = name.relation(table);
        let leave_out = |reason: &str| {
            notice!(
                "queue \"{name}\" is left out, because {reason} fetchq_data.\"{relation_name}\""
            );
        };
        let table = match relation::lock_data_table(&relation_name, LockMode::Readers, false) {
            NamedLock::Held(table, _) => table,
            NamedLock::Busy => {
                leave_out("another session has locked");
                return None;
            }
            NamedLock::Missing => return None,
        };
        let found = relation::owner_of_table(table)?;
        if *owner.get_or_insert(found) != found {
            leave_out("another role than that of the documents owns");
            return None;
        }
        if !role::has_privileges_of(caller, found) && role::is_restricted_by_policies(caller, table)
        {
            leave_out("policies restrict what you may read of");
            return None;
        }
    }
    owner.map(|owner| match owner == caller {
        true => work(),
        false => role::as_role(owner, work),
    })
}

/// Runs `work`, which changes a queue that the caller has not named, with the rights of the owner
/// of the documents. It takes no lock before `work` does.
///
/// No owner may keep the caller from the other queues, or make others wait for what the caller has
/// locked. So `work` runs in a subtransaction and waits for a lock for a second at most. Returns
/// None, with a warning, where it fails.
///
/// The queue may get another owner meanwhile. `work` then has the rights of the previous one, and
/// none of the caller's.
pub fn act_as_owner<R>(name: &QueueName, work: impl FnOnce() -> Result<R>) -> Option<R> {
    let table = relation::lookup_data_table(&name.relation("docs"));
    let owner = table.and_then(relation::owner_of);
    let run = || planner::with_short_lock_waits(|| raise(work()));
    let outcome = subtransaction::attempt(|| match owner {
        Some(owner) if owner != role::current() => role::as_role(owner, run),
        _ => run(),
    });
    outcome
        .inspect_err(|message| {
            error::warn(
                PgSqlErrorCode::ERRCODE_WARNING,
                format!("queue \"{name}\" is left out: {message}"),
                "Call the function for this queue alone.",
            );
        })
        .ok()
}

/// A table of a queue beside that of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// It is locked until the end of the transaction, and belongs to the owner of the documents.
    Ready,
    /// Another session has locked it.
    Busy,
    /// There is none.
    Missing,
}

impl Deref for OwnedQueue {
    type Target = Queue;
    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl OwnedQueue {
    /// Opens a queue for the maintenance of a server process or of all queues, which does not
    /// wait, or only as `lock_wait` allows: None if the documents are locked.
    ///
    /// Fails with `Error::UnknownQueue`.
    pub fn try_open(name: &QueueName) -> Result<Option<Self>> {
        let queue = lock_wait::retry(|| Queue::try_open(name))?;
        queue.map(|queue| Self::new(queue, false)).transpose()
    }

    /// Opens the dead-letter queue of a queue, to move documents there, which the owner of the
    /// queue has to be able to do. `waits`: as [`Self::open`], otherwise as [`Self::try_open`].
    ///
    /// Fails with `Error::DeadLetterGone` when it was dropped, with `Error::DeadLetterElsewhere`
    /// when it lives on another server, with `Error::TableBusy`, and with `Error::MayNotMove`.
    pub fn open_dead_letters(source: &Queue, target: &QueueName, waits: bool) -> Result<Self> {
        let Some(owner) = relation::owner_of_table(source.table) else {
            return Err(queue_places::unknown(&source.name));
        };
        let may_not_move = || Error::MayNotMove {
            queue: source.name.to_string(),
            owner: role::name(owner),
            target: target.to_string(),
        };
        // The lock is one that the owner of the queue may take, and not one of the session.
        let opened = role::as_role(owner, || match waits {
            true => Self::open_for(target, Right::Push).map(Some),
            false => Self::try_open(target),
        });
        let opened = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                return Err(Error::TableBusy {
                    table: target.relation("docs"),
                });
            }
            Err(Error::NoRight { .. }) => return Err(may_not_move()),
            Err(other) => return Err(without_dead_letters(other, &source.name, target)),
        };
        match rights::may_push(owner, opened.table) {
            true => Ok(opened),
            false => Err(may_not_move()),
        }
    }

    /// Opens a queue for the maintenance that a caller asks for by name. Waits for a session that
    /// drops, truncates or alters the queue.
    ///
    /// Fails with `Error::UnknownQueue`.
    pub fn open(name: &QueueName) -> Result<Self> {
        Self::open_for(name, Right::Any)
    }

    /// As [`Self::open`], for a caller who needs this right.
    ///
    /// Fails as `Queue::open_for` does.
    pub fn open_for(name: &QueueName, right: Right) -> Result<Self> {
        Self::new(Queue::open_for(name, right)?, true)
    }

    fn new(queue: Rc<Queue>, waits: bool) -> Result<Self> {
        let Some(owner) = relation::owner_of_table(queue.table) else {
            return Err(queue_places::unknown(&queue.name));
        };
        Ok(Self {
            queue,
            owner,
            caller: role::current(),
            waits,
            opened: RefCell::default(),
        })
    }

    /// Runs `work` with the rights of the owner, and the deferred triggers of the tables that were
    /// opened too: they are immediate meanwhile. The processes of the server have done that for all tables at
    /// the start of the transaction.
    pub fn act<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Work on one queue can be a part of work on another one, as for dead letters.
        struct Working(u32);
        impl Drop for Working {
            fn drop(&mut self) {
                watchdog::replace(self.0);
            }
        }
        let _until_dropped = Working(watchdog::replace(self.table.to_u32()));
        if role::current() == self.owner {
            return work();
        }
        role::as_role(self.owner, || {
            let opened = self.opened.borrow().clone();
            let _until_dropped: Vec<ImmediateTriggers> = std::iter::once(self.table)
                .chain(opened)
                .map(ImmediateTriggers::begin)
                .collect();
            work()
        })
    }

    /// Checks that the caller may do something with the documents: it has the rights of the owner,
    /// or these privileges.
    ///
    /// Fails with `Error::NoRight`.
    pub fn authorize(&self, privileges: &[Privilege]) -> Result<()> {
        self.authorize_table(self.table, "docs", privileges)
    }

    fn authorize_table(&self, table: Oid, name: &str, privileges: &[Privilege]) -> Result<()> {
        let is_allowed = role::has_privileges_of(self.caller, self.owner)
            || privileges
                .iter()
                .all(|privilege| role::has_privilege(self.caller, table, *privilege));
        if is_allowed {
            return Ok(());
        }
        // The least kind of grant that gives them.
        let right = match (name, privileges) {
            ("docs", [Privilege::Insert]) => Right::Push,
            ("docs", _) => Right::Work,
            _ => Right::Manage,
        };
        Err(rights::no_right(&self.name, self.caller, right))
    }

    /// Locks another table of the queue, `logs`, `metrics` or `history`, and checks its owner and
    /// the privileges of the caller. Without this, no statement of maintenance may touch it.
    ///
    /// Fails with `Error::OtherOwner` and `Error::NoRight`.
    pub fn open_table(&self, table: &str, privileges: &[Privilege]) -> Result<Table> {
        let name = self.name.relation(table);
        let lock = || match relation::lock_data_table(&name, LockMode::Rows, self.waits) {
            NamedLock::Busy => Ok(None),
            other => Ok::<_, Error>(Some(other)),
        };
        let oid = match lock_wait::retry(lock)? {
            Some(NamedLock::Held(oid, _)) => oid,
            Some(NamedLock::Missing) => return Ok(Table::Missing),
            Some(NamedLock::Busy) | None => return Ok(Table::Busy),
        };
        let Some(owner) = relation::owner_of_table(oid) else {
            return Ok(Table::Missing);
        };
        if owner != self.owner {
            return Err(Error::OtherOwner {
                queue: self.name.to_string(),
                table: name,
                table_owner: role::name(owner),
                owner: role::name(self.owner),
            });
        }
        self.authorize_table(oid, table, privileges)?;
        let mut opened = self.opened.borrow_mut();
        if !opened.contains(&oid) {
            opened.push(oid);
        }
        Ok(Table::Ready)
    }

    /// Locks another table of the queue that maintenance cannot do without.
    ///
    /// Fails as `open_table` does, with `Error::TableBusy` while another session has locked it,
    /// and with `Error::TableMissing`.
    pub fn require_table(&self, table: &str, privileges: &[Privilege]) -> Result<()> {
        match self.open_table(table, privileges)? {
            Table::Ready => Ok(()),
            Table::Busy => Err(Error::TableBusy {
                table: self.name.relation(table),
            }),
            Table::Missing => Err(self.missing(table)),
        }
    }

    /// The error for a table of the queue that does not exist.
    pub fn missing(&self, table: &str) -> Error {
        Error::TableMissing {
            queue: self.name.to_string(),
            table: self.name.relation(table),
        }
    }
}
