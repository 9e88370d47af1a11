//! Settlements: the documents that this transaction has settled, so that its commit wakes the
//! sessions that wait for them, and this session as such an awaiter. `awaiters.rs` has the state in
//! shared memory.
//!
//! Each counter event that settles documents says how many; the code that settles them also says
//! which ones, if anybody waits at that moment. Where the subjects of some are not known when the
//! transaction commits, all who wait for documents of the table are woken, and look. So nobody has
//! to be told of a new way to settle documents for it to be correct.

use crate::pg::lasting::{Lasting, lasting};

use crate::pg::session;
use crate::signals::awaiters::{Awaiters, DocumentKey, awaiters, hash};

/// Tables of which a transaction remembers what it has settled. Not measured: few transactions
/// settle documents of more queues. Of a further one, all who wait in the database are woken.
const TABLES: usize = 8;

/// Documents that a transaction remembers.
const DOCUMENTS: usize = 10_000;

/// A table of which this transaction has settled documents.
#[derive(Clone, Copy)]
struct Table {
    table: u32,
    /// How many were settled.
    settled: u32,
    /// Of how many the subject is known.
    known: u32,
}

/// What this transaction has settled.
struct Settlements {
    tables: [Table; TABLES],
    /// How many of the entries are used.
    used: usize,
    /// There were more tables.
    is_full: bool,
    /// The documents whose subject is known: the table, and the hash of the subject.
    documents: Vec<(u32, u64)>,
}

impl Settlements {
    const fn new() -> Self {
        Self {
            tables: [Table {
                table: 0,
                settled: 0,
                known: 0,
            }; TABLES],
            used: 0,
            is_full: false,
            documents: Vec::new(),
        }
    }

    fn table(&mut self, table: u32) -> Option<&mut Table> {
        let known = self.tables[..self.used]
            .iter()
            .position(|entry| entry.table == table);
        match known {
            Some(at) => Some(&mut self.tables[at]),
            None if self.used < TABLES => {
                let entry = &mut self.tables[self.used];
                self.used += 1;
                *entry = Table {
                    table,
                    settled: 0,
                    known: 0,
                };
                Some(entry)
            }
            None => {
                self.is_full = true;
                None
            }
        }
    }

    fn count(&mut self, table: u32, n: u32) {
        if let Some(entry) = self.table(table) {
            entry.settled = entry.settled.saturating_add(n);
        }
    }

    fn add(&mut self, table: u32, hash: u64) {
        if self.documents.len() < DOCUMENTS
            && let Some(entry) = self.table(table)
        {
            entry.known += 1;
            self.documents.push((table, hash));
        }
    }

    /// Wakes the awaiters of these documents.
    fn wake(&self, awaiters: Awaiters, database: u32) {
        if self.is_full {
            awaiters.wake_database(database);
            return;
        }
        for entry in &self.tables[..self.used] {
            if entry.known < entry.settled {
                awaiters.wake_table(database, entry.table);
                continue;
            }
            let documents = self.documents.iter();
            for (table, hash) in documents.filter(|(table, _)| *table == entry.table) {
                awaiters.wake(DocumentKey {
                    database,
                    table: *table,
                    hash: *hash,
                });
            }
        }
    }

    fn clear(&mut self) {
        (self.used, self.is_full) = (0, false);
        // A bulk action does not keep its memory.
        self.documents = Vec::new();
    }
}

