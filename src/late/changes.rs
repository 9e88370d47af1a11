//! What this transaction has changed in the table of late leases, so that its end, or that of a
//! subtransaction, changes it again.

use std::cell::Cell;
use std::time::Duration;

use pgrx::pg_sys::Oid;

use crate::late::memory;
use crate::late::table::{Claim, Hold, Lease, Name, State};
use crate::pg::lasting::{Lasting, lasting};
use crate::pg::process;
use crate::pg::transaction::{self, End};
use crate::pg::virtual_transaction;
use crate::ready::floors;

enum Kind {
    /// The document was leased. The entry had the second lease before, of a document that is gone for this
    /// transaction.
    Claimed(Lease, Option<Lease>),
    /// The document is held. It had this state before.
    Held(State),
    /// The document is held, and its row is no longer the one that was leased: somebody has changed it who
    /// does not know of leases.
    Void(State),
    /// The document is reserved.
    Reserved,
}

struct Change {
    subtransaction: u32,
    name: Name,
    kind: Kind,
}

struct Changes {
    list: Vec<Change>,
    /// Tables that are closed, and the subtransactions that have closed them.
    closed: Vec<(u32, u32)>,
}

thread_local! {
    static CHANGES: Lasting<Changes> = const { lasting(Changes { list: Vec::new(), closed: Vec::new() }) };
    /// The last virtual transaction that has changed something.
    static OWNER: Cell<u64> = const { Cell::new(0) };
}

fn owner() -> u64 {
    let owner = virtual_transaction::current();
    OWNER.set(owner);
    owner
}

fn changed<R>(name: Name, work: impl FnOnce(u64) -> R, kind: impl FnOnce(&R) -> Option<Kind>) -> R {
    let subtransaction = transaction::subtransaction();
    let owner = owner();
    CHANGES.with(|changes| {
        let list = &mut changes.borrow_mut().list;
        // Nothing may fail between the change and its note.
        list.reserve(1);
        let result = work(owner);
        if let Some(kind) = kind(&result) {
            list.push(Change {
                subtransaction,
                name,
                kind,
            });
        }
        result
    })
}

/// Leases a document. `gone`: the number of a lease whose document is gone.
pub fn claim(name: Name, lease: Lease, gone: Option<i64>) -> Claim {
    changed(
        name,
        |owner| memory::claim(name, lease, owner, gone),
        |claim| match claim {
            Claim::Done => Some(Kind::Claimed(lease, None)),
            Claim::Replaced(gone) => Some(Kind::Claimed(lease, Some(*gone))),
            _ => None,
        },
    )
}

/// Holds a document whose row is to be changed. One that has no lease is reserved, if `reserves`. Waits for
/// another transaction that has it, so `Hold::Busy` is never returned.
pub fn hold(name: Name, reserves: bool) -> Hold {
    let mut looks = 0;
    loop {
        match try_hold(name, reserves) {
            Hold::Busy(_) if looks < LOOKS => {
                looks += 1;
                process::sleep_in_session(LOOK_INTERVAL);
            }
            Hold::Busy(other) => {
                virtual_transaction::wait_for(other);
                // Its entries end a moment after it.
                process::check_for_interrupts();
            }
            other => return other,
        }
    }
}

/// How often a document is looked at that another transaction has, before that transaction is waited for: it may
/// have the document only for a moment, and give it back before it waits itself.
const LOOKS: u32 = 40;

const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// As [`hold`], but does not wait: then it returns `Hold::Busy`.
pub fn try_hold(name: Name, reserves: bool) -> Hold {
    changed(
        name,
        |owner| memory::hold(name, owner, reserves),
        |hold| match hold {
            Hold::Lease(_, state) => Some(Kind::Held(*state)),
            Hold::Reserved => Some(Kind::Reserved),
            _ => None,
        },
    )
}

/// Reserves a document that is not leased here, and changes nothing else.
pub fn reserve(name: Name) -> Hold {
    changed(
        name,
        |owner| memory::reserve(name, owner),
        |hold| matches!(hold, Hold::Reserved).then_some(Kind::Reserved),
    )
}

/// Says what [`try_hold`] would find, and changes nothing.
pub fn look(name: &Name) -> Hold {
    memory::look(name, owner())
}

