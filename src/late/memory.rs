//! The late leases of this server, in shared memory.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use pgrx::pg_sys::Oid;

use crate::late::table::{Claim, ENTRIES, Hold, Lease, Name, Owner, Part, State};
use crate::pg::index_walk::{Identity, Passed};
use crate::pg::session;
use crate::pg::shared::{Area, Content, Place};
use crate::settings;

/// Tables that have counts of their own, by chance: those of two tables in one only cost time.
const COUNTS: usize = 1024;

/// Numbers that every session reads without a lock.
pub struct Counts {
    /// Leases by table, at least as many as there are.
    leases: [AtomicU32; COUNTS],
    /// Transactions that allow no new ones, by table.
    closed: [AtomicU32; COUNTS],
    /// Nobody can choose two subjects that have the same name.
    secret: u64,
}

struct Leases;

impl Content for Leases {
    const NAME: &std::ffi::CStr = c"fetchq late leases";
    type Header = Counts;
    type Item = Part;

    fn header() -> Counts {
        Counts {
            leases: [const { AtomicU32::new(0) }; COUNTS],
            closed: [const { AtomicU32::new(0) }; COUNTS],
            secret: RandomState::new().build_hasher().finish(),
        }
    }

    fn item() -> Part {
        Part::new()
    }

    fn place() -> &'static Place {
        static PLACE: Place = Place::unknown();
        &PLACE
    }

    fn items() -> usize {
        settings::late_lease_slots().div_ceil(ENTRIES)
    }
}

type Memory = Area<Leases>;

/// Requests the shared memory. Called while libraries are preloaded.
pub fn install() {
    Memory::install();
}

/// Returns whether this server has late leases.
pub fn exists() -> bool {
    Memory::items() > 0
}

/// How many slots there are, and how many are used: by leases that are not written yet, and by documents that
/// running transactions change.
pub fn slots() -> (i32, i32) {
    let used = (0..Memory::items()).map(|at| Memory::read(at, Part::used));
    let all = Memory::items() * ENTRIES;
    (i32::try_from(all).unwrap_or(i32::MAX), used.sum())
}

/// The name of a document of this database.
pub fn name(table: u32, subject: &[u8]) -> Name {
    let database = session::database();
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new_with_keys(
        Memory::header().map_or(0, |counts| counts.secret),
        u64::from(database) << 32 | u64::from(table),
    );
    hasher.write(subject);
    Name {
        database,
        table,
        subject: hasher.finish(),
    }
}

fn part(name: &Name) -> usize {
    (name.subject >> 32) as usize % Memory::items()
}

fn count(list: fn(&Counts) -> &[AtomicU32; COUNTS], table: u32) -> Option<&'static AtomicU32> {
    let at = table.wrapping_mul(0x9E37_79B1) as usize >> 8 & (COUNTS - 1);
    Memory::header().map(|counts| &list(counts)[at])
}

fn add(to: Option<&AtomicU32>, n: i32) {
    if let Some(to) = to {
        to.fetch_add(n as u32, Ordering::SeqCst);
    }
}

fn is_above_0(count: Option<&AtomicU32>) -> bool {
    count.is_some_and(|count| count.load(Ordering::SeqCst) > 0)
}

/// Returns whether documents of a table may be leased here.
pub fn has_leases(table: u32) -> bool {
    is_above_0(count(|counts| &counts.leases, table))
}

/// Returns whether any documents may be leased here.
pub fn has_any() -> bool {
    let counts = Memory::header();
    counts.is_some_and(|counts| counts.leases.iter().any(|count| is_above_0(Some(count))))
}

/// Forgets the leases of a database, in which fetchq is no longer, or that is gone.
pub fn forget_all(database: u32) {
    if !has_any() {
        return;
    }
    for at in 0..Memory::items() {
        let forgotten = |table| add(count(|counts| &counts.leases, table), -1);
        Memory::write(at, |part| part.forget(database, forgotten));
    }
}

/// Returns whether any documents of this database are leased here.
pub fn has_any_here() -> bool {
    let database = session::database();
    has_any() && (0..Memory::items()).any(|at| Memory::read(at, |part| part.has_leases(database)))
}

/// Allows no new leases of a table, until [`open`]. Whoever has called this sees all that there are.
pub fn close(table: u32) {
    add(count(|counts| &counts.closed, table), 1);
}

