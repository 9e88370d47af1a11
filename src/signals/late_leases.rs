//! A spike: leases that are only in shared memory until they are settled.
//!
//! A pick claims the document here and does not write its row. There is no tick that writes leases that
//! last, and no statement, report or maintenance knows of them: for measurements only.

use std::hash::Hasher;

use pgrx::pg_sys::Oid;

use crate::pg::lasting::{Lasting, lasting};
use crate::pg::shared::{Area, Content, Place};
use crate::pg::transaction::End;
use crate::ready::floors;
use crate::ready::key::PickKey;

const PARTITIONS: usize = 512;
const ENTRIES: usize = 64;

/// A lease.
#[derive(Clone, Copy, Default)]
pub struct Entry {
    pub block: u32,
    pub offset: u16,
    pub is_committed: bool,
    pub seq: i64,
    pub number: i64,
    pub session: i64,
    pub picked_at: i64,
    pub expires_at: i64,
}

pub struct Partition {
    used: u64,
    hashes: [u64; ENTRIES],
    entries: [Entry; ENTRIES],
}

impl Partition {
    fn position(&self, hash: u64) -> Option<usize> {
        let mut used = self.used;
        while used != 0 {
            let at = used.trailing_zeros() as usize;
            if self.hashes[at] == hash {
                return Some(at);
            }
            used &= used - 1;
        }
        None
    }
}

struct Table;

impl Content for Table {
    const NAME: &std::ffi::CStr = c"fetchq late leases";
    type Header = ();
    type Item = Partition;

    fn header() {}

    fn item() -> Partition {
        Partition {
            used: 0,
            hashes: [0; ENTRIES],
            entries: [Entry::default(); ENTRIES],
        }
    }

    fn items() -> usize {
        PARTITIONS
    }

    fn place() -> &'static Place {
        static PLACE: Place = Place::unknown();
        &PLACE
    }
}

type Memory = Area<Table>;

pub fn install() {
    Memory::install();
}

pub fn is_available() -> bool {
    Memory::items() > 0 && crate::settings::late_leases()
}

/// The key of a document. The real one has the database too.
pub fn key(table: Oid, subject: &[u8]) -> u64 {
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new_with_keys(u64::from(table.to_u32()), 7);
    hasher.write(subject);
    hasher.finish()
}

fn partition(hash: u64) -> usize {
    (hash >> 32) as usize % PARTITIONS
}

pub enum Claim {
    Done,
    Taken,
    Full,
}

enum Undo {
    Claimed {
        hash: u64,
        table: Oid,
        version: i32,
        priority: i32,
        key: PickKey,
    },
    Settled(u64),
}

thread_local! {
    static OF_TRANSACTION: Lasting<Vec<Undo>> = const { lasting(Vec::new()) };
}

pub fn claim(hash: u64, entry: Entry) -> Claim {
    Memory::write(partition(hash), |partition| {
        if partition.position(hash).is_some() {
            return Claim::Taken;
        }
        let at = (!partition.used).trailing_zeros() as usize;
        if at >= ENTRIES {
            return Claim::Full;
        }
        partition.used |= 1 << at;
        partition.hashes[at] = hash;
        partition.entries[at] = entry;
        Claim::Done
    })
}

pub fn claimed(hash: u64, table: Oid, version: i32, priority: i32, key: PickKey) {
    OF_TRANSACTION.with(|list| {
        list.borrow_mut().push(Undo::Claimed {
            hash,
            table,
            version,
            priority,
            key,
        });
    });
}

pub fn settled(hash: u64) {
    OF_TRANSACTION.with(|list| list.borrow_mut().push(Undo::Settled(hash)));
}

pub fn get(hash: u64) -> Option<Entry> {
    Memory::read(partition(hash), |partition| {
        partition.position(hash).map(|at| partition.entries[at])
    })
}

pub fn contains(hash: u64) -> bool {
    Memory::read(partition(hash), |partition| {
        partition.position(hash).is_some()
    })
}

pub fn remove(hash: u64) {
    Memory::write(partition(hash), |partition| {
        if let Some(at) = partition.position(hash) {
            partition.used &= !(1 << at);
        }
    });
}

fn commit(hash: u64) {
    Memory::write(partition(hash), |partition| {
        if let Some(at) = partition.position(hash) {
            partition.entries[at].is_committed = true;
        }
    });
}

pub fn transaction_ended(end: End) {
    if end == End::Committing {
        return;
    }
    OF_TRANSACTION.with(|list| {
        let mut list = list.borrow_mut();
        for undo in list.drain(..) {
            match (undo, end) {
                (Undo::Claimed { hash, .. }, End::Committed) => commit(hash),
                (Undo::Settled(hash), End::Committed) => remove(hash),
                (
                    Undo::Claimed {
                        hash,
                        table,
                        version,
                        priority,
                        key,
                    },
                    _,
                ) => {
                    remove(hash);
                    floors::note_pick_entry(table, version, priority, key);
                }
                (Undo::Settled(_), _) => {}
            }
        }
    });
}