thread_local! {
    static SETTLED: Lasting<Settlements> = const { lasting(Settlements::new()) };
    /// The slot of this session, so that the exit of the session gives it back.
    static SLOT: Lasting<Option<(Awaiters<'static>, usize)>> = const { lasting(None) };
}

/// Counts documents of a table that are settled when this transaction commits.
pub fn documents_settled(table: u32, n: u32) {
    // Without shared memory nobody is woken, and nothing would ever empty the list.
    if awaiters().is_some() {
        SETTLED.with(|settled| settled.borrow_mut().count(table, n));
    }
}

/// Says which documents of a table are settled when this transaction commits, beside the counter
/// event that says how many. Costs one read of shared memory when nobody waits.
pub fn subjects_settled(table: u32, subjects: impl IntoIterator<Item = impl AsRef<str>>) {
    if awaiters().is_some_and(|awaiters| !awaiters.is_empty()) {
        SETTLED.with(|settled| {
            let mut settled = settled.borrow_mut();
            for subject in subjects {
                settled.add(table, hash(subject.as_ref()));
            }
        });
    }
}

/// Has all who wait for documents of a table look when this transaction commits.
pub fn table_emptied(table: u32) {
    documents_settled(table, u32::MAX);
}

/// Wakes those who wait for documents that this transaction has settled. To be called after the
/// commit.
pub fn after_commit(database: u32) {
    SETTLED.with(|settled| {
        let mut settled = settled.borrow_mut();
        if settled.used == 0 {
            return;
        }
        if let Some(awaiters) = awaiters().filter(|awaiters| !awaiters.is_empty_now()) {
            settled.wake(awaiters, database);
        }
        settled.clear();
    });
}

/// Forgets what this transaction has settled. To be called after a rollback.
pub fn after_rollback() {
    SETTLED.with(|settled| settled.borrow_mut().clear());
}

/// This session as an awaiter of a document, until this is dropped.
pub struct Registration {
    awaiters: Awaiters<'static>,
    slot: usize,
}

impl Registration {
    /// Registers this session as an awaiter of a document of a table. Returns None without shared
    /// memory, when all slots are used, and on a standby, where nothing commits.
    pub fn new(table: u32, subject: &str) -> Option<Self> {
        if session::is_standby() {
            return None;
        }
        let awaiters = awaiters()?;
        let slot = awaiters.add(DocumentKey::new(session::database(), table, subject))?;
        SLOT.with(|own| *own.borrow_mut() = Some((awaiters, slot)));
        Some(Self { awaiters, slot })
    }

    /// Has the next commit that settles the document wake this session. To be called before the
    /// session looks at the document.
    pub fn arm(&self) {
        self.awaiters.arm(self.slot);
    }

    /// Returns whether a commit has woken this session since it was armed.
    pub fn is_woken(&self) -> bool {
        self.awaiters.is_woken(self.slot)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        release_slot();
    }
}

/// Gives the slot of this session back, if it has one. The exit of a session calls it too, because
/// a session may be terminated while it waits.
pub fn release_slot() {
    let own = SLOT.with(|slot| slot.borrow_mut().take());
    if let Some((awaiters, slot)) = own {
        awaiters.remove(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_told_from_what_is() {
        let mut settled = Settlements::new();
        settled.count(1, 2);
        settled.add(1, 10);
        settled.count(2, 1);
        settled.add(2, 20);
        let entries = |settled: &Settlements| {
            settled.tables[..settled.used]
                .iter()
                .map(|entry| (entry.table, entry.known < entry.settled))
                .collect::<Vec<_>>()
        };
        assert_eq!(entries(&settled), [(1, true), (2, false)]);
        settled.add(1, 11);
        assert_eq!(entries(&settled), [(1, false), (2, false)]);
        settled.count(2, u32::MAX);
        settled.count(2, u32::MAX);
        assert_eq!(entries(&settled), [(1, false), (2, true)]);
        for table in 3..=TABLES as u32 {
            settled.count(table, 1);
        }
        assert!(!settled.is_full);
        settled.count(99, 1);
        assert!(settled.is_full);
        settled.clear();
        assert!(settled.used == 0 && !settled.is_full && settled.documents.is_empty());
    }

    #[test]
    fn a_bulk_action_takes_bounded_memory() {
        let mut settled = Settlements::new();
        settled.count(1, 20_000);
        for n in 0..20_000 {
            settled.add(1, n);
        }
        assert_eq!(settled.documents.len(), DOCUMENTS);
        assert!(settled.tables[0].known < settled.tables[0].settled);
    }
}
