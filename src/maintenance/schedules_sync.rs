//! The schedules that a deployment declares: those of its owner become those that it declares.
//!
//! Locks are taken in the order in which `queue_drop` takes them: the owner, which nothing else locks,
//! then the queues and then the schedules, each in the order of their names.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::maintenance::schedules::create;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};
use crate::store::upkeep::schedules::{self, NewSchedule};
use crate::store::upkeep::schedules_sync as store;

/// What was done with a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is new.
    Created,
    /// It was not as it is declared.
    Changed,
    /// It was as it is declared.
    Kept,
    /// It is not declared any more.
    Dropped,
}

impl Action {
    /// The word for it in the result of `schedules_sync`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Kept => "kept",
            Self::Dropped => "dropped",
        }
    }
}

/// Makes the schedules of an owner those of a list, whose names differ. Returns the names of all that
/// are declared or dropped, in order, with what was done.
///
/// Fails with `Error::InSchedules` for a schedule of the list: as [`create`] does, with
/// `Error::UnknownQueue` or `Error::NoRight` unless the caller manages the queue, and with
/// `Error::ScheduleOfOther` for one that somebody else has made. Fails with `Error::NoRight` for one that is
/// to be dropped, too.
pub fn sync(owner: &str, list: &[NewSchedule]) -> Result<Vec<(String, Action)>> {
    let wanted: BTreeMap<&str, usize> = list.iter().zip(0..).map(|(s, at)| (s.name, at)).collect();
    // A role without rights waits for no lock, and holds none.
    let before = check_rights(owner, list)?;
    if before.is_empty() && list.is_empty() {
        return Ok(Vec::new());
    }
    store::serialize(owner);
    let existing = check_rights(owner, list)?;
    lock_queues(list, &existing)?;
    let mut names: BTreeSet<&str> = wanted.keys().copied().collect();
    names.extend(existing.iter().map(|(name, _)| name.as_str()));
    let act = |name: &str| match wanted.get(name) {
        Some(at) => declare(owner, &list[*at]).map_err(|e| e.in_schedules(*at, name)),
        None => withdraw(owner, name),
    };
    let actions = names
        .into_iter()
        .map(|name| Ok((name.to_owned(), act(name)?)));
    let actions: Result<Vec<(String, Option<Action>)>> = actions.collect();
    Ok(actions?
        .into_iter()
        .filter_map(|(name, action)| Some((name, action?)))
        .collect())
}

/// Checks that the caller manages the queues of the schedules of a list, and of all those that the owner
/// has. Returns the latter with their queues.
fn check_rights(owner: &str, list: &[NewSchedule]) -> Result<Vec<(String, String)>> {
    for (at, schedule) in list.iter().enumerate() {
        rights::require_existing(schedule.queue, Right::Manage)
            .map_err(|e| e.in_schedules(at, schedule.name))?;
    }
    let existing = store::of_owner(owner);
    for (_, queue) in &existing {
        rights::require_existing(&QueueName::parse(queue)?, Right::Manage)?;
    }
    Ok(existing)
}

/// Keeps the queues from being dropped, until the transaction ends.
fn lock_queues(list: &[NewSchedule], existing: &[(String, String)]) -> Result<()> {
    let mut queues: BTreeMap<QueueName, Option<usize>> = BTreeMap::new();
    for (_, queue) in existing {
        queues.insert(QueueName::parse(queue)?, None);
    }
    for (at, schedule) in list.iter().enumerate() {
        queues.insert(schedule.queue.clone(), Some(at));
    }
    for (queue, at) in queues {
        let locked = rights::with(&queue, Right::Manage, || queue::lock_against_drop(&queue));
        match (locked, at) {
            (Ok(_), _) => {}
            // Its schedules were dropped with it.
            (Err(error), None) if error.is_missing_queue() => {}
            (Err(error), None) => return Err(error),
            (Err(error), Some(at)) => return Err(error.in_schedules(at, list[at].name)),
        }
    }
    Ok(())
}

/// Whether there is a schedule of this name, which is then locked, and of this owner.
///
/// Fails with `Error::NoRight` for one of a queue that the caller does not manage, and with
/// `Error::ScheduleOfOther`.
fn lock_own(owner: &str, name: &str) -> Result<bool> {
    let is_there = || {
        let Some(queue) = schedules::queue_of(name) else {
            return Ok(false);
        };
        rights::require_existing(&QueueName::parse(&queue)?, Right::Manage)?;
        match store::owner_of(name) {
            Some(found) if found == owner => Ok(true),
            found => Err(Error::ScheduleOfOther {
                name: name.to_owned(),
                owner: found,
            }),
        }
    };
    if !is_there()? {
        return Ok(false);
    }
    schedules::lock(name);
    // Meanwhile it may have become that of another queue.
    is_there()
}

/// Creates or changes a schedule, unless it is as it is wanted.
fn declare(owner: &str, wanted: &NewSchedule) -> Result<Option<Action>> {
    let exists = lock_own(owner, wanted.name)?;
    if exists && store::is_same(wanted) {
        return Ok(Some(Action::Kept));
    }
    match create(wanted, exists) {
        Ok((true, _)) => Ok(Some(Action::Created)),
        Ok((false, _)) => Ok(Some(Action::Changed)),
        // Another session has just made it by hand.
        Err(Error::ScheduleExists(name)) => Err(Error::ScheduleOfOther {
            owner: store::owner_of(&name),
            name,
        }),
        Err(error) => Err(error),
    }
}

/// Drops a schedule. None: it was dropped meanwhile.
fn withdraw(owner: &str, name: &str) -> Result<Option<Action>> {
    let is_dropped = lock_own(owner, name)? && schedules::drop(name);
    Ok(is_dropped.then_some(Action::Dropped))
}