/// Undoes the last change of this transaction, which is that of this document.
pub fn undo_last(name: &Name) {
    CHANGES.with(|changes| {
        let list = &mut changes.borrow_mut().list;
        if list.last().is_some_and(|change| change.name == *name)
            && let Some(change) = list.pop()
        {
            undo(&change, OWNER.get());
        }
    });
}

/// Gives a document back that this transaction holds.
pub fn give_back(name: &Name) {
    CHANGES.with(|changes| {
        let list = &mut changes.borrow_mut().list;
        let is_it = |change: &Change| change.name == *name && matches!(change.kind, Kind::Held(_));
        if let Some(at) = list.iter().rposition(is_it) {
            undo(&list.remove(at), OWNER.get());
        }
    });
}

/// Has the lease of a document that this transaction holds end with the transaction, although its row is
/// not changed.
pub fn void(name: &Name) {
    CHANGES.with(|changes| {
        let list = &mut changes.borrow_mut().list;
        let held = list.iter_mut().rev().find(|change| change.name == *name);
        if let Some(change) = held
            && let Kind::Held(state) = change.kind
        {
            change.kind = Kind::Void(state);
        }
    });
}

/// Returns the documents of a table that this transaction has leased.
pub fn claimed(table: u32) -> Vec<Name> {
    CHANGES.with(|changes| {
        let list = &changes.borrow().list;
        let is_it = |change: &&Change| {
            change.name.table == table && matches!(change.kind, Kind::Claimed(..))
        };
        list.iter()
            .filter(is_it)
            .map(|change| change.name)
            .collect()
    })
}

/// Allows no new late leases of a table until the transaction ends.
pub fn close(table: u32) {
    let subtransaction = transaction::subtransaction();
    CHANGES.with(|changes| {
        let closed = &mut changes.borrow_mut().closed;
        if !closed.iter().any(|(known, _)| *known == table) {
            closed.push((table, subtransaction));
            memory::close(table);
        }
    });
}

fn undo(change: &Change, owner: u64) {
    let name = &change.name;
    match &change.kind {
        Kind::Claimed(lease, replaced) => {
            // It is free before it is noted: a walk that still passes over it is cut short by the note.
            match replaced {
                Some(replaced) => memory::restore(name, owner, *replaced),
                None => memory::remove(name, owner),
            }
            let table = Oid::from(name.table);
            floors::note_pick_entry(table, lease.version, lease.priority, lease.key);
        }
        Kind::Held(state) | Kind::Void(state) => memory::give_back(name, owner, *state),
        Kind::Reserved => memory::free(name),
    }
}

fn undo_from(changes: &mut Changes, subtransaction: u32) {
    let owner = OWNER.get();
    while let Some(change) = changes
        .list
        .pop_if(|change| change.subtransaction >= subtransaction)
    {
        undo(&change, owner);
    }
    changes.closed.retain(|(table, of)| {
        let is_kept = *of < subtransaction;
        if !is_kept {
            memory::open(*table);
        }
        is_kept
    });
}

/// Undoes what a subtransaction has changed that is rolled back, and those within it. They have greater
/// numbers, and so has none that is kept.
pub fn subtransaction_rolled_back(subtransaction: u32) {
    CHANGES.with(|changes| undo_from(&mut changes.borrow_mut(), subtransaction));
}

/// Ends the changes with the transaction. Called when others can see what it has committed, so whoever
/// finds an entry gone finds the row changed.
pub fn transaction_ended(end: End) {
    if end == End::Committing {
        return;
    }
    CHANGES.with(|changes| {
        let changes = &mut *changes.borrow_mut();
        if end == End::Committed {
            let owner = OWNER.get();
            for change in changes.list.drain(..) {
                match change.kind {
                    Kind::Claimed(..) => memory::keep(&change.name, owner),
                    Kind::Held(_) => memory::remove(&change.name, owner),
                    Kind::Void(_) => {
                        memory::remove(&change.name, owner);
                        // Another document may have this subject now, which walks have passed over.
                        floors::forget(Oid::from(change.name.table));
                    }
                    Kind::Reserved => memory::free(&change.name),
                }
            }
        }
        undo_from(changes, 0);
    });
}