/// Ends what [`close`] has begun.
pub fn open(table: u32) {
    add(count(|counts| &counts.closed, table), -1);
}

/// See [`Part::claim`]. `InRow` also where new leases are not allowed now.
pub fn claim(name: Name, lease: Lease, owner: Owner, gone: Option<i64>) -> Claim {
    let leases = count(|counts| &counts.leases, name.table);
    let closed = count(|counts| &counts.closed, name.table);
    add(leases, 1);
    let claim = Memory::write(part(&name), |part| {
        // The one that closes the table looks at this part afterwards.
        match is_above_0(closed) {
            true => Claim::InRow,
            false => part.claim(name, lease, owner, gone),
        }
    });
    if claim != Claim::Done {
        add(leases, -1);
    }
    claim
}

/// See [`Part::hold`].
pub fn hold(name: Name, owner: Owner, reserves: bool) -> Hold {
    Memory::write(part(&name), |part| part.hold(name, owner, reserves))
}

/// See [`Part::look`].
pub fn look(name: &Name, owner: Owner) -> Hold {
    Memory::read(part(name), |part| part.look(name, owner))
}

/// See [`Part::reserve`].
pub fn reserve(name: Name, owner: Owner) -> Hold {
    Memory::write(part(&name), |part| part.reserve(name, owner))
}

/// See [`Part::restore`].
pub fn restore(name: &Name, owner: Owner, replaced: Lease) {
    Memory::write(part(name), |part| part.restore(name, owner, replaced));
}

/// See [`Part::keep`].
pub fn keep(name: &Name, owner: Owner) {
    Memory::write(part(name), |part| part.keep(name, owner));
}

/// See [`Part::give_back`].
pub fn give_back(name: &Name, owner: Owner, state: State) {
    Memory::write(part(name), |part| part.give_back(name, owner, state));
}

/// See [`Part::remove`].
pub fn remove(name: &Name, owner: Owner) {
    if Memory::write(part(name), |part| part.remove(name, owner)) {
        add(count(|counts| &counts.leases, name.table), -1);
    }
}

/// See [`Part::free`].
pub fn free(name: &Name) {
    Memory::write(part(name), |part| part.free(name));
}

fn lease_of(table: Oid, document: &Identity) -> Option<(i64, bool)> {
    let table = table.to_u32();
    if !exists() || !has_leases(table) {
        return None;
    }
    let name = name(table, document.subject);
    Memory::read(part(&name), |part| {
        part.lease_of(&name, (document.seq, document.created_at))
    })
}

/// Returns the number of the lease of a document that only shared memory has.
pub fn number(table: Oid, document: &Identity) -> Option<i64> {
    lease_of(table, document).map(|(number, _)| number)
}

/// Returns whether a document is leased, and only shared memory says so.
pub fn has_lease(table: Oid, document: &Identity) -> bool {
    lease_of(table, document).is_some()
}

/// Which documents of a table its floors may pass over: those that are leased here. Not those whose rows somebody
/// changes, who has noted already where they will be. None: there are none.
pub fn passed(table: Oid) -> Option<Passed> {
    let has_some = exists() && has_leases(table.to_u32());
    has_some
        .then_some(|table, document| lease_of(table, document).is_some_and(|(_, is_kept)| is_kept))
}

/// Returns the lease of a document.
pub fn lease(name: &Name) -> Option<Lease> {
    Memory::read(part(name), |part| part.lease(name))
}

/// Returns the leases of this database that `wanted` returns true for, and that no transaction has now.
pub fn leased(wanted: impl Fn(&Name, &Lease) -> bool) -> Vec<(Name, Lease)> {
    let mut found = Vec::new();
    for at in 0..Memory::items() {
        // Memory is reserved first, because nothing may fail under the lock.
        found.reserve(ENTRIES);
        Memory::read(at, |part| {
            part.visit_leased(session::database(), |name, lease| {
                if wanted(name, lease) {
                    found.push((*name, *lease));
                }
            });
        });
    }
    found
}

/// Returns the names of all documents of a table that are leased here.
pub fn names(table: u32) -> Vec<Name> {
    let mut found = Vec::new();
    for at in 0..Memory::items() {
        found.reserve(ENTRIES);
        Memory::read(at, |part| {
            part.visit_table(session::database(), table, |name| found.push(*name));
        });
    }
    found
}
